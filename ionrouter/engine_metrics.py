"""The local engines' gauges and counters, read when scraped: never stale. Knows no requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ionrouter.schema.load import EngineLoad

EngineLoads = Callable[[], Mapping[str, EngineLoad]]  # endpoint id -> load
Read = Callable[[EngineLoad], float]


def stat(name: str) -> Read:
    """Read one of the engine's own statistics."""
    return lambda load: load.stats.get(name, 0.0)


def _used(load: EngineLoad) -> float:
    return load.blocks_total - load.blocks_free


def _tier_bytes(load: EngineLoad) -> float:
    return load.stats.get("tier_blocks_cached", 0.0) * load.stats.get("block_bytes", 0.0)


def _bytes_of(name: str) -> Read:
    return lambda load: load.stats.get(name, 0.0) * load.stats.get("block_bytes", 0.0)


class EngineCollector(Collector):
    """One series an endpoint with a local engine."""

    GAUGES: tuple[tuple[str, str, Read], ...] = (
        ("ready", "1 when the model is loaded.", lambda load: float(load.ready)),
        ("running", "Sequences being computed.", lambda load: load.running),
        ("waiting", "Sequences queued.", lambda load: load.waiting),
        ("waiting_tokens", "Prompt tokens queued and not yet prefilled.", lambda load: load.waiting_tokens),
        ("blocks_free", "KV blocks that can be taken, cached ones included.", lambda load: load.blocks_free),
        ("blocks_cached", "KV blocks kept for their prefix, without an owner.", stat("blocks_cached")),
        ("blocks_used", "KV blocks of sequences and copies.", _used),
        ("blocks_total", "KV blocks in all.", lambda load: load.blocks_total),
        ("tier_blocks_total", "Blocks of the second KV tier; 0: there is none.", stat("tier_blocks_total")),
        (
            "tier_blocks_cached",
            "Blocks of the second KV tier in use.",
            stat("tier_blocks_cached"),
        ),
        ("tier_bytes", "Bytes of KV in the second tier.", _tier_bytes),
        ("prefill_rate", "Measured prompt tokens per second.", lambda load: load.prefill_rate or 0.0),
        ("decode_rate", "Measured tokens per second and sequence.", lambda load: load.decode_rate or 0.0),
        ("last_step_seconds", "Compute time of the last step.", stat("last_step_s")),
        ("last_prefill_chunk", "Prompt tokens in the last step.", stat("last_prefill_chunk")),
        (
            "last_predicted_seconds",
            "What the last step was expected to take, if it decoded and prefilled; else 0.",
            stat("last_predicted_s"),
        ),
    )
    # Since the model was loaded.
    COUNTERS: tuple[tuple[str, str, Read], ...] = (
        ("steps", "Steps computed.", stat("steps")),
        ("step_seconds", "Compute time of all steps.", stat("step_seconds")),
        ("mixed_steps", "Steps that decoded and prefilled.", stat("mixed_steps")),
        ("mixed_step_seconds", "Compute time of those.", stat("mixed_step_seconds")),
        ("mixed_predicted_seconds", "What those were expected to take.", stat("mixed_predicted_seconds")),
        ("steps_delayed", "Steps that the host held up by more than 1 ms.", stat("steps_delayed")),
        ("step_delay_seconds", "How long the host held up steps.", stat("step_delay_seconds")),
        ("prefilled_tokens", "Prompt tokens computed, after preemptions again.", stat("tokens_prefilled")),
        ("generated_tokens", "Tokens generated.", stat("tokens_generated")),
        ("prefix_hit_tokens", "Prompt tokens found in a cache, of either tier.", stat("prefix_hit_tokens")),
        ("preemptions", "Sequences that gave their blocks to others.", stat("preemptions")),
        ("finished", "Sequences that ended by a stop or their length.", stat("finished")),
        ("aborts", "Sequences that their caller left.", stat("aborts")),
        ("errors", "Sequences that ended by a fault.", stat("errors")),
        ("non_finite_rows", "Of these, by NaN or infinite logits.", stat("non_finite_rows")),
        ("tier_hit_tokens", "Tokens brought back from the second KV tier.", stat("tier_hit_tokens")),
        ("tier_copies_out", "Blocks copied to the second KV tier.", stat("tier_copies_out")),
        ("tier_copies_in", "Blocks copied back.", stat("tier_copies_in")),
        ("tier_copies_failed", "Of both, those that failed: misses.", stat("tier_copies_failed")),
        ("tier_out_bytes", "Bytes copied to the second KV tier.", _bytes_of("tier_copies_out")),
        ("tier_in_bytes", "Bytes copied back.", _bytes_of("tier_copies_in")),
    )

    def __init__(self, loads: EngineLoads) -> None:
        self._loads = loads

    def describe(self) -> Iterable[Metric]:
        return [family for family, _ in self._families()]

    def collect(self) -> Iterator[Metric]:
        loads = self._loads()
        for family, read in self._families():
            for endpoint, load in loads.items():
                family.add_metric([endpoint], read(load))
            yield family

    def _families(self) -> Iterator[tuple[GaugeMetricFamily | CounterMetricFamily, Read]]:
        for name, text, read in self.GAUGES:
            yield GaugeMetricFamily(f"ionrouter_engine_{name}", text, labels=["endpoint"]), read
        for name, text, read in self.COUNTERS:
            yield CounterMetricFamily(f"ionrouter_engine_{name}", text, labels=["endpoint"]), read
