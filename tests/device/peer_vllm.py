"""vLLM on the workloads of bench_workloads.py, to be run beside it on the same card; prints the same columns.

python tests/device/peer_vllm.py SHAPE [--precision fp8-kv8] [WORKLOAD ...]

Wants vLLM. Random weights, greedy, ends ignored, no detokenization, no prefix cache, at most 256 sequences. A
workload runs once unmeasured and then three times. A step: (all - the time for one token each) /
(tokens - 1).
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_workloads import MAX_RUNNING, MEASURED, parser_of, print_row, workloads
from drive import uncollected
from ion_cuda import Shape
from precisions import has_fp8_kv, matrix_precision
from shapes import JUDGED

from ionrouter.engine.random_model import config_of

MEMORY_SHARE = 0.88  # of the card
MAX_MODEL_LEN = 16384


def main() -> None:
    parser = parser_of(__doc__, has_library=False)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    args = parser.parse_intermixed_args()
    import vllm  # type: ignore[import-not-found]

    began, shape = time.perf_counter(), JUDGED[args.shape]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config_of(args.shape)))
        engine = vllm.LLM(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_RUNNING,
            gpu_memory_utilization=MEMORY_SHARE,
            enable_prefix_caching=False,
            disable_log_stats=True,
            quantization="fp8" if matrix_precision(args.precision) == "fp8" else None,
            kv_cache_dtype="fp8" if has_fp8_kv(args.precision) else "auto",
        )
    ready_s = time.perf_counter() - began
    print(f"vLLM {vllm.__version__}, {args.shape}, {args.precision}: ready in {ready_s:.0f} s")
    print("| workload | output tok/s | total tok/s | spread | first token s | step ms, host |")
    print("|---|--:|--:|--:|--:|--:|")
    rng = random.Random(2)
    for workload in workloads().values():
        if args.workloads and workload.name not in args.workloads:
            continue
        requests = workload.requests
        timed(vllm, engine, rng, shape, requests)
        walls = [timed(vllm, engine, rng, shape, requests) for _ in range(MEASURED)]
        first, step = "", ""
        if workload.name.startswith("batch"):
            ones = [(size, 1) for size, _ in requests]
            first_s = statistics.median(timed(vllm, engine, rng, shape, ones) for _ in range(MEASURED))
            first = f"{first_s:.4f}"
            step = f"{(statistics.median(walls) - first_s) / (requests[0][1] - 1) * 1e3:.3f}"
        print_row(workload, walls, first, step)


def timed(
    vllm: Any, engine: Any, rng: random.Random, shape: Shape, requests: Sequence[tuple[int, int]]
) -> float:
    """Seconds until every id of every answer is there."""
    prompts = [
        {"prompt_token_ids": [rng.randrange(shape.vocab_size) for _ in range(size)]} for size, _ in requests
    ]
    sampling = [
        vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        for _, count in requests
    ]
    with uncollected():
        began = time.perf_counter()
        answers = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
    assert [len(answer.outputs[0].token_ids) for answer in answers] == [count for _, count in requests]
    return seconds


if __name__ == "__main__":
    main()
