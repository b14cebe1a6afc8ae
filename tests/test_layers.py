"""The arrows of docs/architecture.md, held by a machine: layers, doors of heavy imports, lean kernels."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import ionrouter

ROOT = Path(__file__).parents[1]
WORKER = "ionrouter.providers.litellm_worker"  # imports litellm: 8-16 s, in a process of its own
REFERENCE = "ionrouter.engine.reference"  # imports torch, for tests only
MIGRATION = "ionrouter.store.migrations.env"  # a script that Alembic runs


def _modules() -> list[str]:
    names = [m.name for m in pkgutil.walk_packages(ionrouter.__path__, "ionrouter.")]
    return sorted(n for n in names if not n.endswith(("__main__", "_ion")))


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_import_contracts_are_kept() -> None:
    lint = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert lint.returncode == 0, lint.stdout + lint.stderr


def test_every_module_imports_alone() -> None:
    """A cycle shows only to whoever imports its second half first, so each module gets to be first."""
    light = [m for m in _modules() if m not in {WORKER, REFERENCE, MIGRATION}]
    code = (
        "import importlib, sys\n"
        f"for name in {light!r}:\n"
        "    for loaded in [m for m in sys.modules if m.split('.')[0] == 'ionrouter']:\n"
        "        if not loaded.endswith('_ion'):\n"
        "            del sys.modules[loaded]\n"
        "    importlib.import_module(name)\n"
    )
    done = _run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["ionrouter.app", "ionrouter.cli"])
def test_the_server_loads_nothing_heavy(module: str) -> None:
    """SQLAlchemy comes with the first report, Alembic with a migration, psycopg with PostgreSQL, tokenizers
    and jinja2 with a local model, rich with a bar.
    """
    heavy = f"[m for m in {HEAVY} if m in sys.modules]"
    done = _run(f"import sys, ionrouter.cli, {module}; print({heavy})")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


LISTENING = """
import asyncio, os, signal, sys
from pathlib import Path
import ionrouter.cli  # as every server is started
from ionrouter.app import run
from ionrouter.redact import Redactor
from ionrouter.settings import Settings

folder = Path(sys.argv[1])
(folder / "routes.yaml").write_text(
    "providers:\\n  up: {type: openai, base_url: 'http://127.0.0.1:9/v1'}\\n"
    "models:\\n  m:\\n    endpoints: [{provider: up, model: m}]\\n"
)
settings = Settings(config=folder / "routes.yaml", state_dir=folder, cache_dir=folder, port=0)

def announce(_url):
    print('loaded:', sorted(sys.modules.keys() & set(sys.argv[2:])))
    os.kill(os.getpid(), signal.SIGINT)

asyncio.run(run(settings, {}, Redactor(), announce=announce))
"""
HEAVY = (
    "litellm",
    "torch",
    "openai",
    "sqlalchemy",
    "alembic",
    "psycopg",
    "opentelemetry",
    "rich",
    "tokenizers",
    "jinja2",
)


def test_a_server_that_listens_has_loaded_nothing_heavy(tmp_path: Path) -> None:
    """What is imported on the way to the socket is what a start takes: modules are counted, not seconds."""
    assert_loads_none(LISTENING, tmp_path, HEAVY)


def test_a_server_that_traces_loads_the_sdk_after_listening(tmp_path: Path) -> None:
    code = LISTENING.replace(
        "settings, {}", "settings, {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:9'}"
    )
    packages = (
        "opentelemetry.sdk.trace",
        "opentelemetry.exporter.otlp.proto.http",
        "google.protobuf",
        "requests",
    )
    assert_loads_none(code, tmp_path, packages)


def assert_loads_none(code: str, folder: Path, modules: Sequence[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "loaded: []" in done.stdout.splitlines(), done.stdout


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_aiohttp_web_stays_at_the_edge() -> None:
    package = ROOT / "ionrouter"
    allowed = {package / "app.py", package / "cli.py"}
    offenders = [
        str(path.relative_to(ROOT))
        for path in package.rglob("*.py")
        if "aiohttp.web" in _imports(path)
        and path.parent.name not in ("api", "console")
        and path not in allowed
    ]
    assert offenders == []


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("kernels", r"torch/|ATen|c10/|pybind11|Python\.h"),
        ("core", r"torch/|ATen|c10/|pybind11|Python\.h|cuda|kernels/|models/"),
        ("models", r"torch/|ATen|c10/|pybind11|Python\.h"),
    ],
)
def test_engine_folders_include_only_what_lies_below(folder: str, forbidden: str) -> None:
    include = re.compile(r'^\s*#\s*include\s+["<](?:.*/)?(' + forbidden + r")", re.MULTILINE | re.IGNORECASE)
    files = (ROOT / "engine_ext" / folder).rglob("*")
    sources = [path for path in files if path.suffix in {".h", ".cpp", ".cu", ".cuh"}]
    assert sources, f"no sources in engine_ext/{folder}"
    assert [str(p) for p in sources if include.search(p.read_text())] == []


# Functions over 60 lines, each with the reason a reader would accept.
LONG_FUNCTIONS: dict[str, str] = {}


def test_no_function_is_longer_than_a_screen() -> None:
    long: dict[str, int] = {}
    for path in sorted((ROOT / "ionrouter").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert {k: v for k, v in long.items() if k not in LONG_FUNCTIONS} == {}
