"""Per key of the callers, by the hour: the busiest 200 of the last hours, for a month. Knows no endpoints."""

from __future__ import annotations

from dataclasses import dataclass, field

from ionrouter.schema.events import RequestRecord
from ionrouter.stats.resolution import HOUR
from ionrouter.stats.window import OK, Window

MAX_KEYS = 200


@dataclass(slots=True)
class KeyBook:
    """Requests, not attempts: what callers saw. Requests without a key are those of ""."""

    max_keys: int = MAX_KEYS
    _windows: dict[str, Window] = field(default_factory=dict)

    def observe(self, record: RequestRecord) -> None:
        """Take in one request that ended."""
        key_id = record.key_id or ""
        window = self._windows.get(key_id)
        if window is None:
            window = self._windows[key_id] = Window.of(HOUR)
            self._forget_idlest(key_id)
        bucket = window.at(record.started_at + record.duration_s)
        is_ok = record.status < 400 and not record.error
        samples = {"ttft_client_s": record.ttft_s} if record.ttft_s is not None else {}
        if is_ok:
            samples["duration_s"] = record.duration_s
        bucket.add(OK if is_ok else str(record.status), samples)
        bucket.spend(record.usage, record.cost)

    def items(self) -> tuple[tuple[str, Window], ...]:
        """Every key's hours."""
        return tuple(self._windows.items())

    def window(self, key_id: str) -> Window | None:
        """Find a key's hours, or begin them, for what is read back after a start; None beyond the limit."""
        if key_id not in self._windows and len(self._windows) >= self.max_keys:
            return None
        return self._windows.setdefault(key_id, Window.of(HOUR))

    def _forget_idlest(self, newcomer: str) -> None:
        """Over the limit the key with the fewest requests in its last two hours goes."""
        if len(self._windows) > self.max_keys:
            others = (key_id for key_id in self._windows if key_id != newcomer)
            del self._windows[min(others, key=lambda key_id: self._windows[key_id].num_recent())]
