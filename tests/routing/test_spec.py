from typing import get_args

from ionrouter.balancing.strategies import STRATEGIES
from ionrouter.routing.spec import CatalogSpec, Strategy
from ionrouter.routing.table import RoutingSettings, Timeouts


def test_every_strategy_that_exists_can_be_written_and_no_other() -> None:
    assert set(get_args(Strategy)) == set(STRATEGIES)


def test_the_defaults_of_the_file_are_those_of_the_table() -> None:
    spec, built_in = CatalogSpec().routing, RoutingSettings()
    assert spec.strategy == built_in.strategy
    assert spec.value_of_time == built_in.value_of_time
    assert spec.spread == built_in.spread
    assert spec.explore == built_in.explore
    assert spec.max_attempts == built_in.max_attempts
    assert spec.total_timeout == built_in.total_timeout_s == Timeouts().total_s
    assert spec.heartbeat_after == built_in.heartbeat_after_s
