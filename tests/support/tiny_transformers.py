"""Random decoders of transformers, small enough for a test, and the files that they are saved as."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}


def made(family: str, **changes: Any) -> Any:
    """Make a model: "Llama", "Qwen2" ..., of SIZES but for what `changes` says. Seed torch before."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**SIZES | changes)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def with_weights(config: dict[str, Any], weights: Mapping[str, Any]) -> Any:
    """Make the Llama of a config.json with these tensors, by safetensors name; without a tied head."""
    import transformers

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    absent, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown and set(absent) <= ({"lm_head.weight"} if config["tie_word_embeddings"] else set())
    return model.eval()


def saved(model: Any, folder: Path) -> tuple[list[str], str]:
    """Save a model; returns the paths of its weights and the text of its config.json."""
    model.save_pretrained(folder)
    return [str(folder / "model.safetensors")], (folder / "config.json").read_text()
