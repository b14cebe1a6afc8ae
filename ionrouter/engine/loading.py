"""From a `weights:` value to everything one model needs to run. Blocking: for a thread.

Knows files and their metadata; knows no requests and starts no engine.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from ionrouter.engine import weights
from ionrouter.engine.device import Device, DeviceKind, choose_device, cublas_lt_path
from ionrouter.engine.kv_memory import TooLittleMemory
from ionrouter.engine.random_model import matrix_bytes
from ionrouter.engine.regular_file import read_text
from ionrouter.engine.shards import shards_of
from ionrouter.engine.sources import RandomModel, parse_source
from ionrouter.errors import ConfigError

_log = structlog.get_logger(__name__)

if TYPE_CHECKING:  # they bring tokenizers and jinja2: imported where a model loads, not where a server starts
    from ionrouter.engine.chat_template import ChatTemplate
    from ionrouter.engine.tokenizer import Tokenizer

Read = TypeVar("Read")

PRECISIONS = ("precision", "head_precision", "kv_precision")  # settings, and what came of them


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What distinguishes one engine from another: equal settings share one."""

    weights: str
    sha256: str | None = None
    numerics: str = "fast"  # or deterministic, which differs from it on a GPU alone, or exact
    device: str = "auto"  # or cpu, cuda
    precision: str = "auto"  # of a GPU's matrices: as the files hold them; or bf16, fp8
    head_precision: str = "bf16"  # of a GPU's head; or fp8
    kv_precision: str = "bf16"  # of a GPU's KV cache; or fp8
    kv_memory_bytes: int | None = None
    max_running: int = 64
    max_mixed_step_ratio: float | None = None  # None: the device's own
    threads: int | None = None
    kv_tier_bytes: int = 0
    kv_tier_folder: str = ""  # empty: the second KV tier is memory
    unload_when_idle: bool = False
    place: str = field(default="", compare=False)  # in routes.yaml, for messages: "models.m.endpoints[0]"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights in memory with the tokenizer and template that belong to them."""

    model: Any  # _ion.Model or _ion.CudaModel
    device: Device
    config: Mapping[str, Any]
    tokenizer: Tokenizer
    template: ChatTemplate | None
    identity: str  # tells cached KV of different weights apart
    precision: str | None = None  # of a GPU's matrices: bf16 or fp8
    head_precision: str | None = None  # of a GPU's head: bf16 or fp8
    kv_precision: str | None = None  # of a GPU's KV cache: bf16 or fp8


def load_model(settings: EngineSettings, *, cache: Path, progress: bool) -> LoadedModel:
    """Fetch if needed and load; raises ConfigError naming the source and the fault."""
    device = device_of(settings)  # what cannot be had is said before anything is fetched
    return load_from(fetch_weights(settings, cache=cache, progress=progress), settings, device)


def fetch_weights(settings: EngineSettings, *, cache: Path, progress: bool) -> Path:
    """Return the file or folder, fetched if needed; raises ConfigError."""
    return weights.fetch(settings.weights, settings.sha256, cache=cache, progress=progress)


def weight_bytes(settings: EngineSettings, cache: Path) -> int:
    """Say what the files on this machine take, about what the loaded weights will; 0 if none are here yet."""
    source = parse_source(settings.weights)
    try:
        if isinstance(source, RandomModel):
            return matrix_bytes(source.shape)
        path = weights.locate(settings.weights, cache)
        if path is None:
            return 0
        files = shards_of(path) if path.is_dir() else [path]
    except ConfigError:  # it will not load either
        return 0
    return sum(file.stat().st_size for file in files)


def device_of(settings: EngineSettings) -> Device:
    """Choose where to compute; raises ConfigError naming the place in routes.yaml."""
    return choose_device(
        settings.device,
        numerics=settings.numerics,
        kv_tier_folder=settings.kv_tier_folder,
        fp8=[name for name in PRECISIONS if getattr(settings, name) == "fp8"],
        place=settings.place,
    )


def planned_device(settings: EngineSettings) -> DeviceKind:
    """Say whose memory a model takes or would take."""
    try:
        return device_of(settings).kind
    except ConfigError:
        return "cuda"


def load_from(path: Path, settings: EngineSettings, device: Device) -> LoadedModel:
    """Load a file or folder; raises ConfigError naming the fault, TooLittleMemory if it does not fit."""
    ion = _extension()
    try:  # what follows names tensors and metadata keys, not the file
        return _load_folder(path, settings, device) if path.is_dir() else _load_gguf(path, settings, device)
    except ion.MemoryShort as error:
        raise TooLittleMemory(f"{settings.weights}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{settings.weights}: {error}") from error
    except MemoryError as error:
        raise ConfigError(f"{settings.weights}: not enough memory for the weights") from error
    except ConfigError as error:
        raise ConfigError(f"{settings.weights}: {error}") from error


def _extension() -> Any:
    try:
        from ionrouter.engine import _ion
    except ImportError as error:
        raise ConfigError(f"the engine is not built: {error}; run `pip install .`") from error
    return _ion


def _load_gguf(path: Path, settings: EngineSettings, device: Device) -> LoadedModel:
    from ionrouter.engine import tokenizer as tokenizers

    ion = _extension()
    metadata = ion.gguf_metadata(str(path))
    if isinstance(parts := metadata.get("split.count"), int) and parts > 1:
        raise ConfigError(
            f"split.count: this is one of {parts} files that a GGUF file was split into; join them first "
            f"(llama.cpp: llama-gguf-split --merge)"
        )

    def load() -> Any:
        threads = settings.threads or 0
        if device.kind == "cuda":
            return _on_cuda(ion.CudaModel.load_gguf, settings, str(path), threads)
        return ion.Model.load_gguf(str(path), settings.numerics, threads)

    tokenizer, model = _beside(lambda: _read("tokenizer.ggml", lambda: tokenizers.from_gguf(metadata)), load)
    return _loaded(model, tokenizer, path, settings, device)


def _beside(read_tokenizer: Callable[[], Tokenizer], load: Callable[[], Any]) -> tuple[Tokenizer, Any]:
    """Read the tokenizer while the weights load: a large vocabulary takes as long. Its fault comes first."""

    def read() -> Tokenizer:
        with _uncollected():
            return read_tokenizer()

    with ThreadPoolExecutor(1, "ion-tokenizer") as threads:
        tokenizer = threads.submit(read)
        try:
            model = load()
        except Exception:
            tokenizer.result()
            raise
        return tokenizer.result(), model


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: of half a million objects that stay it would go through all, again and again."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:  # else who turned it off turns it on
            gc.enable()


def _load_folder(path: Path, settings: EngineSettings, device: Device) -> LoadedModel:
    from ionrouter.engine import tokenizer as tokenizers

    tokenizer, model = _beside(
        lambda: _read("tokenizer.json", lambda: tokenizers.from_folder(path)),
        lambda: _folder_model(path, settings, device),
    )
    return _loaded(model, tokenizer, path, settings, device)


def _folder_model(path: Path, settings: EngineSettings, device: Device) -> Any:
    ion, threads = _extension(), settings.threads or 0
    source = parse_source(settings.weights)
    shards = [] if isinstance(source, RandomModel) else [str(shard) for shard in shards_of(path)]
    config_path = path / "config.json"
    try:
        config_json = read_text(config_path)
    except FileNotFoundError:
        raise ConfigError("the folder has no config.json") from None
    if isinstance(source, RandomModel):
        return _random(source, config_json, settings, device)
    if device.kind == "cuda":
        return _on_cuda(ion.CudaModel.load_safetensors, settings, shards, config_json, threads)
    return ion.Model.load_safetensors(shards, config_json, settings.numerics, threads)


def _random(source: RandomModel, config_json: str, settings: EngineSettings, device: Device) -> Any:
    ion, threads = _extension(), settings.threads or 0
    if device.kind == "cuda":
        return _on_cuda(ion.CudaModel.random, settings, config_json, source.seed, threads)
    return ion.Model.random(config_json, source.seed, settings.numerics, threads)


def _on_cuda(load: Callable[..., Any], settings: EngineSettings, *files_and_threads: Any) -> Any:
    try:
        precisions = {name: getattr(settings, name) for name in PRECISIONS}
        return load(*files_and_threads, cublas_lt_path(), **precisions)
    except RuntimeError as error:  # of the GPU; what is wrong with the files is a ValueError
        raise ConfigError(str(error)) from error


def _read(where: str, read: Callable[[], Read]) -> Read:
    """Read a part of the files; a value of a kind that its reader never met is the file's fault."""
    try:
        return read()
    except ConfigError:
        raise
    except Exception as error:  # of the tokenizers library, too, which raises no narrower class
        raise ConfigError(f"{where}: malformed: {type(error).__name__}: {error}") from error


def _template_of(tokenizer: Tokenizer) -> ChatTemplate | None:
    if not tokenizer.chat_template:
        return None
    from ionrouter.engine.chat_template import ChatTemplate

    return ChatTemplate(
        tokenizer.chat_template,
        bos_token=tokenizer.text_of_special(tokenizer.bos_id),
        eos_token=tokenizer.text_of_special(tokenizer.eos_id),
        special_texts=tokenizer.special_texts,
    )


def _numerics_on_cuda(model: Any, settings: EngineSettings) -> str:
    """Name what decides the bits of KV on a GPU: "cuda-bf16-kv-fp8". The head writes none."""
    kv = "-kv-fp8" if model.kv_precision == "fp8" else ""
    return f"cuda-{model.precision}{kv}" + ("-deterministic" if settings.numerics == "deterministic" else "")


def _loaded(
    model: Any, tokenizer: Tokenizer, path: Path, settings: EngineSettings, device: Device
) -> LoadedModel:
    from ionrouter.engine.tokenizer import usable

    tokenizer, lost = usable(tokenizer, int(model.config["vocab_size"]))
    for reason in lost:
        _log.warning("token_ignored", weights=settings.weights, reason=reason)
    template = _read("chat template", lambda: _template_of(tokenizer))
    is_cuda = device.kind == "cuda"
    numerics = _numerics_on_cuda(model, settings) if is_cuda else settings.numerics
    what = settings.weights if settings.weights.startswith("random:") else path.resolve()
    identity = f"{settings.sha256 or what}:{numerics}"
    precisions = {name: getattr(model, name) for name in PRECISIONS} if is_cuda else {}
    return LoadedModel(model, device, model.config, tokenizer, template, identity, **precisions)
