"""The commands, each in a process of its own as its user runs it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ionrouter.cli import _announce, main, parser
from ionrouter.routing.schema import schema
from ionrouter.store.keys import KEY_PATTERN
from tests.support.accounts import bank
from tests.support.server import ROOT, Server, environment, running_server

ROUTES = """
providers:
  fake: { type: fake, name: Fake, options: { text: "one two three" } }
  far: { type: openai, name: Far, base_url: https://far.example/v1, keys: [FAR_API_KEY] }
models:
  acme/m:
    endpoints:
      - { provider: fake, prices: { prompt: 1, completion: 2 } }
      - { provider: far, model: far-m }
  acme/vectors: { output_modalities: [embeddings], endpoints: [{ provider: fake }] }
aliases: { m: acme/m }
"""


def ionrouter(
    folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ionrouter", *arguments],
        cwd=folder,
        env={**environment(folder / "state"), "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "routes.yaml").write_text(ROUTES)
    return tmp_path


def assert_one_line(done: subprocess.CompletedProcess[str], says: str, code: int = 1) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stderr
    assert done.stderr.startswith("ionrouter: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_check_finds_nothing_wrong_and_warns(folder: Path) -> None:
    done = ionrouter(folder, "check")
    assert done.returncode == 0
    assert "warning: line 4: providers.far.keys[0]: FAR_API_KEY is unset" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("routes.yaml: no errors, ")


def test_check_reports_every_error_at_once_with_its_line(folder: Path) -> None:
    broken = ROUTES.replace("provider: fake,", "provider: fkae,").replace(
        "aliases: { m: acme/m }", "aliases: { m: nope }"
    )
    (folder / "other.yaml").write_text(broken)
    done = ionrouter(folder, "check", "--config", "other.yaml")
    assert done.returncode == 1
    assert "line 8: " in done.stdout
    assert "fkae" in done.stdout
    assert "line 11: aliases.m" in done.stdout
    assert "Traceback" not in done.stderr


def test_explain_without_a_server_reads_the_file(folder: Path) -> None:
    done = ionrouter(folder, "explain", "m", env={"IONROUTER_PORT": "1"})
    assert done.returncode == 0, done.stderr
    assert "nothing measured" in done.stdout
    for word in ("fake/acme/m", "97.5%", "100%", "far/acme/m", "disabled", "FAR_API_KEY is unset"):
        assert word in done.stdout
    assert done.stderr == ""


def test_explain_of_an_unknown_model_is_one_line(folder: Path) -> None:
    assert_one_line(
        ionrouter(folder, "explain", "nope", "--config", "routes.yaml"), "nope is not a valid model ID"
    )


def test_check_prints_the_schema_for_editors_of_an_installed_package(folder: Path) -> None:
    (folder / "routes.yaml").unlink(missing_ok=True)
    done = ionrouter(folder, "check", "--schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == schema()


def test_graph_is_mermaid(folder: Path) -> None:
    done = ionrouter(folder, "graph")
    assert done.stdout.startswith("flowchart")
    assert "fake/acme/m" in done.stdout


def test_graph_into_a_closed_pipe_is_quiet(folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m ionrouter graph | true; exit ${{PIPESTATUS[0]}}"],
        cwd=folder, env={**environment(folder / "state"), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "Traceback" not in done.stderr


def test_add_writes_an_entry_and_keeps_the_rest(folder: Path) -> None:
    commented = "# my own words\n" + ROUTES
    (folder / "routes.yaml").write_text(commented)
    done = ionrouter(folder, "add", "acme/new", "--provider", "far", "--as", "new-1")
    assert done.returncode == 0, done.stderr
    assert "acme/new at far as new-1" in done.stdout
    text = (folder / "routes.yaml").read_text()
    assert text.startswith("# my own words\n")
    assert "acme/new" in text
    assert (
        "is there already"
        in ionrouter(folder, "add", "acme/new", "--provider", "far", "--as", "new-1").stdout
    )
    assert ionrouter(folder, "check").returncode == 0


def test_add_with_an_unknown_provider_is_one_line(folder: Path) -> None:
    assert_one_line(ionrouter(folder, "add", "acme/new", "--provider", "nobody"), "nobody")


def test_pull_checks_a_local_file_and_names_what_has_none(folder: Path) -> None:
    weights = folder / "tiny.gguf"
    weights.write_bytes(b"weights")
    local = "  loc: { endpoints: [ { provider: ion, weights: ./tiny.gguf } ] }\naliases"
    routes = ROUTES.replace("aliases", local).replace("providers:", "providers:\n  ion: { type: ion }")
    (folder / "routes.yaml").write_text(routes)
    done = ionrouter(folder, "pull", "loc")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == weights
    assert_one_line(ionrouter(folder, "pull", "acme/m"), "acme/m has no local endpoint")
    assert_one_line(ionrouter(folder, "pull", "nope"), "no model 'nope'")
    weights.unlink()
    assert_one_line(ionrouter(folder, "pull", "loc"), "tiny.gguf")


def test_keys_are_made_listed_disabled_and_deleted(folder: Path) -> None:
    made = ionrouter(folder, "keys", "create", "laptop")
    plain = made.stdout.strip()
    assert KEY_PATTERN.fullmatch(plain)
    ionrouter(folder, "keys", "create", "ops", "--management")
    listed = ionrouter(folder, "keys", "list").stdout
    assert "laptop" in listed
    assert "inference" in listed
    assert "management" in listed
    assert plain not in listed
    limited = ionrouter(folder, "keys", "create", "robot", "--limit", "5", "--limit-reset", "monthly")
    assert KEY_PATTERN.fullmatch(limited.stdout.strip())
    assert "$5 monthly" in ionrouter(folder, "keys", "list").stdout
    assert_one_line(ionrouter(folder, "keys", "create", "bad", "--limit", "-1"), "limit")
    assert_one_line(ionrouter(folder, "keys", "create", "bad", "--expires-at", "soon"), "expires_at")
    assert "is disabled" in ionrouter(folder, "keys", "disable", "laptop").stdout
    assert "disabled" in ionrouter(folder, "keys", "list").stdout
    assert "is enabled" in ionrouter(folder, "keys", "enable", "laptop").stdout
    assert "is deleted" in ionrouter(folder, "keys", "delete", "laptop").stdout
    assert_one_line(ionrouter(folder, "keys", "delete", "laptop"), "no key 'laptop'")


def test_a_keys_name_and_limit_can_be_changed(folder: Path) -> None:
    def change(*arguments: str) -> subprocess.CompletedProcess[str]:
        return ionrouter(folder, "keys", "change", *arguments)

    ionrouter(folder, "keys", "create", "robot", "--limit", "5", "--limit-reset", "monthly")
    ionrouter(folder, "keys", "create", "ops", "--management")
    assert "$7.5 daily" in change("robot", "--limit", "7.5", "--limit-reset", "daily").stdout
    assert change("robot", "--name", "arm").stdout.startswith("arm (sk-or-v1-")
    assert "$7.5 daily" in ionrouter(folder, "keys", "list").stdout
    assert change("arm", "--limit-reset", "none").stdout.strip().endswith("$7.5")
    assert "no limit" in change("arm", "--limit", "none").stdout
    assert_one_line(change("robot", "--limit", "1"), "no key 'robot'")
    assert_one_line(change("arm"), "--name, --limit or --limit-reset")
    assert_one_line(change("arm", "--limit", "-1"), "limit")
    assert_one_line(change("arm", "--limit", "lots"), "'lots' is neither a number nor none")
    assert_one_line(change("arm", "--name", ""), "name")
    assert_one_line(change("ops", "--limit", "1"), "spends nothing")


def test_names_that_would_steer_the_terminal_are_written_out(folder: Path) -> None:
    (folder / "routes.yaml").write_text('models: {"m\\e[2J": {endpoints: [{provider: "p\\u009b2J"}]}}\n')
    for command in (["check"], ["explain", "m\x1b[2J"], ["graph"]):
        result = ionrouter(folder, *command)
        assert result.returncode == 1
        assert not {"\x1b", "\x9b"} & set(result.stdout + result.stderr)


def test_a_bad_setting_names_its_variable(folder: Path) -> None:
    assert_one_line(ionrouter(folder, "check", env={"IONROUTER_PORT": "eighty"}), "IONROUTER_PORT: ")


@pytest.mark.parametrize("arguments", [[], ["serve", "--port", "x"], ["fly"], ["explain"], ["keys"]])
def test_wrong_arguments_are_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: ionrouter" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("ionrouter 0.")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("cli"), ROUTES) as running:
        yield running


def test_a_terminal_that_is_not_utf8_gets_what_it_can_show(folder: Path) -> None:
    assert ionrouter(folder, "keys", "create", "tëst ☃").returncode == 0
    done = ionrouter(folder, "keys", "list", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (done.returncode, done.stderr) == (0, "") and "t?st ?" in done.stdout


def test_stats_show_a_running_servers_percentiles(server: Server) -> None:
    for _ in range(6):
        assert server.chat(stream=True)[0] == 200
    done = ionrouter(server.state.parent, "stats", env={"IONROUTER_PORT": str(server.port)})
    assert done.returncode == 0, done.stderr
    (row,) = [line for line in done.stdout.splitlines() if "fake/acme/m" in line]
    assert " 6 " in row
    assert " 100.0 " in row
    assert "FAR_API_KEY is unset" in done.stdout
    assert "queue" in done.stdout
    assert row.count(" - ") == 1  # a fake endpoint has no queue


def told_by_stats(server: Server, *arguments: str) -> str:
    env = {"IONROUTER_PORT": str(server.port), "COLUMNS": "160"}
    done = ionrouter(server.state.parent, "stats", *arguments, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_stats_know_a_model_by_every_name_and_nothing_of_what_is_not_there(server: Server) -> None:
    assert server.chat()[0] == 200
    for name in ("m", "ACME/M", "acme/m:nitro"):
        (row,) = [line for line in told_by_stats(server, name).splitlines() if "fake/acme/m" in line]
        assert int(re.split(r"\W{2,}", row.partition("fake/acme/m")[2].strip(" │"))[0]) >= 1
    assert "fake/acme/m" in told_by_stats(server, "m, acme/m:nitro")
    for option in ("--endpoint", "--provider"):
        assert "acme/m" not in told_by_stats(server, option, "nobody")


def test_stats_of_keys_are_told_by_the_hour_and_by_name(tmp_path: Path) -> None:
    with bank(tmp_path) as asked:
        assert asked.chat(model="acme/m")[0] == 200
        for arguments in (("--by", "key"), ("--key", "first"), ("--by", "key", "--window", "31d")):
            assert "first (" in told_by_stats(asked.server, *arguments)
        for _ in range(5):
            assert asked.chat(model="acme/m", stream=True)[0] == 200
        (row,) = [
            line for line in told_by_stats(asked.server, "--by", "key").splitlines() if "first (" in line
        ]
        assert row.count(" ms") == 3  # what callers waited for, at three percentiles


def test_a_management_key_shows_keys_while_none_are_asked_for(server: Server) -> None:
    told_by_stats(server, "--by", "key")
    path = "/api/v1/stats/routes?group_by=key"
    assert server.get(path, server.management_key())[0] == 200
    assert server.get(path)[0] == 403
    assert server.get(path, "sk-wrong")[0] == 401


def test_explain_prefers_what_a_running_server_measured(server: Server) -> None:
    done = ionrouter(server.state.parent, "explain", "m", "--url", server.base_url)
    assert done.returncode == 0, done.stderr
    assert f"as measured by {server.url}" in done.stdout
    assert "fake/acme/m" in done.stdout
    assert_one_line(
        ionrouter(server.state.parent, "explain", "x", "--url", server.url), "x is not a valid model ID"
    )


def test_explain_of_a_model_that_does_not_chat_asks_for_its_own_api(server: Server) -> None:
    for source in (("--url", server.url), ("--config", str(server.config))):
        asked = ("explain", "acme/vectors", *source)
        assert_one_line(ionrouter(server.state.parent, *asked), "only makes embeddings or reranks")
        done = ionrouter(server.state.parent, *asked, "--api", "embeddings")
        assert (done.returncode, done.stderr) == (0, "")
        assert "fake/acme/vectors" in done.stdout


@pytest.mark.parametrize("command", ["stats", "explain"])
def test_no_server_at_the_url_is_one_line(folder: Path, command: str) -> None:
    more = ["m"] if command == "explain" else []
    assert_one_line(
        ionrouter(folder, command, *more, "--url", "http://127.0.0.1:1"),
        "no server answers at http://127.0.0.1:1",
    )


def test_the_management_key_goes_to_this_machine_only(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ionrouter.commands.client import _own_key
    from ionrouter.settings import Settings

    settings = Settings(state_dir=server.state)
    assert _own_key(settings, server.url) == server.management_key()
    assert _own_key(settings, "https://router.example") is None


class Recorder(io.StringIO):
    """A stream that remembers what each write brought."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str, /) -> int:
        self.writes.append(text)
        return super().write(text)


def test_the_log_cannot_come_in_the_middle_of_the_line_that_tells_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Recorder()
    monkeypatch.setattr("sys.stderr", stream)
    _announce("http://127.0.0.1:1")
    assert [text[-1:] for text in stream.writes] == ["\n"]


def test_json_log_lines_are_json(server: Server) -> None:
    lines = [line for line in server.log.splitlines() if not line.startswith("ionrouter listens on")]
    assert all("event" in json.loads(line) for line in lines)


TRAFFIC = """
providers:
  fake: { type: fake, options: { text: hi } }
  next: { type: fake, options: { text: hi } }
models:
  m:
    hedge: { after: 2, budget: 0.1 }
    canary: { endpoint: next, percent: 25 }
    shadow: { endpoint: next, share: 0.5 }
    endpoints: [{ provider: fake }, { provider: next }]
"""


def test_explain_tells_of_splits_hedges_and_shadows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "routes.yaml"
    config.write_text(TRAFFIC)
    assert main(["explain", "m", "--config", str(config)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "canary of m: 25% next, 75% the others; this one, by chance: " in told
    assert "hedge after 2 s, at least 0.2 s, 10% of requests; now: " in told and "fake/m 2.00 s" in told
    assert "shadow: 50% of requests to next/m, 4 at once" in told


STRATEGIC = """
routing: { strategy: price }
providers: { fake: { type: fake, options: { text: hi } } }
models:
  m: { strategy: latency, endpoints: [{ provider: fake }], fallbacks: [n] }
  n: { endpoints: [{ provider: fake }] }
"""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("m", "strategy latency (models.m.strategy): strict order strategy of n: price (routing.strategy)"),
        ("n", "strategy price (routing.strategy): drawn from 1"),
        ("m:floor", "strategy sort:price (:floor): strict order strategy of n: price (routing.strategy)"),
    ],
)
def test_explain_tells_the_strategy_and_what_said_so(
    name: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "routes.yaml"
    config.write_text(STRATEGIC)
    assert main(["explain", name, "--config", str(config)]) == 0
    assert told in " ".join(capsys.readouterr().out.split())
