"""`ionrouter simulate`: strategies compared in a made-up world, as a table, JSON, Markdown or a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path

from ionrouter.balancing.strategies import STRATEGIES
from ionrouter.commands.console import make_console
from ionrouter.commands.numbers import require_range
from ionrouter.commands.table import Column, fitting
from ionrouter.errors import ConfigError
from ionrouter.reload import load_table
from ionrouter.schema.json import dumps
from ionrouter.settings import Settings
from ionrouter.simulation.plot import svg
from ionrouter.simulation.report import Comparison, Figures, compared
from ionrouter.simulation.scenario import Scenario
from ionrouter.simulation.scenario_file import read_scenario, read_trace

COLUMNS = (
    Column("strategy", "word"),
    Column("cost $/1000"),
    Column("dollars $/1000", rank=5),
    Column("regret", rank=1),
    Column("first token p50, p95", rank=4),
    Column("whole p50, p95, p99", rank=3),
    Column("failed", rank=2),
    Column("wasted", rank=6),
    Column("429", rank=7),
    Column("switches", rank=8),
)


def run(
    settings: Settings,
    scenario: str,
    *,
    model: str | None = None,
    trace: Path | None = None,
    uses_routes: bool = False,
    seeds: int = 5,
    first_seed: int = 0,
    strategies: Sequence[str] = (),
    output: str = "table",
    plot: Path | None = None,
) -> int:
    """Play and print. `scenario` is a file, or the name of one that comes with the package."""
    if unknown := [name for name in strategies if name not in STRATEGIES]:
        raise ConfigError(f"unknown strategy {unknown[0]!r}, known are {', '.join(STRATEGIES)}")
    require_range("--seeds", seeds, 1)
    world = _read(settings, scenario, model, trace, uses_routes)
    comparison = compared(world, range(first_seed, first_seed + seeds), strategies)
    if plot is not None:
        try:
            plot.write_text(svg(comparison))
        except OSError as error:
            raise ConfigError(f"--plot: {error}") from error
    if output == "json":
        print(dumps(asdict(comparison)).decode())
    elif output == "markdown":
        print(markdown(comparison))
    else:
        console, cells = make_console(), [_cells(row) for row in comparison.rows]
        console.print(fitting(COLUMNS, cells, console.width, title=_title(comparison)))
    return 0


def _read(
    settings: Settings, name: str, model: str | None, trace: Path | None, uses_routes: bool
) -> Scenario:
    table = None
    if uses_routes:
        table = load_table(settings.config_path, os.environ, settings.cache_dir / "lists")
    scenario = read_scenario(path_of(name), table=table, model=model)
    return replace(scenario, trace=read_trace(trace, model)) if trace is not None else scenario


def path_of(name: str) -> Path:
    """Find a scenario: a file, else one of the package's by its bare name."""
    path, shipped = Path(name), Path(str(files("ionrouter.simulation") / "scenarios"))
    if not path.exists() and path.suffix == "" and (shipped / f"{name}.yaml").exists():
        return shipped / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(found.stem for found in shipped.glob("*.yaml")))
        raise ConfigError(f"{name}: no such file; scenarios that come with ionrouter: {known}")
    return path


def _cells(row: Figures) -> list[str]:
    return [
        row.strategy,
        f"{1000 * row.cost:.3f}",
        f"{1000 * row.dollars:.3f}",
        f"{row.regret:+.1%}",
        f"{row.ttft_p50_s:.2f}, {row.ttft_p95_s:.2f} s",
        f"{row.whole_p50_s:.1f}, {row.whole_p95_s:.1f}, {row.whole_p99_s:.1f} s",
        f"{row.failed:.2%}",
        f"{row.wasted:.2%}",
        f"{row.refused:.2%}",
        f"{row.switches:.2f}",
    ]


def _title(comparison: Comparison) -> str:
    best = f"{1000 * comparison.clairvoyant:.3f}"
    return f"{comparison.scenario}: {comparison.seeds} seeds, clairvoyant {best} $ per 1000 requests"


def markdown(comparison: Comparison) -> str:
    """The same table for a page."""
    head = f"| {' | '.join(c.heading for c in COLUMNS)} |\n| --- |{' ---: |' * (len(COLUMNS) - 1)}"
    rows = "\n".join(f"| {' | '.join(_cells(row))} |" for row in comparison.rows)
    return f"{_title(comparison)}\n\n{head}\n{rows}"
