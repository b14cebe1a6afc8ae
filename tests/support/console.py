"""The console in a real browser: a tab for each test, and whatever it complains of is a failure."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.server import Server

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WHY_NOT = "chromium is not installed (Debian: apt-get install chromium)"
GUARD_MS = 60_000  # how long a step may take before the test is wrong

ROUTES = """
providers:
  fake: { type: fake, name: Fake, options: { text: "one two three" } }
  dear: { type: fake, name: Dear, options: { text: "four five six" } }
  gone: { type: fake, name: Gone, options: { status: 503 } }
  far: { type: openai, name: Far, base_url: "https://api.example.com/v1", keys: [ELSEWHERE_API_KEY] }
models:
  acme/one:
    name: Acme One
    endpoints:
      - { provider: fake, model: one, prices: { prompt: 1, completion: 2 } }
      - { provider: dear, model: one, prices: { prompt: 100, completion: 200 } }
      - { provider: far, model: one }
    fallbacks: [acme/two]
  acme/two: { endpoints: [{ provider: gone, model: two }] }
aliases: { one: acme/one }
patterns: { "any-*": { provider: fake } }
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    arguments = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


@contextmanager
def page_of(
    browser: Browser, server: Server, view: str = "", *, allowed: str = "", **context: Any
) -> Iterator[Page]:
    """A new tab of its own at a view; whatever the browser complains of fails the test, but `allowed`."""
    made: BrowserContext = browser.new_context(accept_downloads=True, **context)
    page, complaints = made.new_page(), list[str]()
    page.set_default_timeout(GUARD_MS)
    expect.set_options(timeout=GUARD_MS)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("request", lambda sent: complaints.append(sent.url) if not _is_own(sent.url, server) else None)
    page.goto(f"{server.url}/console/#/{view}")
    yield page
    made.close()
    assert [words for words in complaints if not allowed or allowed not in words] == []


def press(page: Page, button: str) -> None:
    """Click a button by its words."""
    page.get_by_role("button", name=button, exact=True).click()


def _is_own(url: str, server: Server) -> bool:
    return url.startswith((server.url, "blob:"))
