"""Which choices Gemini has finished: litellm calls every event of its streams a stop, a cut one too.

Reads the upstream's own `finishReason` before litellm's iterator does. Runs in the worker.
"""

from __future__ import annotations

from typing import Any

_MODULE = ".vertex_and_google_ai_studio_gemini"


class Ends:
    """Watches an iterator's events. `last`: the choices that the last one finished; None for all."""

    def __init__(self, iterator: Any) -> None:
        self.any = False
        self.last: frozenset[int] | None = frozenset()
        parse = iterator.chunk_parser

        def watched(chunk: Any) -> Any:
            self.last = _finished(chunk)
            self.any = self.any or self.last is None or bool(self.last)
            return parse(chunk=chunk)

        iterator.chunk_parser = watched

    def strip(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Take the finish reasons out of an event's translation that the event itself did not have."""
        for choice in payload.get("choices", ()):
            if self.last is not None and choice.get("index", 0) not in self.last:
                choice.pop("finish_reason", None)
        return payload


def ends_of(iterator: Any) -> Ends | None:
    """Watch the iterator where its translation makes finishes up; None for others."""
    return Ends(iterator) if type(iterator).__module__.endswith(_MODULE) else None


def _finished(chunk: Any) -> frozenset[int] | None:
    if not isinstance(chunk, dict):
        return frozenset()
    feedback = chunk.get("promptFeedback")
    if isinstance(feedback, dict) and feedback.get("blockReason"):
        return None
    candidates = chunk.get("candidates")
    listed = enumerate(candidates if isinstance(candidates, list) else ())
    return frozenset(c.get("index", i) for i, c in listed if isinstance(c, dict) and c.get("finishReason"))
