"""The router's books: who may spend how much, and what became of every request.

Joins what balancing knows of prices with what store knows of keys; keeps nothing itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from ionrouter.balancing.assumed_price import is_unpriced
from ionrouter.balancing.plan import Plan
from ionrouter.balancing.worst_case import worst_case
from ionrouter.errors import RequestError
from ionrouter.schema.events import Event, RequestRecord, TextRun
from ionrouter.schema.request import InferenceRequest
from ionrouter.store.key_watch import KeyWatch
from ionrouter.store.keys import ApiKey, KeyStore
from ionrouter.store.ledger import Ledger
from ionrouter.store.shared_limits import cannot_book


@dataclass(slots=True)
class Accounts:
    """Told by the router; see its `Books`."""

    keys: KeyStore | None
    ledger: Ledger
    wall: Callable[[], float] = time.time
    watch: KeyWatch | None = None  # where other servers change keys too

    @property
    def hears(self) -> bool:
        return self.ledger.keeps_words

    def start(self) -> None:
        """Begin to write, and to look for changed keys; needs a running loop."""
        self.ledger.start()
        if self.watch is not None:
            self.watch.start()

    async def close(self) -> None:
        """Write what waits, then close everything."""
        if self.watch is not None:
            await asyncio.to_thread(self.watch.close)
        await self.ledger.close()
        if self.keys is not None:
            self.keys.close()

    async def admit(self, request: InferenceRequest, plan: Plan) -> Plan:
        """Reserve the worst case under the key's limit.

        A key with a limit uses endpoints of known price only, and none while its spending cannot be written
        down. Raises RequestError 402 or 503.
        """
        key = self._limited(request)
        if key is None:
            return plan
        if not self.ledger.is_writable:
            raise cannot_book()
        priced = tuple(c for c in plan.candidates if not is_unpriced(c.endpoint))
        if not priced:
            raise _unpriced(plan, key)
        num_at_once = 2 if any(c.route.hedge for c in priced) else 1
        amount = worst_case((c.endpoint for c in priced), request, num_at_once)
        await self.ledger.reserve(request, key, amount, self.wall())
        return plan if len(priced) == len(plan.candidates) else replace(plan, candidates=priced)

    async def affords(self, request: InferenceRequest, paid: float) -> bool:
        """Set aside what failed attempts of a request have cost, in USD; tell whether there is room."""
        key = self._limited(request)
        try:
            if key is not None:
                await self.ledger.reserve_paid(request.id, key, paid, self.wall())
        except RequestError:
            return False
        return True

    def _limited(self, request: InferenceRequest) -> ApiKey | None:
        """The request's key, if it has a limit."""
        key = self.keys.known(request.key_id) if self.keys and request.key_id else None
        return None if key is None or key.limit is None else key

    def begin(self, request: InferenceRequest, started_at: float) -> None:
        self.ledger.begin(request, started_at)

    def hear(self, request_id: str, event: Event | TextRun) -> None:
        self.ledger.hear(request_id, event)

    def end(self, record: RequestRecord, request: InferenceRequest) -> None:
        self.ledger.end(record, request.client)

    async def kept(self, request_id: str) -> None:
        await self.ledger.committed(request_id)


def _unpriced(plan: Plan, key: ApiKey) -> RequestError:
    names = ", ".join(sorted({c.endpoint.id for c in plan.candidates}))
    return RequestError(
        f"this key has a limit, and nobody said what {names} costs: give it prices in routes.yaml",
        status=402,
        error_type="payment_required",
        metadata={"limit": key.limit, "unpriced": names},
    )
