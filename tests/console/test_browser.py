"""The console as people use it: a real server, a real browser, clicks and keys. Needs chromium."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.accounts import bank
from tests.support.console import CHROMIUM, ROUTES, WHY_NOT, page_of, press
from tests.support.server import Server, running_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("console"), ROUTES) as found:
        for number in range(6):
            assert found.chat(model="one", stream=bool(number % 2), max_tokens=5)[0] == 200
        assert found.chat(model="acme/two")[0] == 503
        yield found


def test_the_overview_tells_figures_and_each_endpoints_state(browser: Browser, server: Server) -> None:
    with page_of(browser, server) as page:
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(4)
        tile = page.locator(".tile", has_text="Requests")
        expect(tile.locator(".value")).to_have_text("7")
        expect(tile.locator("rect")).not_to_have_count(0)
        assert "ok" in rows.filter(has_text="fake/acme/one").inner_text()
        assert "failing lately" in rows.filter(has_text="gone/acme/two").inner_text()
        assert "ELSEWHERE_API_KEY is unset" in rows.filter(has_text="far/acme/one").inner_text()
        assert "$1 / $2" in rows.filter(has_text="fake/acme/one").inner_text()
        expect(page.locator("#state")).to_contain_text("as of")


def test_the_picture_shows_the_graph_and_what_is_known_of_a_node(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "routes") as page:
        expect(page.locator(".node.model")).to_have_count(2)
        expect(page.locator(".node.alias, .node.pattern")).to_have_count(2)
        expect(page.locator(".edge.fallback")).to_have_count(2)  # the legend's and the edge
        expect(page.locator(".map .edge.live")).not_to_have_count(0)
        node = page.get_by_role("button", name="endpoint fake/acme/one, ok")
        node.focus()
        page.keyboard.press("Enter")
        expect(page.locator(".detail")).to_contain_text("Upstream name")
        expect(page.locator(".node.chosen")).to_have_count(1)
        lit = page.locator(".map.lit .node.on")
        expect(lit).to_have_count(5)  # alias, model, endpoint, provider, failure domain
        page.fill("#filter", "two")
        expect(page.locator(".node.model")).to_have_count(1)
        page.fill("#filter", "no such model")
        expect(page.locator(".node.model")).to_have_count(0)


def test_latency_sorts_filters_and_gives_the_csv_of_the_api(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "latency?by=provider&metric=duration_ms") as page:
        names = page.locator("tbody th")
        expect(names).to_have_count(2)
        assert names.first.inner_text().startswith("Fake")  # most requests first
        page.click("#sort-name")
        expect(page.locator("th[aria-sort=ascending]")).to_have_text("provider")
        page.click("#sort-name")
        expect(names.first).to_contain_text("Gone")
        assert "whole answer p99" in page.locator("thead").inner_text()
        with page.expect_download() as caught:
            press(page, "Download CSV")
        url = f"{server.base_url}/stats/routes?group_by=provider&percentiles=50,90,99&format=csv"
        with urllib.request.urlopen(url) as answer:
            assert caught.value.path().read_bytes() == answer.read()
        page.fill("#model", "acme/two")
        page.keyboard.press("Enter")
        page.locator("#model").blur()
        expect(names).to_have_count(1)


def test_a_dry_run_tells_candidates_and_what_was_left_out(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "explain?model=one", allowed="400") as page:
        expect(page.locator("#result")).to_contain_text("expected-cost")
        tried, left_out = page.locator("#result table").all()
        assert tried.locator("tbody th").first.inner_text().startswith("fake/acme/one")
        assert "ELSEWHERE_API_KEY is unset" in left_out.inner_text()
        page.fill("#provider", '{"only": ["dear"]}')
        press(page, "Explain")
        expect(page.locator("#result tbody th").first).to_contain_text("dear/acme/one")
        page.fill("#provider", "{only: dear}")
        press(page, "Explain")
        expect(page.locator("#result")).to_contain_text("provider is not JSON")
        page.fill("#provider", '{"nothing": 1}')
        press(page, "Explain")
        expect(page.locator("#result .problem")).to_contain_text("nothing")


def test_a_request_can_be_tried_and_tells_its_way(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "try?model=one", allowed="503") as page:
        press(page, "Send")
        expect(page.locator("#answer")).to_have_text("one two three")
        expect(page.locator("#facts")).to_contain_text("answered by fake/acme/one")
        expect(page.locator("tbody th").first).to_contain_text("fake/acme/one")
        page.fill("#model", "acme/two")
        press(page, "Send")
        expect(page.locator("#facts .problem")).to_be_visible()


def test_names_that_callers_invent_are_text(browser: Browser, server: Server) -> None:
    name = "any-<img/src=x/onerror=alert(1)>"
    assert server.chat(model=name)[0] == 200
    for view in ("", "latency"):
        with page_of(browser, server, view) as page:
            expect(page.locator("tbody th", has_text="onerror")).to_have_count(1)
            assert page.locator("main img").count() == 0


def test_a_key_is_asked_for_kept_in_the_tab_and_sent(browser: Browser, tmp_path: Path) -> None:
    with bank(tmp_path, ROUTES) as keys, page_of(browser, keys.server, allowed="401") as page:
        expect(page.locator("#key-dialog")).to_be_visible()
        page.fill("#key-value", "sk-wrong")
        press(page, "Use key")
        expect(page.locator("#key-fault")).to_contain_text("not valid")
        page.fill("#key-value", keys.key)
        press(page, "Use key")
        expect(page.locator("tbody tr")).to_have_count(4)
        expect(page.locator("#problem")).to_be_hidden()
        kept = page.evaluate("[sessionStorage.length, localStorage.length, document.cookie, location.href]")
        assert kept[:3] == [1, 0, ""] and keys.key not in kept[3]
        page.click("#key")
        press(page, "Forget")
        expect(page.locator("#key-dialog")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0


def test_a_server_that_went_away_is_told_and_found_again(browser: Browser, tmp_path: Path) -> None:
    with running_server(tmp_path, ROUTES) as server, page_of(browser, server, allowed="ERR_") as page:
        expect(page.locator("tbody tr")).to_have_count(4)
        page.route("**/api/**", lambda route: route.abort())
        expect(page.locator("#problem")).to_contain_text("does not answer")
        page.unroute("**/api/**")
        expect(page.locator("#problem")).to_be_hidden()
        page.click("#pause")
        expect(page.locator("#pause")).to_have_text("Resume")


def test_a_narrow_window_shows_everything_without_scrolling_sideways(
    browser: Browser, server: Server
) -> None:
    for view in ("", "routes", "latency", "explain?model=one", "try", "keys"):
        with page_of(browser, server, view) as page:
            page.set_viewport_size({"width": 360, "height": 700})
            expect(page.locator("h1")).to_be_visible()
            page.wait_for_load_state("networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
