"""What operators are told of the router: breakers of all endpoints, also of those that patterns made."""

from __future__ import annotations

from contextlib import suppress

from ionrouter.errors import AllAttemptsFailed
from ionrouter.router import Router
from ionrouter.router_state import open_breakers, readings
from ionrouter.routing.table import RoutingTable
from tests.routing.build import table
from tests.support.routes import Bench, request

TEXT = """\
providers:
  p: {type: fake, options: {status: 500, message: down}}
  q: {type: fake, options: {status: 500, message: down}}
models:
  m: {endpoints: [{provider: p, model: m}]}
patterns: {"z/*": {provider: q}}
"""


async def failed(bench: Bench, *models: str) -> None:
    for model in models:
        for _ in range(3):
            with suppress(AllAttemptsFailed):
                await bench.run(request(model))


def made(routes: RoutingTable) -> Bench:
    bench = Bench.of()
    bench.router.table = routes
    return bench


def breakers(router: Router) -> dict[str, float]:
    told = [r for r in readings(router) if r.name == "ionrouter_breaker_state"]
    assert len({reading.labels for reading in told}) == len(told)
    return {reading.labels[0]: reading.value for reading in told}


async def test_breakers_of_endpoints_that_patterns_made_are_told() -> None:
    bench = made(table(TEXT))
    await failed(bench, "m", "z/one")
    with suppress(AllAttemptsFailed):
        await bench.run(request("z/two"))
    bench.router.explain(request("z/never-asked"))
    told = [(found["endpoint"], found["state"]) for found in open_breakers(bench.router)]
    assert told == [("p/m", "open"), ("q/z/one", "open")]
    assert breakers(bench.router) == {"p/m": 2, "q/z/one": 2, "q/z/two": 0}


async def test_a_name_that_a_reload_lists_is_told_once() -> None:
    bench = made(table(TEXT))
    await failed(bench, "z/one")
    listed = "  z/one: {endpoints: [{provider: q, model: other}]}\npatterns:"
    bench.router.table = table(TEXT.replace("patterns:", listed))
    assert breakers(bench.router) == {"p/m": 0, "q/z/one": 0}
    assert open_breakers(bench.router) == []
