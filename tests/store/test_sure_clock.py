"""Which clock may say what is old: not one that has just begun, jumped, or been put right again."""

from __future__ import annotations

from dataclasses import dataclass

from ionrouter.store.sure_clock import EVEN_S, SureClock

YEAR_S = 366 * 86_400.0


@dataclass
class Machine:
    wall: float = 1.8e9
    monotonic: float = 5.0

    def passes(self, seconds: float, jump: float = 0.0) -> None:
        self.wall += seconds + jump
        self.monotonic += seconds


def test_a_clock_is_sure_once_it_has_gone_evenly_for_long() -> None:
    machine = Machine()
    clock = SureClock(lambda: machine.wall, lambda: machine.monotonic)
    assert clock.now() is None  # it may have been ahead from the start
    machine.passes(EVEN_S - 1)
    assert clock.now() is None
    machine.passes(1)
    assert clock.now() == machine.wall
    for _ in range(100):  # slewed
        machine.passes(60, jump=0.03)
        assert clock.now() == machine.wall


def test_a_jump_in_either_direction_begins_anew() -> None:
    machine = Machine()
    clock = SureClock(lambda: machine.wall, lambda: machine.monotonic)
    clock.now()
    for jump in (YEAR_S, -YEAR_S, 90.0):
        machine.passes(EVEN_S)
        assert clock.now() is not None
        machine.passes(60, jump=jump)
        assert clock.now() is None
        machine.passes(EVEN_S - 1)
        assert clock.now() is None
        machine.passes(1)
        assert clock.now() == machine.wall
