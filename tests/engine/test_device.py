"""Where a model is computed: `device: auto | cpu | cuda`, what is said of it, who shares a GPU."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ionrouter.engine import device
from ionrouter.engine.device import Device, choose_device
from ionrouter.engine.ion import LocalEngine, SamplingParams
from ionrouter.engine.kv_memory import Neighbours, TooLittleMemory, choose_device_kv_bytes
from ionrouter.engine.loading import EngineSettings, load_model
from ionrouter.engine.pool import EnginePool
from ionrouter.errors import ConfigError
from tests.support.cuda_double import Double, double_path
from tests.support.pages import text_of

KV = 4 << 20
PRECISIONS = ["precision", "head_precision", "kv_precision"]


@pytest.fixture
def no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "libion_cuda.so"
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", str(path))
    return path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", str(double_path()))


def choose(wanted: str, *, numerics: str = "fast", folder: str = "", **precisions: str) -> Device:
    fp8 = [name for name, value in precisions.items() if value == "fp8"]
    place = "models.m.endpoints[2]"
    return choose_device(wanted, numerics=numerics, kv_tier_folder=folder, fp8=fp8, place=place)


def test_auto_without_the_library_is_the_cpu_and_says_why(no_library: Path) -> None:
    found = choose("auto")
    assert (found.kind, found.name) == ("cpu", None)
    assert found.why_not_cuda is not None and f"there is no {no_library}" in found.why_not_cuda


def test_cuda_without_the_library_names_the_place_and_the_reason(no_library: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        choose("cuda")
    assert str(caught.value).startswith(
        f"models.m.endpoints[2].device: cuda cannot be had: there is no {no_library}"
    )


def test_cuda_without_a_gpu_says_what_the_driver_says(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DOUBLE_NO_GPU", "1")
    with pytest.raises(ConfigError, match="no CUDA-capable device is detected"):
        choose("cuda")
    assert choose("auto").kind == "cpu"


@pytest.mark.parametrize("isa", ["avx", "AVX2", "best"])
def test_an_unknown_instruction_set_is_told_where_the_cpu_computes(
    gpu: None, monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    monkeypatch.setenv("ION_ISA", isa)
    with pytest.raises(ConfigError, match=f"ION_ISA: '{isa}' is none of scalar, avx2, avx512vnni"):
        choose("cpu")
    assert choose("auto").kind == "cuda"


@pytest.mark.parametrize("isa", ["", *device.INSTRUCTION_SETS])
def test_a_known_instruction_set_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("ION_ISA", isa)
    assert choose("cpu").kind == "cpu"


def test_instruction_sets_are_those_that_the_kernels_know() -> None:
    names = re.search(r"names\[\] = \{(.*?)\}", text_of("engine_ext/kernels/cpu/dispatch.cpp"))
    assert names is not None and tuple(re.findall(r'"(\w+)"', names[1])) == device.INSTRUCTION_SETS


def test_auto_takes_a_gpu_and_cpu_does_not(gpu: None) -> None:
    assert choose("auto") == choose("cuda") == Device("cuda", name="Double GPU")
    assert choose("cpu") == Device("cpu")


def test_what_only_the_cpu_does_keeps_auto_there(gpu: None) -> None:
    assert choose("auto", numerics="exact").why_not_cuda == "numerics exact is computed on the CPU alone"
    assert choose("auto", folder="/tmp/kv").kind == "cpu"
    with pytest.raises(ConfigError, match=r"endpoints\[2\].device: cuda cannot be had: numerics exact"):
        choose("cuda", numerics="exact")


def test_deterministic_is_computed_wherever_fast_is(gpu: None) -> None:
    for wanted in ("auto", "cuda", "cpu"):
        assert choose(wanted, numerics="deterministic") == choose(wanted)


async def test_deterministic_reaches_the_runner_and_tells_caches_apart(tiny_model: Path, gpu: None) -> None:
    identities = set()
    for numerics in ("fast", "deterministic"):
        for precision, kv in product(("bf16", "fp8"), repeat=2):
            settings = EngineSettings(
                str(tiny_model), numerics=numerics, precision=precision, kv_precision=kv
            )
            loaded = load_model(settings, cache=tiny_model.parent, progress=False)
            identities.add(loaded.identity)
            engine = await LocalEngine.open(settings, cache=tiny_model.parent)
            assert Double(double_path()).is_deterministic() is (numerics == "deterministic")
            await engine.close()
    assert len(identities) == 8


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_fp8_takes_a_gpu_that_has_it(gpu: None, wanted: str) -> None:
    for names in (["precision"], ["head_precision"], ["kv_precision"], PRECISIONS):
        assert choose(wanted, **dict.fromkeys(names, "fp8")) == Device("cuda", name="Double GPU")


def test_fp8_is_never_the_cpu_s(no_library: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"endpoints\[2\].precision: fp8 is computed on a GPU alone: there is"
    ):
        choose("auto", precision="fp8")
    with pytest.raises(ConfigError, match=r"endpoints\[2\].precision: fp8 .* alone: device is cpu"):
        choose("cpu", precision="fp8")
    assert choose("cpu", precision="bf16").kind == choose("auto", precision="bf16").kind == "cpu"


@pytest.mark.parametrize("name", ["head_precision", "kv_precision"])
def test_fp8_of_the_head_or_kv_is_never_the_cpu_s(no_library: Path, name: str) -> None:
    at = rf"endpoints\[2\].{name}: fp8 is computed on a GPU alone"
    with pytest.raises(ConfigError, match=f"{at}: there is"):
        choose("auto", **{name: "fp8"})
    with pytest.raises(ConfigError, match=f"{at}: device is cpu"):
        choose("cpu", **{name: "fp8"})
    with pytest.raises(ConfigError, match=f"{at}: numerics exact is"):
        choose("auto", numerics="exact", **{name: "fp8"})
    assert choose("cpu", **{name: "bf16"}).kind == choose("auto", **{name: "bf16"}).kind == "cpu"


def test_all_precisions_that_cannot_be_had_are_said_at_once(tiny_model: Path) -> None:
    settings = EngineSettings(
        str(tiny_model), device="cpu", precision="fp8", head_precision="fp8", kv_precision="fp8", place="here"
    )
    with pytest.raises(ConfigError) as caught:
        load_model(settings, cache=tiny_model.parent, progress=False)
    places = [problem.path for problem in caught.value.problems]
    assert places == [f"here.{name}" for name in PRECISIONS]


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_model_asked_for_in_fp8_is_not_loaded_without_it(
    tiny_model: Path, no_library: Path, name: str
) -> None:
    settings = EngineSettings(str(tiny_model), place="models.tiny.endpoints[0]", **{name: "fp8"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"^models.tiny.endpoints\[0\].{name}: fp8 is computed on a GPU"):
        load_model(settings, cache=tiny_model.parent, progress=False)


def test_fp8_is_not_an_older_gpu_s(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DOUBLE_COMPUTE", "80")
    with pytest.raises(
        ConfigError, match=r"device: cuda cannot be had: fp8 wants .* 8.9 or more; Double GPU has 8.0"
    ):
        choose("cuda", precision="fp8")
    with pytest.raises(ConfigError, match="precision: fp8 is computed on a GPU alone: fp8 wants"):
        choose("auto", precision="fp8")
    assert choose("cuda", precision="bf16").kind == "cuda"


@pytest.mark.parametrize("name", ["head_precision", "kv_precision"])
def test_fp8_of_the_head_or_kv_is_not_an_older_gpu_s(
    gpu: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CUDA_DOUBLE_COMPUTE", "80")
    wants = f"{name} fp8 wants a GPU of compute capability 8.9 or more; Double GPU has 8.0"
    with pytest.raises(ConfigError, match=f"device: cuda cannot be had: {wants}"):
        choose("cuda", **{name: "fp8"})
    with pytest.raises(ConfigError, match=rf"\[2\].{name}: fp8 is computed on a GPU alone: {wants}"):
        choose("auto", **{name: "fp8"})
    assert choose("cuda", **{name: "bf16"}).kind == "cuda"
    monkeypatch.setenv("CUDA_DOUBLE_COMPUTE", "89")
    assert choose("cuda", **{name: "fp8"}).kind == "cuda"


async def test_a_model_asked_onto_a_missing_gpu_fails_by_its_place(
    tiny_model: Path, no_library: Path
) -> None:
    settings = EngineSettings(str(tiny_model), device="cuda", place="models.tiny.endpoints[0]")
    pool = EnginePool(tiny_model.parent)
    pool.prepare([settings])
    (reason,) = await pool.wait_ready()
    await pool.close()
    assert reason.startswith("failed: models.tiny.endpoints[0].device: cuda cannot be had: there is no ")


async def test_the_log_says_which_device_and_why(tiny_model: Path, no_library: Path) -> None:
    with capture_logs() as logs:
        engine = await LocalEngine.open(
            EngineSettings(str(tiny_model), kv_memory_bytes=KV), cache=tiny_model.parent
        )
    await engine.close()
    (started,) = [entry for entry in logs if entry["event"] == "engine_started"]
    assert (started["device"], started["device_name"]) == ("cpu", None)
    assert "there is no" in started["why_not_cuda"]


async def test_a_model_runs_on_the_gpu_that_auto_finds(tiny_model: Path, gpu: None) -> None:
    with capture_logs() as logs:
        engine = await LocalEngine.open(EngineSettings(str(tiny_model)), cache=tiny_model.parent)
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    events = [event async for event in engine.generate([1, 2, 3], params)]
    assert sum(event.num_tokens for event in events) == 5
    assert (engine.device, engine.load().device) == ("cuda", "cuda")
    await engine.close()
    (started,) = [entry for entry in logs if entry["event"] == "engine_started"]
    assert (started["device"], started["device_name"], started["why_not_cuda"]) == (
        "cuda",
        "Double GPU",
        None,
    )


async def test_precision_reaches_the_gpu_and_tells_caches_apart(tiny_model: Path, gpu: None) -> None:
    settings = [EngineSettings(str(tiny_model), precision=name) for name in ("auto", "bf16", "fp8")]
    loaded = [load_model(one, cache=tiny_model.parent, progress=False) for one in settings]
    assert [one.precision for one in loaded] == ["bf16", "bf16", "fp8"]
    assert loaded[0].identity == loaded[1].identity != loaded[2].identity


async def test_kv_precision_reaches_the_gpu_and_tells_caches_apart(tiny_model: Path, gpu: None) -> None:
    identities = []
    for name, kv_type in (("bf16", 0), ("fp8", 1)):
        settings = EngineSettings(str(tiny_model), kv_precision=name)
        loaded = load_model(settings, cache=tiny_model.parent, progress=False)
        assert (loaded.kv_precision, loaded.precision) == (name, "bf16")
        assert Double(double_path()).config().kv_type == kv_type
        identities.append(loaded.identity)
    assert [one.rpartition(":")[2] for one in identities] == ["cuda-bf16", "cuda-bf16-kv-fp8"]
    on_cpu = load_model(
        EngineSettings(str(tiny_model), device="cpu"), cache=tiny_model.parent, progress=False
    )
    assert (on_cpu.precision, on_cpu.head_precision, on_cpu.kv_precision) == (None, None, None)


async def test_head_precision_reaches_the_gpu_and_shares_caches(tiny_model: Path, gpu: None) -> None:
    identities = set()
    for name, head_type in (("bf16", 0), ("fp8", 1)):
        settings = EngineSettings(str(tiny_model), head_precision=name)
        loaded = load_model(settings, cache=tiny_model.parent, progress=False)
        assert (loaded.precision, loaded.head_precision, loaded.kv_precision) == ("bf16", name, "bf16")
        assert Double(double_path()).config().head_type == head_type
        identities.add(loaded.identity)
    assert len(identities) == 1, "the head writes no KV"


@pytest.mark.parametrize("name", ["bf16", "fp8"])
async def test_the_log_says_the_head_s_precision(tiny_model: Path, gpu: None, name: str) -> None:
    settings = EngineSettings(str(tiny_model), kv_memory_bytes=KV, head_precision=name)
    with capture_logs() as logs:
        engine = await LocalEngine.open(settings, cache=tiny_model.parent)
    await engine.close()
    (started,) = [entry for entry in logs if entry["event"] == "engine_started"]
    assert [started[one] for one in PRECISIONS] == ["bf16", name, "bf16"]


async def test_the_log_says_both_precisions_and_fp8_kv_has_more_blocks(tiny_model: Path, gpu: None) -> None:
    blocks = []
    for name in ("bf16", "fp8"):
        settings = EngineSettings(str(tiny_model), kv_memory_bytes=KV, kv_precision=name)
        with capture_logs() as logs:
            engine = await LocalEngine.open(settings, cache=tiny_model.parent)
        await engine.close()
        (started,) = [entry for entry in logs if entry["event"] == "engine_started"]
        assert (started["precision"], started["kv_precision"]) == ("bf16", name)
        assert started["blocks"] == KV // (16 * engine.kv_token_bytes)
        blocks.append(started["blocks"])
    assert blocks[1] > blocks[0]


def test_engines_with_another_head_or_kv_are_other_engines() -> None:
    assert EngineSettings("m") == EngineSettings("m", head_precision="bf16", kv_precision="bf16")
    assert EngineSettings("m") != EngineSettings("m", head_precision="fp8")
    assert EngineSettings("m") != EngineSettings("m", kv_precision="fp8")


async def test_a_gpu_that_fails_while_loading_is_a_named_error(
    tiny_model: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DOUBLE_FREE_BYTES", "1000")
    with pytest.raises(TooLittleMemory, match=r"weights on Double GPU: \d+ bytes needed, 1000 available"):
        await LocalEngine.open(EngineSettings(str(tiny_model)), cache=tiny_model.parent)


async def test_models_on_different_devices_do_not_share_memory(tiny_model: Path, gpu: None) -> None:
    pool = EnginePool(tiny_model.parent)
    on_gpu = EngineSettings(str(tiny_model), max_running=2)
    on_cpu = EngineSettings(str(tiny_model), max_running=2, device="cpu")
    pool.prepare([on_gpu, on_cpu])
    assert await pool.wait_ready() == ()
    assert pool._neighbours(on_gpu) == pool._neighbours(on_cpu) == Neighbours()
    await pool.close()


SHAPE = {"kv_block_bytes": 1 << 20, "context_length": 1600}


def test_alone_on_a_gpu_the_runner_chooses() -> None:
    assert choose_device_kv_bytes(SHAPE, 64, free_bytes=60 << 30, neighbours=Neighbours()) == 0


def test_several_models_share_a_gpu_equally() -> None:
    neighbours = Neighbours(num_sharing=1, coming_bytes=2 << 30)
    first = choose_device_kv_bytes(SHAPE, 640, free_bytes=42 << 30, neighbours=neighbours)
    assert first == int((20 << 30) * 0.9)
    later = Neighbours(num_sharing=1, kv_bytes=first)
    second = choose_device_kv_bytes(SHAPE, 640, free_bytes=(40 << 30) - first, neighbours=later)
    assert second == first


def test_a_share_is_never_more_than_all_sequences_fill_nor_less_than_a_block_for_each() -> None:
    neighbours = Neighbours(num_sharing=1)
    assert choose_device_kv_bytes(SHAPE, 2, free_bytes=60 << 30, neighbours=neighbours) == 2 * 100 << 20
    with pytest.raises(TooLittleMemory, match="67108864 bytes are needed on the GPU for 64 sequences"):
        choose_device_kv_bytes(SHAPE, 64, free_bytes=64 << 20, neighbours=neighbours)


def test_cublas_is_found_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "nvidia/cu13/lib", tmp_path / "nvidia/cublas/lib"]
    for folder, version in zip(folders, (13, 12), strict=True):
        folder.mkdir(parents=True)
        (folder / f"libcublasLt.so.{version}").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert device.cublas_lt_path() == str(folders[0] / "libcublasLt.so.13")
