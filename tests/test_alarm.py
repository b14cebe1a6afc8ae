"""Many deadlines, one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import uvloop

from ionrouter.alarm import Deadlines

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


@dataclass(eq=False)
class Sleeper:
    """Notes when it was rung, and does then what it was told."""

    deadline: float = 0.0
    rung_at: list[float] = field(default_factory=list)
    then: Callable[[], object] = lambda: None

    def ring(self) -> None:
        self.rung_at.append(asyncio.get_running_loop().time())
        self.then()


async def test_each_is_rung_once_at_its_own_time_whatever_the_order() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines()
    sleepers = {delay_s: Sleeper() for delay_s in (0.3, 0.1, 60.0, 0.2)}
    begun = loop.time()
    for delay_s, sleeper in sleepers.items():
        deadlines.set(sleeper, loop, delay_s)
    await asyncio.sleep(0.6)
    for delay_s, sleeper in sleepers.items():
        assert [at - begun >= delay_s - 0.01 for at in sleeper.rung_at] == ([True] if delay_s < 1 else [])
    assert sleepers[0.1].rung_at < sleepers[0.2].rung_at < sleepers[0.3].rung_at


async def test_what_is_moved_on_or_cleared_is_not_rung() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines()
    moved, cleared, due = Sleeper(), Sleeper(), Sleeper()
    for sleeper in (moved, cleared, due):
        deadlines.set(sleeper, loop, 0.1)
    deadlines.set(moved, loop, 60.0)
    deadlines.clear(cleared)
    deadlines.clear(Sleeper())  # never set
    await asyncio.sleep(0.3)
    assert (len(moved.rung_at), len(cleared.rung_at), len(due.rung_at)) == (0, 0, 1)


async def test_one_that_rings_may_clear_or_set_others_and_fail(caplog: pytest.LogCaptureFixture) -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines()
    loop.set_exception_handler(lambda *_: None)
    pair = Sleeper(), Sleeper()
    for one, other in (pair, pair[::-1]):
        one.then = lambda other=other: deadlines.clear(other)  # type: ignore[misc]
        deadlines.set(one, loop, 0.05)
    later, again = Sleeper(), Sleeper()
    deadlines.set(later, loop, 0.2)
    await asyncio.sleep(0.1)
    assert sum(len(one.rung_at) for one in pair) == 1

    def fail() -> None:
        deadlines.set(again, loop, 0.01)
        raise RuntimeError

    later.then = fail
    last = Sleeper()
    deadlines.set(last, loop, 0.3)
    await asyncio.sleep(0.5)
    assert [len(one.rung_at) for one in (later, again, last)] == [1, 1, 1]


@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_another_loop_begins_anew(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    deadlines, lost, kept = Deadlines(), Sleeper(), Sleeper()

    async def wait(sleeper: Sleeper, delay_s: float) -> None:
        deadlines.set(sleeper, asyncio.get_running_loop(), delay_s)
        await asyncio.sleep(0.1)

    for sleeper, delay_s in ((lost, 0.15), (kept, 0.02)):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(wait(sleeper, delay_s))
    assert (len(lost.rung_at), len(kept.rung_at)) == (0, 1)
