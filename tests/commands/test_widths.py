"""Every command that prints a table, in a terminal of each width: no figure is cut."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ionrouter.commands.simulate import COLUMNS
from tests.support.server import ROOT, environment

WIDTHS = (80, 100, 120, 160)
MODEL = "anthropic/claude-sonnet-4.5-with-a-long-name"
TTFT = {"p50": 1234.0, "p90": 23456.0, "p99": 98765.0}
STATS = {
    "model": MODEL, "endpoint": f"far/{MODEL}", "class": "long", "requests": 1234567, "errors": 4321,
    "uptime": 99.6, "cost": 1234.5678, "ttft_ms": TTFT, "queue_ms": {"p99": 8642.0},
    "throughput": {"p50": 1357.0, "p90": 246.0, "p99": 97.0},
}  # fmt: skip
STATS_FIGURES = "1234567 4321 99.6 1234.5678 1234 ms 98765 ms 1357"
CANDIDATE = {
    "endpoint_id": f"far/{MODEL}", "model_id": MODEL, "prompt_price": 1.25, "completion_price": 10.125,
    "expected_s": 123.45, "expected_ttft_s": 12.34, "success_rate": 0.987, "score": 0.012345, "share": 1.0,
    "hedge_after_s": None, "breaker": "closed",
}  # fmt: skip
EXCLUDED = {
    "endpoint_id": "other/x",
    "filter": "data_policy:training",
    "reason": "r " * 60,
    "breaker": "closed",
}
EXPLAINED = {
    "requested_model": "m", "models": [MODEL], "candidates": [CANDIDATE], "excluded": [EXCLUDED],
    "strategies": [{"model_id": MODEL, "strategy": "price", "source": "s"}], "reason": "strict order",
    "splits": [], "hedge": None, "shadow": None,
}  # fmt: skip


class Answers(http.server.BaseHTTPRequestHandler):
    """A server with one model, whose figures are wide."""

    def do_GET(self) -> None:
        if "/endpoints" in self.path:
            quiet = {"endpoint_id": f"quiet/{MODEL}", "disabled": "QUIET_API_KEY is unset"}
            self._answer({"data": {"endpoints": [quiet]}})
        elif "/stats/routes" in self.path:
            self._answer({"data": [{**STATS, "start": 3600}], "since": 0, "until": 90_000})
        else:
            self._answer({"data": [{"id": MODEL}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({"data": EXPLAINED})

    def _answer(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def in_terminal(width: int, folder: Path, *arguments: str) -> list[str]:
    """Run a command in a terminal of its own; the lines that it shows there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    env = {k: v for k, v in environment(folder / "state").items() if k not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "ionrouter", *arguments],
        cwd=folder, env={**env, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65_536):
            shown += part
    except OSError:
        pass  # how Linux says that the other end is closed
    os.close(ours)
    assert process.wait(60) == 0, shown
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    return lines


@pytest.mark.parametrize("width", WIDTHS)
def test_stats(width: int, url: str, tmp_path: Path) -> None:
    for by in ("model", "endpoint", "endpoint,class"):
        lines = in_terminal(width, tmp_path, "stats", "--window", "24h", "--by", by, "--url", url)
        (row,) = [line for line in lines if "1234567" in line]
        wanted = "1234567 4321 1234.5678 1234 ms" if "," in by and width == 80 else STATS_FIGURES
        assert set(wanted.split()) <= set(row.split()), row
        if width >= 120:
            assert {"23456", "8642", "246", "97"} <= set(row.split()), row
        assert ("QUIET_API_KEY is unset" in " ".join(lines)) == (by == "endpoint")


@pytest.mark.parametrize("width", WIDTHS)
def test_explain(width: int, url: str, tmp_path: Path) -> None:
    lines = in_terminal(width, tmp_path, "explain", "m", "--url", url)
    (row,) = [line for line in lines if "123.45 s" in line]
    assert " ".join(row.split()[1:]) == "1.25 10.125 123.45 s 12.34 s 98.7% 0.012345 100%"
    assert any("data_policy:training" in line for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_keys_list(width: int, tmp_path: Path) -> None:
    make = ("keys", "create", "the laptop of somebody with a long name", "--limit", "1234.5")
    in_terminal(width, tmp_path, *make, "--limit-reset", "monthly")
    lines = in_terminal(width, tmp_path, "keys", "list")
    (row,) = [line for line in lines if "$1234.5 monthly" in line]
    assert re.fullmatch(
        r"[0-9a-f]{12}  the laptop .*  inference .*enabled  \$1234.5 monthly  \$1234.5 +\$0", row
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_simulate(width: int, tmp_path: Path) -> None:
    played = ("simulate", "steady", "--seeds", "1", "--strategy", "round-robin")
    cells = in_terminal(300, tmp_path, *played, "--markdown")[-1].strip("| ").split(" | ")
    row = in_terminal(width, tmp_path, *played)[-1]
    most = {80: 5, 100: 7}.get(width, 8)
    shown = [cell for column, cell in zip(COLUMNS, cells, strict=True) if column.rank <= most]
    assert [part.strip() for part in re.split("  +", row)] == shown
