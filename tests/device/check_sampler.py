"""The CUDA sampler against a float64 reference: every parameter alone and mixed, ties, masks; then its times.

nvcc -std=c++20 -O3 -Iengine_ext -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=sm_80 \\
    -Xcompiler -fPIC -shared -o sampler.so tests/device/shims_sampler.cu engine_ext/kernels/cuda/sampler.cu
python tests/device/check_sampler.py ./sampler.so

A check returns what it saw, or raises AssertionError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from sampler_device import PENALTIES, POISON, Batch, CArgs, Sampler
from sampler_reference import Request, expect
from sampler_requests import Options, alone, mixed, request_of

VOCABS = (1000, 32003, 151936, 152064)


def fault_of(request: Request, got: np.void) -> tuple[str, bool]:
    """What is wrong with a sample ("": nothing), and whether it was right only by a near boundary."""
    wanted = expect(request)
    if bool(got["is_finite"]) != wanted.is_finite or int(got["is_finite"]) not in (0, 1):
        return f"is_finite {got['is_finite']}", False
    if int(got["id"]) not in wanted.may_be:
        return f"id {got['id']}, wanted {wanted.id}", False
    num_top = int(got["num_top"])
    if num_top != len(wanted.top) or got["top_ids"][:num_top].tolist() != wanted.top:
        return f"top {got['top_ids'][:num_top].tolist()}, wanted {wanted.top}", False
    logprobs = [(float(got["logprob"]), 0.0)]
    if wanted.logprobs is not None:
        pairs = zip(got["top_logprobs"], wanted.top, strict=False)
        logprobs = [(float(x), float(wanted.logprobs[i])) for x, i in pairs]
        logprobs.append((float(got["logprob"]), wanted.logprobs[got["id"]] if got["id"] >= 0 else 0.0))
    worst = max(abs(a - b) for a, b in logprobs)
    if not worst <= 1e-5:
        return f"logprobs off by {worst:.2e}", False
    if got["top_ids"][num_top:].any() or got["top_logprobs"][num_top:].any():
        return "entries behind num_top are not 0", False
    return "", int(got["id"]) != wanted.id


def compare(sampler: Sampler, requests: Sequence[Request | None]) -> str:
    samples = Batch(sampler, requests).run()
    near, num_rows = 0, 0
    for i, request in enumerate(requests):
        if request is None:
            continue
        fault, is_near = fault_of(request, samples[i])
        options = {k: v for k, v in vars(request).items() if isinstance(v, int | float)}
        assert not fault, f"row {i}: {fault}; {options}"
        near, num_rows = near + is_near, num_rows + 1
    assert near <= max(2, num_rows // 50), f"{near} of {num_rows} rows were right by a near boundary only"
    return f"{num_rows} rows, {near} at a boundary"


def check_alone(sampler: Sampler, vocab: int) -> str:
    rng = np.random.default_rng(vocab)
    rows: list[Request | None] = [request_of(rng, vocab, options) for options in alone()]
    return compare(sampler, [*rows[:5], None, *rows[5:], None])


def check_mixed(sampler: Sampler, vocab: int, num_rows: int) -> str:
    rng = np.random.default_rng(vocab + 1)
    return compare(sampler, [request_of(rng, vocab, mixed(rng)) for _ in range(num_rows)])


def check_masked(sampler: Sampler, vocab: int) -> str:
    """One allowed id, none, and none that the stop ids leave: -1."""
    rng = np.random.default_rng(vocab + 2)
    several: list[Options] = [{}, {"top_k": 2}, {"top_p": 0.5, "num_logprobs": 3}]
    several.append({"biases": True, "min_tokens": 90})
    rows: list[Request] = []
    for temperature in (0, 1):
        for number in (0, 1, 3):
            for more in several:
                request = request_of(rng, vocab, {"temperature": temperature, **more})
                request.allowed = np.zeros(vocab, np.bool_)
                request.allowed[[0, vocab - 1, vocab // 2][:number]] = True
                if "min_tokens" in more:
                    request.stop_ids = [0]
                rows.append(request)
    told = compare(sampler, rows)
    assert sum(expect(r).id == -1 for r in rows) >= 8
    return told


def check_not_finite(sampler: Sampler, vocab: int) -> str:
    rng = np.random.default_rng(vocab + 3)
    several: list[Options] = [{"temperature": 0}, {"num_logprobs": 5}]
    several.append({"presence_penalty": 1.0, "allowed": True})
    rows: list[Request] = []
    for value in (np.nan, np.inf, -np.inf, -np.nan):
        for at in (0, 1, vocab // 2, vocab - 1):
            for options in several:
                rows.append(request_of(rng, vocab, options))
                rows[-1].logits[at] = value
    return compare(sampler, rows)


def check_bytes(sampler: Sampler, vocab: int, num_rows: int) -> str:
    """The same rows backwards, alone, and into pinned host memory: not a bit differs."""
    rng = np.random.default_rng(vocab + 4)
    rows = [request_of(rng, vocab, {"num_logprobs": 20, **mixed(rng)}) for _ in range(num_rows)]
    wanted = Batch(sampler, rows).run()
    others = Batch(sampler, [None, *rows[::-1]], is_pinned=sampler.device == "cuda").run()[:0:-1]
    assert others.tobytes() == wanted.tobytes(), "backwards"
    for i in range(0, num_rows, 7):
        assert Batch(sampler, [rows[i]]).run().tobytes() == wanted[i].tobytes(), f"row {i} alone"
    return f"{num_rows} rows"


def check_counts(sampler: Sampler) -> str:
    """70,000 times the same id, and then once more: the count stays at 65,535."""
    request = Request(np.linspace(0, 1, 1000, dtype=np.float32), temperature=0, frequency_penalty=1e-3)
    request.prompt, request.generated, request.position = [4] * 70000, [7] * 70000 + [8, 8], 9
    request.logits[7] = 200  # the largest even so
    assert expect(request).id == 7
    return compare(sampler, [request])


def check_chi_square(sampler: Sampler, num_draws: int) -> str:
    shares = np.array([0.3, 0.2, 0.1, 0.1, 0.08, 0.07, 0.05, 0.04, 0.02, 0.02, 0.01, 0.01])
    logits = np.log(shares).astype(np.float32)
    samples = Batch(sampler, [Request(logits, seed=seed, position=11) for seed in range(num_draws)]).run()
    seen = np.bincount(samples["id"], minlength=len(shares))
    statistic = float(((seen - num_draws * shares) ** 2 / (num_draws * shares)).sum())
    assert statistic < 37.4, f"chi-square {statistic:.1f} with 11 degrees of freedom"  # p = 1e-4
    return f"{num_draws} draws, chi-square {statistic:.1f} with 11 degrees of freedom"


def check_graph(sampler: Sampler) -> str:
    """Captured once, replayed: the same bytes as a launch."""
    rng = np.random.default_rng(5)
    neutral: Options = {**dict.fromkeys(PENALTIES, 0.0), "repetition_penalty": 1.0}  # counts would go up
    rows = [request_of(rng, 32003, {**mixed(rng), **neutral}) for _ in range(20)]
    wanted = Batch(sampler, rows).run().tobytes()
    batch, graph = Batch(sampler, rows), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampler.sample(batch.args, len(rows))
    for _ in range(3):
        batch.samples.fill_(POISON)
        graph.replay()
        torch.cuda.synchronize()
        assert batch.samples.cpu().numpy().tobytes() == wanted, "a replay differs"
    return "20 rows, 3 replays"


def checks(sampler: Sampler) -> Iterator[tuple[str, Callable[[], str]]]:
    for vocab in VOCABS:
        num_rows = 150 if vocab < 100000 else 60
        yield f"parameters alone, {vocab}", partial(check_alone, sampler, vocab)
        yield f"parameters mixed, {vocab}", partial(check_mixed, sampler, vocab, num_rows)
        yield f"bytes, {vocab}", partial(check_bytes, sampler, vocab, 22)
    for vocab in (1000, 32003, 152064):
        yield f"masked, {vocab}", partial(check_masked, sampler, vocab)
        yield f"not finite, {vocab}", partial(check_not_finite, sampler, vocab)
    yield "saturated counts", partial(check_counts, sampler)
    yield "chi-square", partial(check_chi_square, sampler, 20000)
    yield "graph", partial(check_graph, sampler)


# ---------------------------------------------------------------------------------------------------------
# Times


def microseconds(sampler: Sampler, args: CArgs, num_rows: int) -> float:
    """Median over replays of a graph of 10 launches."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            sampler.sample(args, num_rows)
    times = []
    for _ in range(15):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(float(begin.elapsed_time(end)) * 1e3 / 10)
    return sorted(times[5:])[5]


def print_times(sampler: Sampler) -> None:
    kinds: dict[str, Options] = {
        "greedy": {"temperature": 0.0},
        "temperature": {},
        "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
        "top_p 0.9": {"top_p": 0.9},
        "greedy, logprobs 5": {"temperature": 0.0, "num_logprobs": 5},
        "penalties": {"frequency_penalty": 0.5, "prompt": [1, 2, 3]},
    }
    rng = np.random.default_rng(9)
    rows = rng.standard_normal((256, 152064), dtype=np.float32) * np.float32(2.5)
    print(f"\nmicroseconds a launch, vocabulary 152064, {torch.cuda.get_device_name()}")
    for name in ("normal, deviation 2.5", "the same, 100 ids 12 higher"):
        if name.startswith("the"):
            for row in rows:
                row[rng.integers(152064, size=100)] += 12
        print(f"\n| {name} | 1 row | 64 rows | 256 rows |\n|---|--:|--:|--:|")
        for kind, options in kinds.items():
            batch = Batch(sampler, [Request(row, seed=i, **options) for i, row in enumerate(rows)])
            times = [microseconds(sampler, batch.args, number) for number in (1, 64, 256)]
            print(f"| {kind} | " + " | ".join(f"{time:.1f}" for time in times) + " |", flush=True)


def main(path: str) -> int:
    sampler, num_failed = Sampler(path), 0
    for name, check in checks(sampler):
        try:
            print(f"pass  {name}: {check()}", flush=True)
        except AssertionError as error:
            num_failed += 1
            print(f"FAIL  {name}: {error}", flush=True)
    if num_failed == 0:
        print_times(sampler)
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
