"""One server before a faulty primary and a sound fallback, over both doors; what clients and operators see.

Every case has a model of its own, so that no test meets the health that another one left behind.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.faults import FAULTS, Fault
from tests.support.server import CHAT, GUARD_S, Server, running_server
from tests.support.sse import chunks, content, data_lines
from tests.support.upstream import Upstream, chat_json, chat_stream

# Our own client; litellm's process; litellm's translation, carried by the front.
DOORS = ("openai", "litellm", "carried")
SLUGS = {fault.name: re.sub(r"\W+", "-", fault.name.lower()).strip("-") for fault in FAULTS}
# Deadlines in seconds: those of the primary where the fault is a wait, and far away everywhere else.
NEAR = "{ connect: 2, first_token: 0.8, inter_token: 0.8, total: 2 }"
WAITS = {"silence", "slow first token", "stalled stream", "slow trickle"}
FAR = "{ connect: 30, first_token: 30, inter_token: 30, total: 30 }"


def mode(stream: bool) -> str:
    return "stream" if stream else "whole"


@dataclass(frozen=True)
class Case:
    """One fault over one door in one mode."""

    fault: Fault
    door: str
    stream: bool

    @property
    def model(self) -> str:
        return f"{self.door}-{SLUGS[self.fault.name]}-{mode(self.stream)}"

    @property
    def primary(self) -> str:
        return f"{self.door}-a/{self.model}"

    @property
    def fallback(self) -> str:
        return f"{self.door}-b/{self.model}"


CASES = tuple(Case(f, door, stream) for f in FAULTS for door in DOORS for stream in (True, False))


@dataclass(frozen=True)
class Seen:
    """One answer as its client saw it, and what the server says of it afterwards."""

    status: int
    headers: dict[str, str]
    text: str
    body: Any  # JSON, of a whole answer
    generation: dict[str, Any]

    @property
    def route(self) -> str:
        return self.headers.get("x-ionrouter-route", "")

    @property
    def is_stream(self) -> bool:
        return self.headers["content-type"].startswith("text/event-stream")

    @property
    def words(self) -> str:
        if self.is_stream:
            return content(self.text)
        choices = self.body.get("choices") or [{"message": {"content": None}}]
        return choices[0]["message"]["content"] or ""

    @property
    def error(self) -> dict[str, Any] | None:
        if self.is_stream:
            found = [chunk["error"] for chunk in chunks(self.text) if chunk.get("error")]
            assert len(found) <= 1, "one error event at most"
            return found[0] if found else None
        return self.body.get("error")  # type: ignore[no-any-return]

    @property
    def is_done(self) -> bool:
        return self.is_stream and data_lines(self.text)[-1] == "[DONE]"

    @property
    def usage(self) -> dict[str, Any]:
        if self.is_stream:
            (found,) = [chunk["usage"] for chunk in chunks(self.text) if chunk.get("usage")]
            return found  # type: ignore[no-any-return]
        return self.body["usage"]  # type: ignore[no-any-return]


@dataclass
class Arena:
    server: Server
    a: Upstream
    b: Upstream

    def ask(self, case: Case) -> Seen:
        """One request of the case's model, and its generation record."""
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=GUARD_S)
        body = json.dumps({**CHAT, "model": case.model, "stream": case.stream})
        connection.request("POST", "/api/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        is_json = headers["content-type"].startswith("application/json")
        name = headers["x-generation-id"]
        status, told = self.server.get(f"/api/v1/generation?id={name}")
        assert status == 200, told
        return Seen(answer.status, headers, text, json.loads(text) if is_json else None, told["data"])

    def play(self, case: Case) -> list[Seen]:
        """One request for each script of the fault."""
        self.a.enqueue(*case.fault.scripts(case.stream))
        self.b.default = chat_stream(["from", " b"]) if case.stream else chat_json("from b")
        return [self.ask(case) for _ in case.fault.scripts(case.stream)]

    def afterwards(self, case: Case) -> str:
        """What keeps the next request from the primary, as explain tells it, or that nothing does."""
        status, told = self.server.post("/api/v1/routing/explain", {**CHAT, "model": case.model})
        assert status == 200, told
        excluded = {e["endpoint_id"]: e["filter"] for e in told["data"]["excluded"]}
        return str(excluded.get(case.primary, "in use"))

    def published_status(self, case: Case) -> int:
        """The primary's `status` in the catalogue: 0, -2 after a recent failure, -5 with an open breaker."""
        status, told = self.server.get(f"/api/v1/models/{case.model}/endpoints")
        assert status == 200, told
        (found,) = [e["status"] for e in told["data"]["endpoints"] if e["provider_name"] == f"{case.door}-a"]
        return int(found)


def _endpoint(case: Case, side: str) -> str:
    prices = "{ prompt: 1, completion: 2 }" if side == "a" else "{ prompt: 3000, completion: 4000 }"
    length = 8192 if side == "a" else 131072
    timeouts = NEAR if side == "a" and case.fault.name in WAITS else FAR
    return (
        f"      - {{ provider: {case.door}-{side}, model: {case.model}, prices: {prices}, "
        f"context_length: {length}, timeouts: {timeouts} }}"
    )


def _routes(a: Upstream, b: Upstream) -> str:
    lines = ["providers:"]
    for side, up in (("a", a), ("b", b)):
        lines += [
            f"  openai-{side}: {{ type: openai, base_url: {up.base_url} }}",
            *(
                f"  {door}-{side}: {{ type: litellm, litellm_provider: together_ai, base_url: {up.base_url}, "
                f"keys: [UP_KEY], options: {{ carrier: {carrier} }} }}"
                for door, carrier in (("litellm", "off"), ("carried", "auto"))
            ),
        ]
    lines += ["routing: { explore: 0 }", "models:"]
    lines += ["  warm: { endpoints: [ { provider: litellm-a, model: warm, cooldown: 0 } ] }"]
    for case in CASES:
        lines += [f"  {case.model}:", "    endpoints:", _endpoint(case, "a"), _endpoint(case, "b")]
    return "\n".join(lines) + "\n"


def prove_carried(place: Arena) -> None:
    """Give every carried case its recipe before its fault: the first call of a kind goes to the worker."""
    waiting = {f"together_ai/{case.model}" for case in CASES if case.door == "carried"}
    for case in CASES:
        if case.door == "carried":
            place.a.default = chat_stream(["well"]) if case.stream else chat_json("well")
            place.b.default = place.a.default
            assert place.ask(case).status == 200
    events = place.server.wait_for_event("litellm_proof", len(waiting))
    assert {e["model"] for e in events if e["why"] == "carried by the front"} == waiting, events


@contextmanager
def arena(folder: Path) -> Iterator[Arena]:
    """Start the server and wait until litellm's process is there."""
    with (
        Upstream() as a,
        Upstream() as b,
        running_server(folder, _routes(a, b), env={"UP_KEY": "sk-up-123456"}) as server,
    ):
        a.default = chat_json("warm")
        deadline = time.monotonic() + GUARD_S
        while server.chat(model="warm")[0] != 200:
            assert time.monotonic() < deadline, server.log
            time.sleep(0.5)
        place = Arena(server, a, b)
        prove_carried(place)
        a.default = None
        yield place
