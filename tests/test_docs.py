"""The documentation cannot lie: its tables are fresh, and what exists is named; see also test_docs_names.py.

`python -m tests.support.docs` writes the tables anew and leaves `TO DO` where words are missing.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from ionrouter import cli
from ionrouter.api import body, listing, sse
from ionrouter.balancing import health
from ionrouter.engine import pool
from ionrouter.metrics import Metrics
from ionrouter.reload import POLL_S, SETTLE_S
from ionrouter.schema import completions
from ionrouter.schema.errors import ERROR_TYPES
from ionrouter.settings import Settings
from ionrouter.stats import book
from tests.support import docs_tables, source_scan
from tests.support.docs import TABLES, TO_DO, put_into, words_in
from tests.support.pages import ROOT, text_of
from tests.support.server import GUARD_S, running_server


@pytest.mark.parametrize("page", TABLES)
def test_generated_tables_are_fresh(page: str) -> None:
    assert put_into(text_of(page), TABLES[page]) == text_of(page), "run: python -m tests.support.docs"


@pytest.mark.parametrize("page", TABLES)
def test_nobody_owes_words(page: str) -> None:
    assert f"| {TO_DO} |" not in text_of(page), "write the last column by hand"


def test_words_are_kept_and_rows_are_made() -> None:
    page = "docs/operations.md"
    stale = text_of(page).replace("| `drain_finished` | info |", "| `drain_finished` | STALE |")
    assert "STALE" in stale
    assert put_into(stale, TABLES[page]) == text_of(page)
    lost = re.sub(r"(?m)^\| `drain_finished` .*\n", "", text_of(page))
    assert f"| `drain_finished` | info |  | {TO_DO} |" in put_into(lost, TABLES[page])
    with pytest.raises(ValueError, match="places for"):
        put_into("# Page\n", TABLES[page])


def test_every_setting_is_documented() -> None:
    for name, spec in Settings.model_fields.items():
        assert f"| `IONROUTER_{name.upper()}` |" in text_of("docs/operations.md")
        assert spec.description, f"{name} says nothing of itself"


def test_every_route_is_documented() -> None:
    for route in docs_tables.application().router.routes():
        if route.resource is not None and route.method != "HEAD":
            _, path = docs_tables.split_prefix(route.resource.canonical)
            assert f"| `{route.method} {path}`" in text_of("docs/api.md")


def test_every_error_type_and_availability_code_is_documented() -> None:
    text = text_of("docs/api.md")
    assert len(source_scan.availability_codes()) >= 6
    for name in {*ERROR_TYPES.values(), *source_scan.availability_codes()}:
        assert f"`{name}`" in text, name


def test_every_header_is_documented() -> None:
    found = source_scan.header_names()
    assert {"x-generation-id", "x-session-id", "x-api-key", "x-ionrouter-dropped"} <= found
    assert not {name for name in found if f"`{name}" not in text_of("docs/api.md").lower()}


def test_every_log_event_is_documented_with_all_its_keys() -> None:
    events = source_scan.log_events()
    assert {"request_finished", "request_refused", "routes_reloaded", "weights_fetched"} <= events.keys()
    assert events["request_refused"].levels == {"debug", "info"}
    assert events["request_crashed"].keys.keys() >= {"path", "exception"}
    for name in events:
        assert f"| `{name}` |" in text_of("docs/operations.md"), name


def test_log_events_are_named_in_the_past_or_as_a_state() -> None:
    assert not [name for name in source_scan.log_events() if not re.fullmatch(r"[a-z]+(_[a-z]+)+", name)]


def test_every_metric_that_a_scrape_shows_is_documented() -> None:
    shown = {line.split()[2] for line in _scrape().splitlines() if line.startswith("# TYPE ")}
    assert len(shown) >= 16
    for name in shown:
        assert f"| `{name}" in text_of("docs/operations.md"), name


def _scrape() -> str:
    return Metrics().render().decode()


def test_every_query_parameter_and_order_of_models_is_documented() -> None:
    text = text_of("docs/api.md")
    source = Path(listing.__file__).read_text(encoding="utf-8")
    orders = re.findall(r'"([a-z]+-(?:high|low)-to-(?:high|low)|newest)":', source)
    assert len(orders) >= 6
    for name in (*listing.FILTERS, *orders, "offset", "limit"):
        assert f"`{name}`" in text, name


@pytest.mark.parametrize(
    ("page", "figure"),
    [
        ("docs/api.md", f"must arrive within {body.BODY_TIMEOUT_S:.0f} seconds"),
        ("docs/api.md", f"reads nothing for {sse.WRITE_TIMEOUT_S:.0f} seconds"),
        ("docs/api.md", f"(at most {completions.MAX_PROMPTS})"),
        ("docs/api.md", f"`limit` ({listing.DEFAULT_LIMIT}, at most {listing.MAX_LIMIT})"),
        ("docs/api.md", f"-2 failed within the last {health.OUTAGE_S:.0f} seconds"),
        ("docs/api.md", sse.COMMENT.decode().strip()),
        ("docs/operations.md", f"read the same for {SETTLE_S} seconds"),
    ],
)
def test_the_figures_are_those_of_the_code(page: str, figure: str) -> None:
    assert figure in " ".join(text_of(page).split())


def test_figures_that_the_pages_spell_out() -> None:
    operations = " ".join(text_of("docs/operations.md").split())
    assert book.MIN_SAMPLES == 5 and "Fewer than five samples are null" in text_of("docs/api.md")
    assert POLL_S == 1.0 and "looked at every second" in operations
    settings = Settings()
    least, most = settings.drain_delay_s, settings.drain_delay_s + settings.drain_timeout_s + 5
    assert f"at least {least:.0f} seconds and at most {most:.0f}" in operations
    assert pool.EnginePool(ROOT)._retry_wait_s == 30.0 and "again after 30 seconds" in operations


def test_what_is_said_to_be_missing_is_missing() -> None:
    missing = re.search(r"(?ms)^Not in this release: (.*?)\n\n", text_of("docs/api.md"))
    assert missing is not None
    known = {
        docs_tables.split_prefix(r.resource.canonical)[1] for r in docs_tables.application().router.routes()
    }
    for path in re.findall(r"`(/[a-z/]+)`", missing[1]):
        assert not [there for there in known if there == path or there.startswith(f"{path}/")], path


ROUTES = """
providers:
  script: { type: fake, options: { text: "red, green and blue" } }
models:
  huggingfacetb/smollm2-135m-instruct: { endpoints: [{ provider: script, model: m, prices: {} }] }
aliases: { smollm2: huggingfacetb/smollm2-135m-instruct, glm-5.3-flash: huggingfacetb/smollm2-135m-instruct }
"""


def test_the_examples_of_the_api_run_as_written(tmp_path: Path) -> None:
    blocks = re.findall(r"(?ms)^```bash\n(.*?)^```$", text_of("docs/api.md"))
    assert len(blocks) >= 5
    with running_server(tmp_path, ROUTES) as server:
        for block in blocks:
            code = block.replace("http://127.0.0.1:8080", server.url).replace("curl -s ", "curl -sSf ")
            code = code.replace("~/.local/state/ionrouter", str(server.state))
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True, timeout=GUARD_S
            )
            assert done.returncode == 0 and done.stdout.startswith("{"), code + done.stdout + done.stderr


def test_the_arrows_are_those_that_the_linter_holds() -> None:
    settings = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in settings if contract["type"] == "layers")
    arrows = re.search(r"(?ms)^```\n(cli .*?)\nengine ", text_of("docs/architecture.md"))
    assert arrows is not None
    drawn = [layer.strip() for layer in " ".join(arrows[1].split()).split("→")]
    assert drawn == [layer.replace("ionrouter.", "") for layer in layers]


def test_decisions_are_numbered_without_gaps_and_say_what_they_cost() -> None:
    entries = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(path.name[:4]) for path in entries] == list(range(1, len(entries) + 1))
    for number, path in enumerate(entries, 1):
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. "), path.name
        assert all(f"**{part}.**" in text for part in ("Context", "Choice", "Cost")), path.name


def test_every_command_is_documented() -> None:
    rows = words_in(text_of("docs/operations.md"))
    for words, _, _ in docs_tables.subcommands(cli.parser()):
        assert any(row.startswith(f"`ionrouter {words}") for row in rows), words
