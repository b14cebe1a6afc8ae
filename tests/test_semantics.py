"""The whole server before two scripted upstreams: what the rest of OpenRouter's request fields do."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.server import CHAT, GUARD_S, Server, running_server
from tests.support.sse import chunks
from tests.support.upstream import Cut, Upstream, chat_json, chat_stream, chunk, error, json_response, sse
from tests.support.wire import usage

ROUTES = """
routing: {{ explore: 0 }}
providers:
  a: {{ type: openai, name: Aye, base_url: {a}, forward_unknown: false }}
  b: {{ type: openai, name: Bee, base_url: {b}, forward_unknown: false }}
models:
  m:
    context_length: 1000
    endpoints: [ {{ provider: a, model: up-m, prices: {{ prompt: 1, completion: 2 }} }} ]
  n:
    distillable: true
    endpoints: [ {{ provider: b, model: up-n, prices: {{ prompt: 3000, completion: 4000 }} }} ]
  weak:
    endpoints: [ {{ provider: a, model: up-w }}, {{ provider: b, model: up-w }} ]
  thinker:
    endpoints:
      - {{ provider: a, model: up-t, prices: {{ prompt: 1, completion: 2 }} }}
      - {{ provider: b, model: up-t, prices: {{ prompt: 300, completion: 400 }} }}
groups:
  openrouter/auto: [n, m]
presets:
  terse: {{ model: m, temperature: 0.25, provider: {{ only: [a] }} }}
  nobody: {{ model: m, provider: {{ only: [zz] }} }}
"""


@dataclass(frozen=True)
class Site:
    server: Server
    a: Upstream
    b: Upstream

    def post(self, path: str, body: Mapping[str, Any], **headers: str) -> tuple[int, Mapping[str, str], Any]:
        """POST; returns status, headers and JSON, or the text of a stream."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        asked = urllib.request.Request(
            self.server.url + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **named},
        )
        try:
            with urllib.request.urlopen(asked, timeout=GUARD_S) as answer:
                return answer.status, answer.headers, _read(answer)
        except urllib.error.HTTPError as failure:
            return failure.code, failure.headers, _read(failure)

    def chat(
        self, headers: Mapping[str, str] | None = None, **body: Any
    ) -> tuple[int, Mapping[str, str], Any]:
        return self.post("/api/v1/chat/completions", {**CHAT, **body}, **(headers or {}))


def _read(answer: Any) -> Any:
    text = answer.read().decode()
    return json.loads(text) if "json" in answer.headers["Content-Type"] else text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    a, b = Upstream(chat_json("from a")), Upstream(chat_json("from b"))
    folder = tmp_path_factory.mktemp("site")
    with a, b, running_server(folder, ROUTES.format(a=a.base_url, b=b.base_url)) as server:
        yield Site(server, a, b)


# Presets, groups, suffixes.


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/chat/completions", {**CHAT, "model": "@preset/terse"}),
        ("/api/v1/chat/completions", {**CHAT, "model": "n@preset/terse", "models": ["m"]}),
        ("/api/v1/chat/completions", {"messages": CHAT["messages"], "preset": "terse"}),
        ("/api/v1/messages", {"messages": CHAT["messages"], "model": "@preset/terse", "max_tokens": 9}),
        ("/api/v1/responses", {"input": "hi", "model": "m", "preset": "terse"}),
    ],
)
def test_a_preset_reaches_the_upstream_on_every_surface(site: Site, path: str, body: dict[str, Any]) -> None:
    status, _, answer = site.post(path, body)
    assert (status, answer["model"]) == (200, "m")
    sent = site.a.requests[-1].json()
    assert sent["temperature"] == 0.25 and "preset" not in sent


def test_a_preset_is_never_passed_over_in_silence(site: Site) -> None:
    status, _, answer = site.chat(preset="nope")
    assert (status, answer["error"]["param"]) == (404, "preset") and "'nope'" in answer["error"]["message"]
    assert site.chat(preset="nobody")[0] == 404  # its `only` leaves nobody
    status, _, answer = site.chat(preset="nobody", provider={"only": ["a"]})
    assert status == 200


def test_a_group_answers_with_the_model_that_served(site: Site) -> None:
    status, _, answer = site.chat(model="openrouter/auto")
    assert (status, answer["model"], answer["provider"]) == (200, "m", "Aye")


@pytest.mark.parametrize(
    ("model", "says"), [("m:online", "web plugin"), ("m:turbo", "':turbo'"), ("m:free:turbo", "':turbo'")]
)
def test_a_suffix_without_meaning_here_is_named(site: Site, model: str, says: str) -> None:
    status, _, answer = site.chat(model=model)
    assert status == 400 and says in answer["error"]["message"]
    assert answer["error"]["availability"]["code"] == "model_not_found"


def test_many_models_may_be_named(site: Site) -> None:
    status, _, answer = site.chat(models=["m", "n"] * 40)
    assert (status, answer["model"]) == (200, "m")
    status, _, answer = site.chat(models=["m", "nope"])
    assert (status, answer["error"]["param"]) == (400, "models")


# The provider object.


def test_only_what_may_be_distilled_is_used_if_asked(site: Site) -> None:
    status, _, answer = site.chat(models=["n"], provider={"enforce_distillable_text": True})
    assert (status, answer["model"]) == (200, "n")
    status, _, answer = site.chat(provider={"enforce_distillable_text": True})
    assert (status, answer["error"]["availability"]["excluded_by"]) == (404, ["distillable"])


def test_options_reach_their_provider_and_cannot_send_the_call_elsewhere(site: Site) -> None:
    """G127, G128."""
    with Upstream(chat_json("stolen")) as thief:
        options = {
            "safe_prompt": True, "model": "x", "messages": [], "stream": True, "api_base": thief.base_url,
            "base_url": thief.base_url, "api_key": "k", "headers": {"X-Evil": "1"},
            "litellm_params": {"x": 1},
            "extra_headers": {"X-Evil": "1"}, "extra_body": {"model": "x"}, "url": thief.base_url,
        }  # fmt: skip
        status, _, _ = site.chat(provider={"options": {"a": options, "b": {"other": True}}})
        assert status == 200 and thief.requests == []
    seen = site.a.requests[-1]
    assert seen.json() == {"safe_prompt": True, "model": "up-m", "messages": CHAT["messages"]}
    assert "x-evil" not in seen.headers


# Reasoning.


def thoughtful(text: str, **message: Any) -> Any:
    told = {"role": "assistant", "content": text, "reasoning_content": "let me think", **message}
    choice = {"index": 0, "message": told, "finish_reason": "stop"}
    more = {"completion_tokens_details": {"reasoning_tokens": 7}}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "up", "choices": [choice]}
    return json_response({**body, "usage": {**usage(5, 9), **more}})


@pytest.mark.parametrize("wish", [{"reasoning": {"exclude": True}}, {"include_reasoning": False}])
def test_reasoning_that_is_left_out_is_billed_all_the_same(site: Site, wish: dict[str, Any]) -> None:
    for fields, shown in (({}, "let me think"), (wish, None)):
        site.a.enqueue(thoughtful("42"))
        _, _, answer = site.chat(**fields)
        assert answer["choices"][0]["message"].get("reasoning") == shown
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 7
        assert answer["usage"]["cost"] == pytest.approx((5 * 1 + 9 * 2) / 1e6)


@pytest.mark.parametrize(
    "wish",
    [
        {"reasoning": {"effort": "high", "max_tokens": 9}},
        {"reasoning": {"effort": "high"}, "reasoning_effort": "low"},
        {"reasoning": {"max_tokens": 9}, "reasoning_effort": "low"},
    ],
)
def test_wishes_that_contradict_each_other_are_a_400(site: Site, wish: dict[str, Any]) -> None:
    status, _, answer = site.chat(**wish)
    assert status == 400 and "reasoning" in json.dumps(answer["error"])


def test_a_plain_server_is_told_an_effort(site: Site) -> None:
    assert site.chat(model="m:thinking")[0] == 200
    assert site.a.requests[-1].json()["reasoning_effort"] == "medium"
    assert site.chat(reasoning={"max_tokens": 400}, max_tokens=500)[0] == 200
    assert site.a.requests[-1].json()["reasoning_effort"] == "high"


@pytest.mark.parametrize("stream", [False, True])
def test_signed_thoughts_go_back_to_the_provider_that_signed_them(site: Site, stream: bool) -> None:
    details = [{"type": "reasoning.text", "text": "hm", "signature": f"sig-{stream}", "index": 0}]
    if stream:
        site.b.enqueue(
            sse([chunk({"reasoning_details": details}), chunk({"content": "ok"}), chunk({}, "stop")])
        )
    else:
        site.b.enqueue(thoughtful("ok", reasoning_details=details))
    assert site.chat(model="thinker", provider={"only": ["b"]}, stream=stream)[0] == 200
    assert site.chat(model="thinker")[2]["provider"] == "Aye"
    said = [
        *CHAT["messages"],
        {"role": "assistant", "content": "ok", "reasoning_details": details},
        {"role": "user", "content": "go on"},
    ]
    _, headers, answer = site.chat(model="thinker", messages=said)
    assert answer["provider"] == "Bee" and "reasoning" in headers["X-Ionrouter-Route"]
    assert site.b.requests[-1].json()["messages"][1]["reasoning_details"] == details


# Plugins.


def test_a_prompt_that_is_too_long_is_shortened_only_on_request(site: Site) -> None:
    talk = [{"role": "user", "content": f"{number} " + "x" * 900} for number in range(9)]
    status, _, answer = site.chat(messages=talk)
    assert (status, answer["error"]["metadata"]["error_type"]) == (400, "context_length_exceeded")
    for wish in ({"plugins": [{"id": "context-compression"}]}, {"transforms": ["middle-out"]}):
        status, headers, answer = site.chat(messages=talk, ionrouter={"explain": True}, **wish)
        assert status == 200
        sent = [message["content"].split()[0] for message in site.a.requests[-1].json()["messages"]]
        assert sent[0] == "0" and sent[-1] == "8" and len(sent) < 9
        assert headers["X-Ionrouter-Notes"].startswith("context-compression: ")
        assert answer["ionrouter"]["notes"] == [headers["X-Ionrouter-Notes"]]


FORMAT = {"response_format": {"type": "json_object"}}
HEALING = {"plugins": [{"id": "response-healing"}]}


def test_json_is_mended_only_on_request_and_never_when_cut_off(site: Site) -> None:
    broken = 'Sure:\n```json\n{"a": [1, 2,],\n```'
    cases = ((HEALING, "stop", '{"a": [1, 2]\n}'), ({}, "stop", broken), (HEALING, "length", broken))
    for wish, finish, expected in cases:
        site.a.enqueue(chat_json(broken, finish))
        _, headers, answer = site.chat(**FORMAT, **wish)
        assert answer["choices"][0]["message"]["content"] == expected
        assert headers["X-Ionrouter-Notes"] == (
            None if expected == broken else "response-healing: the JSON was mended"
        )


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        ({"id": "web"}, "plugin 'web' is not supported"),
        ({"id": "file-parser"}, "plugin 'file-parser' is not supported"),
        ({"id": "context-compression", "engine": "other"}, "does not take engine 'other'"),
        ({"id": "response-healing", "mode": 1}, "does not take mode 1"),
    ],
)
def test_a_plugin_that_is_not_here_is_named(site: Site, plugin: dict[str, Any], says: str) -> None:
    status, _, answer = site.chat(plugins=[plugin])
    assert status == 400 and says in answer["error"]["message"] and answer["error"]["param"] == "plugins[0]"


# Metadata.

ASK = {"X_OpenRouter_Metadata": "enabled"}


def test_metadata_says_what_could_serve_and_what_did(site: Site) -> None:
    _, _, answer = site.chat(ASK, models=["n"])
    told = answer["openrouter_metadata"]
    assert (told["requested"], told["strategy"], told["attempt"], told["region"]) == ("m", "direct", 1, None)
    assert told["endpoints"] == {
        "total": 2,
        "available": [
            {"provider": "Aye", "model": "m", "selected": True},
            {"provider": "Bee", "model": "n", "selected": False},
        ],
    }
    assert told["attempts"] == [{"provider": "Aye", "model": "m", "status": 200}]
    assert site.chat(ASK, model="openrouter/auto")[2]["openrouter_metadata"]["strategy"] == "auto"
    assert "openrouter_metadata" not in site.chat()[2]
    site.a.enqueue(chat_json("{", "stop"))
    _, _, mended = site.chat(ASK, **FORMAT, **HEALING)
    assert mended["openrouter_metadata"]["pipeline"] == [
        {"type": "response_healing", "name": "response-healing", "summary": "the JSON was mended"}
    ]


def test_metadata_is_asked_for_by_its_headers_older_name_too(site: Site) -> None:
    older = {"X_OpenRouter_Experimental_Metadata": "Enabled"}
    assert site.chat(older)[2]["openrouter_metadata"]["requested"] == "m"
    assert "openrouter_metadata" not in site.chat({**older, "X_OpenRouter_Metadata": "disabled"})[2]


def test_metadata_is_in_the_last_event_of_a_stream(site: Site) -> None:
    site.a.enqueue(chat_stream(["hi"]))
    _, _, text = site.chat(ASK, stream=True)
    *others, last = chunks(text)
    assert last["openrouter_metadata"]["endpoints"]["available"][0]["selected"] is True
    assert all("openrouter_metadata" not in chunk for chunk in others)
    site.a.enqueue(chat_stream(["hi"]))
    body = {**CHAT, "max_tokens": 9, "stream": True}
    _, _, told = site.post("/api/v1/messages", body, **ASK)
    final = json.loads(told.strip().rpartition("data: ")[2])
    assert final["type"] == "message_stop" and final["openrouter_metadata"]["attempt"] == 1


def test_metadata_stands_beside_an_error(site: Site) -> None:
    site.a.enqueue(error(503))
    site.b.enqueue(error(429))
    status, _, answer = site.chat(ASK, model="weak")
    told = answer["openrouter_metadata"]
    assert status in (429, 503) and answer["error"]["code"] == status
    assert sorted(attempt["status"] for attempt in told["attempts"]) == [429, 503] and told["attempt"] == 2
    assert not any(end["selected"] for end in told["endpoints"]["available"])
    status, _, answer = site.chat(ASK, model="nope")
    assert status == 400 and answer["openrouter_metadata"]["attempt"] == 0
    site.a.enqueue(sse([chunk({"content": "Hel"})], done=False, end=False).then(Cut()))
    _, _, text = site.chat(ASK, stream=True)
    last = chunks(text)[-1]
    assert last["error"]["code"] == 502 and last["openrouter_metadata"]["attempts"][0]["status"] == 502
