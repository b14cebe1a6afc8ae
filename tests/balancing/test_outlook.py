"""What is expected of an endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.balancing.cost import Outlook
from ionrouter.balancing.health import Health
from ionrouter.balancing.outlook import Size, outlook_of, size_of, streams_upstream
from ionrouter.routing.table import Endpoint, Expected, Provider, Timeouts
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.usage import Usage
from tests.support.routes import endpoint, price, request

ION = Provider(slug="ion", name="Ion", type="ion")


def seen(ttft_s: float, num_out: int, total_s: float, stream: bool = True) -> Health:
    health = Health()
    flight = health.begin(-total_s, stream)
    health.commit(0.0, flight, ttft_s if stream else None)
    health.finish(0.0, flight, Usage(100, num_out), total_s - ttft_s if stream else None)
    health.end(flight)
    return health


def look(
    health: Health | None = None,
    *peers: Health,
    at: Endpoint | None = None,
    size: Size | None = None,
    **more: Any,
) -> Outlook:
    given = {"stream": True, "load": None, "now": 0.0, **more}
    return outlook_of(at or endpoint("a"), health or Health(), peers, size or Size(100, 300), **given)


def test_an_unknown_endpoint_is_two_seconds_and_fifty_tokens_a_second() -> None:
    assert look().ok_s == pytest.approx(2 + 300 / 50)
    assert look(stream=False).ok_s == pytest.approx(2 + 300 / 50)


def test_routes_yaml_is_believed_before_anything_is_measured() -> None:
    stated = endpoint("a", expected=Expected(ttft_s=0.5, throughput=100))
    assert look(at=stated).ok_s == pytest.approx(0.5 + 3)
    assert look(at=stated, stream=False).ok_s == pytest.approx(0.5 + 3)
    assert look(None, seen(9.0, 300, 20.0), at=stated).ok_s == pytest.approx(3.5)


def test_else_the_peers_median_is_expected() -> None:
    peers = [seen(ttft, 101, ttft + 1.0) for ttft in (0.1, 0.4, 9.0)]
    assert look(None, *peers).ttft_s == pytest.approx(0.4)
    assert look(None, *peers).throughput == pytest.approx(100, rel=0.01)
    whole = [seen(0, 100, total, stream=False) for total in (1.0, 2.0, 30.0)]
    assert look(None, *whole, stream=False).ok_s == pytest.approx(2.0 / 200 * 400)


def test_what_was_measured_wins_and_is_kept_apart_by_mode() -> None:
    health = seen(0.2, 101, 1.2)
    assert look(health).ok_s == pytest.approx(0.2 + 300 / 100)
    assert look(health, stream=False).ok_s == pytest.approx(8.0)  # the prior: no whole answer was seen


def test_a_whole_answers_time_scales_with_its_expected_length() -> None:
    health = seen(0, 100, 4.0, stream=False)
    assert look(health, stream=False, size=Size(100, 100)).ok_s == pytest.approx(4.0)
    assert look(health, stream=False, size=Size(100, 300)).ok_s == pytest.approx(8.0)


def test_somebody_still_waiting_is_news() -> None:
    """G77"""
    health = seen(0.2, 101, 1.2)
    health.begin(0.0, stream=True)
    assert look(health, now=0.1).ttft_s == pytest.approx(0.2, rel=0.01)
    waiting = look(health, now=10.0)
    assert waiting.ttft_s == pytest.approx(10.0, rel=0.01)
    assert waiting.ok_s == pytest.approx(13.0, rel=0.02)
    health.begin(0.0, stream=False)
    assert look(health, stream=False, now=100.0).ok_s == 100.0


def test_the_price_is_of_the_expected_tokens_with_the_usual_cache_hits() -> None:
    priced = endpoint("a", price=price(2, 8, cache_read=0.5))
    assert look(at=priced, size=Size(1000, 100)).price == pytest.approx((1000 * 2 + 100 * 8) / 1e6)
    health = Health()
    for _ in range(50):
        flight = health.begin(0.0, True)
        health.finish(0.0, flight, Usage(1000, 100, cached_tokens=500), 1.0)
        health.end(flight)
    cached = look(health, at=priced, size=Size(1000, 100)).price
    assert cached == pytest.approx((500 * 2 + 500 * 0.5 + 800) / 1e6, rel=0.02)


def test_a_failure_is_expected_to_take_as_long_as_the_first_token_until_one_was_seen() -> None:
    assert look().fail_s == 2.0
    health = Health()
    health.fail_s.add(20.0, 0.0)
    assert look(health).fail_s == pytest.approx(11.0)


def test_a_stream_fails_by_its_first_token_however_long_whole_answers_hung() -> None:
    health, hasty = Health(), endpoint("a", timeouts=Timeouts(first_token_s=5.0))
    for _ in range(7):
        health.fail_s.add(600.0, 0.0)
    assert look(health, at=hasty).fail_s == 5.0
    assert look(health, at=hasty, stream=False).fail_s > 500.0


def test_the_local_engines_queue_is_read_not_guessed() -> None:
    idle = EngineLoad(ready=True, max_running=4, prefill_rate=1000, decode_rate=20)
    assert look(load=idle).ttft_s == pytest.approx(0.1)
    assert look(load=idle).ok_s == pytest.approx(0.1 + 300 / 20)
    queued = EngineLoad(
        ready=True, waiting_tokens=5000, running=4, max_running=4, prefill_rate=1000, decode_rate=20
    )
    # 5.1 s of prefill, and one of four running sequences must end: a quarter of 15 s.
    assert look(load=queued).ttft_s == pytest.approx(5.1 + 15 / 4)
    out_of_blocks = EngineLoad(
        ready=True, running=2, max_running=64, blocks_total=10, prefill_rate=1000, decode_rate=20
    )
    assert look(load=out_of_blocks).ttft_s == pytest.approx(0.1 + 15 / 2)


def test_an_unmeasured_engine_counts_as_any_other_endpoint() -> None:
    assert look(load=EngineLoad(ready=True)).ok_s == pytest.approx(8.0)


def test_a_cold_model_adds_its_load_time() -> None:
    cold = EngineLoad(ready=False, load_s=12.0, prefill_rate=1000, decode_rate=20)
    assert look(load=cold).ttft_s == pytest.approx(12.1)


def test_the_answers_length_is_capped_by_max_tokens_and_zero_for_embeddings() -> None:
    assert size_of(request(), 300).num_out == 300
    assert size_of(request(max_tokens=5), 300).num_out == 5
    assert size_of(request(max_tokens=5000), 300).num_out == 300
    assert size_of(request(kind="embeddings"), 300).num_out == 0


@pytest.mark.parametrize(
    ("changes", "stream", "kind", "streams"),
    [
        ({}, True, "chat", True),
        ({}, False, "chat", False),
        ({"upstream_stream": "always"}, False, "chat", True),
        ({"provider": ION}, False, "chat", True),
        ({"provider": ION}, False, "embeddings", False),
    ],
)
def test_ion_and_whoever_is_told_to_stream_always_do(
    changes: dict[str, Any], stream: bool, kind: Any, streams: bool
) -> None:
    assert streams_upstream(endpoint("a", **changes), request(stream=stream, kind=kind)) is streams
