"""How answers ended, where litellm's translation loses that. Runs in the worker.

Which choices Gemini has finished: litellm calls every event of its streams a stop, a cut one too. Which stop
string ended Claude's answer: litellm keeps the reason, and not the string. Which error broke Claude's stream:
litellm keeps the words alone. All is read from the upstream's own events before litellm's iterator has them.
"""

from __future__ import annotations

from typing import Any

_MODULE = ".vertex_and_google_ai_studio_gemini"
_CLAUDES = ".llms.anthropic.chat.handler"
_PLACE = "matched_stop"  # of a choice, where the normaliser looks for a stop string


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


class ClaudesEnd:
    """Watches Claude's events for the stop string that matched, and for an error in their midst."""

    def __init__(self, iterator: Any) -> None:
        self._told: str | None = None
        self._error: Any = None
        parse = iterator.chunk_parser

        def watched(chunk: Any) -> Any:
            if isinstance(chunk, dict):
                self._note(chunk)
            return parse(chunk=chunk)

        iterator.chunk_parser = watched

    def _note(self, chunk: dict[str, Any]) -> None:
        if isinstance(delta := chunk.get("delta"), dict):
            self._told = stop_string(delta) or self._told
        elif chunk.get("type") == "error":  # litellm calls every one a server's
            self._error = chunk.get("error")

    @property
    def error(self) -> dict[str, Any] | None:
        """The event that says how the stream broke, as OpenAI's servers would write it."""
        return {"error": self._error} if self._error else None

    def mark(self, payload: dict[str, Any]) -> None:
        """Put it into the choice that an event finishes."""
        if self._told is not None:
            mark_stop(payload, self._told)


def claudes_end_of(iterator: Any) -> ClaudesEnd | None:
    """Watch the iterator where its translation loses that; None for others."""
    is_claudes = any(cls.__module__.endswith(_CLAUDES) for cls in type(iterator).__mro__)
    return ClaudesEnd(iterator) if is_claudes else None


def stop_string(told: Any) -> str | None:
    """The stop string that ended an answer, by Anthropic's own words of its end."""
    said = told.get("stop_sequence") if isinstance(told, dict) else None
    return said if isinstance(said, str) and said else None


def mark_stop(payload: dict[str, Any], string: str) -> None:
    """Put it where the normaliser looks for it."""
    for choice in payload.get("choices") or ():
        if choice.get("finish_reason"):
            choice[_PLACE] = string


def _finished(chunk: Any) -> frozenset[int] | None:
    if not isinstance(chunk, dict):
        return frozenset()
    feedback = chunk.get("promptFeedback")
    if isinstance(feedback, dict) and feedback.get("blockReason"):
        return None
    candidates = chunk.get("candidates")
    listed = enumerate(candidates if isinstance(candidates, list) else ())
    return frozenset(c.get("index", i) for i, c in listed if isinstance(c, dict) and c.get("finishReason"))
