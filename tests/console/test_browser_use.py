"""The console in long use: what refreshes, the way back, refused keys and cuts leave of what somebody did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.accounts import bank
from tests.support.console import CHROMIUM, ROUTES, WHY_NOT, page_of, press
from tests.support.server import Server, running_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

SLOW = "\n  slow: { type: fake, options: { tokens: 500, gap_s: 0.1 } }"
MODELS = """
  acme/slow: { endpoints: [{ provider: slow, model: slow }] }
  acme/vectors: { output_modalities: [embeddings], endpoints: [{ provider: fake, model: v }] }
  "acme/🇩🇪😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀-x": { endpoints: [{ provider: fake, model: e }] }"""
MORE = ROUTES.replace("providers:", f"providers:{SLOW}").replace("models:", f"models:{MODELS}")
CUT = 'data: {"choices": [{"delta": {"content": "one"}}]}\n\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("console"), MORE) as found:
        assert found.chat(model="one")[0] == 200
        yield found


def _refresh(page: Page) -> None:
    """Pause and go on: both ask anew."""
    for button in ("Pause", "Resume"):
        with page.expect_response("**/routing/graph"):
            press(page, button)
    page.wait_for_load_state("networkidle")


def test_a_refresh_takes_neither_focus_nor_selection_nor_place(browser: Browser, server: Server) -> None:
    with page_of(browser, server, viewport={"width": 900, "height": 300}) as page:
        link = page.get_by_role("link", name="fake/acme/one")
        link.focus()
        page.evaluate("getSelection().selectAllChildren(document.querySelector('tbody tr:nth-child(3) th'))")
        page.evaluate("[scrollTo(0, 90), window.kept = document.activeElement]")
        selected = page.evaluate("String(getSelection())")
        assert selected
        for _ in range(2):
            with page.expect_response("**/routing/graph"):
                page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            page.wait_for_load_state("networkidle")
        expect(link).to_be_focused()
        assert page.evaluate("[window.kept.isConnected, String(getSelection()), scrollY]") == [
            True, selected, 90,
        ]  # fmt: skip


def test_a_refresh_is_not_announced(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "routes?node=model:acme/one") as page:
        expect(page.locator(".detail dd").first).to_be_visible()
        watch = """() => {
          window.changes = [];
          const live = [...document.querySelectorAll('[aria-live], [role=status], [role=alert]')];
          const seen = new MutationObserver((found) => window.changes.push(...found.map((f) => f.type)));
          live.forEach((area) => seen.observe(area, { subtree: true, childList: true, characterData: true }));
          return live.length;
        }"""
        assert page.evaluate(watch) > 0
        _refresh(page)
        assert page.evaluate("window.changes") == []


def test_the_way_back_and_a_reload_find_what_was_chosen(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "latency") as page:
        page.select_option("#group", "model")
        page.select_option("#window", "7d")
        page.select_option("#metric", "duration_ms")
        page.get_by_role("link", name="Explain", exact=True).click()
        page.fill("#provider", '{"only": ["dear"]}')
        press(page, "Explain")
        expect(page.locator("#result tbody th").first).to_be_visible()
        page.reload()
        expect(page.locator("#provider")).to_have_value('{"only": ["dear"]}')
        page.go_back()
        expect(page.locator("thead")).to_contain_text("whole answer p99")
        expect(page.locator("#group")).to_have_value("model")
        expect(page.locator("#window")).to_have_value("7d")


def test_the_keyboard_skips_to_the_content_of_the_same_view(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "routes?model=two") as page:
        expect(page.locator(".node.model")).to_have_count(1)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#view")).to_be_focused()
        expect(page.locator("h1")).to_have_text("Routes")
        expect(page.locator("#filter")).to_have_value("two")
        page.locator(".node.model").press("Enter")
        page.get_by_role("link", name="Explain", exact=True).last.press("Enter")
        expect(page.locator("h1")).to_have_text("Where would it go?")
        expect(page.locator("#view")).to_be_focused()


def test_an_address_of_no_view_is_the_overview(browser: Browser, server: Server) -> None:
    for view in ("nothing", "toString", "constructor?x=1"):
        with page_of(browser, server, view) as page:
            expect(page.locator("h1")).to_have_text("Overview")


def test_a_refused_key_is_not_sent_again_by_itself(browser: Browser, tmp_path: Path) -> None:
    with (
        bank(tmp_path, ROUTES) as keys,
        page_of(browser, keys.server, "try?model=one", allowed="401") as page,
    ):
        page.fill("#prompt", "half a thought")
        press(page, "Send")
        page.fill("#key-value", keys.key)
        press(page, "Use key")
        expect(page.locator("#prompt")).to_have_value("half a thought")
        page.get_by_role("link", name="Overview", exact=True).click()
        expect(page.locator("tbody tr")).to_have_count(4)
        page.clock.install()
        page.evaluate("sessionStorage.setItem('ionrouter.key', 'sk-or-v1-gone')")
        for button in ("Pause", "Resume"):
            press(page, button)
            expect(page.locator("#key-dialog")).to_be_visible()
            page.keyboard.press("Escape")
        sent = list[str]()
        page.on("request", lambda request: sent.append(request.url))
        page.clock.run_for(120_000)
        assert sent == []


def test_an_answer_that_breaks_off_is_told_as_such(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "try?model=one") as page:
        page.route("**/chat/completions", lambda route: route.fulfill(body=CUT))
        press(page, "Send")
        expect(page.locator("#answer")).to_have_text("one")
        expect(page.locator("#facts")).to_contain_text("cut off before the answer was whole")


def test_whoever_leaves_a_trial_stops_paying_for_it(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "try?model=acme/slow") as page:
        press(page, "Send")
        expect(page.locator("#answer")).not_to_be_empty()
        page.get_by_role("link", name="Overview", exact=True).click()
        expect(page.locator("h1")).to_have_text("Overview")
        found = server.wait_for_event("request_finished", 2)
        assert (found[-1]["model"], found[-1]["status"]) == ("acme/slow", 499)


def test_a_model_without_chats_is_explained_by_its_own_api_and_not_tried(
    browser: Browser, server: Server
) -> None:
    with page_of(browser, server, "routes?node=model:acme/vectors") as page:
        ways = page.locator(".detail .ways a")
        expect(ways).to_have_text(["Explain", "Latency"])
        ways.first.click()
        expect(page.locator("#api")).to_have_value("embeddings")
        expect(page.locator("#limit, #stream").first).to_be_disabled()
        expect(page.locator("#result tbody th").first).to_contain_text("fake/acme/vectors")


def test_a_name_of_wide_signs_stays_in_its_box_and_whole_signs(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "routes?model=-x") as page:
        text = page.locator(".node.model text").first
        expect(text).to_contain_text("…")
        assert page.evaluate("(text) => text.textContent.isWellFormed()", text.element_handle())
        assert text.evaluate("(text) => text.getBBox().width <= 168"), text.text_content()
