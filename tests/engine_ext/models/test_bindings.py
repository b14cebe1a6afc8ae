"""The Python module against its contract (ionrouter/engine/_ion.pyi): names, errors, lifetimes, locks."""

from __future__ import annotations

import ast
import gc
import inspect
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as TensorType

import ionrouter.engine
from ionrouter.engine import _ion
from tests.support.ion_engine import collect, generate, make_engine
from tests.support.tiny_llama import TinyLlama, write_gguf

SHAPE = TinyLlama(vocab_size=503)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bindings") / "x.gguf"
    write_gguf(path, SHAPE, SHAPE.weights(1), TensorType.Q8_0)
    return str(path)


@pytest.fixture
def engine(path: str) -> Iterator[_ion.Engine]:
    engine = make_engine(_ion.Model.load_gguf(path), num_blocks=32)
    yield engine
    engine.close()


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_every_name_of_the_contract_exists_with_its_parameters() -> None:
    stub = Path(ionrouter.engine.__file__).with_name("_ion.pyi")
    functions = []
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ClassDef):
            owner = getattr(_ion, node.name)
            functions += [(owner, member) for member in node.body if isinstance(member, ast.FunctionDef)]
        elif isinstance(node, ast.FunctionDef):
            functions.append((_ion, node))
    assert len(functions) > 12
    for owner, function in functions:
        built = inspect.getattr_static(owner, function.name)
        if any(isinstance(d, ast.Name) and d.id == "property" for d in function.decorator_list):
            assert isinstance(built, property)
            continue
        signature = getattr(owner, function.name).__doc__.split("\n")[0]
        arguments = [a.arg for a in function.args.args + function.args.kwonlyargs if a.arg != "self"]
        for argument in arguments:
            assert f"{argument}: " in signature, f"{function.name} lacks {argument}: {signature}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blokcs": 3}, "unknown key 'num_blokcs'"),
        ({"num_blocks": "many"}, "num_blocks has the wrong type"),
        ({"kv_memory_bytes": 2**70}, "kv_memory_bytes has the wrong type or is out of range"),
        ({"block_size": 32}, "block_size must be 16"),
        ({"kv_memory_bytes": 1}, "kv_memory_bytes: 1 is less than one block"),
        ({"num_blocks": 8, "context_length": 10**6}, "context_length: 1000000 is above the model's 512"),
    ],
)
def test_bad_options_are_named(path: str, options: dict[str, Any], message: str) -> None:
    model = _ion.Model.load_gguf(path)
    with pytest.raises(ValueError, match=message):
        _ion.Engine(model, [b"x"] * SHAPE.vocab_size, [], options)


def test_a_sequence_that_can_never_run_is_refused(engine: _ion.Engine) -> None:
    with pytest.raises(ValueError, match="prompt"):
        engine.submit([], max_tokens=5)
    with pytest.raises(ValueError, match=r"600.*512"):
        engine.submit([1] * 600, max_tokens=5)
    with pytest.raises(ValueError, match="503"):
        engine.submit([1, 503], max_tokens=5)


def test_the_descriptor_is_readable_while_there_is_something_to_drain(engine: _ion.Engine) -> None:
    assert not is_readable(engine.event_fd)
    engine.submit([1, 2, 3], max_tokens=1)
    assert select.select([engine.event_fd], [], [], 60)[0]
    assert engine.drain()
    assert not is_readable(engine.event_fd)
    assert engine.drain() == []


def test_an_engine_keeps_its_model(path: str) -> None:
    model = _ion.Model.load_gguf(path)
    engine = make_engine(model, num_blocks=32)
    before = generate(engine, [[1, 2, 3]])
    del model
    gc.collect()
    assert generate(engine, [[1, 2, 3]]) == before
    engine.close()


def test_logits_outlive_their_model(path: str) -> None:
    model = _ion.Model.load_gguf(path)
    first, second = model.logits([1, 2, 3]), model.logits([1, 2, 3])
    assert (first.shape, first.format, first.readonly) == ((3, SHAPE.vocab_size), "f", True)
    del model
    gc.collect()
    assert first.tobytes() == second.tobytes()


def test_an_engine_that_is_dropped_ends_its_threads(path: str) -> None:
    model = _ion.Model.load_gguf(path, threads=1)
    before = num_threads()
    engine = make_engine(model, num_blocks=32)
    engine.submit([1, 2, 3], max_tokens=400)
    assert num_threads() > before
    del engine
    gc.collect()
    assert num_threads() == before


def test_close_aborts_and_may_be_called_twice(path: str) -> None:
    engine = make_engine(_ion.Model.load_gguf(path), num_blocks=64)
    sequences = [engine.submit([i], max_tokens=500) for i in range(4)]
    engine.close()
    engine.close()
    assert {answer.finish for answer in collect(engine, sequences)} <= {2, 3}
    with pytest.raises(RuntimeError):
        engine.submit([1], max_tokens=1)


def test_python_runs_while_the_engine_computes(path: str) -> None:
    """Were the interpreter's lock held by a call into C++, nothing here would count until it returned."""
    model = _ion.Model.load_gguf(path, "exact", threads=1)
    tokens = [i % 500 for i in range(512)]
    began = threading.Event()

    def compute() -> None:
        began.set()
        for _ in range(5):
            model.logits(tokens, 1)

    worker = threading.Thread(target=compute)
    worker.start()
    began.wait()
    num_turns = 0
    while worker.is_alive():
        num_turns += 1
        time.sleep(0.0001)
    assert num_turns > 20


def test_stats_add_up_after_the_work_is_done(engine: _ion.Engine) -> None:
    generate(engine, [[1, 2, 3], [4] * 40], max_tokens=8)
    stats = engine.stats()
    assert (stats["running"], stats["waiting"], stats["tokens"], stats["finished"]) == (0, 0, 16, 2)
    assert stats["blocks_free"] + stats["blocks_cached"] == stats["blocks_total"] == 32
    assert stats["errors"] == stats["aborts"] == 0


def test_cpu_features_are_lower_case_names() -> None:
    assert all(name == name.lower() and name for name in _ion.cpu_features())
