"""Every exception of litellm has a row; importing the front loads neither litellm nor its friends."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ionrouter.errors import FailureClass
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.litellm_errors import TABLE, describe, read_litellm_error
from ionrouter.redact import Redactor
from tests.support.upstream import Upstream, error

ROOT = Path(__file__).resolve().parents[2]
ERRORS = ErrorReader("Up", Redactor())

WALK = """
import os, json
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import inspect, litellm, litellm.exceptions as e
found = {n for n, c in inspect.getmembers(e, inspect.isclass)
         if issubclass(c, BaseException) and c.__module__ == e.__name__}
found |= {c.__name__ for c in litellm.LITELLM_EXCEPTION_TYPES}
print(json.dumps(sorted(found)))
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_every_exception_class_of_litellm_has_a_row() -> None:
    names = json.loads(run(WALK).splitlines()[-1])
    assert len(names) >= 30
    assert [name for name in names if name not in TABLE] == []


def test_importing_the_front_loads_no_litellm() -> None:
    heavy = "('litellm', 'openai', 'httpx', 'torch')"
    code = f"import sys, ionrouter.providers.litellm; print([m for m in {heavy} if m in sys.modules])"
    assert run(code).strip() == "[]"


NO_HUB = """
import asyncio, json
from ionrouter.providers.litellm_stream import stream_payloads
from ionrouter.providers.litellm_worker import import_litellm
from ionrouter.providers.outgoing import Outgoing
from tests.support.hosted import KEY
from tests.support.upstream import Upstream, together_stream
async def main():
    litellm = import_litellm()
    with Upstream(together_stream(["x"])) as up:
        call = dict(kind="chat", stream=True, model="together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo",
                    arguments={"messages": [{"role": "user", "content": "hi"}]}, extra_body={}, api_key=KEY,
                    api_base=up.base_url, headers={}, connect_s=5.0, total_s=60.0)
        print(json.dumps([frame["op"] async for frame in stream_payloads(litellm, call, Outgoing())]))
asyncio.run(main())
"""


def test_no_tokenizer_is_fetched_from_a_hub_to_count_what_nobody_asked_for() -> None:
    """litellm prices a Llama answer with a downloaded tokenizer, and blocks its process meanwhile."""
    with Upstream(error(404)) as hub:
        env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_TELEMETRY": "1"}
        done = subprocess.run(
            [sys.executable, "-c", NO_HUB], capture_output=True, text=True, check=True, env=env, cwd=ROOT
        )
        assert hub.requests == []
    assert json.loads(done.stdout.splitlines()[-1]) == ["chunk", "chunk", "end"]


class Stand(Exception):
    """An exception with the attributes litellm gives its own."""

    def __init__(self, message: str, **attributes: object) -> None:
        super().__init__(message)
        self.message = message
        for name, value in attributes.items():
            setattr(self, name, value)


def named(name: str, message: str = "m", base: type[Exception] = Stand, **attributes: object) -> Exception:
    made: Exception = type(name, (base,), {})(message, **attributes)
    return made


def read(error: BaseException) -> tuple[FailureClass, int | None, str | None, str]:
    raised = read_litellm_error(describe(error), ERRORS, 0.0)
    return raised.failure, raised.status, raised.code, raised.message


@pytest.mark.parametrize(
    ("name", "status", "failure", "said"),
    [
        ("BadRequestError", 400, FailureClass.REQUEST, 400),
        ("BadRequestError", 503, FailureClass.TRANSIENT, 503),  # Fireworks' 5xx come as this
        ("BadRequestError", 402, FailureClass.DOMAIN, 402),
        ("APIError", 529, FailureClass.TRANSIENT, 529),
        ("APIError", 200, FailureClass.TRANSIENT, 502),
        ("RateLimitError", None, FailureClass.CAPACITY, 429),
        ("ContextWindowExceededError", 400, FailureClass.ENDPOINT_REQUEST, 400),
        ("ContentPolicyViolationError", 400, FailureClass.CONTENT, 403),
        ("UnsupportedParamsError", 400, FailureClass.ENDPOINT_REQUEST, 400),
        ("Timeout", 408, FailureClass.TRANSIENT, 504),
        ("APIConnectionError", 500, FailureClass.TRANSIENT, None),
        ("SomethingNew", None, FailureClass.TRANSIENT, 502),
        ("SomethingNew", 401, FailureClass.DOMAIN, 401),
    ],
)
def test_class_and_status_decide(
    name: str, status: int | None, failure: FailureClass, said: int | None
) -> None:
    assert read(named(name, status_code=status))[:2] == (failure, said)


def test_the_cause_says_more_than_what_litellm_made_of_it() -> None:
    outer = named("InternalServerError", "Cannot connect to host 127.0.0.1:1", status_code=500)
    outer.__cause__ = named("ConnectError", "x")
    failure, status, code, message = read(outer)
    assert (failure, status, code) == (FailureClass.TRANSIENT, None, "connect_error")
    assert message == "cannot connect to the upstream"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('litellm.BadRequestError: Together_aiException - {"error": {"message": "words"}}', "words"),
        ("litellm.RateLimitError: RateLimitError: Together_aiException - words", "words"),
        ("Timeout Error: Together_aiException - words", "words"),
        ("words Original exception: APIConnectionError: secret stuff", "words"),
        ("words\nTraceback (most recent call last):\n File x", "words"),
        ("plain words", "plain words"),
    ],
)
def test_the_words_are_the_upstreams_own(message: str, words: str) -> None:
    assert read(named("BadRequestError", message, status_code=400))[3] == words


def test_headers_and_body_are_found_where_litellm_keeps_them() -> None:
    error = named("RateLimitError", status_code=429, litellm_response_headers={"Retry-After": "7"},
                  body={"message": "slow", "code": "rate_limit_exceeded", "type": "t"})  # fmt: skip
    raised = read_litellm_error(describe(error), ERRORS, 0.0)
    assert (raised.retry_after_s, raised.message, raised.code, raised.native_type) == (
        7.0, "slow", "rate_limit_exceeded", "t",
    )  # fmt: skip


def test_an_exception_without_any_attribute_is_described() -> None:
    assert read(ValueError("odd"))[0] is FailureClass.TRANSIENT
    assert read(ValueError())[3] == "ValueError"


NO_FETCH = """
import asyncio, json
from ionrouter.providers.litellm_errors import describe
from ionrouter.providers.litellm_worker import import_litellm
litellm = import_litellm()
from litellm.litellm_core_utils.prompt_templates import factory, image_handling
fetched, told = [], []
class Client:  # instead of a network
    def get(self, url, **_):
        fetched.append(url)
        raise OSError("no network")
async def asking(url):
    return await image_handling.async_convert_url_to_base64(url)
litellm.module_level_client = litellm.module_level_aclient = Client()
factory.HTTPHandler = lambda **_: Client()
for ask in (image_handling.convert_url_to_base64, lambda url: asyncio.run(asking(url)),
            factory.BedrockImageProcessor.get_image_details):
    try:
        ask("http://93.184.215.14/a.png")
    except Exception as error:
        told.append(describe(error)["classes"][0])
print(json.dumps([fetched, told]))
"""


def test_nothing_is_fetched_by_an_address_in_a_request() -> None:
    """A caller would choose where this machine connects to, and a slow place would hold up everybody."""
    fetched, told = json.loads(run(NO_FETCH).splitlines()[-1])
    assert fetched == []
    assert len(told) == 3
    for name in told:
        assert (TABLE[name].failure, TABLE[name].status) == (FailureClass.ENDPOINT_REQUEST, 400)


NOT_TRANSLATED = """
import asyncio, json
from ionrouter.providers.litellm_errors import describe
from ionrouter.providers.litellm_worker import import_litellm
litellm = import_litellm()
def says(*parts): return [{"role": "user", "content": list(parts)}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{bad"}}
IMAGE = {"type": "image_url", "image_url": {"url": "/etc/passwd"}}
BAD = [("gemini/gemini-2.0-flash", says(IMAGE)),
       ("gemini/gemini-2.0-flash", says({"type": "file", "file": {}})),
       ("gemini/gemini-2.0-flash", [{"role": "tool", "tool_call_id": "x", "content": "y"}]),
       ("gemini/gemini-2.0-flash", [{"role": "assistant", "tool_calls": [CALL]}]),
       ("bedrock/anthropic.claude-3-sonnet-20240229-v1:0", says(IMAGE)),
       ("ollama_chat/llava", [{"role": "assistant", "tool_calls": [CALL]}]),
       ("gemini/gemini-2.0-flash", says({"type": "text", "text": "right"}))]
AWS = dict(aws_access_key_id="a", aws_secret_access_key="b", aws_region_name="us-east-1")
async def main():
    told = []
    for model, messages in BAD:
        try:
            await litellm.acompletion(model=model, messages=messages, api_key="k", api_base="http://127.0.0.1:9",
                                      max_retries=0, **(AWS if "bedrock" in model else {}))
        except Exception as error:
            told.append(describe(error))
    print(json.dumps(told))
asyncio.run(main())
"""


def test_a_request_that_litellm_cannot_translate_is_no_fault_of_the_endpoint() -> None:
    """Else three of a caller's bad images would open the endpoint's breaker for everybody."""
    *bad, no_server = json.loads(run(NOT_TRANSLATED).splitlines()[-1])
    assert len(bad) == 6
    for told in bad:
        error = read_litellm_error(told, ERRORS, 0.0)
        assert (error.failure, error.status) == (FailureClass.ENDPOINT_REQUEST, 400), told
        assert error.message
    assert read_litellm_error(no_server, ERRORS, 0.0).failure is FailureClass.TRANSIENT


ODD_ANSWER = """
import asyncio, json
from ionrouter.providers.litellm_errors import describe
from ionrouter.providers.litellm_worker import import_litellm
from tests.support.upstream import Upstream, error, json_response
litellm = import_litellm()
async def main():
    told = []
    for script in (json_response({"candidates": []}), error(422, "no such role")):
        with Upstream(script) as up:
            try:
                await litellm.acompletion(model="gemini/gemini-2.0-flash", api_key="k", api_base=up.url,
                                          messages=[{"role": "user", "content": "hi"}], max_retries=0)
            except Exception as error_:
                told.append(describe(error_))
    print(json.dumps(told))
asyncio.run(main())
"""


def test_an_answer_that_litellm_cannot_read_is_the_upstreams_fault() -> None:
    """litellm says 422 of it, as if the request were to blame, and no other endpoint would be asked."""
    odd, refused = json.loads(run(ODD_ANSWER).splitlines()[-1])
    error = read_litellm_error(odd, ERRORS, 0.0)
    assert (error.failure, error.code) == (FailureClass.TRANSIENT, "malformed")
    error = read_litellm_error(refused, ERRORS, 0.0)
    assert (error.failure, error.status) == (FailureClass.REQUEST, 422)


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_worker_without_a_file_left_is_no_fault_of_the_endpoint(is_wrapped: bool) -> None:
    failed: Exception = OSError(errno.EMFILE, "Too many open files")
    if is_wrapped:
        cause, failed = failed, ConnectionError("cannot connect")
        failed.__cause__ = cause
    raised = read_litellm_error(describe(failed), ERRORS, 0.0)
    assert (raised.failure, raised.code) == (FailureClass.OWN_LIMIT, "no_file")
    assert (raised.status, raised.retry_after_s) == (None, 1.0)
