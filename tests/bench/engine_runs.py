"""What measurements of the whole engine share: a model of files or a seed, ids as text, a watch on steps."""

from __future__ import annotations

import argparse
import json
import select
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ionrouter.engine import _ion
from ionrouter.engine.loading import PRECISIONS
from ionrouter.engine.random_model import config_of
from ionrouter.engine.sources import RandomModel, parse_source

BLOCK = 16


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """What every such program is asked: the model, where it is computed, where figures go."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", help="a GGUF file, a folder of safetensors, or random weights: random:SHAPE?seed=N"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    for name in PRECISIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", choices=("bf16", "fp8"), help="of a GPU")
    parser.add_argument("--blaslt", default="", help="path of libcublasLt.so")
    parser.add_argument("--json", type=Path)
    return parser


def open_model(args: argparse.Namespace) -> Any:
    """Load what parser_of's arguments name."""
    on_card = args.device == "cuda"
    kind, own = (_ion.CudaModel, (0, args.blaslt)) if on_card else (_ion.Model, ())
    given = {name: getattr(args, name) for name in PRECISIONS if getattr(args, name) is not None}
    if given and not on_card:
        raise SystemExit(f"{', '.join(given)}: of a GPU alone, --device cuda")
    source, path = parse_source(args.model), Path(args.model)
    if isinstance(source, RandomModel):
        return kind.random(json.dumps(config_of(source.shape)), source.seed, *own, **given)
    if path.is_file():
        return kind.load_gguf(str(path), *own, **given)
    shards, config = [str(shard) for shard in sorted(path.glob("*.safetensors"))], path / "config.json"
    return kind.load_safetensors(shards, config.read_text(), *own, **given)


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
