"""The console beside servers that fail, for who has only a keyboard, and in other time zones."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.support.console import CHROMIUM, ROUTES, WHY_NOT, page_of, press
from tests.support.server import Server, running_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

VIEWS = ("", "routes", "latency", "explain?model=one", "try?model=one", "keys")
NARROW = {"width": 320, "height": 256}  # 1280 by 1024 at 400 %


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("console"), ROUTES) as found:
        assert found.chat(model="one")[0] == 200
        yield found


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": 500, "body": "<h1>no</h1>"}, "The server answered with status 500. Trying again."),
        (
            {"status": 200, "body": "<h1>A proxy's page</h1>"},
            "The server's answer is not JSON. Trying again.",
        ),
        (None, "The server has not answered for 10 seconds. Still waiting."),
    ],
)
def test_what_goes_wrong_is_told_in_every_view(
    browser: Browser, server: Server, answer: dict[str, Any] | None, said: str
) -> None:
    for view in VIEWS:
        with page_of(browser, server, view, allowed="500") as page:
            page.wait_for_load_state("networkidle")
            page.clock.install()
            page.route("**/api/**", lambda route: route.fulfill(**answer) if answer else None)
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            page.clock.run_for(11_000)
            expect(page.locator("#problem")).to_have_text(said)
            page.unroute_all(behavior="ignoreErrors")


def test_the_list_of_models_is_asked_for_until_it_comes(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "try", allowed="ERR_") as page:
        page.wait_for_load_state("networkidle")
        page.route("**/models**", lambda route: route.abort())
        page.reload()
        expect(page.locator("#problem")).to_have_text("The server does not answer. Trying again.")
        page.unroute("**/models**")
        expect(page.locator("#names option")).not_to_have_count(0)
        expect(page.locator("#problem")).to_be_hidden()


def test_a_mistake_of_the_page_is_not_the_servers(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "routes", allowed="properties") as page:
        page.route("**/routing/graph", lambda route: route.fulfill(json={"data": None}))
        expect(page.locator("#problem")).to_contain_text("properties of null")


def test_what_scrolls_is_named_and_scrolls_by_the_keyboard(browser: Browser, server: Server) -> None:
    for view in VIEWS[:4]:
        with page_of(browser, server, view, viewport=NARROW) as page:
            regions = page.get_by_role("region").and_(page.locator(".scroll"))
            expect(regions.locator("table, svg.map").first).to_be_attached()
            assert regions.count() == page.locator(".scroll").count()
            assert all(regions.evaluate_all("all => all.map((one) => one.ariaLabel && !one.tabIndex)"))
            regions.first.focus()
            page.keyboard.press("ArrowRight")
            expect(regions.first).not_to_have_js_property("scrollLeft", 0)
            assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"], view
            if view in VIEWS[:3]:
                expect(page.locator("#state")).to_be_visible()


def test_headings_leave_out_no_level(browser: Browser, server: Server) -> None:
    for view in VIEWS:
        with page_of(browser, server, view) as page:
            page.wait_for_load_state("networkidle")
            found = page.locator("main :is(h1, h2, h3)").evaluate_all("all => all.map((one) => one.nodeName)")
            assert found[0] == "H1" and set(found[1:]) <= {"H2"}, view


def test_an_answer_is_announced_in_one_line(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "explain?model=one") as page:
        expect(page.get_by_role("status")).to_contain_text("expected-cost: ")
        assert page.locator("[aria-live] table, [role=status] table").count() == 0


def test_lines_have_the_readers_own_colours_where_these_are_forced(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "routes", forced_colors="active") as page:
        expect(page.locator(".map .edge.live").first).to_be_attached()
        drawn = page.locator(".map .edge, .node rect").evaluate_all(
            "all => all.map((one) => getComputedStyle(one).stroke)"
        )
        own = page.evaluate("getComputedStyle(document.body).color")
        assert set(drawn) == {own}


def test_a_day_is_the_servers_in_every_time_zone(browser: Browser, server: Server) -> None:
    days = {datetime.datetime.now(datetime.UTC).date()}
    for zone in ("Pacific/Kiritimati", "America/Los_Angeles"):
        with page_of(browser, server, "latency?window=7d", timezone_id=zone, locale="en-CA") as page:
            told = page.locator("tbody title").first.text_content() or ""
            days.add(datetime.datetime.now(datetime.UTC).date())
            assert datetime.date.fromisoformat(told.partition(":")[0]) in days, (zone, told)


def test_a_share_is_100_percent_only_where_nothing_is_left(browser: Browser, server: Server) -> None:
    with page_of(browser, server) as page:
        shown = page.evaluate(
            "import('./format.js').then(({ share }) => [1, 0.9999, 0.995, 0.5, 0.0005, 0].map(share))"
        )
        assert shown == ["100 %", ">99.9 %", "99.5 %", "50 %", "<0.1 %", "0 %"]


def test_a_paused_page_does_not_promise_to_try_again(browser: Browser, server: Server) -> None:
    with page_of(browser, server, allowed="ERR_") as page:
        page.wait_for_load_state("networkidle")
        page.route("**/api/**", lambda route: route.abort())
        press(page, "Pause")
        expect(page.locator("#problem")).to_have_text("The server does not answer.")
