"""Known faults of other engines, held against the whole server with tiny models: what a client sees.

Each test names the case it covers; what needs no client is in test_engine_cases.py.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest

from ionrouter.engine import _ion
from ionrouter.engine.tokenizer import from_gguf
from tests.support.scripted_model import write_scripted_model
from tests.support.server import Server, eventually, running_server
from tests.support.sse import chunks
from tests.support.tiny_model import write_tiny_model

pytestmark = pytest.mark.xdist_group("engine-cases")

MODELS = ("tiny", "endless", "thinker", "strict", "blanks")
COMPLETIONS = "/api/v1/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
THOUGHT, ANSWER = "let me see </b> so", "The answer"
SAID = [
    "<thi",
    "nk>",
    "let me",
    " see",
    " </",
    "b>",
    " so",
    "</th",
    "ink>",
    "The",
    " answer",
    "</ans",
    "wer>",
    "!",
]
ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant"
STRICT = (
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('" + ALTERNATE + "') }}{% endif %}{{ message['content'] }}{% endfor %}"
)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "bio": {"type": "string"}},
    "required": ["name", "bio"],
    "additionalProperties": False,
}
AS_PERSON = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("cases")
    write_tiny_model(folder / "tiny.gguf")
    write_tiny_model(folder / "endless.gguf", context_length=65_536)
    write_tiny_model(folder / "strict.gguf", template=STRICT)
    write_scripted_model(folder / "thinker.gguf", SAID, thinks=True)
    write_scripted_model(folder / "blanks.gguf", [" \n"], loops=True)
    lines = [
        f"  {name}: {{ endpoints: [ {{ provider: ion, weights: {folder}/{name}.gguf, kv_memory: 64MiB }} ] }}"
        for name in MODELS
    ]
    routes = "\n".join(["providers: { ion: { type: ion } }", "models:", *lines])
    with running_server(folder, routes) as running:
        yield running


@pytest.fixture(scope="module")
def ids(server: Server) -> Mapping[str, int]:
    """Text of each ordinary token of `tiny` to its id."""
    tokenizer = from_gguf(_ion.gguf_metadata(str(server.config.parent / "tiny.gguf")))
    table = enumerate(tokenizer.token_bytes())
    return {raw.decode("utf-8", "replace"): token for token, raw in table if raw}


def engine(server: Server, name: str, model: str) -> float:
    """One of a local model's gauges or counters."""
    wanted = f'ionrouter_engine_{name}{{endpoint="ion/{model}"}} '
    (line,) = [line for line in server.get("/metrics")[1].splitlines() if line.startswith(wanted)]
    return float(line.removeprefix(wanted))


def refused(server: Server, path: str, body: Mapping[str, Any]) -> tuple[str | None, str]:
    """The field and the message of a 400."""
    status, answer = server.post(path, body)
    error = answer["error"]
    assert (status, error["metadata"]["error_type"]) == (400, "invalid_request"), answer
    return error["param"], error["message"]


def chat_refused(server: Server, **body: Any) -> tuple[str | None, str]:
    return refused(server, "/api/v1/chat/completions", {"model": "tiny", "messages": said("hi")} | body)


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def serves(server: Server, model: str = "tiny") -> None:
    status, answer = server.post(COMPLETIONS, GREEDY | {"model": model, "prompt": "the quick"})
    assert (status, answer["usage"]["completion_tokens"]) == (200, 12)


def streamed(server: Server, **body: Any) -> tuple[str, str]:
    """Thought and content of a stream, in which no delta after the role's is empty."""
    status, text = server.chat(stream=True, temperature=0, **body)
    assert status == 200
    first, *deltas = [choice for chunk in chunks(text) for choice in chunk["choices"]]
    assert first["delta"]["role"] == "assistant"
    for choice in deltas:
        delta = choice["delta"]
        assert choice["finish_reason"] or delta.get("content") or delta.get("reasoning"), choice
    thought = "".join(choice["delta"].get("reasoning") or "" for choice in deltas)
    return thought, "".join(choice["delta"].get("content") or "" for choice in deltas)


@pytest.mark.parametrize("stop", ["</answer>", "</thing>", "</think>?", "</bold>", "nk> "])
def test_e02_a_stop_string_cuts_no_marker_of_the_thought(server: Server, stop: str) -> None:
    assert streamed(server, model="thinker") == (THOUGHT, f"{ANSWER}</answer>!")
    expected = (THOUGHT, ANSWER if stop == "</answer>" else f"{ANSWER}</answer>!")
    assert streamed(server, model="thinker", stop=[stop]) == expected
    status, whole = server.chat(model="thinker", temperature=0, stop=[stop])
    message = whole["choices"][0]["message"]
    assert (status, (message["reasoning"], message["content"])) == (200, expected)


@pytest.mark.parametrize("stream", [True, False])
def test_e05_a_client_that_leaves_ends_its_generation(server: Server, stream: bool) -> None:
    neighbour = {"model": "endless", "prompt": "the lazy dog", "max_tokens": 200, "temperature": 1, "seed": 5}
    alone = server.post(COMPLETIONS, neighbour)[1]["choices"][0]["text"]
    aborts, used = (engine(server, name, "endless") for name in ("aborts_total", "blocks_used"))
    body = {"model": "endless", "messages": said("go on"), "stream": stream} | GREEDY | {"max_tokens": 60_000}
    data = json.dumps(body).encode()
    head = "POST /api/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection((server.host, server.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        eventually(lambda: engine(server, "running", "endless"), lambda found: found == 1)
        beside: list[str] = []
        other = threading.Thread(
            target=lambda: beside.append(server.post(COMPLETIONS, neighbour)[1]["choices"][0]["text"])
        )
        other.start()
        time.sleep(0.3)
    other.join()
    eventually(lambda: engine(server, "running", "endless"), lambda found: found == 0)
    assert engine(server, "blocks_used", "endless") == used
    assert engine(server, "aborts_total", "endless") == aborts + 1
    assert beside == [alone]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["the quick", ""]])
def test_e07_an_empty_prompt_is_a_400_and_the_next_one_served(server: Server, prompt: Any) -> None:
    param, _ = refused(server, COMPLETIONS, {"model": "tiny", "prompt": prompt, "max_tokens": 20})
    assert param is not None and param.startswith("prompt")
    serves(server)


def test_e10_top_k_beyond_the_vocabulary_is_off(server: Server) -> None:
    body = {"model": "tiny", "prompt": "1 2 3 4 5 ", "max_tokens": 128, "temperature": 1.0, "seed": 3}
    texts = {
        server.post(COMPLETIONS, body | more)[1]["choices"][0]["text"]
        for more in ({}, *({"top_k": k} for k in (9_999_999, 0, -1, 700, 100_000)))
    }
    assert len(texts) == 1
    assert server.post(COMPLETIONS, body | {"top_k": 1})[1]["choices"][0]["text"] not in texts
    assert refused(server, COMPLETIONS, body | {"top_k": -2})[0] == "top_k"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (200_000, "less than or equal to 20"),
        (25, "less than or equal to 20"),
        (-1, "greater than or equal to 0"),
        (True, "an integer"),
        (1.5, "an integer"),
    ],
)
def test_e11_top_logprobs_name_their_maximum(server: Server, value: Any, fault: str) -> None:
    param, message = chat_refused(server, logprobs=True, top_logprobs=value)
    assert (param, fault in message) == ("top_logprobs", True), message
    param, message = refused(server, COMPLETIONS, {"model": "tiny", "prompt": "x", "logprobs": value})
    assert (param, fault in message) == ("logprobs", True), message
    serves(server)


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([*said("a"), *said("b"), {"role": "assistant", "content": "c"}], "messages", ALTERNATE),
        ([{"role": "foo", "content": "a"}], "messages[0].role", "'user'"),
        ([{"role": "user", "content": None}], "messages[0]", "content"),
        ([*said("a"), {"role": "tool", "content": "b"}], "messages[1]", "tool_call_id"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_e25_what_a_template_refuses_is_a_400_in_its_words(
    server: Server, messages: list[Any], param: str, words: str, stream: bool
) -> None:
    found, message = chat_refused(server, model="strict", messages=messages, stream=stream)
    assert found is not None and found.startswith(param)
    assert words in message
    assert server.chat(model="strict", max_tokens=4, ignore_eos=True)[0] == 200


def test_e26_no_id_that_ends_a_turn_cuts_an_object(server: Server, ids: Mapping[str, int]) -> None:
    """The model's own ids and the caller's: likelier than anything else, and yet the object is whole."""
    own, callers = [0, 2], [ids["z"], ids["!"], ids["the"]]
    bias = {str(token): 100 for token in own} | {str(ids['"']): 5} | {str(token): 50 for token in callers}
    finishes = []
    for seed in range(8):
        body = {"response_format": AS_PERSON, "seed": seed, "logit_bias": bias, "stop_token_ids": callers}
        status, answer = server.chat(model="tiny", max_tokens=300, temperature=1, **body)
        assert status == 200, answer
        choice = answer["choices"][0]
        finishes.append(choice["finish_reason"])
        if finishes[-1] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    assert finishes.count("stop") >= 4
    assert set(finishes) <= {"stop", "length"}


def test_e26_a_love_of_white_space_ends_in_no_endless_blanks(server: Server, ids: Mapping[str, int]) -> None:
    free = server.chat(model="blanks", max_tokens=50, temperature=0)[1]["choices"][0]
    assert (free["finish_reason"], free["message"]["content"]) == ("length", " \n" * 50)
    bias = {str(ids['"']): 6}
    for seed in range(4):
        body = {"response_format": AS_PERSON, "seed": seed, "logit_bias": bias, "max_tokens": 400}
        choice = server.chat(model="blanks", temperature=1, **body)[1]["choices"][0]
        text = choice["message"]["content"]
        assert "\n" not in text
        if choice["finish_reason"] == "stop":
            assert text == text.strip()
            jsonschema.validate(json.loads(text), PERSON)
