"""Everything that needs a GPU, in one go: builds libion_cuda, checks it, times it, writes one JSON report.

python tests/device/run.py [--library PATH] [--built FOLDER] [--out FILE] [--shapes qwen2.5-7b,...]
                           [--no-bench] [--sanitize]

--built: keep what is compiled for the checks there, and take what is there already.

Needs torch (the reference), nvcc unless --library is given, and cuBLASLt, which torch brings. Without a GPU
it exits with 77 and the reason. CI compares the committed report's hash of the kernel sources with its own.
The report is written after each check, so that a run that is cut short leaves what it found; what was asked
and is not there yet stands under "unfinished".
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "engine_ext"
NO_GPU = 77
FP8_SHAPES = ("qwen2.5-7b",)  # timed in both precisions
# racecheck does not know mbarriers: it sees the kernels for all cards alone.
SANITIZERS = {"memcheck": (), "synccheck": (), "racecheck": ("portable",)}
# mbarriers of a block, more than any kernel has. synccheck makes room for as many as it finds in the code,
# which is too few where they are an array, and when it overflows the next launch fails.
MOST_BARRIERS = 256


def kernel_sources() -> list[Path]:
    """All that ends up in libion_cuda.so."""
    folders = (ENGINE / "cuda", ENGINE / "kernels" / "cuda")
    return sorted(path for folder in folders for path in folder.iterdir() if path.is_file())


def sources_hash() -> str:
    """Of names and contents."""
    digest = hashlib.sha256()
    for path in kernel_sources():
        digest.update(f"{path.relative_to(ENGINE)}\n".encode() + path.read_bytes() + b"\n")
    return digest.hexdigest()


def build(folder: Path) -> Path:
    """Compile with the project's own CMake file."""
    began = time.monotonic()
    for command in (
        [
            "cmake",
            "-S",
            ROOT / "tests/engine_ext/cuda",
            "-B",
            folder,
            "-G",
            "Ninja",
            "-DION_CUDA_CHECK=OFF",
            "-DIONROUTER_CUDA=on",
        ],
        ["cmake", "--build", folder, "--parallel"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    return folder / "libion_cuda.so"


def cublas_folder() -> str:
    """Where torch's package of cuBLASLt lies; empty: the loader's own places."""
    import nvidia  # type: ignore[import-not-found]

    found = glob.glob(f"{next(iter(nvidia.__path__))}/**/libcublasLt.so*", recursive=True)
    return os.path.dirname(found[0]) if found else ""


def run_check(script: str, *arguments: str) -> dict[str, Any]:
    """A check's lines and whether it held."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    print("\n".join(lines), flush=True)
    if done.returncode:
        print(done.stderr[-2000:], flush=True)
    return {"held": done.returncode == 0, "lines": lines}


def shims(folder: Path, name: str, sources: Sequence[str]) -> str:
    """Kernels as C functions: shims_NAME.cu and what it wants of engine_ext."""
    out = folder / f"{name}.so"
    if out.exists():
        return str(out)
    paths = [ROOT / f"tests/device/shims_{name}.cu", *(ENGINE / source for source in sources)]
    flags = ["-std=c++20", "-O3", f"-I{ENGINE}", "-gencode", "arch=compute_90a,code=sm_90a"]
    flags += ["-gencode", "arch=compute_80,code=sm_80", "-Xcompiler", "-fPIC", "-shared", "-ldl"]
    flags += [f"-I{cublas_folder()}/../include"]  # where the toolkit has no cublasLt.h
    subprocess.run(["nvcc", *flags, "-o", out, *paths], check=True)
    return str(out)


def build_questions(folder: Path) -> Path:
    program = folder / "small_questions"
    source = ROOT / "tests/device/small_questions.cu"
    if not program.exists():
        subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=sm_90", "-o", program, source], check=True)
    return program


def small_questions(folder: Path) -> list[str]:
    """Lines of a table."""
    program = build_questions(folder)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    print(done.stdout, flush=True)
    return done.stdout.splitlines()


E4M3_SOURCES = [
    *(f"kernels/cuda/{name}.cu" for name in ("quantise", "stream_gemm", "stream_weights")),
    "kernels/cuda/box_view.cpp",
    "cuda/algorithm_trial.cpp",
    "cuda/blas_lt.cpp",
]


def build_shims(folder: Path) -> tuple[str, str]:
    """The sampler's and the products'."""
    return shims(folder, "sampler", ["kernels/cuda/sampler.cu"]), shims(folder, "e4m3", E4M3_SOURCES)


def run_sanitized(tool: str, library: str) -> dict[str, Any]:
    """The tool's lines and whether it has nothing to say."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    command += ["--num-cuda-barriers", str(MOST_BARRIERS), sys.executable]
    command += [str(Path(__file__).with_name("check_sanitized.py")), library, *SANITIZERS[tool]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "====" in line][-40:]
    print(f"{tool}: {done.returncode}", *lines, sep="\n", flush=True)
    return {"held": done.returncode == 0, "lines": lines}


def checks(library: str, folder: Path, *, sanitize: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    """By name, in the order of running."""
    sampler, products = build_shims(folder)
    by_the_clock = {
        "sampler": partial(run_check, "check_sampler.py", sampler),
        "e4m3": partial(run_check, "check_e4m3.py", products),
        "replays": partial(run_check, "check_replays.py", library),
    }
    others = {
        "logits": partial(run_check, "check_logits.py", library),
        "runner": partial(run_check, "check_runner.py", library),
        "deterministic": partial(run_check, "check_deterministic.py", library),
    }
    if sanitize:
        others |= {tool: partial(run_sanitized, tool, library) for tool in SANITIZERS}
    return by_the_clock | together(others)


def together(calls: dict[str, Callable[[], dict[str, Any]]]) -> dict[str, Callable[[], dict[str, Any]]]:
    """Whichever is asked for first starts all: none keeps a GPU busy, and none reads a clock."""
    begun: dict[str, Future[dict[str, Any]]] = {}

    def result(name: str) -> dict[str, Any]:
        if not begun:
            pool = ThreadPoolExecutor(len(calls))
            begun.update((other, pool.submit(call)) for other, call in calls.items())
        return begun[name].result()

    return {name: partial(result, name) for name in calls}


def run_all(
    asked: dict[str, Callable[[], dict[str, Any]]], report: dict[str, Any], save: Callable[[], None]
) -> None:
    """Into the report's "checks", which is saved after each."""
    report["checks"], report["unfinished"] = {}, list(asked)
    for name, check in asked.items():
        report["checks"][name] = check()
        report["unfinished"].remove(name)
        save()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library")
    parser.add_argument("--built", type=Path)
    parser.add_argument("--out", type=Path, default=Path("report.json"))
    parser.add_argument("--shapes", default="qwen2.5-7b,llama-3.1-8b,qwen3-0.6b")
    parser.add_argument("--no-bench", action="store_true")
    parser.add_argument("--sanitize", action="store_true")
    args = parser.parse_args()
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no GPU: {error}")
        return NO_GPU
    os.environ["LD_LIBRARY_PATH"] = f"{cublas_folder()}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    report: dict[str, Any] = {"card": listed, "sources": sources_hash(), "date": time.strftime("%Y-%m-%d")}

    def save() -> None:
        args.out.write_text(json.dumps(report, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.built or Path(temporary)
        library = args.library or str(build(folder))
        run_all(checks(library, folder, sanitize=args.sanitize), report, save)
        report["questions"] = small_questions(folder)
        report["bench"] = {}
        for shape in [] if args.no_bench else args.shapes.split(","):
            report["bench"][shape] = run_check("bench_workloads.py", library, shape)["lines"]
            if shape in FP8_SHAPES:
                options = (library, shape, "--precision", "fp8")
                report["bench"][f"{shape} fp8"] = run_check("bench_workloads.py", *options)["lines"]
    held = all(check["held"] for check in report["checks"].values())
    save()
    print("all held" if held else "SOMETHING FAILED")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
