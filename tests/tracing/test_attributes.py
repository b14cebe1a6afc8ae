"""What spans say of bodies, providers and ends, where the real server's tests do not show it."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.errand import Errand
from ionrouter.errors import FailureClass
from ionrouter.providers.base import UpstreamRequest
from ionrouter.providers.fake import FakeClient
from ionrouter.routing.table import Endpoint, ModelRoute, Provider, ProviderType
from ionrouter.schema.events import AttemptRecord, RequestRecord
from ionrouter.schema.request import InferenceRequest, Kind
from ionrouter.schema.usage import Usage
from ionrouter.tracing.attributes import error_of, is_error, of_attempt, of_attempt_end, provider_name


def _asked(body: dict[str, Any], kind: Kind = "chat", **provider: Any) -> dict[str, Any]:
    endpoint = Endpoint("p/m", "i", "m", _provider(**provider), "up-m", "p")
    request = InferenceRequest("gen-1", kind, "m", body)
    upstream = UpstreamRequest("gen-1", kind, endpoint, body, stream=False)
    route = ModelRoute("m", "M", (endpoint,))
    return {**of_attempt(Errand(request, upstream, endpoint, route, FakeClient(), 1, "r", (), 1.0))}


def _provider(slug: str = "p", kind: ProviderType = "openai", **more: Any) -> Provider:
    return Provider(slug, slug, kind, **more)


def _ended(failure: FailureClass | None = None, status: int | None = 200, **more: Any) -> AttemptRecord:
    return AttemptRecord("p/m", "m", "p", 0.0, True, 1.0, status=status, failure=failure, **more)


def _request(status: int, *attempts: AttemptRecord) -> RequestRecord:
    return RequestRecord("gen-1", "chat", "m", True, 0.0, 1.0, status, attempts)


def test_parameters_have_the_conventions_types() -> None:
    said = _asked({"max_completion_tokens": 9, "temperature": 1, "top_k": 5, "n": 3, "top_p": True})
    assert said["gen_ai.request.max_tokens"] == 9
    assert isinstance(said["gen_ai.request.temperature"], float)
    assert (said["gen_ai.request.top_k"], said["gen_ai.request.choice.count"]) == (5, 3)
    assert "gen_ai.request.top_p" not in said
    assert "gen_ai.request.stream" not in said
    formed = _asked({"n": 1, "response_format": {"type": "json_schema"}, "reasoning": {"effort": "low"}})
    assert (formed["gen_ai.output.type"], formed["gen_ai.request.reasoning.level"]) == ("json", "low")
    assert "gen_ai.request.choice.count" not in formed


@pytest.mark.parametrize(
    ("kind", "operation"),
    [("completions", "text_completion"), ("embeddings", "embeddings"), ("rerank", "rerank")],
)
def test_every_kind_is_an_operation(kind: Kind, operation: str) -> None:
    assert _asked({}, kind)["gen_ai.operation.name"] == operation


def test_providers_have_the_conventions_names_where_there_are_any() -> None:
    assert provider_name(_provider("anthropic")) == "anthropic"
    assert provider_name(_provider("mine", litellm_provider="bedrock")) == "aws.bedrock"
    assert provider_name(_provider("together", litellm_provider="together_ai")) == "together"


def test_a_provider_without_an_address_has_no_server() -> None:
    assert "server.address" not in _asked({})
    https = _asked({}, base_url="https://api.example.com/v1")
    assert (https["server.address"], https["server.port"]) == ("api.example.com", 443)


def test_an_end_says_what_it_took() -> None:
    said = of_attempt_end(_ended(usage=Usage(10, 5, 4, 0, 2), is_usage_estimated=True))
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (10, 5)
    assert said["gen_ai.usage.cache_read.input_tokens"] == 4
    assert said["gen_ai.usage.reasoning.output_tokens"] == 2
    assert "gen_ai.usage.cache_write.input_tokens" not in said
    assert said["ionrouter.usage_estimated"] is True
    silent = of_attempt_end(_ended(FailureClass.TRANSIENT, None, message="words of an upstream"))
    assert "http.response.status_code" not in silent
    assert "words of an upstream" not in silent.values()


@pytest.mark.parametrize("failure", FailureClass)
def test_only_what_somebody_is_to_blame_for_is_an_error(failure: FailureClass) -> None:
    nobodys = (FailureClass.CLIENT_LEFT, FailureClass.STOPPED, FailureClass.LOST_RACE)
    assert is_error(_ended(failure)) is (failure not in nobodys)
    assert not is_error(_ended())


def test_a_requests_error_is_its_last_failure_or_its_status() -> None:
    lost, down = _ended(FailureClass.LOST_RACE, 499), _ended(FailureClass.CAPACITY, 429)
    assert error_of(_request(503, down, lost), 503) == "capacity"
    assert error_of(_request(502, down), 200) == "capacity"  # broken after its headers
    assert error_of(_request(503), 503) == "503"
    assert error_of(_request(200, down, _ended()), 200) is None
    assert error_of(_request(400), 400) is None  # the caller's
    assert error_of(_request(499), None) == "client_left"
    assert (error_of(None, None), error_of(None, 500), error_of(None, 401)) == ("client_left", "500", None)
