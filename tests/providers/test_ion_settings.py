"""What an endpoint says of its engine reaches the GPU: seen by the double of its library."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.cuda_double import Double, double_path
from tests.support.ion_provider import ask, ion_request, local_endpoint, provider_of
from tests.support.tiny_model import write_tiny_model

PRECISIONS = ("precision", "head_precision", "kv_precision")


@pytest.mark.parametrize("fp8", [(), ("precision",), ("head_precision",), ("kv_precision",), PRECISIONS])
async def test_an_endpoint_s_precisions_reach_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fp8: tuple[str, ...]
) -> None:
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", str(double_path()))
    weights = write_tiny_model(tmp_path / "tiny.gguf")
    asked = {name: "fp8" if name in fp8 else "bf16" for name in PRECISIONS}
    endpoint = local_endpoint(weights, **asked)
    async with provider_of(endpoint, cache=tmp_path) as provider:
        given = Double(double_path()).config()
        types = (given.matrix_type, given.head_type, given.kv_type)
        assert types == tuple(name in fp8 for name in PRECISIONS)
        body = {"prompt": "the quick", "max_tokens": 3, "ignore_eos": True}
        reply = await ask(provider, ion_request(endpoint, body, "completions"))
        assert reply.usage is not None and reply.usage.completion_tokens == 3


async def test_endpoints_apart_by_their_kv_alone_have_engines_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", str(double_path()))
    weights = write_tiny_model(tmp_path / "tiny.gguf")
    wide, narrow = (local_endpoint(weights, kv_precision=name) for name in ("bf16", "fp8"))
    async with provider_of(wide, narrow, cache=tmp_path) as provider:
        assert provider.load_of(narrow).blocks_total > provider.load_of(wide).blocks_total > 0


async def test_endpoints_apart_by_their_head_alone_have_engines_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IONROUTER_CUDA_LIBRARY", str(double_path()))
    weights = write_tiny_model(tmp_path / "tiny.gguf")
    endpoints = [local_endpoint(weights, head_precision=name) for name in ("bf16", "fp8")]
    with capture_logs() as logs:
        async with provider_of(*endpoints, cache=tmp_path):
            pass
    started = [entry["head_precision"] for entry in logs if entry["event"] == "engine_started"]
    assert sorted(started) == ["bf16", "fp8"]
