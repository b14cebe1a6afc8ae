"""What measurements of the whole engine share: a model from files, ids as text, a watch over the steps.

Knows `_ion` alone, so it runs wherever the module does.
"""

from __future__ import annotations

import argparse
import select
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ionrouter.engine import _ion

BLOCK = 16


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """What every such program is asked: the model, where it is computed, where figures go."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--blaslt", default="", help="path of libcublasLt.so")
    parser.add_argument("--json", type=Path)
    return parser


def open_model(path: Path, device: str, blaslt: str = "") -> Any:
    """Load a GGUF file or a folder of safetensors on `cpu` or `cuda`."""
    if path.is_file():
        on_card = device == "cuda"
        return _ion.CudaModel.load_gguf(str(path), 0, blaslt) if on_card else _ion.Model.load_gguf(str(path))
    shards, config = [str(shard) for shard in sorted(path.glob("*.safetensors"))], path / "config.json"
    if device == "cuda":
        return _ion.CudaModel.load_safetensors(shards, config.read_text(), 0, blaslt)
    return _ion.Model.load_safetensors(shards, config.read_text())


def make_engine(model: Any, **options: Any) -> _ion.Engine:
    """Start an engine whose text is the ids."""
    return _ion.Engine(model, [b"%d " % token for token in range(model.config["vocab_size"])], [], options)


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK)


@dataclass(frozen=True, slots=True)
class Step:
    """A step as the statistics told of it. `delay_s`: how much the host held it up."""

    number: int
    decode_rows: int
    prefill_tokens: int
    seconds: float
    predicted_s: float
    delay_s: float

    @property
    def is_mixed(self) -> bool:
        return self.decode_rows > 0 and self.prefill_tokens > 0

    @property
    def is_decode_only(self) -> bool:
        return self.decode_rows > 0 and self.prefill_tokens == 0


class Watch:
    """Waits for events and notes each step it sees the statistics of; a few come too fast to be seen."""

    def __init__(self, engine: _ion.Engine) -> None:
        self._engine = engine
        self.steps: list[Step] = []
        self._last = int(engine.stats()["steps"])

    def take_events(self, wait_s: float) -> Sequence[Any]:
        """Events that came within `wait_s` seconds."""
        ready = select.select([self._engine.event_fd], [], [], max(wait_s, 0.0))[0]
        events = self._engine.drain() if ready else []
        stats = self._engine.stats()
        if int(stats["steps"]) > self._last:
            self._last = int(stats["steps"])
            self.steps.append(
                Step(
                    self._last,
                    int(stats["last_decode_rows"]),
                    int(stats["last_prefill_chunk"]),
                    stats["last_step_s"],
                    stats["last_predicted_s"],
                    stats["last_step_delay_s"],
                )
            )
        return events


def percentile(values: Sequence[float], percent: float) -> float:
    """Of sorted values the one at that place; 0 of none."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] if ordered else 0.0
