"""The sampler in numpy and float64, from engine_ext/kernels/sampler.h: a request in, what may come out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
NEAR = 1e-6  # of the total: how close a boundary makes two answers right


@dataclass
class Request:
    """One row: its raw logits, its sequence and what that asked for."""

    logits: npt.NDArray[np.float32]
    prompt: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    position: int = 0
    seed: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_a: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    num_logprobs: int = -1
    stop_ids: list[int] = field(default_factory=list)
    biases: dict[int, float] = field(default_factory=dict)
    allowed: npt.NDArray[np.bool_] | None = None

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass
class Expected:
    is_finite: bool
    id: int
    may_be: set[int]  # `id`, and others where a boundary is near
    logprobs: Floats | None = None  # of all ids, raw
    top: list[int] = field(default_factory=list)


def philox_uniform(seed: int, position: int) -> float:
    """Philox4x32-10 with 53 bits (Salmon et al., SC 2011), in Python's integers."""
    word = 0xFFFFFFFF
    c = [position & word, position >> 32, 0, 0]
    k = [seed & word, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & word, p0 >> 32 ^ c[3] ^ k[1], p0 & word]
        k = [(k[0] + 0x9E3779B9) & word, (k[1] + 0xBB67AE85) & word]
    return float((c[0] << 32 | c[1]) >> 11) * 2.0**-53


def adjusted(request: Request) -> npt.NDArray[np.float32]:
    """Stages 1 to 3, each operation in float32."""
    x = request.logits.copy()
    one = np.float32
    if request.has_penalties:
        seen = np.array(sorted({*request.prompt, *request.generated}), dtype=np.int64)
        penalty = one(request.repetition_penalty)
        if len(seen):
            x[seen] = np.where(x[seen] > 0, x[seen] / penalty, x[seen] * penalty)
        ids, counts = np.unique(np.array(request.generated, dtype=np.int64), return_counts=True)
        counts = np.minimum(counts, 65535).astype(np.float32)
        x[ids] -= one(request.frequency_penalty) * counts + one(request.presence_penalty)
    for token, bias in request.biases.items():
        x[token] += one(bias)
    if request.position - len(request.prompt) < request.min_tokens:
        x[request.stop_ids] = -np.inf
    if request.allowed is not None:
        x[~request.allowed] = -np.inf
    return x


def draws(weights: Floats, target: float, slack: float) -> tuple[int, set[int]]:
    """The id at which the running sum passes target * total, and those within `slack` of it."""
    ids = np.flatnonzero(weights > 0)
    sums = np.cumsum(weights[ids])
    sums /= sums[-1]
    first, at, last = (
        min(int(np.searchsorted(sums, target + by, side="right")), len(ids) - 1) for by in (-slack, 0, slack)
    )
    return int(ids[at]), {int(i) for i in ids[first : last + 1]}


def kept_counts(request: Request, ordered: Floats, total: float) -> tuple[int, set[int]]:
    """How many of the weights `ordered` descending are kept, and the numbers that a near boundary allows."""

    def count(by: float) -> int:
        floor = max(request.min_p, request.top_a / total if request.top_a > 0 else 0.0)
        kept = int(np.searchsorted(-ordered, -min(floor * (1 - by), 1.0), side="right"))
        if 0 < request.top_k < len(ordered):
            kept = min(kept, request.top_k)
        if request.top_p < 1:
            sums = np.cumsum(ordered[:kept])
            reached = int(np.searchsorted(sums / sums[-1], np.float32(request.top_p) + by, side="left"))
            kept = min(reached + 1, kept)
        return kept

    return count(0.0), {count(-NEAR), count(NEAR)}


def expect(request: Request) -> Expected:
    raw = request.logits.astype(np.float64)
    if not np.isfinite(raw).all():
        return Expected(False, -1, {-1})
    x = adjusted(request)
    largest = x.max()
    if largest == -np.inf:
        expected = Expected(True, -1, {-1})
    elif request.temperature < 1e-5:
        greedy = int(np.argmax(x))
        expected = Expected(True, greedy, {greedy})
    else:
        expected = Expected(True, *sampled(request, x))
    if request.num_logprobs >= 0:
        expected.logprobs = raw - raw.max() - np.log(np.exp(raw - raw.max()).sum())
        top = np.argsort(-raw, kind="stable")[: min(request.num_logprobs, len(raw))]
        expected.top = [int(i) for i in top]
    return expected


def sampled(request: Request, x: npt.NDArray[np.float32]) -> tuple[int, set[int]]:
    """Stages 4 to 6."""
    exponents = (x.astype(np.float64) - np.float64(x.max())) / np.float64(np.float32(request.temperature))
    weights = np.exp(exponents)
    u = philox_uniform(request.seed, request.position)
    is_narrowed = 0 < request.top_k < len(x) or request.top_p < 1 or request.min_p > 0 or request.top_a > 0
    if not is_narrowed:
        return draws(weights, u, NEAR)
    order = np.argsort(-x, kind="stable")
    count, others = kept_counts(request, weights[order], float(weights.sum()))
    drawn, may_be = -1, set()
    for number in {count, *others}:
        kept = np.zeros_like(weights)
        kept[order[:number]] = weights[order[:number]]
        at, near = draws(kept, u, NEAR if number == count else 2 * NEAR)
        drawn = at if number == count else drawn
        may_be |= near
    return drawn, may_be
