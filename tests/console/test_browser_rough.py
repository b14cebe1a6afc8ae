"""The console beside servers that fail, for who has only a keyboard, and in other time zones."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.console import CHROMIUM, ROUTES, WHY_NOT, page_of
from tests.support.server import Server, running_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

VIEWS = ("", "routes", "latency", "explain?model=one", "try?model=one")
NARROW = {"width": 320, "height": 256}  # 1280 by 1024 at 400 %


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("console"), ROUTES) as found:
        assert found.chat(model="one")[0] == 200
        yield found


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
