"""Ion on the CPU: prefill and decode rates of a GGUF model, through the whole engine.

python tests/bench/engine_cpu.py MODEL.gguf [--numerics fast] [--threads 0] [--prompt 512] [--new 128]

Prompts are random ids, greedy, end tokens ignored, no prefix cache. Per number of sequences: `prefill` is
prompt tokens per second until every sequence has its first token; `decode` is tokens per second of all
sequences from then until the first one ends. Best of the runs; the load average says how quiet it was.
ION_ISA=avx2 or scalar in the environment lowers the instruction set.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ionrouter.engine import _ion


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second of one run."""

    prefill: float
    decode: float


def run(engine: _ion.Engine, prompts: Sequence[Sequence[int]], num_new: int) -> Rates:
    """Submit all prompts at once and time their tokens."""
    begin = time.perf_counter()
    counts = dict.fromkeys(
        (engine.submit(prompt, max_tokens=num_new, temperature=0.0, ignore_eos=True) for prompt in prompts), 0
    )
    started_at, started_tokens = 0.0, 0
    ended_at, ended_tokens = 0.0, 0
    num_left = len(counts)
    while num_left:
        select.select([engine.event_fd], [], [])
        now = time.perf_counter()
        for sequence, _, flags, _, _, error, *_ in engine.drain():
            if error:
                raise RuntimeError(error)
            counts[sequence] += flags >> 8
            num_left -= (flags & 0xFF) != 0
        if not started_at and all(counts.values()):
            started_at, started_tokens = now, sum(counts.values())
        if not ended_at and max(counts.values()) >= num_new:
            ended_at, ended_tokens = now, sum(counts.values())
    prefill = sum(map(len, prompts)) / (started_at - begin)
    return Rates(prefill, (ended_tokens - started_tokens) / max(ended_at - started_at, 1e-9))


def main() -> None:
    """Print one line per number of sequences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--numerics", default="fast")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens generated for each")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    args = parser.parse_args()

    begin = time.perf_counter()
    model = _ion.Model.load_gguf(args.model, args.numerics, args.threads)
    print(f"loaded in {time.perf_counter() - begin:.2f} s, {model.weight_bytes / 1e6:.0f} MB of weights")
    print(f"{args.numerics}, {args.prompt} prompt + {args.new} new tokens, load {os.getloadavg()[0]:.1f}")
    vocab_size = model.config["vocab_size"]
    rng = random.Random(1)
    for num_sequences in args.sequences:
        blocks = num_sequences * (-(-(args.prompt + args.new) // 16) + 1)
        options = {"num_blocks": blocks, "prefix_cache": False, "max_running": 64}
        options["max_mixed_step_ratio"] = 0.0  # as a server has it on the CPU
        engine = _ion.Engine(model, [b"x"] * vocab_size, [], options)
        prompts = [[rng.randrange(vocab_size) for _ in range(args.prompt)] for _ in range(num_sequences)]
        runs = [run(engine, prompts, args.new) for _ in range(args.runs)]
        engine.close()
        prefill, decode = max(r.prefill for r in runs), max(r.decode for r in runs)
        print(f"{num_sequences:3} sequences: prefill {prefill:6.1f} tok/s, decode {decode:6.1f} tok/s")


if __name__ == "__main__":
    main()
