"""The engine's figures as Markdown: one table of workloads, one of streams over HTTP, one line of starts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ionrouter.benchmark.engine_offline import Row
from ionrouter.benchmark.engine_serving import Burst, Start


@dataclass(slots=True)
class Report:
    """All that one run has found."""

    model: str
    machine: Mapping[str, Any]
    scale: float
    rounds: int
    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    bursts: list[tuple[Burst, Burst]] = field(default_factory=list)


def markdown(report: Report) -> str:
    """The whole report."""
    return "\n".join([*_head(report), *_workloads(report), *_starts(report), *_streams(report)])


def _head(report: Report) -> Iterator[str]:
    machine = report.machine
    runtime = f", CUDA {machine['cuda']}" if "cuda" in machine else ""
    yield (
        f"{report.model} on {machine['name']} ({machine['device']}), {machine['driver']}{runtime}; ionrouter "
        f"{machine['version']}, Python {machine['python']}."
    )
    yield (
        f"Weights {machine['weight_bytes'] / 1e9:.2f} GB, {machine['streamed_bytes'] / 1e9:.2f} GB of them "
        f"read a step; KV {machine['kv_token_bytes'] / 1024:.1f} KiB a token; plain read "
        f"{machine['read_bandwidth'] / 1e9:,.1f} GB/s."
    )
    if fp8 := machine.get("fp8"):
        yield f"fp8: {', '.join(fp8)}."
    if why := machine.get("why_not_cuda"):
        yield f"Not on a GPU: {why}."
    if report.scale != 1.0:
        yield f"Scaled: lengths, and requests of chat, prefill and longctx, by {report.scale:g}."
    yield ""


def _workloads(report: Report) -> Iterator[str]:
    if not report.rows and not report.skipped:
        return
    yield (
        f"Whole engine, greedy, ends ignored, no cached prefixes; a run unmeasured, then the median of "
        f"{report.rounds}."
    )
    yield ""
    yield (
        "| workload | in | out | out tok/s | all tok/s | spread | first token s | ms a step | floor ms | "
        "floor / step |"
    )
    yield "|---|" + "--:|" * 9
    for row in report.rows:
        yield _line(
            row.workload,
            f"{row.num_in:,}",
            f"{row.num_out:,}",
            f"{row.num_out / row.whole_s:,.1f}",
            f"{(row.num_in + row.num_out) / row.whole_s:,.1f}",
            f"{row.spread:.3f}",
            _cell(row.first_s, "{:.3f}"),
            _cell(row.step_s, "{:.3f}", 1e3),
            _cell(row.floor_s, "{:.3f}", 1e3),
            "-" if row.floor_s is None or not row.step_s else f"{row.floor_s / row.step_s:.2f}",
        )
    for name, why in report.skipped.items():
        yield _line(name, why, *[""] * 8)
    yield ""


def _starts(report: Report) -> Iterator[str]:
    if not report.starts:
        return
    times = [start.first_token_s for start in report.starts]
    yield (
        f"Exec of `ionrouter serve` to the first token over HTTP: median {statistics.median(times):.2f} s of "
        f"{len(times)}, {min(times):.2f} to {max(times):.2f}; loading the model took "
        f"{statistics.median(start.load_s for start in report.starts):.2f} s of it."
    )
    yield ""


def _streams(report: Report) -> Iterator[str]:
    if not report.bursts:
        return
    offline = {row.workload: row.num_out / row.whole_s for row in report.rows}
    yield "Streams over HTTP, the load in processes of its own; Poisson at 70% of the rate of all at once."
    yield ""
    yield (
        "| streams | out tok/s | of offline | first token p50 / p99 ms | chunks with one token | "
        "CPU us/token | Poisson req/s | first token p50 / p99 ms | load CPU | not whole |"
    )
    yield "|--:|" + "--:|" * 9
    for at_once, poisson in report.bursts:
        alone = offline.get(f"batch{at_once.num_streams}")
        yield _line(
            str(at_once.num_streams),
            f"{at_once.tokens_per_s:,.0f}",
            "-" if alone is None else f"{at_once.tokens_per_s / alone:.2f}",
            _firsts(at_once),
            f"{at_once.least_single_share:.1%}",
            _cell(at_once.server_cpu_us, "{:.0f}"),
            f"{poisson.rate:.1f}",
            _firsts(poisson),
            f"{max(at_once.load_cpu_share, poisson.load_cpu_share):.0%}",
            str(at_once.num_bad + poisson.num_bad),
        )
    faults = [each.first_fault for pair in report.bursts for each in pair if each.first_fault]
    if faults:
        yield f"\nThe first that was not whole: {faults[0][-300:]}"


def _firsts(burst: Burst) -> str:
    return f"{burst.first_p50_s * 1e3:.0f} / {burst.first_p99_s * 1e3:.0f}"


def _cell(value: float | None, form: str, factor: float = 1.0) -> str:
    return "-" if value is None else form.format(value * factor)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def as_json(report: Report) -> dict[str, Any]:
    """The same for programs: seconds, bytes and rates."""
    return asdict(report)


def rows_of(told: Sequence[Mapping[str, Any]]) -> tuple[list[Row], dict[str, str]]:
    """Read what engine_offline.py printed: the rows, and why others were left out."""
    rows = [Row(**line["row"]) for line in told if "row" in line]
    return rows, {line["skipped"]: line["why"] for line in told if "skipped" in line}
