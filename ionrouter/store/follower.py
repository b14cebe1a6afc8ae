"""What a server learns of those it follows on one state folder: what they book until they have ended.

In a rolling restart the old server books what it drains after the new one has read the sums, and a key's
limit would be missing that until the next start.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from ionrouter.store.instance import Instance
from ionrouter.store.ledger import MAX_REQUEST_DAYS
from ionrouter.store.periods import day_of
from ionrouter.store.shared_limits import USAGE
from ionrouter.store.spending import SpendingBook
from ionrouter.store.writer import Writer

EVERY_S = 2.0
ROWS_AT_ONCE = 500  # taken over between two looks at the event loop


async def follow(spending: SpendingBook, writer: Writer, instance: Instance, folder: Path) -> None:
    """Take over the sums again and again while others live, and once when all of them have ended."""
    living, is_due = list(instance.living), bool(instance.living)
    while is_due:
        await asyncio.sleep(EVERY_S)
        for name in tuple(living):
            with instance.holding(folder, name) as has_ended:
                if has_ended:
                    living.remove(name)
        is_due = not await read_sums(spending, writer) or bool(living)


async def read_sums(spending: SpendingBook, writer: Writer) -> bool:
    """Take over the sums of the last days as the database has them, beside what is not committed yet.

    False: they could not be read now.
    """
    spending.note_settled(is_on=True)
    try:
        asked = writer.ask(USAGE, (day_of(time.time()) - MAX_REQUEST_DAYS,))
        rows = None if asked is None else await asked
        if rows is None:
            return False
        for at in range(0, len(rows), ROWS_AT_ONCE):
            spending.take_over(rows[at : at + ROWS_AT_ONCE])
            await asyncio.sleep(0)
        return True
    finally:
        spending.note_settled(is_on=False)
