"""Scenario files: YAML with endpoints, load and happenings; traces: one JSON object a line. Plays nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ionrouter.errors import ConfigError, Problem
from ionrouter.routing.table import ModelRoute, Price, RoutingSettings, RoutingTable
from ionrouter.routing.yaml_source import Source, read_source
from ionrouter.simulation.scenario import Ask, Conduct, Happening, Load, Scenario, Upstream

Share = Field(default=None, ge=0.0, le=1.0)
Positive = Field(default=None, gt=0.0)
NotNegative = Field(default=None, ge=0.0)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ConductSpec(_Strict):
    """What a file may say of an endpoint's conduct; what it leaves out stays."""

    ttft: float | None = Positive
    throughput: float | None = Positive
    jitter: float | None = NotNegative
    fails: float | None = Share
    fail_after: float | None = NotNegative
    breaks: float | None = Share
    hangs: float | None = Share
    hang_for: float | None = Positive
    slower: float | None = Positive
    limit: float | None = Positive
    burst: float | None = Field(default=None, ge=1.0)
    retry_after: float | None = NotNegative

    def over(self, conduct: Conduct) -> Conduct:
        """Change what is said."""
        said = self.model_dump(include=set(ConductSpec.model_fields), exclude_none=True)
        return replace(conduct, **{_FIELDS.get(name, name): value for name, value in said.items()})


_FIELDS = {"ttft": "ttft_s", "fail_after": "fail_s", "hang_for": "hang_s", "retry_after": "retry_after_s"}


class PriceSpec(_Strict):
    """USD per million tokens, as in routes.yaml."""

    prompt: float = Field(default=0.0, ge=0.0)
    completion: float = Field(default=0.0, ge=0.0)
    request: float = Field(default=0.0, ge=0.0)
    cache_read: float | None = NotNegative

    def price(self) -> Price:
        """USD per token."""
        cache_read = None if self.cache_read is None else self.cache_read / 1e6
        return Price(self.prompt / 1e6, self.completion / 1e6, self.request, cache_read)


class EndpointSpec(ConductSpec):
    """An endpoint: what it costs, and how it behaves from the start."""

    prices: PriceSpec | None = None
    caches: bool | None = None
    weight: float | None = NotNegative


class EventSpec(ConductSpec):
    """From `at` on an endpoint behaves otherwise. `recovers`: as at the start, then what else is said."""

    at: float = Field(ge=0.0)
    endpoint: str
    recovers: bool = False


class LoadSpec(_Strict):
    """A synthetic mix, see scenario.Load."""

    rate: float = Field(default=5.0, gt=0.0)
    requests: int = Field(default=500, ge=1, le=1_000_000)
    prompt_tokens: float = Field(default=800.0, ge=1.0)
    completion_tokens: float = Field(default=200.0, ge=1.0)
    length_jitter: float = Field(default=0.5, ge=0.0, le=3.0)
    turns: int = Field(default=1, ge=1)
    pause: float = Field(default=5.0, gt=0.0)

    def load(self) -> Load:
        """The same as a value."""
        given = self.model_dump()
        return Load(pause_s=given.pop("pause"), **given)


class RoutingSpec(_Strict):
    """What routes.yaml's `routing:` says, as far as it matters here."""

    value_of_time: float = Field(default=0.0001, ge=0.0)
    spread: float = Field(default=1.25, ge=1.0)
    explore: float = Field(default=0.01, ge=0.0, le=1.0)
    max_attempts: int = Field(default=6, ge=1)


class ScenarioSpec(_Strict):
    """A whole file."""

    endpoints: dict[str, EndpointSpec] = Field(min_length=1)
    load: LoadSpec = Field(default_factory=LoadSpec)
    events: list[EventSpec] = Field(default_factory=list)
    routing: RoutingSpec | None = None
    first_token_timeout: float = Field(default=30.0, gt=0.0)
    failure: float = Field(default=60.0, ge=0.0)


def read_scenario(path: Path, *, table: RoutingTable | None = None, model: str | None = None) -> Scenario:
    """Read a file; `table` gives prices, weights, expected speeds and settings where the file says nothing.

    With a table and a `model`, its endpoints that the file does not name are there too. Raises ConfigError
    with the path and line of every mistake.
    """
    source = read_source(path)
    try:
        spec = ScenarioSpec.model_validate(source.data)
    except ValidationError as error:
        raise ConfigError([_problem(source, detail) for detail in error.errors()]) from error
    known = _from_table(table, model) if table is not None else {}
    upstreams = {name: _upstream(name, said, known.get(name)) for name, said in spec.endpoints.items()}
    upstreams = {**known, **upstreams}
    settings = _settings(table, model) if table is not None else RoutingSettings()
    if spec.routing is not None:
        settings = replace(settings, **spec.routing.model_dump(exclude_unset=True))
    return Scenario(
        tuple(upstreams.values()),
        spec.load.load(),
        happenings=_happenings(source, spec.events, upstreams),
        settings=settings,
        first_token_s=spec.first_token_timeout,
        failure_s=spec.failure,
        name=path.stem,
    )


def _problem(source: Source, detail: Any) -> Problem:
    return source.problem(detail["loc"], str(detail["msg"]))


def _upstream(name: str, said: EndpointSpec, known: Upstream | None) -> Upstream:
    base = known or Upstream(name, Price())
    return replace(
        base,
        price=said.prices.price() if said.prices is not None else base.price,
        caches=base.caches if said.caches is None else said.caches,
        weight=base.weight if said.weight is None else said.weight,
        conduct=said.over(base.conduct),
    )


def _route(table: RoutingTable, model: str | None) -> ModelRoute:
    name = model or next(iter(table.models), "")
    route = table.models.get(name)
    if route is None:
        raise ConfigError(f"no model {name!r} in the routes: {', '.join(table.models) or 'there is none'}")
    return route


def _settings(table: RoutingTable, model: str | None) -> RoutingSettings:
    """What the file says of routing, and of this model's time."""
    value_of_time = _route(table, model).value_of_time
    return table.settings if value_of_time is None else replace(table.settings, value_of_time=value_of_time)


def _from_table(table: RoutingTable, model: str | None) -> dict[str, Upstream]:
    """The endpoints of one model, behaving as routes.yaml expects of them."""
    found = {}
    for endpoint in _route(table, model).endpoints:
        expected = endpoint.expected
        conduct = Conduct()
        if expected.ttft_s is not None:
            conduct = replace(conduct, ttft_s=expected.ttft_s)
        if expected.throughput is not None:
            conduct = replace(conduct, throughput=expected.throughput)
        found[endpoint.id] = Upstream(
            endpoint.id,
            endpoint.price,
            conduct,
            endpoint.caches,
            endpoint.weight,
            expected.ttft_s,
            expected.throughput,
        )
    return found


def _happenings(
    source: Source, events: Sequence[EventSpec], upstreams: dict[str, Upstream]
) -> tuple[Happening, ...]:
    """Each event changes what the one before it left."""
    problems = [
        source.problem(("events", i, "endpoint"), f"no endpoint {event.endpoint!r}: {', '.join(upstreams)}")
        for i, event in enumerate(events)
        if event.endpoint not in upstreams
    ]
    if problems:
        raise ConfigError(problems)
    now = {name: upstream.conduct for name, upstream in upstreams.items()}
    happenings = []
    for event in sorted(events, key=lambda event: event.at):
        before = upstreams[event.endpoint].conduct if event.recovers else now[event.endpoint]
        now[event.endpoint] = event.over(before)
        happenings.append(Happening(event.at, event.endpoint, now[event.endpoint]))
    return tuple(happenings)


class AskSpec(_Strict):
    """A line of a trace."""

    at: float = Field(ge=0.0)
    model: str | None = None
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=1)
    session: str | None = None
    cached: float = Field(default=0.0, ge=0.0, le=1.0)


def read_trace(path: Path, model: str | None = None) -> tuple[Ask, ...]:
    """Read requests, one JSON object a line; with `model` only those for it. Raises ConfigError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    asks, problems = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            spec = AskSpec.model_validate(json.loads(line))
        except ValidationError as error:
            details = error.errors()
            problems += [Problem(".".join(map(str, d["loc"])), str(d["msg"]), number) for d in details]
            continue
        except json.JSONDecodeError as error:
            problems.append(Problem("", f"not JSON: {error.msg}", number))
            continue
        if model is None or spec.model is None or spec.model == model:
            asks.append(Ask(spec.at, spec.prompt_tokens, spec.completion_tokens, spec.session, spec.cached))
    if problems or not asks:
        raise ConfigError(problems or f"{path}: no request in it")
    return tuple(sorted(asks, key=lambda ask: ask.at))
