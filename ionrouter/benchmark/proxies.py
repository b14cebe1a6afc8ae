"""The measurements of a gateway: plan, medians, streams held, and the table. Starts no gateway itself."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import nan
from statistics import median

from ionrouter.benchmark.load import Figures
from ionrouter.benchmark.processes import Target, load, rss_mb

PLAN = (("plain", 1), ("plain", 16), ("stream", 16), ("ttft", 1), ("paced", 16))
RAMP_STEP = 20  # streams
MAX_STREAMS = 1000
MAX_GAP_MS = 100.0  # p99.9 between events, above which a stream counts as not held ...
PACED_PER_S = 50.0  # ... or where less than LEAST_SHARE of what the upstream paces comes through
LEAST_SHARE = 0.9
WARM_S = 0.5


@dataclass(slots=True)
class Row:
    """One gateway's medians; milliseconds and microseconds."""

    name: str
    plain_1_p50_ms: float = 0.0
    plain_rps: float = 0.0
    plain_cpu_us: float | None = None
    events_per_s: float = 0.0
    event_cpu_us: float | None = None
    ttft_p50_ms: float = 0.0
    ttft_p99_ms: float = 0.0
    paced_cpu_us: float | None = None
    streams: int | None = None
    start_s: float | None = None
    rss_mb: float | None = None
    num_bad: int = 0


@dataclass(slots=True)
class Runs:
    """All rounds of one kind at one number of connections."""

    figures: list[Figures] = field(default_factory=list)
    cpu_s: list[float | None] = field(default_factory=list)

    def middle(self, read: Callable[[Figures], float]) -> float:
        """NaN where a peer answered nothing that could be read: its other figures stand."""
        return median(read(figures) for figures in self.figures)

    def cpu_us_per(self, count: Callable[[Figures], int]) -> float | None:
        pairs = zip(self.cpu_s, self.figures, strict=True)
        values = [cpu / max(count(f), 1) * 1e6 for cpu, f in pairs if cpu is not None]
        return median(values) if values else None


def measure(
    target: Target, *, rounds: int, seconds: float, with_ramp: bool, tell: Callable[[str], None]
) -> Row:
    """Run the plan `rounds` times and take medians; then the ramp of paced streams."""
    runs = {step: Runs() for step in PLAN}
    for kind in ("plain", "stream"):
        load(target, kind, 4, WARM_S)
    for number in range(rounds):
        for (kind, connections), into in runs.items():
            tell(f"{target.name}: round {number + 1}, {kind} at {connections}")
            figures, cpu = load(target, kind, connections, seconds)
            into.figures.append(figures)
            into.cpu_s.append(cpu)
    row = _row(target, runs)
    if with_ramp:
        row.streams = streams_held(target, seconds, tell)
    if target.pid is not None:
        row.rss_mb = rss_mb(target.pid)
    return row


def streams_held(target: Target, seconds: float, tell: Callable[[str], None]) -> int:
    """Raise the number of paced streams until gaps between events grow or events stay away; the last held.

    Gaps alone do not tell: the load is closed, so streams that a busy gateway answers late begin late.
    """
    held = 0
    for streams in range(RAMP_STEP, MAX_STREAMS + 1, RAMP_STEP):
        tell(f"{target.name}: {streams} paced streams")
        figures, _ = load(target, "paced", streams, max(seconds, 2.0))
        share = figures.num_events / figures.seconds / (streams * PACED_PER_S)
        is_late = figures.gap_ms.get("p99.9", MAX_GAP_MS + 1) > MAX_GAP_MS
        if figures.num_bad or is_late or share < LEAST_SHARE:
            break
        held = streams
    return held


def _row(target: Target, runs: dict[tuple[str, int], Runs]) -> Row:
    one, plain, stream = runs["plain", 1], runs["plain", 16], runs["stream", 16]
    ttft, paced = runs["ttft", 1], runs["paced", 16]
    return Row(
        target.name,
        plain_1_p50_ms=one.middle(lambda f: f.latency_ms.get("p50", nan)),
        plain_rps=plain.middle(lambda f: f.num_answers / f.seconds),
        plain_cpu_us=plain.cpu_us_per(lambda f: f.num_answers),
        events_per_s=stream.middle(lambda f: f.num_events / f.seconds),
        event_cpu_us=stream.cpu_us_per(lambda f: f.num_events),
        ttft_p50_ms=ttft.middle(lambda f: f.first_ms.get("p50", nan)),
        ttft_p99_ms=ttft.middle(lambda f: f.first_ms.get("p99", nan)),
        paced_cpu_us=paced.cpu_us_per(lambda f: f.num_events),
        start_s=target.start_s,
        num_bad=sum(f.num_bad for r in runs.values() for f in r.figures),
    )


HEAD = (
    "| gateway | plain req/s at 16 | added p50 ms at 1 | CPU us/request | events/s at 16 | CPU us/event | "
    "TTFT added p50 / p99 ms | CPU us/paced event | streams held | start s | RSS MB | not 200 |"
)


def table(rows: Sequence[Row], direct: Row | None) -> str:
    """Markdown; `direct` (the upstream without a gateway) is subtracted from latencies."""
    return "\n".join([HEAD, "|---|" + "--:|" * 11, *(_line(row, direct) for row in rows)])


def _line(row: Row, direct: Row | None) -> str:
    base = direct or Row("")
    first = f"{row.ttft_p50_ms - base.ttft_p50_ms:.2f} / {row.ttft_p99_ms - base.ttft_p99_ms:.2f}"
    cells = (
        row.name,
        f"{row.plain_rps:,.0f}",
        f"{row.plain_1_p50_ms - base.plain_1_p50_ms:.2f}",
        _number(row.plain_cpu_us, 0),
        f"{row.events_per_s:,.0f}",
        _number(row.event_cpu_us, 1),
        first,
        _number(row.paced_cpu_us, 0),
        "-" if row.streams is None else str(row.streams),
        _number(row.start_s, 2),
        _number(row.rss_mb, 0),
        str(row.num_bad),
    )
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def conditions(rounds: int, seconds: float) -> Iterator[str]:
    """What the figures were taken on, and how."""
    load_1m = os.getloadavg()[0]
    yield f"Machine: {platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, "
    yield f"Python {platform.python_version()}; load {load_1m:.1f} at the start. "
    yield f"Medians of {rounds} rounds of {seconds:g} s; gateway on one core, upstream and load on another."
