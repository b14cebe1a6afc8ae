"""The build of libion_cuda: its list of sources is whole, and asking for what cannot be had is an error."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.cxx import ROOT, tool

ENGINE = ROOT / "engine_ext"


def test_every_source_is_on_the_list() -> None:
    (text,) = re.findall(
        r"set\(ION_CUDA_SOURCES\n(.*?)\)", (ENGINE / "cuda/cuda.cmake").read_text(), re.DOTALL
    )
    there = [
        str(path.relative_to(ENGINE))
        for folder in (ENGINE / "cuda", ENGINE / "kernels/cuda")
        for path in folder.iterdir()
        if path.suffix in (".cpp", ".cu")
    ]
    assert set(there) <= set(text.split())


def test_a_mode_that_does_not_exist_is_named(tmp_path: Path) -> None:
    script = tmp_path / "mode.cmake"
    script.write_text(f'set(IONROUTER_CUDA maybe)\ninclude("{ENGINE}/cuda/cuda.cmake")\n')
    done = subprocess.run([tool("cmake"), "-P", script], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "IONROUTER_CUDA: 'maybe' is none of auto, on, off" in done.stderr


@pytest.mark.parametrize("mode", ["off", "OFF"])
def test_off_asks_for_nothing(tmp_path: Path, mode: str) -> None:
    script = tmp_path / "mode.cmake"
    script.write_text(f'set(IONROUTER_CUDA {mode})\ninclude("{ENGINE}/cuda/cuda.cmake")\n')
    done = subprocess.run([tool("cmake"), "-P", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "CUDA: off" in done.stdout


def test_the_committed_report_is_of_these_sources() -> None:
    """Without a GPU nobody can say that changed kernels are right: tests/device/run.py on one comes first."""
    spec = importlib.util.spec_from_file_location("device_run", ROOT / "tests/device/run.py")
    assert spec is not None and spec.loader is not None
    device = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(device)
    report = json.loads((ROOT / "tests/device/report.json").read_text())
    assert report["sources"] == device.sources_hash()
    failed = {name for name, check in report["checks"].items() if not check["held"]}
    assert report["card"]
    assert not failed
