"""The simulator's tables and pictures in docs/: `python -m tests.support.simulated` makes them, in a minute.

A table stands between `<!-- simulated: NAME -->` and `<!-- end: NAME -->`, as `ionrouter simulate NAME
--markdown` prints it; beside it docs/pictures/NAME.svg, which `--plot` draws.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ionrouter import log
from ionrouter.commands.simulate import markdown, path_of
from ionrouter.simulation.plot import picture, svg, text
from ionrouter.simulation.report import Comparison, compared
from ionrouter.simulation.scenario_file import read_scenario
from tests.simulation.checks import FAULT_AT, FAULT_S, FAULTS, RECOVERY_S, faulty, share
from tests.support.pages import ROOT

PAGE, PICTURES = ROOT / "docs" / "routing.md", ROOT / "docs" / "pictures"
SCENARIOS = ("steady", "outage")
SEEDS = range(5)  # the command's default
FAULT_SEEDS = range(2)
TITLES = {"slow": "ten times slower", "failing": "always failing", "silent": "silent"}
_PLACE = re.compile(r"(?ms)^<!-- simulated: (\w+) -->\n.*?^<!-- end: \1 -->$")


def play(name: str, strategies: Sequence[str] = ()) -> Comparison:
    """Play a scenario that comes along, all strategies unless some are named."""
    return compared(read_scenario(path_of(name)), SEEDS, strategies)


def table_in(page: str, name: str) -> list[str]:
    """The lines of a scenario's table, the first of them what it says of itself."""
    found = next(match[0] for match in _PLACE.finditer(page) if match[1] == name)
    return [line for line in found.splitlines()[1:-1] if line]


def faults() -> str:
    """Draw the best endpoint's share of first picks around each fault, second by second."""
    parts: list[str] = []
    for number, kind in enumerate(FAULTS):
        played = [faulty(kind, seed) for seed in FAULT_SEEDS]
        num_s = round(FAULT_AT + FAULT_S + RECOVERY_S)
        shares = [sum(share(one, "best", s, s + 1) for one in played) / len(played) for s in range(num_s)]
        parts += _panel(44 + number * 296, TITLES[kind], shares)
    return picture("Share of first picks of the best of three, 50 requests a second", 210, parts)


def _panel(x: int, title: str, shares: Sequence[float]) -> Iterator[str]:
    """A bar for every second, on a scale from 0 to 100%; the fault is the stroke below."""
    top, bottom, width = 60, 170, 3.4
    yield text(x, top - 14, title, colour="faint")
    for part in (0.0, 0.5, 1.0):
        y = bottom - part * (bottom - top)
        yield f'<rect class="ir-other" x="{x}" y="{y:.1f}" width="{width * len(shares):.1f}" height="0.5"/>'
        yield text(x - 6, y + 4, f"{part:.0%}", 'text-anchor="end" font-size="10"', colour="faint")
    for second, part in enumerate(shares):
        left, height = x + second * width, part * (bottom - top)
        bar = f'x="{left:.1f}" y="{bottom - height:.1f}" width="{width - 0.8:.1f}" height="{height:.1f}"'
        yield f'<rect class="ir-ours" {bar}/>'
    left = x + FAULT_AT * width
    yield f'<rect class="ir-ink" x="{left:.1f}" y="{bottom + 4}" width="{FAULT_S * width:.1f}" height="4"/>'
    yield text(left, bottom + 22, f"{FAULT_S:g} s of fault, then {RECOVERY_S:g} s", colour="faint")


def put_into(page: str, made: Mapping[str, str]) -> str:
    """The page with fresh tables; raises ValueError if a table has no place or a place no table."""
    if sorted(places := [match[1] for match in _PLACE.finditer(page)]) != sorted(made):
        raise ValueError(f"the page has places for {places}, there are tables for {sorted(made)}")
    return _PLACE.sub(lambda m: f"<!-- simulated: {m[1]} -->\n\n{made[m[1]]}\n\n<!-- end: {m[1]} -->", page)


def main() -> None:
    """Make everything anew."""
    log.configure(log_format="console", level="error", cache=False)
    PICTURES.mkdir(exist_ok=True)
    made = {name: play(name) for name in SCENARIOS}
    fresh = put_into(PAGE.read_text(encoding="utf-8"), {name: markdown(one) for name, one in made.items()})
    PAGE.write_text(fresh, encoding="utf-8")
    for name, comparison in made.items():
        (PICTURES / f"{name}.svg").write_text(svg(comparison), encoding="utf-8")
    (PICTURES / "faults.svg").write_text(faults(), encoding="utf-8")


if __name__ == "__main__":
    main()
