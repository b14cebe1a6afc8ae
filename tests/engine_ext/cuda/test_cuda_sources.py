"""The build of libion_cuda: its list of sources is whole, and asking for what cannot be had is an error."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cuda_resources import Resources, complaints, parsed
from tests.support.cxx import ROOT, run, tool

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


def test_steps_are_planned_as_their_tests_say(tmp_path: Path) -> None:
    """On the host alone, but with the toolkit's headers."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not there")
    program = tmp_path / "test_step_buffer"
    sources = (ROOT / "tests/engine_ext/cuda/test_step_buffer.cpp", ENGINE / "cuda/step_buffer.cpp")
    run(nvcc, "-std=c++20", f"-I{ENGINE}", f"-I{ROOT / 'tests/engine_ext'}", "-o", program, *sources)
    run(program)


def device_run() -> Any:
    """tests/device/run.py, which is a program."""
    spec = importlib.util.spec_from_file_location("device_run", ROOT / "tests/device/run.py")
    assert spec is not None and spec.loader is not None
    device = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(device)
    return device


def committed_report() -> dict[str, Any]:
    report: dict[str, Any] = json.loads((ROOT / "tests/device/report.json").read_text())
    return report


def test_the_committed_report_is_of_these_sources() -> None:
    """Without a GPU nobody can say that changed kernels are right: tests/device/run.py on one comes first."""
    device, report = device_run(), committed_report()
    assert report["sources"] == device.sources_hash()
    failed = {name for name, check in report["checks"].items() if not check["held"]}
    assert report["card"]
    assert not failed
    # What compares numbers must be there; a sanitizer may be still to come, and the next test says so.
    assert set(report["unfinished"]) <= set(device.SANITIZERS)
    assert {"sampler", "e4m3", "logits", "runner", "deterministic", "replays"} <= set(report["checks"])


def test_the_committed_report_is_whole() -> None:
    report = committed_report()
    if report["unfinished"]:
        why = " ".join(report.get("note", []))
        pytest.skip(f"tests/device/report.json: to be run on a GPU: {report['unfinished']}. {why}")


def test_a_run_that_is_cut_short_leaves_what_it_found() -> None:
    report: dict[str, Any] = {}
    saved: list[tuple[list[str], list[str]]] = []

    def cut() -> dict[str, Any]:
        raise KeyboardInterrupt

    held = {"held": True, "lines": ["pass"]}
    asked = {"logits": lambda: held, "racecheck": cut, "replays": lambda: held}
    with pytest.raises(KeyboardInterrupt):
        device_run().run_all(
            asked, report, lambda: saved.append(([*report["checks"]], [*report["unfinished"]]))
        )
    assert saved == [(["logits"], ["racecheck", "replays"])]


PTXAS = """\
ptxas info    : Compiling entry function '_ZN3ion4cuda44_GLOBAL__N__4bd5d919_11_quantise_cu_fda9919b\
11silu_kernelILi512ELi5EEEvNS0_13QuantisedRowsEPK13__nv_bfloat16NS0_13ProductScalesEl' for 'sm_90a'
ptxas info    : Function properties for _ZN3ion4cuda
    24 bytes stack frame, 32 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 568 bytes cmem[0]
ptxas info    : Compiling entry function '_ZN3ion4cuda40_GLOBAL__N__0c68f1a2_7_norm_cu_12345678\
12embed_kernelEPfPKiS3_S3_PK13__nv_bfloat16l' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 20 registers
ptxas info    : Compiling entry function '_ZN3ion4cuda47_GLOBAL__N__a416c575_14_prompt_gemm_cu_6a49f2e8\
13prompt_kernelINS0_9PromptQkvILi128EEEEEvNS0_10PromptArgsENT_4ArgsE' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers
"""
SILU, EMBED = "quantise/silu_kernel<512, 5> sm_90a", "norm/embed_kernel sm_80"
QKV = "prompt_gemm/prompt_kernel<PromptQkv<128>> sm_90a"


def test_registers_and_spills_are_read_and_held_against_the_table() -> None:
    found = parsed(PTXAS)
    assert found == {SILU: Resources(64, 32), EMBED: Resources(20, 0), QKV: Resources(168, 0)}
    del found[QKV]
    assert complaints(found, found) == []
    assert complaints(found, {SILU: Resources(96, 32), EMBED: Resources(20, 0)}) == []
    (grown,) = complaints(found, {SILU: Resources(63, 32), EMBED: Resources(20, 0)})
    assert grown == f"{SILU}: 64 registers, 32 bytes spilled; the table has 63 and 32"
    (spilled,) = complaints(found, {SILU: Resources(64, 0), EMBED: Resources(20, 0)})
    assert "32 bytes spilled; the table has 64 and 0" in spilled
    assert complaints(found, {SILU: Resources(64, 32), "gone sm_80": Resources(8, 0)}) == [
        f"{EMBED}: not in the table",
        "gone sm_80: in the table, not in the build",
    ]
