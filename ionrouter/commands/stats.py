"""`ionrouter stats`: a running server's percentiles per route, from the same API its clients read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from ionrouter.commands.client import ask, server_url
from ionrouter.commands.console import make_console
from ionrouter.settings import Settings

PERCENTILES = ("p50", "p75", "p90", "p99")


def run(settings: Settings, *, url: str | None, model: str | None, role: str = "main") -> int:
    """Print one row an endpoint; a dash where fewer than five requests speak."""
    base = server_url(settings, url)
    whose = "" if role == "main" else f" of {role}s"
    table = Table(title=f"last 30 minutes{whose} at {base}; ttft in ms", title_justify="left")
    table.add_column("endpoint", no_wrap=True)
    for figure in ("requests", "uptime"):
        table.add_column(figure, justify="right")
    for name in PERCENTILES:
        table.add_column(f"ttft {name}", justify="right")
    for name in PERCENTILES:
        table.add_column(f"tok/s {name}", justify="right")
    for endpoint in _endpoints(settings, base, model, role):
        table.add_row(*_row(endpoint))
    make_console().print(table)
    return 0


def _endpoints(settings: Settings, base: str, model: str | None, role: str) -> Iterator[Mapping[str, Any]]:
    models = [model] if model else [row["id"] for row in ask(settings, base, "/api/v1/models")["data"]]
    for name in models:
        path = f"/api/v1/models/{name}/endpoints?role={role}"
        yield from ask(settings, base, path)["data"]["endpoints"]


def _row(endpoint: Mapping[str, Any]) -> list[str]:
    if endpoint["disabled"]:
        return [endpoint["endpoint_id"], endpoint["disabled"], *[""] * 9]
    uptime = endpoint["uptime_last_30m"]
    workload = endpoint["perf_last_30m_by_workload"]["text_generation"]
    return [
        endpoint["endpoint_id"],
        str(workload["request_count"]),
        "-" if uptime is None else f"{uptime:.1f} %",
        *_figures(endpoint["latency_last_30m"]),
        *_figures(endpoint["throughput_last_30m"]),
    ]


def _figures(percentiles: Mapping[str, float] | None) -> list[str]:
    return [f"{percentiles[name]:.0f}" if percentiles else "-" for name in PERCENTILES]
