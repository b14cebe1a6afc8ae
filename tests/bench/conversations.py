"""Many conversations of several turns over a small first KV tier: what the second tier brings back.

python tests/bench/conversations.py MODEL [--device cuda] [--conversations 256] [--turns 4] [--prompt 896]
    [--answer 128] [--running 64] [--think 1.0] [--share 0.25] [--json FILE]

Each turn's prompt is all that was said and `--prompt` new random ids; greedy answers of `--answer` tokens;
between turns a client thinks for half to one and a half times `--think` seconds. Runs, one after another, of
the same conversations: `uncapped`, with room for everybody's KV in the first tier; `tiered`, with `--share`
of it and a second tier for all; `control`, the same without the second tier; `oversubscribed`, with all
conversations running at once, nobody thinking, and a second tier of half their KV.

`answers_as_first`: conversations all of whose answers are the first run's. On a GPU bits may follow the
batch, and with random weights likely ids often are nearly alike: only `--deterministic` makes it a check.
"""

from __future__ import annotations

import heapq
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ionrouter.engine import _ion
from tests.bench.engine_runs import (
    BLOCK,
    Step,
    Watch,
    blocks_for,
    make_engine,
    open_model,
    parser_of,
    percentile,
)

RUNS = ("uncapped", "tiered", "control", "oversubscribed")
SILENCE_S = 60.0  # a run that says nothing for so long is taken for a deadlock


@dataclass(frozen=True, slots=True)
class Traffic:
    """How many talk, and how much."""

    conversations: int = 256
    turns: int = 4
    prompt: int = 896  # new tokens of a turn
    answer: int = 128
    running: int = 64
    think_s: float = 1.0
    share: float = 0.25
    seed: int = 1

    @property
    def num_blocks(self) -> int:
        """KV blocks of all conversations at their ends."""
        return self.conversations * blocks_for(self.turns * (self.prompt + self.answer))


@dataclass(slots=True)
class Talk:
    """One conversation: what was said, and who speaks."""

    said: list[int]
    rng: random.Random
    turn: int = 0
    text: bytes = b""
    answers: list[list[int]] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """What a run did. Of prompts after the first turn: `returning` tokens in whole blocks were said before,
    `cached` of them were found in either tier, `from_tier` in the second."""

    wall_s: float = 0.0
    generated: int = 0
    returning: int = 0
    cached: int = 0
    answers: list[list[list[int]]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def from_tier(self) -> int:
        return int(self.stats["tier_hit_tokens"])

    def summary(self, running: int) -> dict[str, float]:
        """Figures to print; steps are those that decode alone, for at least three quarters of `running`."""
        full = [s for s in self.steps if s.is_decode_only and s.decode_rows >= 0.75 * running]
        lost = max(self.returning - (self.cached - self.from_tier), 1)  # to the first tier
        return {
            "wall_s": self.wall_s,
            "generated_per_s": self.generated / self.wall_s,
            "prefilled": self.stats["tokens_prefilled"],
            "returning": self.returning,
            "cached": self.cached,
            "from_tier": self.from_tier,
            "cached_share": self.cached / max(self.returning, 1),
            "tier_share_of_lost": self.from_tier / lost,
            "preemptions": self.stats["preemptions"],
            "copies_out": self.stats["tier_copies_out"],
            "copies_in": self.stats["tier_copies_in"],
            "decode_steps_seen": len(full),
            "decode_step_p50_ms": 1e3 * percentile([s.seconds for s in full], 50),
            "decode_step_p99_ms": 1e3 * percentile([s.seconds for s in full], 99),
            "delay_p50_ms": 1e3 * percentile([s.delay_s for s in self.steps], 50),
            "delay_p99_ms": 1e3 * percentile([s.delay_s for s in self.steps], 99),
            "delay_max_ms": 1e3 * max((s.delay_s for s in self.steps), default=0.0),
            "steps": self.stats["steps"],
            "steps_delayed": self.stats["steps_delayed"],
            "step_seconds": self.stats["step_seconds"],
        }


class Conversations:
    """Clients who wait for an answer, think, and go on."""

    def __init__(self, engine: _ion.Engine, traffic: Traffic, vocab_size: int) -> None:
        self._engine, self._traffic, self._vocab_size = engine, traffic, vocab_size
        rngs = [random.Random(f"{traffic.seed} {i}") for i in range(traffic.conversations)]
        self._talks = [Talk([], rng) for rng in rngs]
        self._due = [(talk.rng.random() * traffic.think_s, i) for i, talk in enumerate(self._talks)]
        heapq.heapify(self._due)
        self._waiting: dict[int, int] = {}  # sequence: conversation
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Play every conversation to its end."""
        before, watch = self._engine.stats(), Watch(self._engine)
        began = heard_at = time.perf_counter()
        while self._due or self._waiting:
            now = time.perf_counter() - began
            while self._due and self._due[0][0] <= now:
                self._speak(heapq.heappop(self._due)[1])
            events = watch.take_events(min(self._due[0][0] - now, 1.0) if self._due else 1.0)
            for event in events:
                self._hear(event, time.perf_counter() - began)
            heard_at = time.perf_counter() if events or not self._waiting else heard_at
            if time.perf_counter() - heard_at > SILENCE_S:
                raise RuntimeError(f"no event for {SILENCE_S:.0f} s, {len(self._waiting)} sequences wait")
        out, after = self.outcome, self._engine.stats()
        out.wall_s, out.steps = time.perf_counter() - began, watch.steps
        out.stats = {name: after[name] - before[name] for name in after}
        out.answers = [talk.answers for talk in self._talks]
        return out

    def _speak(self, index: int) -> None:
        talk, traffic = self._talks[index], self._traffic
        self.outcome.returning += len(talk.said) // BLOCK * BLOCK
        talk.said += [talk.rng.randrange(self._vocab_size) for _ in range(traffic.prompt)]
        sequence = self._engine.submit(talk.said, max_tokens=traffic.answer, temperature=0.0, ignore_eos=True)
        self._waiting[sequence] = index

    def _hear(self, event: Sequence[Any], now: float) -> None:
        sequence, text, flags, _, num_cached, detail = event[:6]
        talk, traffic = self._talks[self._waiting[sequence]], self._traffic
        talk.text += text
        if not flags & 0xFF:
            return
        if flags & 0xFF == 4:
            raise RuntimeError(detail)
        answer = [int(word) for word in talk.text.split()]
        talk.text = b""
        talk.said += answer
        talk.answers.append(answer)
        talk.turn += 1
        self.outcome.generated += len(answer)
        self.outcome.cached += num_cached
        index = self._waiting.pop(sequence)
        if talk.turn < traffic.turns:
            heapq.heappush(self._due, (now + traffic.think_s * talk.rng.uniform(0.5, 1.5), index))


def options_of(run: str, traffic: Traffic, block_bytes: int) -> dict[str, Any]:
    """Engine options of one of RUNS."""
    capped = max(int(traffic.num_blocks * traffic.share), 1)
    host_blocks = {"tiered": traffic.num_blocks, "oversubscribed": traffic.num_blocks // 2}.get(run, 0)
    return {
        "num_blocks": traffic.num_blocks + traffic.running if run == "uncapped" else capped,
        "max_running": traffic.conversations if run == "oversubscribed" else traffic.running,
        "tier_bytes": host_blocks * block_bytes,
        # Room for a turn's last token and no more: what a runner keeps for a context is not what is measured.
        "context_length": BLOCK * blocks_for(traffic.turns * (traffic.prompt + traffic.answer) + 1),
    }


def converse(model: Any, run: str, traffic: Traffic, warm_up: bool = False, **more: Any) -> Outcome:
    """Play one of RUNS on an engine of its own."""
    options = options_of(run, traffic, model.config["kv_block_bytes"]) | more
    if run == "oversubscribed":
        traffic = replace(traffic, think_s=0.0)
    engine = make_engine(model, **options)
    try:
        if warm_up:
            _meet_every_batch(engine, options["max_running"])
        return Conversations(engine, traffic, model.config["vocab_size"]).run()
    finally:
        engine.close()


def _meet_every_batch(engine: _ion.Engine, running: int) -> None:
    """Answers of many lengths, twice: steps of every number of rows are captured and replayed."""
    for _ in range(2):
        left = {
            engine.submit([1, 2, 3], max_tokens=2 * i + 2, temperature=0.0, ignore_eos=True)
            for i in range(running)
        }
        watch = Watch(engine)
        while left:
            left -= {event[0] for event in watch.take_events(1.0) if event[2] & 0xFF}


def main() -> None:
    """Print a line of figures a run."""
    parser = parser_of(__doc__)
    for name in ("conversations", "turns", "prompt", "answer", "running"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Traffic(), name))
    parser.add_argument("--think", type=float, default=1.0, help="seconds")
    parser.add_argument("--share", type=float, default=0.25, help="of all KV, in the first tier")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS)
    parser.add_argument(
        "--deterministic", action="store_true", help="on a GPU: every run's answers are the first's"
    )
    args = parser.parse_args()
    traffic = Traffic(
        args.conversations, args.turns, args.prompt, args.answer, args.running, args.think, args.share
    )
    model = open_model(args)
    found: dict[str, Any] = {"traffic": asdict(traffic), "block_bytes": model.config["kv_block_bytes"]}
    whole: list[list[list[int]]] = []
    for run in args.runs:
        outcome = converse(model, run, traffic, warm_up=True, is_deterministic=args.deterministic)
        found[run] = outcome.summary(traffic.running)
        whole = whole or outcome.answers
        found[run]["answers_as_first"] = sum(a == b for a, b in zip(outcome.answers, whole, strict=True))
        print(run, json.dumps({name: round(value, 3) for name, value in found[run].items()}), flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
