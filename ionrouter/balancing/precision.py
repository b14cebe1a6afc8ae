"""Fallbacks do not step down in silence: of the first pick's model, endpoints of fewer bits come last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ionrouter.balancing.plan import Candidate

# Bits of a stored weight. `unknown` compares with nothing: an endpoint that declares nothing moves nobody.
BITS: Mapping[str, int] = {
    "int4": 4, "fp4": 4, "mxfp4": 4, "nvfp4": 4, "fp6": 6, "int8": 8, "fp8": 8, "mxfp8": 8,
    "fp16": 16, "bf16": 16, "fp32": 32,
}  # fmt: skip


def has_fewer_bits(candidate: Candidate, first: Candidate) -> bool:
    """Ask whether another endpoint of the same model declares a lower quantization than the first pick."""
    if candidate.route.id != first.route.id:
        return False
    own, asked = BITS.get(candidate.endpoint.quantization), BITS.get(first.endpoint.quantization)
    return own is not None and asked is not None and own < asked


def stepping_down_last(ordered: Sequence[Candidate], ranks: Mapping[str, tuple[int, ...]]) -> list[Candidate]:
    """Put endpoints of fewer bits than the first pick behind the others of their rank, marked as such.

    `ranks` are by endpoint id: what counts more than precision. Everybody else keeps the order.
    """
    first, *rest = ordered
    if first.endpoint.quantization not in BITS:
        return list(ordered)
    marked = [
        replace(c, steps_down_from=first.endpoint.quantization) if has_fewer_bits(c, first) else c
        for c in rest
    ]
    if not any(c.steps_down_from for c in marked):
        return list(ordered)
    return [first, *sorted(marked, key=lambda c: (ranks[c.endpoint.id], c.steps_down_from is not None))]
