"""Canaries, splits, shadows, groups and presets in the console, and dry runs of requests of every API."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.console import CHROMIUM, WHY_NOT, page_of, press
from tests.support.server import Server, running_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

ROUTES = """
providers:
  fake: { type: fake, name: Fake }
  twin: { type: fake, name: Twin }
models:
  acme/one:
    endpoints: [{ provider: fake }, { provider: twin }]
    canary: { endpoint: twin, percent: 0.5 }
    shadow: { endpoint: fake/acme/two, share: 0.07 }
    fallbacks: [any-thing]
  acme/two:
    endpoints: [{ provider: fake }, { provider: twin }, { provider: twin, model: new }]
    split: { fake: 20, twin: 80 }
  acme/vectors: { output_modalities: [embeddings], endpoints: [{ provider: fake }] }
groups: { acme/best: [acme/one, acme/two] }
splits: { acme/both: { acme/one: 90, acme/two: 10 } }
presets: { coder: { model: acme/both, temperature: 0.2 }, plain: { seed: 1 } }
patterns: { "any-*": { provider: twin } }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("console"), ROUTES) as found:
        yield found


def _detail(page: Page, node: str) -> str:
    page.locator(f'[id="node-{node}"]').press("Enter")
    expect(page.locator(".detail h2")).to_have_text(node.partition(":")[2])
    return page.locator(".detail").inner_text()


def test_the_picture_has_percentages_shadows_groups_and_presets(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "routes") as page:
        expect(page.locator(".map .percent")).to_have_count(8)
        drawn = page.locator(".map .percent").evaluate_all("all => all.map((one) => one.firstChild.data)")
        assert sorted(drawn) == [
            "0.5 %", "10 %", "20 %", "7 %", "90 %", "99.5 %", "of 80 %", "of 80 %",
        ]  # fmt: skip
        expect(page.locator(".map .edge.shadow")).to_have_count(1)
        expect(page.locator(".node.preset, .node.group")).to_have_count(4)
        expect(page.locator('[id="node-endpoint:twin/acme/one"]')).to_contain_text("0.5 % first pick")
        expect(page.locator('[id="node-endpoint:fake/acme/one"]')).to_contain_text("99.5 % first pick")
        told = _detail(page, "model:acme/one")
        assert "0.5 % twin" in told and "99.5 % the others" in told and "7% of requests to" in told
        assert "10 % acme/two" in _detail(page, "group:acme/both")
        assert "model, temperature" in _detail(page, "preset:coder")


def test_a_presets_name_finds_its_models_and_lights_their_ways_alone(
    browser: Browser, server: Server
) -> None:
    with page_of(browser, server, "routes?model=coder") as page:
        expect(page.locator(".node.model")).to_have_count(3)  # any-thing, a fallback, too
        page.fill("#filter", "best")
        expect(page.locator(".node.preset, .node.group")).to_have_count(3)
        _detail(page, "model:acme/one")
        expect(page.locator(".map .edge.shadow.on")).to_have_count(1)
        expect(page.locator(".map .percent.on")).to_have_count(4)  # 90 in; 99.5, 0.5 and 7 out
        page.fill("#filter", "plain")
        expect(page.locator(".node")).to_have_count(1)


def test_what_a_pattern_serves_for_a_list_of_fallbacks_can_be_chosen(
    browser: Browser, server: Server
) -> None:
    with page_of(browser, server, "routes?node=model:any-thing") as page:
        expect(page.locator(".detail h2")).to_have_text("any-thing")
        expect(page.locator('[id="node-endpoint:twin/any-thing"]')).to_be_visible()
        expect(page.locator("#problem")).to_be_hidden()


MESSAGES = {"model": "acme/both", "max_tokens": 9, "messages": [{"role": "user", "content": "a secret"}]}


def test_a_whole_request_of_any_api_can_be_explained(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "explain?api=messages", allowed="400") as page:
        page.click("summary")
        page.fill("#whole", json.dumps(MESSAGES))
        expect(page.locator("#model")).to_be_disabled()
        press(page, "Explain")
        expect(page.locator("#result")).to_contain_text("Split of acme/both: 90 % acme/one, 10 % acme/two")
        assert "secret" not in page.url and "api=messages" in page.url
        page.fill("#whole", json.dumps({**MESSAGES, "max_tokens": "many"}))
        press(page, "Explain")
        expect(page.locator("#result .problem")).to_contain_text("max_tokens")
        page.fill("#whole", "{")
        press(page, "Explain")
        expect(page.locator("#result .problem")).to_contain_text("the request is not JSON")
        page.fill("#whole", "")
        page.select_option("#api", "responses")
        page.fill("#model", "acme/two")
        press(page, "Explain")
        expect(page.locator("#result tbody").first).to_contain_text("fake/acme/two")


def test_every_api_of_the_form_makes_a_body_that_it_takes(browser: Browser, server: Server) -> None:
    with page_of(browser, server, "explain?model=acme/two&max_tokens=5", allowed="400") as page:
        expect(page.locator("#result tbody th").first).to_be_visible()
        for api in page.locator("#api option").evaluate_all("all => all.map((one) => one.value)"):
            page.select_option("#api", api)
            page.fill("#model", "acme/vectors" if api == "embeddings" else "acme/two")
            with page.expect_response("**/routing/explain**") as caught:
                press(page, "Explain")
            body = caught.value.json()
            is_chat = api != "rerank"  # no model here reranks
            assert caught.value.ok if is_chat else "does not rerank" in body["error"]["message"], (api, body)
