"""`ionrouter bench`: a real model, the whole engine, a real server; and who asks for nonsense."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ionrouter.benchmark import engine_report
from ionrouter.benchmark.engine_offline import Row
from ionrouter.benchmark.engine_serving import Burst, Start
from ionrouter.benchmark.engine_workloads import chosen, workloads
from ionrouter.benchmark.stream_load import Plan, run
from ionrouter.cli import main
from ionrouter.errors import ConfigError

EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'
END = (
    b'data: {"choices":[]}\n\ndata: {"usage":{"prompt_tokens":2,"completion_tokens":%d,"total_tokens":9}}\n\n'
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_model_is_measured_offline_and_over_http(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--device cpu --workloads batch8,longctx32x8192 --scale 0.125 --rounds 1 --starts 1 --serve 3"
    argv = ["bench", "engine", "random:tiny?seed=5", *asked.split(), "--seconds", "0.5", "--json"]
    assert main(argv) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["workload"] for row in told["rows"]] == ["batch8", "longctx32x8192"]
    batch = told["rows"][0]
    assert (batch["num_requests"], batch["num_in"], batch["num_out"]) == (8, 8 * 16, 8 * 32)
    assert batch["whole_s"] > batch["first_s"] > 0 and batch["step_s"] > batch["floor_s"] > 0
    assert told["machine"]["device"] == "cpu" and told["machine"]["read_bandwidth"] > 1e8
    (start,) = told["starts"]
    assert start["first_token_s"] > start["load_s"] > 0
    (at_once, poisson) = told["bursts"][0]
    assert at_once["num_streams"] == 3 and at_once["num_bad"] == poisson["num_bad"] == 0
    assert at_once["tokens_per_s"] > 0 and poisson["rate"] > 0 and poisson["first_p99_s"] > 0


def test_a_random_model_can_be_kept_as_a_folder(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cache / "kept"
    argv = ["bench", "engine", "random:tiny", "--device", "cpu", "--workloads", "batch1", "--scale", "0.02"]
    assert main([*argv, "--starts", "0", "--rounds", "1", "--save", str(folder)]) == 0
    out = capsys.readouterr().out
    assert str(folder) in out and "by 0.02" in out and "| batch1 | 3 | 5 |" in out
    assert (folder / "model.safetensors").stat().st_size > 100_000


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("random:tiny --workloads batch7", "no workload 'batch7'; known: batch1,"),
        ("random:tiny --serve 4,x", "--serve: '4,x' is not a list of numbers of streams"),
        ("random:tiny --kv-memory much", "--kv-memory: a size in bytes"),
        ("random:tiny --kv-memory 0", "--kv-memory: at least 1"),
        ("random:tiny --rounds 0", "--rounds: at least 1"),
        ("random:tiny --starts -1", "--starts: at least 0"),
        ("random:tiny --scale 0", "--scale: a number above 0"),
        ("random:tiny --scale -1", "--scale: a number above 0"),
        ("random:tiny --scale inf", "--scale: a number above 0"),
        ("random:tiny --seconds nan", "--seconds: a number above 0"),
        ("random:tiny --threads 0", "--threads: at least 1"),
        ("random:tiny --threads 1025", "--threads: at most 1024"),
        ("random:tiny --max-running 0", "--max-running: at least 1"),
        ("random:nobody --workloads none --starts 0", "random:nobody: no such shape"),
        ("/nowhere/x.gguf --save /tmp/x", "--save: /nowhere/x.gguf is no random model"),
        ("/nowhere/x.gguf --workloads none", "no such file or folder"),
        ("random:tiny --precision fp8", "precision: fp8 is computed on a GPU alone"),
        ("random:tiny --head-precision fp8", "head_precision: fp8 is computed on a GPU alone"),
        ("random:tiny --kv-precision fp8", "kv_precision: fp8 is computed on a GPU alone"),
    ],
)
def test_nonsense_is_one_line(asked: str, told: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engine", *asked.split(), "--device", "cpu"]) == 1
    said = capsys.readouterr()
    assert told in said.err
    assert said.out == "" and "Traceback" not in said.err


def test_what_cannot_be_loaded_is_named_once_and_nothing_is_said_to_be_loaded(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "engine", "/nowhere/x.gguf", "--device", "cpu"]) == 1
    assert capsys.readouterr().err == "ionrouter: /nowhere/x.gguf: no such file or folder\n"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("--rounds 0", "--rounds: at least 1"),
        ("--seconds -1", "--seconds: a number above 0"),
        ("--seconds 0", "--seconds: a number above 0"),
        ("--seconds inf", "--seconds: a number above 0"),
    ],
)
def test_nonsense_about_the_proxy_is_one_line(
    asked: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "proxy", *asked.split()]) == 1
    said = capsys.readouterr()
    assert said.err == f"ionrouter: {told}\n" and said.out == ""


def test_workloads_are_the_peers() -> None:
    found = workloads()
    assert found["batch64"].requests == ((128, 256),) * 64
    assert found["prefill32x4096"].requests == ((4096, 16),) * 32
    assert found["longctx32x8192"].requests == ((8192, 128),) * 32
    chat = found["chat512"]
    assert (len(chat.requests), chat.num_in, chat.num_out) == (512, 109_740, 106_249)
    assert not chat.has_steady_decode and found["batch1"].has_steady_decode


def test_scale_shortens_and_says_so() -> None:
    found = workloads(0.25)
    assert found["batch64"].requests == ((32, 64),) * 64
    assert found["prefill32x4096"].requests == ((1024, 4),) * 8
    assert [each.name for each in chosen("batch8, chat512", 0.25)] == ["batch8", "chat512"]
    with pytest.raises(ConfigError, match="known: batch1"):
        chosen("nothing", 1.0)


def test_the_table_has_a_line_a_row_and_compares_streams_with_their_batch() -> None:
    machine = {
        "device": "cuda", "name": "A card", "driver": "1.2", "cuda": "13.0", "python": "3.12", "version": "9",
        "weight_bytes": 2e9, "streamed_bytes": 1e9, "kv_token_bytes": 2048, "read_bandwidth": 1e12,
        "fp8": ["precision", "kv_precision"],
    }  # fmt: skip
    report = engine_report.Report("m", machine, 0.5, 3, skipped={"longctx32x8192": "too long"})
    report.rows = [
        Row("batch64", 64, 128, 1000, 2.0, 0.01, 0.004, 0.1, 0.003),
        Row("chat512", 512, 5, 6, 1.0, 0.0),
    ]
    report.starts = [Start(2.0, 1.0), Start(3.0, 1.5), Start(2.5, 1.2)]
    report.bursts = [(burst(64, 0.0, 400.0), burst(90, 12.5, 300.0))]
    text = engine_report.markdown(report)
    assert "| batch64 | 128 | 1,000 | 500.0 | 564.0 | 0.010 | 0.100 | 4.000 | 3.000 | 0.75 |" in text
    assert "| chat512 | 5 | 6 | 6.0 | 11.0 | 0.000 | - | - | - | - |" in text
    assert "| longctx32x8192 | too long |" in text and "by 0.5" in text
    assert "fp8: precision, kv_precision." in text
    assert "median 2.50 s of 3, 2.00 to 3.00; loading the model took 1.20 s" in text
    assert "| 64 | 400 | 0.80 | 10 / 20 | 97.5% | 30 | 12.5 | 10 / 20 | 40% | 0 |" in text


def burst(num_streams: int, rate: float, tokens_per_s: float) -> Burst:
    return Burst(num_streams, rate, tokens_per_s, 1.0, 0.01, 0.02, 0.975, 30.0, 0.4, 0, "")


class Scripted:
    """A server that answers every request with the same pieces, a read each."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        for piece in self._pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()


async def asked(pieces: list[bytes], num_out: int, num_streams: int = 2) -> tuple[int, int, int]:
    """Events with text, tokens, and streams that were not whole."""
    server = await asyncio.start_server(Scripted(pieces).answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        seen = await run(Plan("m", 2, num_out, 64, num_streams, port=port, patience_s=20.0))
    assert len(seen.first_s) == num_streams - seen.num_bad
    return seen.num_events, seen.num_tokens, seen.num_bad


def cut(data: bytes, *places: int) -> Iterator[bytes]:
    yield from (data[begin:end] for begin, end in pairwise((0, *places, len(data))))


async def test_events_are_counted_however_the_bytes_are_cut() -> None:
    body = EVENT * 3 + END % 4 + b"data: [DONE]\n\n0\r\n\r\n"
    for place in range(len(EVENT), 2 * len(EVENT) + 1, 3):
        assert await asked(list(cut(body, place)), 4, num_streams=1) == (3, 4, 0)


async def test_a_stream_without_all_its_tokens_is_not_whole() -> None:
    whole = EVENT * 3 + END % 3 + b"data: [DONE]\n\n0\r\n\r\n"
    assert await asked([whole], 4) == (0, 0, 2)
    assert await asked([EVENT], 4) == (0, 0, 2), "the connection ended in the middle"
