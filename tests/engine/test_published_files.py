"""Small files of published models, as their makers have them but for sizes: they load, and end answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from ionrouter.engine.loading import EngineSettings, LoadedModel, load_model
from ionrouter.errors import ConfigError
from tests.support.tiny_model import write_tiny_folder
from tests.support.tiny_tokenizer import CHATML

Files = dict[str, dict[str, Any]]
SIZE = 463  # of the tiny vocabulary; ids of published files are brought below it
END, BEGIN, TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"  # ids 0, 1, 2


def _token(text: str, **more: Any) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": text, **flags, **more}


def _listed(first: int, *texts: str, special: bool = True) -> dict[str, Any]:
    return {str(first + i): _token(text, special=special) for i, text in enumerate(texts)}


_KNOWN = _listed(0, END, BEGIN, TURN)
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
_QWEN = {"attention_dropout": 0.0, "use_sliding_window": False, "initializer_range": 0.02, "use_mrope": False}
# The model's files, and the ids that end its answers.
PUBLISHED: dict[str, tuple[Files, set[int]]] = {
    "Llama 2": (
        {
            "config.json": _LLAMA
            | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
            | {"pretraining_tp": 1, "rope_scaling": None},
            "tokenizer_config.json": {
                "add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False,
                "bos_token": {"__type": "AddedToken"} | _token(BEGIN), "eos_token": _token(TURN),
                "legacy": False, "model_max_length": 1000000000000000019884624838656, "pad_token": None,
                "padding_side": "right", "sp_model_kwargs": {}, "unk_token": _token(END),
                "tokenizer_class": "LlamaTokenizer",
            },
            "generation_config.json": {
                "bos_token_id": 1, "do_sample": True, "eos_token_id": 2, "pad_token_id": 0,
                "temperature": 0.6, "max_length": 4096, "top_p": 0.9, "transformers_version": "4.32.0.dev0",
            },
        },
        {2},
    ),
    "Llama 3.2": (
        {
            "config.json": _LLAMA
            | {
                "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": [0, 2, 3],
                "rope_scaling": {
                    "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                    "original_max_position_embeddings": 8192, "rope_type": "llama3",
                },
            },
            "tokenizer_config.json": {
                "added_tokens_decoder": _KNOWN, "bos_token": BEGIN, "eos_token": TURN,
                "model_input_names": ["input_ids", "attention_mask"],
                "tokenizer_class": "PreTrainedTokenizerFast",
            },
            "generation_config.json": {"eos_token_id": [0, 2, 3], "do_sample": True, "top_p": 0.9},
        },
        {0, 2, 3},
    ),
    "Mistral 7B v0.1": (
        {
            "config.json": _LLAMA
            | {"model_type": "mistral", "sliding_window": 256, "head_dim": None}
            | {"bos_token_id": 1, "eos_token_id": 2},
            "tokenizer_config.json": {
                "add_bos_token": True, "add_eos_token": False, "additional_special_tokens": [],
                "added_tokens_decoder": _KNOWN, "bos_token": BEGIN, "eos_token": TURN, "pad_token": None,
                "spaces_between_special_tokens": False, "use_default_system_prompt": False,
            },
            "generation_config.json": {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2},
        },
        {2},
    ),
    "Qwen2.5": (
        {
            "config.json": _QWEN
            | {
                "model_type": "qwen2", "bos_token_id": 0, "eos_token_id": 2, "max_window_layers": 28,
                "sliding_window": 131072, "rope_theta": 1000000.0,
            },
            "tokenizer_config.json": {
                "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": _KNOWN,
                "additional_special_tokens": [BEGIN, TURN], "bos_token": None, "errors": "replace",
                "eos_token": TURN, "pad_token": END, "split_special_tokens": False, "unk_token": None,
            },
            "generation_config.json": {
                "bos_token_id": 0, "pad_token_id": 0, "do_sample": True, "eos_token_id": [2, 0],
                "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
            },
        },
        {0, 2},
    ),
    "DeepSeek distill": (
        {
            "config.json": _QWEN
            | {
                "model_type": "qwen2", "bos_token_id": 0, "eos_token_id": 0, "max_window_layers": 21,
                "sliding_window": 4096, "use_mrope": False,
            },
            "tokenizer_config.json": {
                "add_bos_token": True, "add_eos_token": False, "unk_token": None, "legacy": True,
                "bos_token": {"__type": "AddedToken"} | _token(BEGIN, normalized=True),
                "eos_token": {"__type": "AddedToken"} | _token(END, normalized=True),
                "pad_token": {"__type": "AddedToken"} | _token(END, normalized=True), "sp_model_kwargs": {},
            },
            "generation_config.json": {"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 0},
        },
        {0},
    ),
    "Falcon3, TinyLlama and others without generation_config.json": (
        {
            "config.json": _LLAMA | {"eos_token_id": [0, 3], "head_dim": 16, "rope_theta": 1000042},
            "tokenizer_config.json": {"eos_token": TURN, "bos_token": None},
        },
        {0, 2, 3},
    ),
    "a fine-tune whose added tokens are not in tokenizer.json": (
        {
            "config.json": _LLAMA | {"vocab_size": 465, "eos_token_id": 464, "bos_token_id": 1},
            "tokenizer_config.json": {
                "added_tokens_decoder": _KNOWN | _listed(463, "<|start_of_turn|>", "<|end_of_turn|>"),
                "bos_token": BEGIN, "eos_token": "<|end_of_turn|>",
            },
        },
        {464},
    ),
    "an older one": (
        {
            "config.json": _LLAMA | {"vocab_size": 465, "eos_token_id": 2},
            "tokenizer_config.json": {"bos_token": _token(BEGIN), "eos_token": _token(END)},
            "added_tokens.json": {"<|end_of_turn|>": 464, "<|start_of_turn|>": 463},
            "special_tokens_map.json": {"bos_token": BEGIN, "eos_token": "<|end_of_turn|>"},
            "generation_config.json": {"eos_token_id": 2},
        },
        {2, 464},
    ),
}  # fmt: skip
# Files that name what is not there: what the log says is ignored. Nobody's prompts or answers need it.
IGNORED: list[tuple[Files, str]] = [
    (
        {"tokenizer_config.json": {"bos_token": "<|startoftext|>"}},
        "tokenizer_config.json: bos_token: tokenizer.json has no token '<|startoftext|>'",
    ),
    (
        {"tokenizer_config.json": {"bos_token": _token("<s>"), "add_bos_token": False}},
        "tokenizer_config.json: bos_token: tokenizer.json has no token '<s>'",
    ),
    (
        {"tokenizer_config.json": {"eos_token": "</s>"}, "generation_config.json": {"eos_token_id": 2}},
        "tokenizer_config.json: eos_token: tokenizer.json has no token '</s>'",
    ),
    (
        {"generation_config.json": {"eos_token_id": [2, 128009]}},
        f"generation_config.json: eos_token_id: 128009 is outside the vocabulary of {SIZE}",
    ),
    (
        {"config.json": {"eos_token_id": 32000, "bos_token_id": 32001}},
        f"config.json: eos_token_id: 32000 is outside the vocabulary of {SIZE}",
    ),
]


def _write(folder: Path, files: Files) -> Path:
    write_tiny_folder(folder, vocab_size=files.get("config.json", {}).get("vocab_size"))
    for name, change in files.items():
        path = folder / name
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | change))
    return folder


def _load(folder: Path) -> LoadedModel:
    return load_model(EngineSettings(str(folder)), cache=folder.parent, progress=False)


@pytest.mark.parametrize(("files", "ends"), PUBLISHED.values(), ids=PUBLISHED)
def test_files_as_published_load_and_end_answers(tmp_path: Path, files: Files, ends: set[int]) -> None:
    with capture_logs() as logs:
        loaded = _load(_write(tmp_path / "model", files))
    assert set(loaded.tokenizer.stop_ids) == ends
    assert not [entry for entry in logs if entry["event"] == "token_ignored"]


@pytest.mark.parametrize(("files", "told"), IGNORED)
def test_a_token_that_is_not_there_is_told_and_ignored(tmp_path: Path, files: Files, told: str) -> None:
    with capture_logs() as logs:
        tokenizer = _load(_write(tmp_path / "model", files)).tokenizer
    assert [entry["reason"] for entry in logs if entry["event"] == "token_ignored"] == [told]
    assert tokenizer.stop_ids == (2,) and tokenizer.bos_id is None
    assert tokenizer.encode("the", add_bos=True) == tokenizer.encode("the")


def test_names_of_added_tokens_that_the_vocabulary_lacks_are_text(tmp_path: Path) -> None:
    decoder = _KNOWN | _listed(SIZE, "[PAD]") | _listed(SIZE + 1, "<mark>", "<mask>", special=False)
    template = CHATML + "{# <mask> #}"
    named = {"added_tokens_decoder": decoder, "eos_token": END, "chat_template": template}
    files = {"tokenizer_config.json": named}
    with capture_logs() as logs:
        tokenizer = _load(_write(tmp_path / "model", files)).tokenizer
    (told,) = [entry["reason"] for entry in logs if entry["event"] == "token_ignored"]
    assert told == f"tokens '<mark>', '[PAD]': outside the vocabulary of {SIZE}"
    text = "a [PAD] <mark>"
    for ids in (tokenizer.encode(text), tokenizer.encode_template(text), tokenizer.encode_continuation(text)):
        assert max(ids) < SIZE and tokenizer.text_of(ids) == text
    assert max(tokenizer.encode("<mask>")) >= SIZE, "its prompts stay an error: the template writes it"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"tokenizer_config.json": {"eos_token": "</s>"}}, "'</s>', and nothing else ends answers"),
        (
            {"tokenizer_config.json": {"eos_token": None}, "config.json": {"eos_token_id": SIZE}},
            f"config.json: eos_token_id: {SIZE} is outside the vocabulary of {SIZE}, and nothing else ends",
        ),
        (
            {"tokenizer_config.json": {"bos_token": "<s>", "add_bos_token": True}},
            "bos_token: tokenizer.json has no token '<s>', and prompts are to begin with it",
        ),
    ],
)
def test_what_prompts_or_answers_need_ends_the_load(tmp_path: Path, files: Files, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _load(_write(tmp_path / "model", files))
    assert told in str(refused.value)


def test_config_json_says_nothing_beside_a_generation_config(tmp_path: Path) -> None:
    files: Files = {"config.json": {"eos_token_id": 0}, "generation_config.json": {"eos_token_id": 3}}
    assert _load(_write(tmp_path / "model", files)).tokenizer.stop_ids == (2, 3)


def test_added_tokens_are_what_the_template_writes_and_never_what_users_type(tmp_path: Path) -> None:
    files, _ = PUBLISHED["a fine-tune whose added tokens are not in tokenizer.json"]
    tokenizer = _load(_write(tmp_path / "model", files)).tokenizer
    assert tokenizer.encode_template("<|start_of_turn|>the<|end_of_turn|>")[::2] == [463, 464]
    assert not {463, 464} & set(tokenizer.encode("<|start_of_turn|>the<|end_of_turn|>"))


def test_a_token_of_the_vocabulary_that_only_tokenizer_config_calls_special_is_special(
    tmp_path: Path,
) -> None:
    folder = _write(tmp_path / "model", {"tokenizer_config.json": {"added_tokens_decoder": _KNOWN}})
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] != TURN]
    data["model"]["vocab"][TURN] = 2
    (folder / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = _load(folder).tokenizer
    assert tokenizer.encode_template(f"the{TURN}")[-1] == 2
    assert 2 not in tokenizer.encode(f"the{TURN}")
