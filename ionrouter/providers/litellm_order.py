"""The order of the blocks of Claude's whole answers, which litellm loses. Runs in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ionrouter.schema.fields import TURN_ORDER
from ionrouter.schema.turn_order import CALL, RANKS, TEXT, THOUGHT

_KINDS = {"thinking": THOUGHT, "redacted_thinking": THOUGHT, "text": TEXT, "tool_use": CALL}


def mark_order(payload: dict[str, Any], original: Any) -> None:
    """Put it into the choice of an answer whose thoughts, texts and calls come mixed."""
    choices = payload.get("choices")
    blocks = original.get("content") if isinstance(original, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(blocks, list):
        return
    kinds = [_KINDS.get(str(block.get("type"))) if isinstance(block, dict) else None for block in blocks]
    if None not in kinds and _is_mixed([RANKS[kind] for kind in kinds if kind]):
        choices[0][TURN_ORDER] = [
            len(block.get("text") or "") if kind == TEXT else kind
            for kind, block in zip(kinds, blocks, strict=True)
        ]


def _is_mixed(ranks: Sequence[int]) -> bool:
    return any(one > other for one, other in pairwise(ranks))
