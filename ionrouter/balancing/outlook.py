"""What to expect of an endpoint for one request: measured where it was, else its peers', else a prior.

Pure: endpoint, health, the peers' healths, the local engine's load and a moment in; an Outlook out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from operator import attrgetter

from msgspec import Struct

from ionrouter.balancing.cost import PRIOR_THROUGHPUT, PRIOR_TTFT_S, Outlook, cost_of
from ionrouter.balancing.health import FIXED_TOKENS, Health, Speed
from ionrouter.routing.table import Endpoint, Expected
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.request import WHOLE_KINDS, InferenceRequest
from ionrouter.schema.usage import Usage


class Size(Struct, frozen=True):
    """A request in tokens: the prompt's, and the answer's expected length."""

    num_in: float
    num_out: float


def streams_upstream(endpoint: Endpoint, request: InferenceRequest) -> bool:
    """Ask whether the upstream is asked to stream: Ion always, others as the client did, or as configured."""
    if request.kind in WHOLE_KINDS:
        return False
    return request.stream or endpoint.provider.type == "ion" or endpoint.upstream_stream == "always"


def size_of(request: InferenceRequest, expected_num_out: float) -> Size:
    """Measure a request; the answer's expected length is capped by max_tokens, 0 where no text comes back."""
    if request.kind in WHOLE_KINDS:
        return Size(request.prompt_tokens, 0.0)
    if request.max_tokens is None:
        return Size(request.prompt_tokens, expected_num_out)
    return Size(request.prompt_tokens, min(expected_num_out, request.max_tokens))


def outlook_of(
    endpoint: Endpoint,
    health: Health,
    peers: Sequence[Health],
    size: Size,
    *,
    stream: bool,
    load: EngineLoad | None,
    now: float,
) -> Outlook:
    """Estimate price, times and failure shares; `peers` are the other endpoints of the same model."""
    ttft_s, throughput, ok_s = _times(endpoint, health, peers, size, stream, now)
    if load is not None:
        ttft_s, throughput, ok_s = _engine_times(load, size, ttft_s, throughput)
    waited_s = health.oldest_wait_s(now, stream)
    if waited_s > ttft_s:  # somebody has waited that long already: news that no finished request brought
        ok_s, ttft_s = (ok_s + waited_s - ttft_s) if stream else max(ok_s, waited_s), waited_s
    fail_s = health.fail_s.mean(now, ttft_s, 1.0)  # a failure shows when the answer should have begun
    if stream and fail_s > endpoint.timeouts.first_token_s:  # whole answers may hang for longer, not streams
        fail_s = endpoint.timeouts.first_token_s
    return Outlook(
        fail_before=health.fail_before(now),
        fail_after=health.fail_after(now),
        price=_expected_price(endpoint, health, size, now),
        price_fail=health.fail_cost.mean(now, 0.0, 1.0),
        ttft_s=ttft_s,
        throughput=throughput,
        ok_s=ok_s,
        fail_s=fail_s,
    )


def _times(
    endpoint: Endpoint, health: Health, peers: Sequence[Health], size: Size, stream: bool, now: float
) -> tuple[float, float, float]:
    """Time to first token, tokens/s and time to a whole answer."""
    speed, others = health.speeds[stream], [peer.speeds[stream] for peer in peers] if peers else ()
    if stream:
        ttft_prior, token_prior = _priors(endpoint.expected, others)
        ttft_s = speed.ttft_s.estimate(now, ttft_prior)
        token_s = speed.token_s.estimate(now, token_prior)
        return ttft_s, 1 / max(token_s, 1e-9), ttft_s + size.num_out * token_s
    tokens = FIXED_TOKENS + size.num_out
    stated, expected = None, endpoint.expected
    if expected.ttft_s is not None or expected.throughput is not None:
        ttft_prior, token_prior = _priors(expected, others)
        stated = (ttft_prior + size.num_out * token_prior) / tokens
    pace_prior = _prior(stated, others, _PACE_S, 1 / PRIOR_THROUGHPUT)
    whole_s = speed.pace_s.estimate(now, pace_prior) * tokens
    if whole_s < 1e-9:
        whole_s = 1e-9
    return whole_s, size.num_out / whole_s, whole_s  # nothing is seen of it before it is whole


def _priors(expected: Expected, others: Sequence[Speed]) -> tuple[float, float]:
    """Time to first token and seconds per token, where nothing is measured."""
    ttft_s = _prior(expected.ttft_s, others, _TTFT_S, PRIOR_TTFT_S)
    token_s = 1 / expected.throughput if expected.throughput else None
    return ttft_s, _prior(token_s, others, _TOKEN_S, 1 / PRIOR_THROUGHPUT)


_Measured = Callable[[Speed], float | None]
_TTFT_S: _Measured = attrgetter("ttft_s.value")
_TOKEN_S: _Measured = attrgetter("token_s.value")
_PACE_S: _Measured = attrgetter("pace_s.value")


def _prior(stated: float | None, peers: Sequence[Speed], measured: _Measured, default: float) -> float:
    """routes.yaml's word, else the peers' median, else the default."""
    if stated is not None:
        return stated
    if not peers:
        return default
    values = [value for value in map(measured, peers) if value is not None]
    return statistics.median(values) if values else default


def _engine_times(
    load: EngineLoad, size: Size, ttft_s: float, throughput: float
) -> tuple[float, float, float]:
    """Read the local engine's true queue instead of the past, as far as its rates are measured."""
    throughput = load.decode_rate or throughput
    if load.prefill_rate:
        ttft_s = (load.waiting_tokens + size.num_in) / load.prefill_rate
    is_full = load.running >= load.max_running or (load.blocks_total > 0 and load.blocks_free == 0)
    if load.running and (load.waiting or is_full):
        # Somebody must end first: sequences end evenly spread over one answer's time.
        ttft_s += (load.waiting + 1) / load.running * size.num_out / throughput
    if not load.ready and load.load_s is not None:
        ttft_s += load.load_s
    return ttft_s, throughput, ttft_s + size.num_out / throughput


def queue_s(load: EngineLoad) -> float:
    """Tell how long the local engine's waiting prompts take before a new one's turn; 0 if unmeasured."""
    return load.waiting_tokens / load.prefill_rate if load.prefill_rate else 0.0


def cached_price(endpoint: Endpoint, size: Size) -> float:
    """USD if the whole prompt is in the endpoint's cache."""
    num_in = round(size.num_in)
    return cost_of(endpoint.price, Usage(num_in, round(size.num_out), cached_tokens=num_in)).total


def _expected_price(endpoint: Endpoint, health: Health, size: Size, now: float) -> float:
    """USD, with the share of cached tokens that this endpoint used to report."""
    num_cached = size.num_in * health.cached_share.mean(now, 0.0, 1.0)
    usage = Usage(round(size.num_in), round(size.num_out), cached_tokens=round(num_cached))
    return cost_of(endpoint.price, usage).total
