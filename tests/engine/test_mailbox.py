"""Unread events merge and none is lost."""

from __future__ import annotations

import asyncio

import pytest

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


async def test_what_is_offered_while_the_reader_waits_wakes_nobody() -> None:
    offered: list[str] = []

    def offer(event: TokenEvent) -> bool:
        offered.append(event.text)
        return event.text != "no"

    mailbox = Mailbox(offer)
    mailbox.put(TokenEvent("early"))  # nobody waits yet
    assert (await mailbox.take()).text == "early"
    reader = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    mailbox.put(TokenEvent("a"))
    mailbox.put(TokenEvent("b"))
    await asyncio.sleep(0)
    assert not reader.done() and offered == ["a", "b"]
    mailbox.put(TokenEvent("no"))
    mailbox.put(TokenEvent(" more"))  # the reader is on its way: it must not be overtaken
    assert (await reader).text == "no more" and offered == ["a", "b", "no"]


async def test_who_breaks_on_an_offer_ends_his_own_answer_alone() -> None:
    def offer(_: TokenEvent) -> bool:
        raise ValueError("the client's encoder")

    mailbox = Mailbox(offer)
    reader = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    mailbox.put(TokenEvent("a"))
    with pytest.raises(ValueError, match="encoder"):
        await reader
