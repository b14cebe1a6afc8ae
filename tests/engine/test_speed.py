"""Decode rates are of tokens after the first, averaged over answers."""

from __future__ import annotations

from ionrouter.engine.mailbox import TokenEvent
from ionrouter.engine.speed import Speed


def play(speed: Speed, clock: list[float], sequence: int, num_tokens: int, seconds: float) -> None:
    speed.start(sequence)
    speed.record(sequence, TokenEvent("a", 1))
    clock[0] += seconds
    speed.record(sequence, TokenEvent("b", num_tokens, "length"))
    speed.end(sequence)


def test_the_first_answer_sets_the_rate_and_later_ones_move_it() -> None:
    clock = [0.0]
    speed = Speed(lambda: clock[0])
    assert speed.decode_rate is None
    play(speed, clock, 1, 100, 2.0)
    assert speed.decode_rate == 50.0
    play(speed, clock, 2, 100, 1.0)
    assert speed.decode_rate == 60.0


def test_short_unfinished_and_unknown_answers_do_not_count() -> None:
    clock = [0.0]
    speed = Speed(lambda: clock[0])
    play(speed, clock, 1, 2, 1.0)
    speed.start(2)
    speed.record(2, TokenEvent("a", 1))
    speed.record(2, TokenEvent("b", 50))
    speed.end(2)
    speed.record(3, TokenEvent("b", 50, "stop"))
    assert speed.decode_rate is None
