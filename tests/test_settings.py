"""Settings: environment, overrides, folders, and errors that name the variable."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ionrouter.errors import ConfigError
from ionrouter.settings import Settings, load_settings, shipped_routes


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CONFIG", "HOST", "PORT", "STATE_DIR", "CACHE_DIR"):
        monkeypatch.delenv(f"IONROUTER_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_environment_is_read_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IONROUTER_PORT", "9000")
    monkeypatch.setenv("IONROUTER_NO_AUTH", "true")
    monkeypatch.setenv("IONROUTER_ALLOWED_HOSTS", "box.lan, other.lan")
    settings = load_settings(host="0.0.0.0", port=None)
    assert (settings.host, settings.port, settings.no_auth) == ("0.0.0.0", 9000, True)
    assert settings.allowed_hosts == ("box.lan", "other.lan")
    assert load_settings(port=0).port == 0  # an explicit 0 is a value


def test_what_is_set_to_nothing_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As compose files and unit files do: no folder, port or address is meant."""
    before = load_settings()
    for name in Settings.model_fields:
        monkeypatch.setenv(f"IONROUTER_{name.upper()}", "")
    assert load_settings() == before


def test_every_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IONROUTER_PORT", "70000")
    monkeypatch.setenv("IONROUTER_LOG_FORMAT", "xml")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert {problem.path for problem in caught.value.problems} == {"IONROUTER_PORT", "IONROUTER_LOG_FORMAT"}


def test_of_a_list_the_variable_and_the_entry_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IONROUTER_TRUSTED_PROXIES", "10.0.0.0/8, ::1, nginx.lan")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    (problem,) = caught.value.problems
    assert problem.path == "IONROUTER_TRUSTED_PROXIES"
    assert "nginx.lan" in problem.message and "10.0.0.0" not in problem.message


@pytest.mark.parametrize("value", ["inf", "nan", "1e999"])
def test_a_number_is_finite(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    numbers = [name for name, field in Settings.model_fields.items() if field.annotation is float]
    assert len(numbers) >= 5
    for name in numbers:
        monkeypatch.setenv(f"IONROUTER_{name.upper()}", value)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert {problem.path for problem in caught.value.problems} == {f"IONROUTER_{n.upper()}" for n in numbers}


def test_folders_follow_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings = load_settings()
    assert settings.state_dir == tmp_path / "s" / "ionrouter"
    assert settings.cache_dir == tmp_path / "home" / ".cache" / "ionrouter"


def test_an_installed_package_has_its_own_routes_whatever_lies_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Some packages leave their pyproject.toml in site-packages, which makes that no checkout."""
    package = tmp_path / "site-packages" / "ionrouter"
    package.mkdir(parents=True)
    (package / "routes.yaml").write_text("")
    (package.parent / "pyproject.toml").write_text("")
    monkeypatch.setattr("ionrouter.settings.__file__", str(package / "settings.py"))
    assert shipped_routes() == package / "routes.yaml"


def test_a_source_archive_holds_what_its_makefile_installs_by() -> None:
    root = Path(__file__).parents[1]
    sdist = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["scikit-build"]["sdist"]
    needed = set(re.findall(r"^\$\(VENV\)/\.dependencies: (\S+)$", (root / "Makefile").read_text(), re.M))
    assert needed and needed <= set(sdist["include"])


def test_routes_are_the_ones_named_then_those_here_then_the_shipped_ones(tmp_path: Path) -> None:
    assert load_settings().config_path == shipped_routes()
    assert shipped_routes().is_file()
    (tmp_path / "routes.yaml").write_text("")
    assert load_settings().config_path == Path("routes.yaml")
    assert load_settings(config=Path("/etc/x.yaml")).config_path == Path("/etc/x.yaml")


def test_every_setting_has_a_default() -> None:
    assert Settings().host == "127.0.0.1"
