"""Random requests for the sampler's checks: hard rows, and parameters alone and mixed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sampler_reference import Request

Options = dict[str, Any]  # fields of Request; biases and allowed: whether to have any


def logits_of(rng: np.random.Generator, vocab: int) -> npt.NDArray[np.float32]:
    """Rows as models make them, and hard ones: rounded (ties), peaked, flat, equal, both zeros."""
    x = rng.standard_normal(vocab, dtype=np.float32) * np.float32(rng.choice([0.01, 1, 3, 10]))
    match int(rng.integers(8)):
        case 0:
            return x
        case 1:
            return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        case 2:
            return np.round(x)
        case 3:
            x[rng.integers(vocab, size=40)] += 15
            return x
        case 4:
            return np.full(vocab, rng.choice([0.0, -3.5, 7.25]), np.float32)
        case 5:
            return np.select([x > 2, x > 0], [1.0, 0.0], -0.0).astype(np.float32)
        case 6:
            return x * np.float32(20) + np.float32(1000)
        case _:
            return np.round(x * 8) / np.float32(8) - np.float32(20)


def alone() -> Iterator[Options]:
    values: dict[str, list[float]] = {
        "temperature": [0, 1e-6, 0.1, 0.5, 1, 2],
        "top_k": [-1, 1, 2, 50, 900, 999, 1000, 1024, 1025, 3000, 10**9],
        "top_p": [1e-4, 0.1, 0.5, 0.9, 0.999, 0.99999994],
        "min_p": [1e-3, 0.05, 0.5, 1],
        "top_a": [1e-3, 0.1, 0.5, 1],
        "repetition_penalty": [0.7, 1.3],
        "presence_penalty": [-0.5, 1.5],
        "frequency_penalty": [-0.25, 0.75],
        "num_logprobs": [0, 1, 5, 20],
        "min_tokens": [3, 1000],
    }
    for name, choices in values.items():
        for value in choices:
            yield {name: value}
    yield from ({"biases": True}, {"allowed": True})
    yield from ({"top_p": 0.9, "top_k": 50}, {"top_p": 0.5, "top_k": 2000})


def mixed(rng: np.random.Generator) -> Options:
    def pick(*values: object) -> object:
        return values[int(rng.integers(len(values)))]

    return {
        "temperature": pick(0, 0.5, 1, 1),
        "top_k": pick(0, 0, 3, 50, 1000, 1500),
        "top_p": pick(1, 1, 0.2, 0.9, 0.95),
        "min_p": pick(0, 0, 0.01, 0.2),
        "top_a": pick(0, 0, 0.01, 0.3),
        "repetition_penalty": pick(1, 1.1),
        "presence_penalty": pick(0, 0.5),
        "frequency_penalty": pick(0, 0.1),
        "num_logprobs": pick(-1, 0, 7),
        "min_tokens": pick(0, 40),
        "biases": pick(False, True),
        "allowed": pick(False, False, True),
    }


def request_of(rng: np.random.Generator, vocab: int, options: Options) -> Request:
    request = Request(logits_of(rng, vocab), seed=int(rng.integers(2**63)) * 2 + 1)
    request.prompt = rng.integers(vocab, size=int(rng.integers(1, 60))).tolist()
    request.generated = (rng.integers(vocab, size=int(rng.integers(0, 40))) // 3).tolist()
    largest = np.argsort(-request.logits, kind="stable")[:30].tolist()
    request.prompt += largest[3:9]
    request.generated += largest[6:9] * int(rng.integers(1, 5))
    request.position = len(request.prompt) + len(request.generated)
    request.stop_ids = [*largest[:3], *rng.integers(vocab, size=3).tolist()]
    for name, value in options.items():
        if name == "biases" and value:
            ids = {*rng.integers(vocab, size=300).tolist(), *largest[:5]}
            request.biases = {i: float(np.float32(rng.choice([-100, -1, 0.5, 5]))) for i in ids}
        elif name == "allowed" and value:
            request.allowed = rng.random(vocab) < rng.choice([0.5, 0.01])
        elif name not in ("biases", "allowed"):
            setattr(request, name, value)
    return request
