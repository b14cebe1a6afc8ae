"""Layers that see a window of positions, as transformers computes them, however a prompt is cut in steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as TensorType

from ionrouter.engine import _ion
from ionrouter.engine.reference import Reference
from tests.engine.test_numerics import assert_greedy_equals, logits_of, prompt_of, relative_error
from tests.support import tiny_transformers
from tests.support.ion_engine import generate, make_engine
from tests.support.tiny_llama import TinyLlama, write_gguf

TOLERANCE = 1e-4
# Around the windows below, blocks (16) and attention tiles (128).
LENGTHS = (1, 2, 15, 16, 17, 23, 24, 25, 40, 127, 128, 129, 150, 256, 257, 300)

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral_in_a_block": ("Mistral", {"sliding_window": 7}),
    "mistral_across_blocks": ("Mistral", {"sliding_window": 24}),
    "mistral_across_tiles": ("Mistral", {"sliding_window": 150}),
    "mistral_wider_than_the_context": ("Mistral", {"sliding_window": 4096}),
    "qwen2_from_a_layer_on": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen2_switched_off": ("Qwen2", {"use_sliding_window": False, "sliding_window": 24}),
    "qwen3_by_layer": (
        "Qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 40,
            "head_dim": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}


def model_of(folder: Path, family: str) -> tuple[Any, list[str], str]:
    """Save a random model of transformers; return it, its weights and the text of its config.json."""
    torch.manual_seed(6)
    kind, changes = FAMILIES[family]
    theirs = tiny_transformers.made(kind, attn_implementation="eager", **changes)
    return theirs, *tiny_transformers.saved(theirs, folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers_over_prompts_that_cross_the_window(tmp_path: Path, family: str) -> None:
    theirs, paths, text = model_of(tmp_path, family)
    ours, reference = (
        _ion.Model.load_safetensors(paths, text, "exact"),
        Reference.from_safetensors(paths, text),
    )
    for length in LENGTHS:
        prompt = prompt_of(length, 211)
        with torch.inference_mode():
            wanted = theirs(torch.tensor([prompt])).logits[0]
        assert relative_error(logits_of(ours, prompt), wanted) < TOLERANCE, length
        assert relative_error(reference.logits(prompt).numpy(), wanted) < TOLERANCE, length


def test_files_without_a_layer_list_mean_the_same(tmp_path: Path) -> None:
    """Qwen2's files as published name the first layer that slides; transformers now writes every layer."""
    _, paths, text = model_of(tmp_path, "qwen2_from_a_layer_on")
    config = json.loads(text)
    assert config.pop("layer_types") == ["full_attention", "sliding_attention", "sliding_attention"]
    older = _ion.Model.load_safetensors(paths, json.dumps(config), "exact")
    assert older.config["windows"] == [0, 24, 24]
    prompt = prompt_of(100, 211)
    newer = _ion.Model.load_safetensors(paths, text, "exact")
    assert (logits_of(older, prompt) == logits_of(newer, prompt)).all()


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("chunk", [1, 7, 16, 100])
def test_any_chunks_give_the_same_bits(tmp_path: Path, numerics: str, chunk: int) -> None:
    _, paths, text = model_of(tmp_path, "mistral_across_blocks")
    model = _ion.Model.load_safetensors(paths, text, numerics)
    prompt = prompt_of(300, 211)
    assert (logits_of(model, prompt, chunk) == logits_of(model, prompt)).all()


def gguf_of(path: Path, window: int | None) -> Path:
    shape = TinyLlama()
    write_gguf(path, shape, shape.weights(4), TensorType.F32, llama__attention__sliding_window=window)
    return path


def test_a_gguf_files_window_is_used(tmp_path: Path) -> None:
    path, without = gguf_of(tmp_path / "x.gguf", 24), gguf_of(tmp_path / "y.gguf", None)
    model = _ion.Model.load_gguf(str(path), "exact")
    prompt = prompt_of(200, 199)
    reference = Reference.from_gguf(path)
    assert relative_error(logits_of(model, prompt), reference.logits(prompt)) < TOLERANCE
    whole = Reference.from_gguf(without).logits(prompt)
    ours = logits_of(model, prompt)
    assert relative_error(ours[:24], whole[:24]) < TOLERANCE, "the first 24 positions see everything"
    assert np.abs(ours[24:] - whole.numpy()[24:]).max() > 1e-2


def test_answers_beyond_the_window_equal_the_reference_after_chunks_preemption_and_hits(
    tmp_path: Path,
) -> None:
    path = gguf_of(tmp_path / "x.gguf", 24)
    model, reference = _ion.Model.load_gguf(str(path), "exact"), Reference.from_gguf(path)
    prompts = [prompt_of(length, 199, 3) for length in (1, 2, 3, 5, 9, 20, 130)]
    # 13 blocks take in six short prompts; their windows of 24, in three blocks each, are more.
    engine = make_engine(model, num_blocks=13, token_budget=32)
    first, again = (generate(engine, prompts, max_tokens=64) for _ in range(2))
    for _ in range(2):
        assert generate(engine, prompts[-1:], max_tokens=64)[0].tokens == first[-1].tokens
    stats = engine.stats()
    engine.close()
    assert stats["preemptions"] > 0 and stats["prefix_hit_tokens"] > 0 and stats["prefill_splits"] > 0
    for prompt, answer, repeated in zip(prompts, first, again, strict=True):
        assert (len(answer.ids), answer.finish) == (64, 2)
        assert answer.tokens == repeated.tokens
        assert_greedy_equals(reference, prompt, answer.ids)


def test_decoding_holds_no_more_blocks_than_its_window(tmp_path: Path) -> None:
    """Six answers of 180 tokens take 78 blocks where every layer sees all, 18 with windows of 24."""
    engine_blocks, prompts = 30, [prompt_of(20, 199, seed) for seed in range(6)]
    answers, preemptions = {}, {}
    for window in (24, None):
        path = gguf_of(tmp_path / f"{window}.gguf", window)
        for num_blocks in (engine_blocks, 200):
            model = _ion.Model.load_gguf(str(path), "exact")
            engine = make_engine(model, num_blocks=num_blocks, token_budget=64, max_running=6)
            answers[window, num_blocks] = generate(engine, prompts, max_tokens=180)
            preemptions[window, num_blocks] = engine.stats()["preemptions"]
            engine.close()
        assert answers[window, engine_blocks] == answers[window, 200]
    assert preemptions[None, engine_blocks] > 0, "the load was too light"
    assert preemptions[24, engine_blocks] == 0
