"""Splits: percentages that hold, assignments that stay, few moves when a percentage changes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from ionrouter.balancing.assignment import pick, unit_of
from ionrouter.balancing.health import HealthBook
from ionrouter.balancing.plan import Plan
from ionrouter.balancing.select import Scene, select
from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.routing.table import Arm, ModelRoute, RoutingSettings, Split
from ionrouter.schema.request import Client, InferenceRequest, ProviderPreferences
from tests.support.routes import endpoint, request, route

UNITS = [f"session {number}" for number in range(20_000)]


def split(**percents: float) -> Split:
    arms = (Arm(name, percent, frozenset({name})) for name, percent in percents.items())
    return Split("split of m", tuple(arms))


def placed(chosen: Split) -> dict[str, str]:
    return {unit: pick(chosen, unit).name for unit in UNITS}


def moved(before: Split, after: Split) -> float:
    a, b = placed(before), placed(after)
    return sum(a[unit] != b[unit] for unit in UNITS) / len(UNITS)


@pytest.mark.parametrize("percents", [{"a": 5, "b": 95}, {"a": 50, "b": 50}, {"a": 1, "b": 33, "c": 66}])
def test_each_arm_gets_its_percentage(percents: dict[str, float]) -> None:
    counts = Counter(placed(split(**percents)).values())
    for name, percent in percents.items():
        share = percent / 100
        error = 4 * (share * (1 - share) / len(UNITS)) ** 0.5  # four standard deviations
        assert counts[name] / len(UNITS) == pytest.approx(share, abs=error)


def test_an_arm_of_zero_percent_gets_nobody() -> None:
    assert set(placed(split(a=100, b=0)).values()) == {"a"}


@pytest.mark.parametrize(("before", "after"), [(5, 10), (10, 5), (50, 51), (1, 100)])
def test_a_canarys_change_moves_the_difference_and_nobody_else(before: float, after: float) -> None:
    old, new = placed(split(c=before, rest=100 - before)), placed(split(c=after, rest=100 - after))
    grows = after > before
    changed = [unit for unit in UNITS if old[unit] != new[unit]]
    assert all((new[unit] == "c") is grows for unit in changed)  # nobody moves the other way
    assert len(changed) / len(UNITS) == pytest.approx(abs(after - before) / 100, abs=0.01)


def test_a_new_arm_takes_only_what_it_gets() -> None:
    old, new = placed(split(a=60, b=40)), placed(split(a=54, b=36, c=10))
    changed = {new[unit] for unit in UNITS if old[unit] != new[unit]}
    assert changed == {"c"}


def test_between_many_arms_at_most_twice_the_difference_moves() -> None:
    share = moved(split(a=50, b=30, c=20), split(a=60, b=30, c=10))
    assert 0.09 <= share <= 2 * 0.10


def test_a_request_stays_with_its_session_else_its_user_else_its_key() -> None:
    full = request(session_id="s", client=Client(user="u"), key_id="k")
    assert unit_of(full) == ("session", "session s")
    assert unit_of(replace(full, session_id=None)) == ("user", "user u")
    assert unit_of(replace(full, session_id=None, client=Client())) == ("key", "key k")
    assert unit_of(request()) is None


# In select.


def canary(percent: float = 30.0) -> ModelRoute:
    ends = [endpoint(name) for name in ("a", "b", "c")]
    arms = Arm("c", percent, frozenset({"c"})), Arm("the others", 100 - percent, frozenset({"a", "b"}))
    return route("m", *ends, split=Split("canary of m", arms))


def plan(
    chosen: ModelRoute | list[ModelRoute],
    asked: InferenceRequest,
    book: HealthBook | None = None,
    **scene: str,
) -> Plan:
    routes = tuple(chosen) if isinstance(chosen, list) else (chosen,)
    settings = RoutingSettings(explore=0.2)
    return select(routes, asked, Scene(book or HealthBook(), settings, 1000.0, **scene), random.Random(5))


def of_session(name: str) -> InferenceRequest:
    return request(session_id=name)


def test_a_session_stays_in_its_arm_and_the_other_arm_is_only_a_fallback() -> None:
    firsts = Counter[str]()
    for number in range(300):
        asked = of_session(f"s{number}")
        plans = [plan(canary(), asked) for _ in range(3)]
        arms = {p.candidates[0].endpoint.id == "c" for p in plans}
        assert len(arms) == 1
        is_canary = arms.pop()
        firsts["c" if is_canary else "rest"] += 1
        order = [c.endpoint.id for c in plans[0].candidates]
        assert len(order) == 3 and (order[0] == "c" if is_canary else order[2] == "c")
        assert plans[0].candidates[-1].share == 0
    assert 60 <= firsts["c"] <= 120  # 30% of 300


def test_the_reason_names_the_arm() -> None:
    reasons = {plan(canary(), of_session(f"s{number}")).reason for number in range(50)}
    assert any("; canary of m: c (30%) by session" in reason for reason in reasons)
    assert any("; canary of m: the others (70%) by session" in reason for reason in reasons)


def test_chance_decides_where_there_is_nothing_to_stay_with() -> None:
    rng = random.Random(3)
    scene = Scene(HealthBook(), RoutingSettings(), 1000.0)
    firsts = [select((canary(),), request(), scene, rng) for _ in range(400)]
    num_canary = sum(p.candidates[0].endpoint.id == "c" for p in firsts)
    assert 80 <= num_canary <= 160 and firsts[0].assignments[0].by == "chance"


def canary_session() -> str:
    names = (f"s{number}" for number in range(100))
    return next(n for n in names if plan(canary(), of_session(n)).candidates[0].endpoint.id == "c")


def test_an_open_canary_leaves_its_sessions_to_the_others() -> None:
    book, name = HealthBook(), canary_session()
    broken = canary()
    for _ in range(3):
        error = UpstreamError(FailureClass.TRANSIENT, "x")
        book.of(broken.endpoints[2]).fail(1000.0, error, 1.0, 0.0, after_commit=False)
    decided = plan(broken, of_session(name), book)
    assert decided.candidates[0].endpoint.id in ("a", "b")
    assert "canary of m: c (30%) by session, not now" in decided.reason


def test_an_order_of_the_callers_beats_the_arm_and_the_arm_beats_the_sessions_cache() -> None:
    name = canary_session()
    ordered = request(session_id=name, preferences=ProviderPreferences(order=("a",)))
    assert plan(canary(), ordered).candidates[0].endpoint.id == "a"
    assert plan(canary(), of_session(name), sticky="a").candidates[0].endpoint.id == "c"


def test_models_of_a_group_share_by_percentages() -> None:
    shares = Split("split of chat", (Arm("m", 80, frozenset({"m"})), Arm("n", 20, frozenset({"n"}))))
    members = [
        route(
            name,
            endpoint(f"{name}1", name),
            endpoint(f"{name}2", name),
            group="chat",
            group_split=shares,
            group_arm=name,
        )
        for name in ("m", "n")
    ]
    firsts = Counter(plan(members, of_session(f"s{i}")).candidates[0].route.id for i in range(400))
    assert 50 <= firsts["n"] <= 110
    one = plan(members, of_session("s1"))
    order = [c.route.id for c in one.candidates]
    assert order in (["m", "m", "n", "n"], ["n", "n", "m", "m"])
