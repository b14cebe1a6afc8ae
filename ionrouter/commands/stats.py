"""`ionrouter stats`: a running server's figures per route, from the same API its clients read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any
from urllib.parse import urlencode

from rich.live import Live
from rich.table import Table

from ionrouter.commands.client import ask, ask_text, server_url
from ionrouter.commands.console import make_console
from ionrouter.commands.table import Column, fitting
from ionrouter.settings import Settings
from ionrouter.stats.resolution import GRAINS, UNITS_S, Resolution

PERCENTILES = ("p50", "p90", "p99")
QUEUE_PERCENTILES = ("p99",)  # is there one at all: terminals are only so wide
# Between the names and the bars, and how early each goes where there is no room.
_FIGURES = (
    Column("requests"),
    Column("errors", rank=1),
    Column("uptime %", rank=5),
    Column("cost", rank=3),
    Column("ttft p50", rank=2),
    Column("ttft p90", rank=10),
    Column("ttft p99", rank=6),
    Column("queue p99", rank=8),
    Column("tok/s p50", rank=4),
    Column("tok/s p90", rank=9),
    Column("tok/s p99", rank=7),
)
_BARS_RANK = 11
_BARS = "▁▂▃▄▅▆▇█"
_STEPS = 30  # bars of a sparkline at most
WATCH_S = 2.0


def run(
    settings: Settings,
    *,
    url: str | None,
    filters: Mapping[str, str | None],
    group_by: str | None = None,
    window: str = "30m",
    form: str = "table",
    is_watched: bool = False,
) -> int:
    """Print one row a group; a dash where fewer than five requests speak. `form`: table, json or csv."""
    base = server_url(settings, url)
    group_by = group_by or ("key" if filters.get("key") else "endpoint")
    query = {"window": window, "group_by": group_by, **{k: v for k, v in filters.items() if v}}
    if form == "csv":
        print(ask_text(settings, base, _path({**query, "format": "csv"})), end="")
        return 0
    if form == "json":
        print(json.dumps(ask(settings, base, _path(query)), indent=2))
        return 0
    console = make_console()
    if not is_watched:
        console.print(_table(settings, base, query, console.width))
        return 0
    with Live(_table(settings, base, query, console.width), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(_table(settings, base, query, console.width), refresh=True)


def _path(query: Mapping[str, str]) -> str:
    return "/api/v1/stats/routes?" + urlencode(query)


def _table(settings: Settings, base: str, query: Mapping[str, str], width: int) -> Table:
    groups = query["group_by"].split(",")
    whole = ask(settings, base, _path(query))
    resolution = resolution_of(query["window"], of_keys="key" in groups)
    steps = ask(settings, base, _path({**query, "resolution": resolution}))["data"]
    columns = [
        *(Column(name, "text") for name in groups),
        *_FIGURES,
        Column(f"requests by {resolution}", "bars", _BARS_RANK),
    ]
    keys = _names_of_keys(settings, base) if "key" in groups else {}
    rows: list[list[str]] = []
    for row in whole["data"]:
        mine = [step for step in steps if all(step[name] == row[name] for name in groups)]
        series = _filled(mine, whole["since"], whole["until"], GRAINS[resolution].width_s)
        if "key" in row:
            row["key"] = keys.get(row["key"], row["key"][:12])
        rows.append([*_cells(row, groups), sparkline(series)])
    reasons: list[str] = []
    if groups == ["endpoint"] and query.keys() <= {"window", "group_by", "model"}:
        seen = {row["endpoint"] for row in whole["data"]}
        for name, reason in _quiet(settings, base, query, seen):
            rows.append([name, "0", *[""] * (len(columns) - 2)])
            reasons += [f"{name}: {reason}"] if reason else []
    title = f"last {query['window']} at {base}"
    return fitting(columns, rows, width, title=title, caption="\n".join(reasons))


def _names_of_keys(settings: Settings, base: str) -> Mapping[str, str]:
    """Hash -> name and short hash, as `ionrouter keys list` shows them."""
    keys = ask(settings, base, "/api/v1/keys?include_disabled=true")["data"]
    return {key["hash"]: f"{key['name']} ({key['hash'][:12]})" for key in keys}


def _quiet(
    settings: Settings, base: str, query: Mapping[str, str], seen: Set[str]
) -> Iterator[tuple[str, str]]:
    """Endpoints without traffic, and why where they take none."""
    models = [row["id"] for row in ask(settings, base, "/api/v1/models")["data"]]
    asked = [name.strip() for name in query.get("model", "").split(",") if name.strip()]
    for model in asked or models:
        for endpoint in ask(settings, base, f"/api/v1/models/{model}/endpoints")["data"]["endpoints"]:
            if endpoint["endpoint_id"] not in seen:
                seen = seen | {endpoint["endpoint_id"]}
                yield endpoint["endpoint_id"], endpoint["disabled"] or ""


def _cells(row: Mapping[str, Any], groups: Sequence[str]) -> list[str]:
    uptime = row["uptime"]
    ttft = row["ttft_client_ms" if "key" in groups else "ttft_ms"]  # of keys what their callers saw is kept
    return [
        *(row[name] or "(none)" for name in groups),
        str(row["requests"]),
        str(row["errors"]),
        "-" if uptime is None else f"{uptime:.1f}",
        f"{row['cost']:.4f}",
        *_figures(ttft, "{:.0f} ms"),
        *_figures(row["queue_ms"], "{:.0f} ms", QUEUE_PERCENTILES),
        *_figures(row["throughput"], "{:.0f}"),
    ]


def _figures(
    percentiles: Mapping[str, float | None], form: str, names: Sequence[str] = PERCENTILES
) -> list[str]:
    values = (percentiles[name] for name in names)
    return ["-" if value is None else form.format(value) for value in values]


def resolution_of(window: str, *, of_keys: bool = False) -> Resolution:
    """Choose bars so that there are at most 60 of them or days: `window` as the server takes it.

    Of keys the server keeps hours, neither minutes nor days.
    """
    seconds = float(window[:-1]) * UNITS_S[window[-1]] if window[-1:] in UNITS_S else float(window)
    if of_keys:
        return "hour"
    return "minute" if seconds <= 3600 else "hour" if seconds <= 2 * 86_400 else "day"


def _filled(steps: Sequence[Mapping[str, Any]], since: float, until: float, width_s: int) -> list[int]:
    """Requests of every step of the stretch, 0 where there were none."""
    counts = {int(step["start"] // width_s): step["requests"] for step in steps}
    return [counts.get(number, 0) for number in range(int(since // width_s), int(until // width_s) + 1)]


def sparkline(values: Sequence[int]) -> str:
    """Draw values as bars from 0 to the largest; the latest `_STEPS` of them."""
    shown = values[-_STEPS:]
    most = max(shown, default=0)
    if most == 0:
        return ""
    return "".join(" " if value == 0 else _BARS[(value * (len(_BARS) - 1)) // most] for value in shown)
