"""Unread events merge and none is lost."""

from __future__ import annotations

import asyncio

from ionrouter.engine.mailbox import Mailbox, TokenEvent, TokenLogprob, event_of


def test_the_engines_tuple_is_unpacked() -> None:
    event = event_of("é".encode(), (3 << 8) | 2, [(7, -0.5, [(7, -0.5), (8, -1.0)])], 16, "")
    assert event == TokenEvent("é", 3, "length", (TokenLogprob(7, -0.5, ((7, -0.5), (8, -1.0))),), 16, "")
    assert event_of(b"", 1 << 8, [], 0, "").finish is None
    assert event.queue_s is None
    assert [event_of(b"", 0, [], 0, "", queue_s).queue_s for queue_s in (-1.0, 0.0, 0.5)] == [None, 0.0, 0.5]
    failed, stopped = event_of(b"", 4, [], 0, "NaN"), event_of(b"", 1, [], 0, "\n\n")
    assert (failed.error, failed.stop) == ("NaN", "")
    assert (stopped.error, stopped.stop) == ("", "\n\n")


async def test_what_nobody_read_is_one_event() -> None:
    mailbox = Mailbox()
    mailbox.put(TokenEvent("a", 1, None, (TokenLogprob(1, -1.0),)))
    mailbox.put(TokenEvent("b", 2))
    mailbox.put(TokenEvent("", 0, "stop", (), 16, stop="END", queue_s=0.5))
    whole = TokenEvent("ab", 3, "stop", (TokenLogprob(1, -1.0),), 16, stop="END", queue_s=0.5)
    assert await mailbox.take() == whole


async def test_a_reader_waits_for_the_next_event() -> None:
    mailbox = Mailbox()
    reader = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    assert not reader.done()
    mailbox.put(TokenEvent("x"))
    assert (await reader).text == "x"
