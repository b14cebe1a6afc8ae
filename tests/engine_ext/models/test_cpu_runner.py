"""The runner's C++ tests, built once into build/model_tests; the runner itself on a tiny random model."""

from pathlib import Path

from gguf import GGMLQuantizationType as TensorType

from tests.support.cxx import built, run
from tests.support.tiny_llama import TinyLlama, write_gguf


def test_the_runner_does_what_its_tests_say(tmp_path: Path) -> None:
    shape = TinyLlama(vocab_size=503)
    write_gguf(tmp_path / "x.gguf", shape, shape.weights(1), TensorType.Q8_0)
    executable = built(Path(__file__).parent, "model_tests") / "test_cpu_runner"
    run(executable, ION_TEST_MODEL=str(tmp_path / "x.gguf"))


def test_the_runner_for_gpus_hands_over_what_it_was_given(tmp_path: Path) -> None:
    shape = TinyLlama(vocab_size=503)
    write_gguf(tmp_path / "x.gguf", shape, shape.weights(1), TensorType.Q8_0)
    executable = built(Path(__file__).parent, "model_tests") / "test_cuda_runner"
    run(executable, ION_TEST_MODEL=str(tmp_path / "x.gguf"))


def test_the_second_kv_tier_does_what_its_tests_say() -> None:
    run(built(Path(__file__).parent, "model_tests") / "test_kv_store")


def test_pages_of_a_file_that_are_gone_end_no_process() -> None:
    run(built(Path(__file__).parent, "model_tests") / "test_file_map")
