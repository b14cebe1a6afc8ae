"""The simulator's tables and pictures in docs/routing.md are what it prints and draws, as far as that runs in
seconds: `python -m tests.support.simulated` makes them anew."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from ionrouter.balancing.strategies import STRATEGIES
from ionrouter.commands.simulate import markdown
from ionrouter.simulation.plot import DARK, LIGHT
from tests.support import simulated
from tests.support.pages import text_of

HINT = "run: python -m tests.support.simulated"


def table(name: str) -> list[str]:
    return simulated.table_in(text_of("docs/routing.md"), name)


def rows(name: str) -> dict[str, list[str]]:
    cells = [line.strip("| ").split(" | ") for line in table(name)[3:]]
    return {row[0]: row for row in cells}


def words_in(name: str) -> list[str]:
    root = ElementTree.parse(simulated.PICTURES / f"{name}.svg").getroot()
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize(
    ("name", "strategies"),
    [("steady", ("expected-cost", "price", "round-robin")), ("outage", ("expected-cost",))],
)
def test_rows_are_what_the_simulator_prints(name: str, strategies: tuple[str, ...]) -> None:
    fresh = markdown(simulated.play(name, strategies)).replace("\n\n", "\n").splitlines()
    assert set(fresh) <= set(table(name)), HINT
    assert fresh[:3] == table(name)[:3], HINT
    assert list(rows(name)) == list(STRATEGIES), HINT


@pytest.mark.parametrize("name", simulated.SCENARIOS)
def test_pictures_show_the_tables_figures(name: str) -> None:
    words = words_in(name)
    assert words[1 : 1 + len(STRATEGIES)] == list(STRATEGIES)
    costs = words[words.index("cost of a request, times the clairvoyant's") + 1 :][: len(STRATEGIES)]
    regrets = [float(row[3].rstrip("%")) / 100 for row in rows(name).values()]
    assert [float(cost) for cost in costs] == pytest.approx([1 + regret for regret in regrets], abs=0.0051)
    slowest = words[words.index("whole answer, p95, seconds") + 1 :][: len(STRATEGIES)]
    assert slowest == [row[5].split(", ")[1] for row in rows(name).values()], HINT


def test_the_picture_of_faults_is_what_the_simulator_plays() -> None:
    assert (simulated.PICTURES / "faults.svg").read_text() == simulated.faults(), HINT


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_words_and_bars_stand_out_from_their_background(colours: dict[str, str]) -> None:
    for name, least in (("ink", 4.5), ("faint", 4.5), ("ours", 3.0), ("other", 3.0)):
        light, dark = sorted((luminance(colours[name]), luminance(colours["paper"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= least, name


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.1 defines it, for its contrast ratio."""
    parts = [int(part, 16) / 255 for part in re.findall("[0-9a-f]{2}", colour)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_a_table_without_a_place_is_told() -> None:
    with pytest.raises(ValueError, match=r"the page has places for \[\]"):
        simulated.put_into("# Page\n", {"steady": "| a |"})
