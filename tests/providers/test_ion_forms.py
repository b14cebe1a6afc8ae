"""Forms of answers that cost much or cannot be kept to: what they do to others, and how they are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.ion import IonProvider
from ionrouter.routing.table import Endpoint
from tests.support.ion_provider import ask, ion_request, local_endpoint, provider_of
from tests.support.tiny_model import write_tiny_model

SCHEMA_PATH = "response_format.json_schema.schema"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


async def refused(provider: IonProvider, endpoint: Endpoint, body: dict[str, Any]) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await ask(provider, ion_request(endpoint, body))
    return caught.value


async def test_others_go_on_while_a_long_schema_is_compiled(model: Path, tmp_path: Path) -> None:
    """Four thousand properties and a fault among them: a second of compiling, of which the loop has none."""
    properties: dict[str, Any] = {f"p{i}": {"type": "string", "maxLength": 50} for i in range(4_000)}
    schema = {"type": "object", "properties": properties | {"z": {"not": {}}}, "required": [*properties]}
    body = HI | {"guided_json": schema}
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=tmp_path) as provider:
        await refused(provider, endpoint, HI | {"guided_json": {"not": {}}})  # llguidance is imported now
        num_turns, asking = 0, asyncio.create_task(refused(provider, endpoint, body))
        while not asking.done():
            num_turns += 1
            await asyncio.sleep(0.005)
        error = await asking
    assert error.param == "guided_json.properties.z.not"
    assert error.failure is FailureClass.ENDPOINT_REQUEST
    assert num_turns > 10


ENDLESS = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
ITSELF = {"$defs": {"x": {"$ref": "#/$defs/x"}}}
HALF = ITSELF | {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": ENDLESS}}]


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"guided_json": {"$ref": "#"}}, "guided_json"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": ENDLESS}}}, SCHEMA_PATH),
        ({"structured_outputs": {"json": HALF}}, "structured_outputs.json"),
        ({"guided_grammar": 'root ::= root "a"'}, "guided_grammar"),
        ({"guided_grammar": 'root ::= "a" root'}, "guided_grammar"),
        ({"guided_regex": "(a{1000}){1000}"}, "guided_regex"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tools"),
    ],
)
async def test_what_no_text_can_fulfil_is_the_requests_fault_and_never_half_an_answer(
    model: Path, tmp_path: Path, form: dict[str, Any], param: str
) -> None:
    """Not a failure of the endpoint, whose breaker would open for everybody."""
    endpoint = local_endpoint(model)
    async with provider_of(endpoint, cache=tmp_path) as provider:
        error = await refused(provider, endpoint, HI | {"max_tokens": 200} | form)
        assert (error.failure, error.status, error.param) == (FailureClass.ENDPOINT_REQUEST, 400, param)
        assert error.message.startswith(f"{param}: ")
        assert len(error.message) < 200
        assert (await ask(provider, ion_request(endpoint, HI))).usage is not None
