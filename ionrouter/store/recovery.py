"""What servers of a state folder had answered and not committed when they were killed, into the database.

Before anything else of a start reads it. Knows where journals lie and what their rows mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import structlog

from ionrouter.store.database import Link, RowFault, StoreFault
from ionrouter.store.generation import SELECT_RUNNING, Generation, book, from_bytes, from_row
from ionrouter.store.instance import Instance
from ionrouter.store.journal import rows_left

_log = structlog.get_logger(__name__)


def journal_path(folder: Path, name: str) -> Path:
    """Where a server of this name keeps what is not committed yet."""
    return folder / f"journal.{name}"


def book_left(link: Link, folder: Path, instance: Instance) -> Sequence[Generation]:
    """Book the rows of this server's name and of every dead one, each once; raises OSError.

    Returns those for which the database has no room or no time now: their journals stay, so that the next
    start finds them again, and booking them twice does no harm.
    """
    unbooked: list[Generation] = []
    for name in instance.dead:
        with instance.holding(folder, name) as is_held:
            if is_held:
                unbooked += _book_rows(link, journal_path(folder, name))
    if unbooked:
        _log.warning("requests_unbooked", count=len(unbooked))
    return unbooked


def unfinished(link: Link, instance: Instance, oldest: float | None) -> list[Generation]:
    """What servers of this state folder left running when they died.

    `oldest`: where no other folder has servers, what began before that has none. None: others have some, and
    the ledger sees to theirs once it is sure of its clock. A lock knows better than any clock who lives.
    """
    return [
        row
        for row in map(from_row, link.rows(SELECT_RUNNING))
        if row.instance in instance.dead or (oldest is not None and _is_nobodys(row, instance, oldest))
    ]


def _is_nobodys(row: Generation, instance: Instance, oldest: float) -> bool:
    return row.instance is None or (row.started_at < oldest and not instance.knows(row.instance))


def _book_rows(link: Link, path: Path) -> Sequence[Generation]:
    rows = [row for row in map(_read, rows_left(path)) if row is not None]
    for at, row in enumerate(rows):
        try:
            link.transact(book([row]))
        except RowFault as error:
            _log.error("store_row_refused", error=str(error))
        except StoreFault:
            return rows[at:]
    if rows:
        _log.info("requests_recovered", count=len(rows))
    path.unlink(missing_ok=True)
    return ()


def _read(row: bytes) -> Generation | None:
    try:
        return from_bytes(row)
    except ValueError as error:
        _log.error("journal_row_unreadable", error=str(error))
        return None
