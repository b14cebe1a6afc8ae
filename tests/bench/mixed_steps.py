"""What long prompts do to those who decode, with the bound of mixed steps and without it.

python tests/bench/mixed_steps.py MODEL [--device cuda] [--decoding 32] [--prompt 8192] [--every 2.0]
    [--prompts 6] [--burst 256] [--json FILE]

`--decoding` sequences generate all the time; a prompt of `--prompt` random ids arrives every `--every`
seconds and gets 8 tokens. Printed for each bound (`max_mixed_step_ratio`; 0: none): mixed steps over the
decode-only steps nearest to them, and the prompts' first-token times. Then, the other way round, `--burst`
prompts of 128 tokens at once, 256 tokens each: tokens per second and first-token times.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from typing import Any

from ionrouter.engine import _ion
from tests.bench.engine_runs import Step, Watch, blocks_for, make_engine, open_model, parser_of, percentile

BOUNDS = (1.8, 0.0)
FEW = 8  # tokens of a long prompt's answer
NEAR = 10  # decode-only steps on each side that a mixed step is compared with


def random_ids(rng: random.Random, vocab_size: int, count: int) -> list[int]:
    return [rng.randrange(vocab_size) for _ in range(count)]


def ratios(steps: Sequence[Step]) -> list[float]:
    """Each mixed step over the median of the decode-only steps nearest before and behind it."""
    alone = [(i, step.seconds) for i, step in enumerate(steps) if step.is_decode_only]
    out, at = [], 0
    for i, step in enumerate(steps):
        while at < len(alone) and alone[at][0] < i:
            at += 1
        near = [seconds for _, seconds in alone[max(at - NEAR, 0) : at + NEAR]]
        if step.is_mixed and near:
            out.append(step.seconds / percentile(near, 50))
    return out


def beside_decoding(engine: _ion.Engine, args: argparse.Namespace, vocab_size: int) -> dict[str, Any]:
    """Prompts that arrive while others decode."""
    rng = random.Random(3)
    running = {
        engine.submit(random_ids(rng, vocab_size, 128), max_tokens=1 << 20, temperature=0.0, ignore_eos=True)
        for _ in range(args.decoding)
    }
    watch, begun = Watch(engine), set[int]()
    while len(begun) < len(running):
        begun |= {event[0] for event in watch.take_events(1.0)}
    until = time.perf_counter() + args.warm_up
    while time.perf_counter() < until:
        watch.take_events(0.1)
    watch.steps.clear()
    began, sent, firsts, ended = time.perf_counter(), dict[int, float](), dict[int, float](), 0
    while ended < args.prompts:
        now = time.perf_counter() - began
        if len(sent) < args.prompts and now >= len(sent) * args.every:
            prompt = random_ids(rng, vocab_size, args.prompt)
            began += time.perf_counter() - began - now  # making the prompt is not its wait
            sequence = engine.submit(prompt, max_tokens=FEW, temperature=0.0, ignore_eos=True)
            sent[sequence] = time.perf_counter()
        for sequence, _, flags, _, _, error, *_ in watch.take_events(0.05):
            if error:
                raise RuntimeError(error)
            if sequence in sent:
                firsts.setdefault(sequence, time.perf_counter() - sent[sequence])
                ended += (flags & 0xFF) != 0
    for sequence in running:
        engine.abort(sequence)
    return told(watch.steps, firsts)


def told(steps: Sequence[Step], firsts: dict[int, float]) -> dict[str, Any]:
    """The figures of one run."""
    found, mixed = ratios(steps), [step for step in steps if step.is_mixed]
    alone = [step.seconds for step in steps if step.is_decode_only]
    missed = steps[-1].number - steps[0].number + 1 - len(steps)
    off = [step.seconds / step.predicted_s - 1 for step in mixed if step.predicted_s]
    return {
        "mixed_steps": len(mixed),
        "missed_steps": missed,
        "ratio_p50": percentile(found, 50),
        "ratio_p90": percentile(found, 90),
        "ratio_p99": percentile(found, 99),
        "ratio_max": max(found, default=0.0),
        "above_bound": sum(ratio > BOUNDS[0] for ratio in found) / max(len(found), 1),
        "decode_only_p50_ms": 1e3 * percentile(alone, 50),
        "mixed_p50_ms": 1e3 * percentile([step.seconds for step in mixed], 50),
        "mixed_p99_ms": 1e3 * percentile([step.seconds for step in mixed], 99),
        "chunk_p50": percentile([step.prefill_tokens for step in mixed], 50),
        "chunk_max": max((step.prefill_tokens for step in mixed), default=0),
        "prediction_error_p50": percentile([abs(error) for error in off], 50),
        "prediction_error_p99": percentile([abs(error) for error in off], 99),
        "first_token_s": sorted(firsts.values()),
        "trace": [(s.decode_rows, s.prefill_tokens, round(1e3 * s.seconds, 3)) for s in mixed],
    }


def burst(engine: _ion.Engine, count: int, vocab_size: int) -> dict[str, float]:
    """All at once: how long until all have a first token, and until all have ended."""
    rng = random.Random(4)
    prompts = [random_ids(rng, vocab_size, 128) for _ in range(count)]
    watch, began, firsts = Watch(engine), time.perf_counter(), dict[int, float]()
    left = {engine.submit(ids, max_tokens=256, temperature=0.0, ignore_eos=True) for ids in prompts}
    while left:
        for sequence, _, flags, *_ in watch.take_events(1.0):
            if sequence in left:
                firsts.setdefault(sequence, time.perf_counter() - began)
            left -= {sequence} if flags & 0xFF else set()
    wall_s = time.perf_counter() - began
    return {
        "tokens_per_s": count * 256 / wall_s,
        "first_token_p50_s": percentile(list(firsts.values()), 50),
        "first_token_p99_s": percentile(list(firsts.values()), 99),
    }


def main() -> None:
    """Print a line a run."""
    parser = parser_of(__doc__)
    parser.add_argument("--decoding", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--every", type=float, default=2.0, help="seconds")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds before the first prompt")
    parser.add_argument("--burst", type=int, default=0, help="prompts at once; 0: none")
    args = parser.parse_args()
    model = open_model(args)
    vocab_size, context = model.config["vocab_size"], model.config["context_length"]
    room = min(args.prompt + 4096, context)
    blocks = max((args.decoding + 2) * blocks_for(room), args.burst * blocks_for(400))
    found: dict[str, Any] = {}
    for bound in BOUNDS:
        engine = make_engine(
            model,
            num_blocks=blocks,
            max_running=max(args.decoding + 2, args.burst),
            context_length=room,
            max_mixed_step_ratio=bound,
            prefix_cache=False,
        )
        found[f"bound {bound}"] = beside_decoding(engine, args, vocab_size)
        if args.burst:
            for _ in range(2):  # the first captures what the second replays
                found[f"burst, bound {bound}"] = burst(engine, args.burst, vocab_size)
        engine.close()
        for name, values in found.items():
            if name.endswith(str(bound)):
                print(name, json.dumps({k: v for k, v in values.items() if k != "trace"}), flush=True)
        if args.json:
            args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
