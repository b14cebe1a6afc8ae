"""The console's files over a real socket: what is sent, to whom, and that all of it is here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ionrouter.console.pages import FOLDER, pages
from tests.support.edge import edge_server
from tests.support.server import running_server

NAMES = sorted(path.name for path in FOLDER.iterdir())
ROUTES = """
providers: { fake: { type: fake, options: { text: hi } } }
models: { m: { endpoints: [{ provider: fake, model: m }] } }
"""


@pytest.mark.parametrize("name", NAMES)
async def test_each_file_is_sent_with_its_type_and_may_run_nothing_else(tmp_path: Path, name: str) -> None:
    async with edge_server(tmp_path, pages=pages(), asks_for_keys=True) as server:
        url = server.url(f"/console/{name}")
        async with server.session.get(url) as answer:
            body, headers = await answer.read(), answer.headers
        assert (answer.status, body) == (200, (FOLDER / name).read_bytes())
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-cache")
        again = {"If-None-Match": headers["ETag"]}
        async with server.session.get(url, headers=again) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
        async with server.session.head(url) as answer:
            assert (answer.status, answer.headers["Content-Length"]) == (200, str(len(body)))


async def test_the_root_leads_to_the_console_by_a_relative_address(tmp_path: Path) -> None:
    async with edge_server(tmp_path, pages=pages()) as server:
        for path in ("/", "/console"):
            async with server.session.get(server.url(path), allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (302, "console/")
            async with server.session.get(server.url(path)) as answer:
                assert (str(answer.url), answer.status) == (server.url("/console/"), 200)
                assert answer.content_type == "text/html"


@pytest.mark.parametrize(
    "name",
    [
        "..%2fpages.py",
        "%2e%2e%2fpages.py",
        "pages.py",
        "__init__.py",
        "nothing.js",
        "%00.js",
        "a%5cb.js",
    ],
)
async def test_nothing_but_those_files_is_sent(tmp_path: Path, name: str) -> None:
    async with edge_server(tmp_path, pages=pages()) as server:
        status, _, body = await server.get(f"/console/{name}")
        assert (status, body["error"]["code"]) == (404, 404)


async def test_a_rebound_name_gets_no_page_while_keys_are_off(tmp_path: Path) -> None:
    async with edge_server(tmp_path, pages=pages()) as server:
        status, _, body = await server.get("/console/", headers={"Host": "attacker.example"})
        assert (status, body["error"]["type"]) == (403, "permission_error")


def test_the_console_can_be_left_out(tmp_path: Path) -> None:
    with running_server(tmp_path, ROUTES, console="false") as server:
        assert [server.get(path)[0] for path in ("/", "/console", "/console/", "/console/app.js")] == [
            404
        ] * 4
        assert server.get("/health")[0] == 200


def test_files_name_only_each_other_and_make_no_html_of_text() -> None:
    for path in (FOLDER / name for name in NAMES):
        text = path.read_text()
        named = re.findall(r'(?:src|href)="([\w./-]+)"|from "\./([\w.-]+)"', text)
        assert {a or b for a, b in named} <= set(NAMES), path.name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path.name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bstyle=", text
        )


def _luminance(colour: str) -> float:
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [((s + 0.055) / 1.055) ** 2.4 if s > 0.04045 else s / 12.92 for s in shares]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_words_and_controls_stand_out_in_both_schemes() -> None:
    schemes = re.findall(r":root \{(.*?)\}", (FOLDER / "style.css").read_text(), re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6})", scheme))
        words = [
            (name, place, 4.5)
            for name in ("text", "soft", "accent", "ok", "warn", "bad", "off")
            for place in ("ground", "sheet")
        ]
        words += [("accent", "accent-ground", 4.5), ("sheet", "accent", 4.5)]
        shapes = [(name, "sheet", 3.0) for name in ("edge", "price", "time", "waste", "broken")]
        for name, place, least in (*words, *shapes, ("edge", "ground", 3.0)):
            assert _contrast(colours[name], colours[place]) >= least, (name, place)
