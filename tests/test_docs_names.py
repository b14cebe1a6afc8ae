"""What the documentation names exists: links, files, modules, settings, commands, paths."""

from __future__ import annotations

import functools
import importlib.util
import re

import pytest

from ionrouter import cli
from ionrouter.api.routes import PREFIXES
from ionrouter.settings import Settings
from tests.support import docs_tables
from tests.support.pages import NAMES, ROOT, code_in, prose_of, text_of

# Read by ionrouter/commands/client.py, by the build and by engine_ext/models/cuda_library.cpp.
NO_SETTINGS = {"IONROUTER_KEY", "IONROUTER_CUDA", "IONROUTER_CUDA_LIBRARY"}
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PLACEHOLDER = re.compile(r"[<>{}*$]|[A-Z]{4,}")
FOLDERS = (ROOT, ROOT / "ionrouter", ROOT / "engine_ext", ROOT / "docs")


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    text = prose_of(text_of(name))
    for target in _LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        page = (ROOT / name).parent / path if path else ROOT / name
        assert page.exists(), f"{name}: {target}"
        if anchor:
            assert anchor in _anchors(page.read_text(encoding="utf-8")), f"{name}: {target}"


def _anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.+)$", prose_of(text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_files_and_modules_that_are_named_exist(name: str) -> None:
    for code in code_in(text_of(name)):
        for path in re.findall(r"(?<![\w/.~:-])[\w.-]+(?:/[\w.-]+)*\.(?:py|pyi|h|cpp|md|toml|json)\b", code):
            found = any((folder / path).exists() for folder in FOLDERS) or path in _bare_names()
            assert found or _PLACEHOLDER.search(path), f"{name}: no file {path}"
        for module in re.findall(r"python -m ([\w.]+)", code):
            assert importlib.util.find_spec(module) is not None, f"{name}: no module {module}"
        if re.fullmatch(r"(?:ionrouter|engine_ext|tests|docs|[a-z_]+)(?:/[a-z_]+)*/", code):
            assert any((folder / code).is_dir() for folder in FOLDERS) or code in _STORED, (
                f"{name}: no folder {code}"
            )


# Folders in the cache, not in the repository.
_STORED = {"hub/", "hub-complete/", "downloads/", "hashes/", "locks/", "lists/", "litellm/", "weights/pypi/"}


@functools.cache
def _bare_names() -> set[str]:
    """Names of files without their folder; what is written beside a folder's name."""
    roots = (ROOT / "ionrouter", ROOT / "engine_ext", ROOT / "tests", ROOT / "docs")
    outside = {
        "tokenizer.json",
        "tokenizer_config.json",
        "config.json",
        "generation_config.json",
        "chat_template.json",
    }
    return outside | {
        path.name for root in roots for path in root.rglob("*.*") if "node_modules" not in path.parts
    }


@pytest.mark.parametrize("name", NAMES)
def test_settings_that_are_named_exist(name: str) -> None:
    known = {f"IONROUTER_{field.upper()}" for field in Settings.model_fields} | NO_SETTINGS
    assert set(re.findall(r"\bIONROUTER_[A-Z_]+\b", text_of(name))) <= known


@pytest.mark.parametrize("name", NAMES)
def test_commands_that_are_named_exist(name: str) -> None:
    known = {words: sub for words, _, sub in docs_tables.subcommands(cli.parser())}
    targets = set(re.findall(r"(?m)^([a-z-]+):", text_of("Makefile")))
    for code in code_in(text_of(name)):
        for target in re.findall(r"(?:^|; |&& )make ([a-z-]+)", code):
            assert target in targets, f"{name}: no `make {target}`"
        for words in re.findall(r"(?:^|[ /])ionrouter ([a-z].*)", code):
            command = next((c for c in known if re.match(rf"{c}\b", words)), None)
            parents = {c.partition(" ")[0] for c in known if " " in c}
            assert command or words in parents, f"{name}: no `ionrouter {words}`"
            if command:
                flags = {flag for action in known[command]._actions for flag in action.option_strings}
                assert set(re.findall(r"(?<= )--[a-z-]+", words)) <= flags | {"--config"}, f"{name}: {code}"


@pytest.mark.parametrize("name", NAMES)
async def test_paths_that_are_named_are_answered(name: str) -> None:
    known = [route.resource for route in docs_tables.application().router.routes() if route.resource]
    prefixes = "|".join(PREFIXES)
    for code in code_in(text_of(name)):
        here = re.sub(r"https?://(?!127\.0\.0\.1:80[78]\d)[^\s\"']+", "", code)  # other servers' addresses
        for path in re.findall(
            rf"(?<![\w.])(?:127\.0\.0\.1:\d+)?((?:{prefixes}|/health|/livez|/metrics)[\w/.{{}}-]*)", here
        ):
            is_answered = any(
                resource.get_info().get("path") == path or _fits(resource, path) for resource in known
            )
            assert is_answered or path in PREFIXES, f"{name}: nobody answers {path}"


@pytest.mark.parametrize("name", NAMES)
def test_methods_and_paths_that_are_named_go_together(name: str) -> None:
    routes = [route for route in docs_tables.application().router.routes() if route.resource]
    for method, path in re.findall(
        r"\b(GET|POST|PUT|PATCH|DELETE) (/[\w/{}.-]+)", " ".join(code_in(text_of(name)))
    ):
        full = [path, *(prefix + path for prefix in PREFIXES)]
        there = [
            r
            for r in routes
            if r.method == method
            for p in full
            if r.resource.canonical == p or _fits(r.resource, p)
        ]
        assert there, f"{name}: nobody answers {method} {path}"


def _fits(resource: object, path: str) -> bool:
    pattern = resource.get_info().get("pattern")  # type: ignore[attr-defined]
    return pattern is not None and pattern.fullmatch(path) is not None
