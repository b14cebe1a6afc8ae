"""Keys and spending in the console: thousands in a table, dialogs that change one, other kinds of key."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from ionrouter.store.keys import KeyStore, hash_of
from ionrouter.store.place import database_of
from tests.support.accounts import bank
from tests.support.console import CHROMIUM, ROUTES, WHY_NOT, page_of, press
from tests.support.server import Server, running_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

MARKUP = "<img src=x onerror=alert(1)> & co"
NUM_KEYS = 3000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("console"), ROUTES) as found:
        for number in range(3):
            assert found.chat(model="one", stream=bool(number % 2), max_tokens=5)[0] == 200
        yield found


def _made(server: Server, **body: Any) -> tuple[str, str]:
    """Make a key over the API; returns it and its hash."""
    status, made = server.post("/api/v1/keys", {"name": "made", **body}, server.management_key())
    assert status == 201, made
    return made["key"], made["data"]["hash"]


def _card(server: Server, digest: str) -> Any:
    return server.get(f"/api/v1/keys/{digest}", server.management_key())[1]["data"]


@contextmanager
def _managed(browser: Browser, server: Server, view: str = "keys", **more: Any) -> Iterator[Page]:
    """The view for whoever has entered the management key."""
    with page_of(browser, server, view, **more) as page:
        press(page, "Enter a management key")
        page.fill("#key-value", server.management_key())
        press(page, "Use key")
        expect(page.locator("main .scroll")).to_be_visible()
        page.wait_for_load_state("networkidle")
        yield page


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _row(page: Page, name: str) -> Locator:
    return page.locator("tbody tr").filter(has=page.get_by_role("button", name=f"Edit {name}", exact=True))


def _cell(row: Locator, column: str) -> Locator:
    heads = row.page.locator("thead th").all_inner_texts()
    return row.locator("th, td").nth([head.strip(" ▾▴") for head in heads].index(column))


def test_a_key_is_made_shown_once_and_kept_nowhere(browser: Browser, server: Server) -> None:
    with _managed(browser, server) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        press(page, "New key")
        expect(page.locator("#key-name")).to_be_focused()
        page.fill("#key-name", "laptop")
        page.fill("#key-limit", "2.5")
        page.select_option("#key-reset", "monthly")
        page.fill("#key-expires", "2099-12-31T08:30")
        press(page, "Make key")
        expect(page.locator("main dialog")).to_contain_text("it cannot be shown again")
        key = page.locator("#new-key").input_value()
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        press(page, "Copy")
        expect(page.locator("main dialog [role=status]")).to_have_text("Copied.")
        assert page.evaluate("navigator.clipboard.readText()") == key
        press(page, "Done")
        expect(page.get_by_role("button", name="New key")).to_be_focused()
        row = _row(page, "laptop")
        for column, told in {
            "limit": "$2.50", "resets": "monthly", "expires": "2099-12-31 08:30", "last used": "never",
            "state": "active",
        }.items():  # fmt: skip
            expect(_cell(row, column)).to_contain_text(told)
        kept = page.evaluate(
            "[location.href, document.cookie, JSON.stringify([sessionStorage, localStorage, history.state]),"
            " document.documentElement.outerHTML,"
            " [...document.querySelectorAll('input, textarea')].map((one) => one.value)]"
        )
        assert key not in json.dumps(kept)
        assert _card(server, hash_of(key))["limit"] == 2.5


def test_what_the_api_refuses_is_said_at_the_field(browser: Browser, server: Server) -> None:
    with _managed(browser, server, allowed="400") as page:
        press(page, "New key")
        page.fill("#key-name", "x" * 300)
        press(page, "Make key")
        fault = page.locator("#form-fault")
        expect(fault).to_contain_text("name")
        expect(page.locator("#key-name")).to_be_focused()
        expect(page.locator("#key-name")).to_have_accessible_description(fault.inner_text())
        page.fill("#key-name", "late")
        page.fill("#key-expires", "2001-01-01T00:00")
        press(page, "Make key")
        expect(fault).to_contain_text("expires_at: is over already")
        expect(page.locator("[aria-invalid]")).to_have_id("key-expires")
        page.keyboard.press("Escape")
        expect(page.locator("main dialog")).to_have_count(0)
        expect(_row(page, "late")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_of_it_can_be_had_in_a_narrow_window(browser: Browser, server: Server, scheme: Any) -> None:
    _made(server, name="narrow", limit=1)
    narrow: Any = {"width": 320, "height": 640}
    with _managed(browser, server, viewport=narrow, color_scheme=scheme) as page:
        region = page.get_by_role("region", name="Keys")
        region.focus()
        page.keyboard.press("ArrowRight")
        expect(region).not_to_have_js_property("scrollLeft", 0)
        press(page, "New key")
        expect(page.get_by_role("button", name="Make key")).to_be_in_viewport()
        page.keyboard.press("Escape")
        page.get_by_role("link", name="Spending").click()
        expect(page.locator("tbody tr").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= narrow["width"]


def test_only_what_was_changed_is_sent(browser: Browser, server: Server) -> None:
    _, digest = _made(server, name="first name", limit=5, limit_reset="weekly")
    with _managed(browser, server) as page:
        press(page, "Edit first name")
        expect(page.locator("#key-limit")).to_have_value("5")
        changed = page.evaluate(
            """([hash, key]) => fetch(`../api/v1/keys/${hash}`, {
              method: "PATCH", body: '{"name": "of another"}',
              headers: { "Content-Type": "application/json", Authorization: `Bearer ${key}` },
            }).then((answer) => answer.status)""",
            [digest, server.management_key()],
        )
        assert changed == 200
        page.fill("#key-limit", "")
        page.check("#key-disabled")
        press(page, "Save")
        row = _row(page, "of another")
        expect(_cell(row, "state")).to_contain_text("disabled")
        expect(_cell(row, "limit")).to_have_text("unlimited")
        expect(page.get_by_role("button", name="Edit of another")).to_be_focused()
        card = _card(server, digest)
        told = [card[name] for name in ("name", "limit", "limit_reset", "disabled")]
        assert told == ["of another", None, "weekly", True]


def test_a_key_is_deleted_after_a_question_that_names_it(browser: Browser, server: Server) -> None:
    _, digest = _made(server, name=MARKUP)
    with _managed(browser, server, allowed="404") as page:
        assert page.locator("main img").count() == 0
        press(page, f"Delete {MARKUP}")
        asked = page.get_by_role("dialog", name=f"Delete {MARKUP}?")
        expect(asked).to_contain_text(MARKUP)
        expect(asked).to_contain_text(_card(server, digest)["label"])
        expect(asked.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Enter")
        expect(_row(page, MARKUP)).to_have_count(1)
        press(page, f"Delete {MARKUP}")
        press(page, "Delete")
        expect(_row(page, MARKUP)).to_have_count(0)
        expect(page.get_by_role("region", name="Keys")).to_be_focused()
        expect(page.get_by_role("status")).to_have_text(f"Deleted {MARKUP}.")
        assert server.get(f"/api/v1/keys/{digest}", server.management_key())[0] == 404


def test_every_state_is_told_found_and_kept_in_the_address(browser: Browser, server: Server) -> None:
    capped = {"limit": 3, "limit_reset": "daily"}
    for name, body in {"zero": {"limit": 0}, "endless": {}, "capped": capped}.items():
        _made(server, name=f"state {name}", **body)
    with closing(KeyStore.open(database_of(None, server.state / "ionrouter.db"))) as store:
        store.create("state over", "inference", 1.0, expires_at=2.0)
    with _managed(browser, server) as page:
        page.fill("#filter", "STATE ")
        told = {
            "zero": ("limit used up", "$0", "$0"), "endless": ("active", "unlimited", "unlimited"),
            "capped": ("active", "$3.00", "$3.00"), "over": ("expired", "unlimited", "unlimited"),
        }  # fmt: skip
        for name, (state, limit, left) in told.items():
            row = _row(page, f"state {name}")
            expect(_cell(row, "state")).to_contain_text(state)
            assert [_cell(row, c).inner_text() for c in ("limit", "remaining")] == [limit, left]
        page.click("#sort-remaining")
        names = page.locator("tbody th")
        assert names.first.inner_text().startswith("state ") and "zero" in names.last.inner_text()
        page.select_option("#key-state", "used_up")
        expect(names).to_have_count(1)
        expect(page.get_by_role("status")).to_contain_text("1 of ")
        assert "q=STATE" in page.url and "state=used_up" in page.url and "sort=remaining" in page.url
        page.reload()
        expect(names).to_have_count(1)
        page.fill("#filter", "sk-or-v1-0123")
        expect(page.locator(".scroll .note")).to_have_text("No key is like that.")
        assert "sk-or" not in page.url


def test_a_key_made_in_one_tab_is_in_the_other_after_a_refresh(browser: Browser, server: Server) -> None:
    with _managed(browser, server) as one, _managed(browser, server) as other:
        press(one, "New key")
        one.fill("#key-name", "of one tab")
        press(one, "Make key")
        press(one, "Done")
        expect(_row(one, "of one tab")).to_have_count(1)
        expect(_row(other, "of one tab")).to_have_count(0)
        press(other, "Pause")
        expect(_row(other, "of one tab")).to_have_count(1)
        press(other, "Delete of one tab")
        press(other, "Delete")
        expect(_row(other, "of one tab")).to_have_count(0)


def test_a_change_of_a_key_that_is_gone_is_told_in_its_dialog(browser: Browser, server: Server) -> None:
    _, digest = _made(server, name="soon gone")
    with _managed(browser, server, allowed="404") as page:
        press(page, "Edit soon gone")
        with closing(KeyStore.open(database_of(None, server.state / "ionrouter.db"))) as store:
            store.delete(digest)
        page.fill("#key-name", "new name")
        press(page, "Save")
        expect(page.locator("#form-fault")).to_contain_text("no key with the hash")
        expect(page.locator("#key-name")).to_have_value("new name")


@pytest.mark.parametrize("status", [500, 401])
def test_what_fails_on_the_way_leaves_the_form_and_the_table(
    browser: Browser, server: Server, status: int
) -> None:
    _made(server, name="stays")
    with _managed(browser, server, allowed=str(status)) as page:
        expect(_row(page, "stays").first).to_be_visible()
        page.route("**/api/v1/keys**", lambda route: route.fulfill(status=status, body="no"))
        press(page, "New key")
        page.fill("#key-name", "half made")
        press(page, "Make key")
        expect(page.locator("#form-fault")).to_have_text(f"The server answered with status {status}.")
        if status == 401:
            expect(page.locator("#key-fault")).to_contain_text("401")
            page.keyboard.press("Escape")
        expect(page.locator("#key-name")).to_have_value("half made")
        page.keyboard.press("Escape")
        press(page, "Pause")
        expect(page.locator("#problem")).to_contain_text(f"status {status}")
        expect(_row(page, "stays").first).to_be_attached()


def test_a_key_that_may_have_been_made_is_told_as_such(browser: Browser, server: Server) -> None:
    with _managed(browser, server, allowed="ERR_") as page:
        press(page, "New key")
        page.fill("#key-name", "perhaps")
        page.route("**/api/v1/keys", lambda route: route.abort())
        press(page, "Make key")
        expect(page.locator("#form-fault")).to_contain_text("may have been made all the same")


def test_an_inference_key_sees_its_own_limit_and_spending(browser: Browser, tmp_path: Path) -> None:
    with bank(tmp_path, ROUTES) as keys, page_of(browser, keys.server, "keys", allowed="40") as page:
        expect(page.locator("#key-dialog")).to_be_visible()
        key, _ = keys.make_key(name="own", limit=4, limit_reset="weekly")
        for entered in (keys.server.management_key(), key):
            page.fill("#key-value", entered)
            press(page, "Use key")
            expect(page.locator("tbody tr").or_(page.locator(".tile")).first).to_be_visible()
            page.click("#key")
        page.keyboard.press("Escape")
        expect(page.locator("main")).to_contain_text("A management key is needed")
        tile = page.locator(".tile", has_text="Limit")
        expect(tile).to_contain_text("$4.00")
        expect(tile).to_contain_text("a week, does not expire")
        expect(page.locator(".tile", has_text="Remaining").locator(".value")).to_have_text("$4.00")
        expect(page.get_by_role("button", name="New key")).to_be_hidden()
        assert page.locator("tbody tr").count() == 0  # what the other key was shown


def test_spending_by_day_model_provider_and_key(browser: Browser, tmp_path: Path) -> None:
    address = "keys?show=spending"
    with bank(tmp_path, ROUTES) as keys, page_of(browser, keys.server, address, allowed="401") as page:
        key, digest = keys.make_key(name="=spender")
        assert keys.chat(key, model="one")[0] == keys.chat(model="one")[0] == 200
        days = {_today()}
        page.fill("#key-value", keys.server.management_key())
        press(page, "Use key")
        names = page.locator("tbody th")
        expect(names).to_have_text(["acme/one"])
        spent = _cell(page.locator("tbody tr"), "spent").inner_text()
        assert spent.startswith("$0.0000")
        expect(page.locator(".tile", has_text="Spent").first.locator(".value")).to_have_text(spent)
        expect(page.locator("tbody svg rect")).not_to_have_count(0)
        page.select_option("#by", "provider")
        expect(names).to_have_text(["Fake"])
        page.select_option("#days", "30")
        page.select_option("#by", "date")
        expect(page.locator("thead th").first).to_have_text("day")
        days.add(_today())
        day = names.first.inner_text()
        assert day in days
        page.select_option("#by", "api_key_id")
        expect(names.filter(has_text="=spender")).to_have_count(1)
        expect(names.filter(has_text="first")).to_have_count(1)
        with page.expect_download() as caught:
            press(page, "Download CSV")
        rows = list(csv.DictReader(io.StringIO(caught.value.path().read_text())))
        (row,) = [row for row in rows if row["api_key_id"] == digest]
        assert (row["date"], row["request_count"], row["key_name"]) == (day, "1", "'=spender")
        assert float(row["total_usage"]) == pytest.approx(_card(keys.server, digest)["usage"])
        page.reload()
        expect(page.locator("#by")).to_have_value("api_key_id")


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("crowded")
    with closing(KeyStore.open(database_of(None, folder / "state" / "ionrouter.db"))) as store:
        for number in range(NUM_KEYS):
            store.create(f"key {number:04}", "inference", 1e9 + number)
    with running_server(folder, ROUTES) as found:
        yield found


def test_thousands_of_keys_are_paged_sorted_and_found(browser: Browser, crowded: Server) -> None:
    with _managed(browser, crowded) as page:
        note = page.locator(".pages .note")
        expect(note).to_have_text("1 to 50 of 3,000 keys")
        names = page.locator("tbody th")
        expect(names).to_have_count(50)
        expect(names.first).to_contain_text("key 2999")
        page.click("#sort-name")
        expect(names.first).to_contain_text("key 0000")
        press(page, "Next")
        expect(names.first).to_contain_text("key 0050")
        expect(page.get_by_role("status")).to_have_text("51 to 100 of 3,000 keys")
        page.fill("#filter", "key 1234")
        expect(names).to_have_count(1)
        expect(note).to_have_text("1 to 1 of 1, of 3,000 keys in all")
        press(page, "Edit key 1234")
        page.fill("#key-name", "found")
        press(page, "Save")
        expect(page.get_by_role("status")).to_have_text("Changed found.")


def test_pages_that_fail_midway_show_what_came(browser: Browser, crowded: Server) -> None:
    with _managed(browser, crowded, allowed="500") as page:

        def answer(route: Route) -> None:
            is_late = "offset=99" in route.request.url
            route.fulfill(status=500, body="no") if is_late else route.continue_()

        page.route("**/api/v1/keys**", answer)
        page.reload()
        expect(page.locator("#problem")).to_have_text("The server answered with status 500. Trying again.")
        expect(page.locator(".pages .note")).to_have_text("1 to 50 of 100 keys so far")
        page.unroute("**/api/v1/keys**")
        press(page, "Pause")
        expect(page.locator(".pages .note")).to_have_text("1 to 50 of 3,000 keys")


def test_keys_that_change_between_two_pages_are_neither_lost_nor_told_twice(
    browser: Browser, crowded: Server
) -> None:
    doomed = _made(crowded, name="doomed")[1]

    def answer(route: Route) -> None:
        if "offset=99" in route.request.url and not changes:
            changes.append(_made(crowded, name="new one")[1])
        if "offset=197" in route.request.url and len(changes) == 1:
            changes.append(doomed)
            with closing(KeyStore.open(database_of(None, crowded.state / "ionrouter.db"))) as store:
                store.delete(doomed)
        route.continue_()

    changes = list[str]()
    with _managed(browser, crowded) as page:
        page.route("**/api/v1/keys**", answer)
        page.reload()
        expect(page.locator(".pages .note")).to_have_text("1 to 50 of 3,001 keys")
        assert len(changes) == 2
