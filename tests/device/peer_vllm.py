"""vLLM on the workloads of bench_workloads.py, to be run beside it on the same card; prints the same columns.

python tests/device/peer_vllm.py SHAPE [--precision fp8] [WORKLOAD ...]

Wants vLLM. Random weights, greedy, ends ignored, no detokenization, no prefix cache, at
most 256 sequences. A workload runs once unmeasured and then three times. A step: (all - the time for one
token each) / (tokens - 1).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_workloads import BUDGET, CONTEXT, MAX_RUNNING, MEASURED, Workload, workloads
from drive import uncollected
from ion_cuda import PRECISIONS, Shape
from shapes import JUDGED

# What the shapes' own files say beside their sizes.
FAMILIES = {
    "qwen2.5-7b": ("Qwen2ForCausalLM", "qwen2"),
    "llama-3.1-8b": ("LlamaForCausalLM", "llama"),
    "qwen3-0.6b": ("Qwen3ForCausalLM", "qwen3"),
}
MEMORY_SHARE = 0.88  # of the card


def model_config(name: str, shape: Shape) -> dict[str, Any]:
    """config.json as Hugging Face has it."""
    architecture, kind = FAMILIES[name]
    return {
        "architectures": [architecture],
        "model_type": kind,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": 2 * CONTEXT,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.rms_eps,
        "tie_word_embeddings": shape.is_head_tied,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=FAMILIES)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    args = parser.parse_intermixed_args()
    import vllm  # type: ignore[import-not-found]

    began, shape = time.perf_counter(), JUDGED[args.shape]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(model_config(args.shape, shape)))
        engine = vllm.LLM(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            max_model_len=2 * BUDGET,
            max_num_seqs=MAX_RUNNING,
            gpu_memory_utilization=MEMORY_SHARE,
            enable_prefix_caching=False,
            disable_log_stats=True,
            quantization="fp8" if args.precision == "fp8" else None,
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
        row(workload, walls, first, step)


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


def row(workload: Workload, walls: list[float], first: str, step: str) -> None:
    """One line of the table."""
    wall = statistics.median(walls)
    rates = (workload.num_out / wall, (workload.num_in + workload.num_out) / wall)
    spread = (max(walls) - min(walls)) / wall
    cells = (workload.name, *(f"{rate:,.1f}" for rate in rates), f"{spread:.3f}", first, step)
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
