"""What a killed server had answered: into the database at the next start, or as soon as that can take it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from ionrouter.schema.events import RequestRecord
from ionrouter.schema.request import Client
from ionrouter.schema.usage import Cost, Usage
from ionrouter.store.generation import Generation, ended, insert, to_bytes
from ionrouter.store.instance import claim
from ionrouter.store.journal import Journal, rows_left
from ionrouter.store.ledger import Ledger
from ionrouter.store.recovery import book_left, journal_path, unfinished
from ionrouter.store.spending import SpendingBook
from ionrouter.store.writer import Writer
from tests.support.databases import Place

NUM = 3


def killed(place: Place, folder: Path) -> Path:
    """Leave what a server leaves that is killed behind three answers; returns its journal."""
    place.database.open().close()
    instance = claim(folder)
    path = journal_path(folder, instance.name)
    journal = Journal(path)
    for number in range(NUM):
        record = RequestRecord(
            f"gen-{number}", "chat", "m", False, 100.0, 1.0, 200, (),
            usage=Usage(1, 1), cost=Cost(0.5, 0.0), key_id="k",
        )  # fmt: skip
        journal.add(to_bytes(ended(record, Client(), instance.name)))
    journal.close()
    instance.close()
    return path


def spent(place: Place) -> list[tuple[float, int]]:
    return [(cost, num) for cost, num in place.ask("SELECT cost, num_requests FROM key_usage")]


def test_a_start_books_each_once(place: Place, tmp_path: Path) -> None:
    path = killed(place, tmp_path)
    instance = claim(tmp_path)
    with closing(place.database.open()) as link:
        assert book_left(link, tmp_path, instance) == []
    assert spent(place) == [(1.5, NUM)]
    assert not path.exists()
    instance.close()


async def test_what_the_database_cannot_take_at_a_start_counts_and_is_booked_later(
    place: Place, tmp_path: Path
) -> None:
    path = killed(place, tmp_path)
    instance = claim(tmp_path)
    with closing(place.database.open(patience_s=0.05)) as link, place.locked():
        unbooked = book_left(link, tmp_path, instance)
    assert len(unbooked) == NUM
    writer = Writer(place.database)
    ledger = Ledger(SpendingBook(), writer, instance=instance, unbooked=unbooked)
    ledger.start()
    assert ledger.spending.of("k").since(None, 200.0) == 1.5
    assert await ledger.find("gen-1") is not None
    await ledger.close()
    assert spent(place) == [(1.5, NUM)]
    assert len(rows_left(path)) == NUM  # until a start finds them booked
    with closing(place.database.open()) as link:
        assert book_left(link, tmp_path, claim(tmp_path)) == []
    assert spent(place) == [(1.5, NUM)]
    assert not path.exists()


def test_an_age_says_nothing_of_servers_whose_lock_does(place: Place, tmp_path: Path) -> None:
    """A start while the clock was ahead ended what others had under way."""
    living, instance = claim(tmp_path), claim(tmp_path)
    rows = {"living": living.name, "mine": instance.name, "moved": "0123-7", "nameless": None}
    with closing(place.database.open()) as link:
        for name, server in rows.items():
            row = Generation(name, "started", None, "chat", "m", False, 100.0, instance=server)
            link.transact([insert(row)])
        found = unfinished(link, instance, 200.0)
        assert sorted(row.id for row in found) == ["mine", "moved", "nameless"]
        assert [row.id for row in unfinished(link, instance, None)] == ["mine"]
    living.close()
    instance.close()
