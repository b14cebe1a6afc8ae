"""`ionrouter bench engine`: a local model on this machine, offline and over HTTP. Prints Markdown or JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ionrouter
from ionrouter.benchmark import engine_serving
from ionrouter.benchmark.engine_report import Report, as_json, markdown, rows_of
from ionrouter.benchmark.engine_workloads import chosen, workloads
from ionrouter.benchmark.stream_load import Plan
from ionrouter.commands.bench import tell
from ionrouter.commands.numbers import require_positive, require_range
from ionrouter.engine.loading import PRECISIONS
from ionrouter.engine.random_model import write_folder
from ionrouter.engine.sources import LocalPath, RandomModel, parse_source
from ionrouter.errors import ConfigError
from ionrouter.routing.values import byte_count


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says."""

    model: str
    device: str = "auto"
    precision: str = "auto"
    head_precision: str = "bf16"
    kv_precision: str = "bf16"
    workloads: str = "all"
    scale: float = 1.0
    rounds: int = 3
    serve: str = ""
    seconds: float = 8.0
    starts: int = 3
    threads: int | None = None
    kv_memory: str | None = None
    max_running: int = 256
    save: Path | None = None
    as_json: bool = False


def run(asked: Asked, cache: Path) -> int:
    """Measure and print; returns the exit code. Raises ConfigError."""
    if not sys.platform.startswith("linux"):
        raise ConfigError("bench engine reads /proc: it runs on Linux only")
    _require_numbers(asked)
    streams = _streams(asked.serve)
    wanted = chosen(asked.workloads, asked.scale)
    weights = _weights(asked)
    settings: dict[str, Any] = {"weights": weights, "device": asked.device, "max_running": asked.max_running}
    precisions = {name: getattr(asked, name) for name in PRECISIONS}  # by the names of an endpoint's options
    settings |= precisions
    if asked.threads is not None:
        settings["threads"] = asked.threads
    offline = {**settings, "kv_memory_bytes": _kv_bytes(asked.kv_memory)}
    told = _offline(offline, [asdict(each) for each in wanted], asked.rounds, cache)
    machine = {**told[0]["machine"], "version": ionrouter.__version__}
    machine["fp8"] = [name for name, precision in precisions.items() if precision == "fp8"]
    report = Report(weights, machine, asked.scale, asked.rounds, *rows_of(told))
    _serve(report, {**settings, "kv_memory": asked.kv_memory}, asked, streams)
    print(json.dumps(as_json(report), indent=1) if asked.as_json else markdown(report))
    return 0


def _require_numbers(asked: Asked) -> None:
    """The same ranges as an endpoint's options have, where there is one of the name."""
    require_positive("--scale", asked.scale)
    require_positive("--seconds", asked.seconds)
    require_range("--rounds", asked.rounds, 1)
    require_range("--starts", asked.starts, 0)
    require_range("--max-running", asked.max_running, 1, 4096)
    if asked.threads is not None:
        require_range("--threads", asked.threads, 1, 1024)


def _streams(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = [0]
    if any(count < 1 for count in found):
        raise ConfigError(f"--serve: {text!r} is not a list of numbers of streams, as in 64,256")
    return found


def _kv_bytes(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        num_bytes = int(byte_count(text))
    except ValueError as error:
        raise ConfigError(f"--kv-memory: {error}") from error
    require_range("--kv-memory", num_bytes, 1)
    return num_bytes


def _weights(asked: Asked) -> str:
    """The source as the engine wants it; a random model is written to a folder first where that is asked."""
    source = parse_source(asked.model)
    if asked.save is None:
        return str(source.path.resolve()) if isinstance(source, LocalPath) else asked.model
    if not isinstance(source, RandomModel):
        raise ConfigError(f"--save: {asked.model} is no random model")
    tell(f"writing {asked.save}")
    write_folder(source.shape, source.seed, asked.save)
    return str(asked.save.expanduser().resolve())


def _offline(
    settings: Mapping[str, Any], wanted: list[dict[str, Any]], rounds: int, cache: Path
) -> list[dict[str, Any]]:
    """Run engine_offline.py and read its lines; raises ConfigError with its reason."""
    job = {"settings": settings, "workloads": wanted, "rounds": rounds, "cache": str(cache)}
    command = (sys.executable, "-m", "ionrouter.benchmark.engine_offline")
    told: list[dict[str, Any]] = []
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(job))
        process.stdin.close()
        for line in process.stdout:
            told.append(json.loads(line))
            if progress := _progress(told[-1]):
                tell(progress)
        process.wait()
        log.seek(0)
        said = log.read()
    if process.returncode or not told or "machine" not in told[0]:
        error = next((line["error"] for line in told if "error" in line), said[-1000:])
        weights = settings["weights"]  # most of the engine's errors begin with it
        raise ConfigError(error if error.startswith(f"{weights}: ") else f"{weights}: {error}")
    return told


def _progress(line: Mapping[str, Any]) -> str | None:
    """What a line of engine_offline.py is worth saying: None for an error, which comes at the end."""
    if "machine" in line:
        return "the model is loaded"
    done = line.get("row", {}).get("workload") or line.get("skipped")
    return f"{done} done" if done else None


def _serve(report: Report, settings: Mapping[str, Any], asked: Asked, streams: list[int]) -> None:
    if asked.starts > 0:
        tell("starting servers")
        report.starts = engine_serving.start_times(settings, asked.starts)
    if not streams:
        return
    num_in, num_out = workloads(asked.scale)["batch1"].requests[0]
    vocab_size = int(report.machine["vocab_size"])
    with engine_serving.served(settings) as server:
        for count in streams:
            tell(f"{count} streams over HTTP")
            plan = Plan(engine_serving.MODEL, num_in, num_out, vocab_size, count)
            report.bursts.append(engine_serving.measure(server, plan, asked.seconds))
