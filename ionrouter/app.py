"""Composition root: the one place where parts are chosen and joined. Knows every part, does no one's work."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiohttp import web

import ionrouter
from ionrouter import huge_pages
from ionrouter.access_log import AccessLog
from ionrouter.accounting import Accounts
from ionrouter.api.doors import asks_for_keys
from ionrouter.api.lifecycle import Announce, serve
from ionrouter.api.readiness import Phase, Readiness
from ionrouter.api.routes import make_application
from ionrouter.api.state import Edge
from ionrouter.console.pages import pages
from ionrouter.errors import ConfigError
from ionrouter.metrics import Metrics
from ionrouter.observers import DeferredObservers
from ionrouter.providers.base import ProviderClient
from ionrouter.providers.fake import FakeClient
from ionrouter.providers.ion import IonProvider
from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.media import MediaFetcher
from ionrouter.providers.openai_http import OpenAIProvider
from ionrouter.providers.outgoing import Outgoing
from ionrouter.redact import Redactor, without_places
from ionrouter.reload import Reloader, digest_of, load_table
from ionrouter.router import Router
from ionrouter.router_state import endpoint_status, open_breakers, readings, unavailable
from ionrouter.routing.table import Endpoint, ProviderType, RoutingTable
from ionrouter.schema.load import EngineLoad
from ionrouter.settings import Settings, is_loopback
from ionrouter.stats.book import Name, Names, StatsBook
from ionrouter.stats_keeper import StatsKeeper
from ionrouter.store.batches import BatchStore
from ionrouter.store.database import Database, StoreFault
from ionrouter.store.follower import follow
from ionrouter.store.instance import Instance, claim
from ionrouter.store.journal import Journal
from ionrouter.store.key_watch import KeyWatch
from ionrouter.store.keys import KeyStore, ensure_management_key
from ionrouter.store.ledger import MAX_REQUEST_S, Ledger
from ionrouter.store.periods import day_of
from ionrouter.store.place import database_for
from ionrouter.store.reader import Reader
from ionrouter.store.recovery import book_left, journal_path, unfinished
from ionrouter.store.shared_limits import SharedLimits
from ionrouter.store.spending import SpendingBook
from ionrouter.store.writer import Fault, Writer
from ionrouter.tracing.configuration import collector, secrets, wants_traces
from ionrouter.tracing.service import Tracing

_log = structlog.get_logger(__name__)
GC_THRESHOLDS = (20_000, 20, 50)  # new objects, then collections of the younger generation


@dataclass(slots=True)
class Service:
    """One running server's parts. Made by `build` inside the event loop that runs it."""

    settings: Settings
    edge: Edge
    router: Router
    ion: IonProvider
    litellm: LiteLLMProvider
    openai: OpenAIProvider
    redactor: Redactor
    env: Mapping[str, str]
    reloader: Reloader
    accounts: Accounts
    observers: DeferredObservers
    started_at: float = field(default_factory=time.time)
    # Set by who listens: nothing is ready before, and what is heavy loads from then on.
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    _worker: asyncio.Task[None] | None = None  # starts only once an endpoint needs it: 300 MB

    @property
    def application(self) -> web.Application:
        """The HTTP application; starting it starts the parts, cleaning it up closes them."""
        app = make_application(self.edge, pages() if self.settings.console else ())
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, _app: web.Application) -> AsyncIterator[None]:
        ledger = self.accounts.ledger
        self.accounts.start()
        self.take_over(self.router.table)
        tasks = [
            asyncio.create_task(ledger.keep_forgetting(self.settings.keep_days), name="forget-generations"),
            asyncio.create_task(self._become_ready(), name="become-ready"),
            asyncio.create_task(self.reloader.watch(), name="watch-routes"),
            asyncio.create_task(self.reloader.discover(), name="discover-models"),
            asyncio.create_task(self.router.prober.run(), name="probe-endpoints"),
        ]
        keeper = None
        if ledger.writer is not None and ledger.instance is not None:
            name = ledger.instance.name
            keeper = StatsKeeper(self.edge.stats, ledger.writer, name, sure_now=lambda: ledger.sure_now)
            tasks.append(asyncio.create_task(keeper.run(), name="keep-statistics"))
            if ledger.limits is None:
                following = follow(ledger.spending, ledger.writer, ledger.instance, self.settings.state_dir)
                tasks.append(asyncio.create_task(following, name="follow-servers"))
        for task in tasks:
            task.add_done_callback(_tell_crash)
        yield
        if self._worker is not None:
            tasks.append(self._worker)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.router.aside.close()
        self.observers.close()
        tracing = self.edge.tracing
        flush = None if tracing is None else asyncio.create_task(tracing.close(), name="flush-traces")
        if keeper is not None:
            await keeper.close()
        for client in (self.ion, self.litellm, self.openai):
            await client.close()
        await self.accounts.close()
        if flush is not None:
            await flush

    def take_over(self, table: RoutingTable) -> None:
        """Bring the parts in line with a new table: keys to redact, models to load, series to name."""
        variables = {key for provider in table.providers.values() for key in provider.key_variables}
        self.redactor.register(*(self.env[name] for name in variables if self.env.get(name)))
        self.ion.prepare(_local(table))
        listed = [endpoint for model in table.models.values() for endpoint in model.endpoints]
        self.edge.metrics.list_endpoints(endpoint.id for endpoint in listed)
        self.edge.stats.names = Names(Name(e.subject, e.id, e.provider.name) for e in listed)
        if self._worker is None and any(e.provider.type == "litellm" for e in _enabled(table)):
            self._worker = asyncio.create_task(self.litellm.start(), name="start-litellm")
            self._worker.add_done_callback(_tell_crash)

    async def _become_ready(self) -> None:
        await self.listening.wait()  # never, where the address cannot be had
        if self.edge.tracing is not None:
            await self.edge.tracing.start()
        failures = await self.ion.wait_ready()
        for reason in failures:
            _log.error("local_model_unavailable", reason=reason)
        if self.edge.readiness.phase is Phase.STARTING:
            self.edge.readiness.phase = Phase.READY
            _log.info("server_ready", seconds=round(time.time() - self.started_at, 2))

    def can_serve(self) -> bool:
        """Whether any endpoint could answer: a hosted one that is enabled, or a local one that is loaded."""
        return any(e.provider.type != "ion" or self.ion.load_of(e).ready for e in _enabled(self.router.table))

    def details(self, whole: bool) -> Mapping[str, Any]:
        """What GET /health tells besides the phase; `whole`: with places on this machine's disk."""
        table, path, problem = self.router.table, str(self.reloader.path), self.reloader.problem
        if not whole:
            problem = problem and without_places(problem, [path])
            path = self.reloader.path.name
        return {
            "version": ionrouter.__version__,
            "uptime_s": round(time.time() - self.started_at, 1),
            "routes": {
                "path": path,
                "version": table.version,
                "loaded_at": self.reloader.loaded_at,
                "problem": problem,
            },
            "local": [_local_state(e, self.ion.load_of(e), whole) for e in _local(table)],
            "breakers": open_breakers(self.router),
            "in_flight": len(self.edge.in_flight),
        }


def build(settings: Settings, env: Mapping[str, str], redactor: Redactor) -> Service:
    """Choose and join the parts; raises ConfigError. Nothing listens, loads or runs yet."""
    metrics = Metrics(
        lambda: {e.id: ion.load_of(e) for e in _local(router.table)},
        lambda: readings(router),
        before_reading=lambda: observers.flush(),
    )
    database = database_for(settings)
    keys = open_keys(settings, database)
    accounts = open_accounts(settings, database, keys, metrics.store_fault)
    has_key = keys is not None and keys.has_usable("inference", time.time())
    needs_keys = asks_for_keys(settings, has_inference_key=has_key)
    lists = settings.cache_dir / "lists"
    digest = digest_of(settings.config_path)
    table = load_table(settings.config_path, env, lists)
    ion = IonProvider(settings.cache_dir, progress=True)
    outgoing = Outgoing(max_connections=settings.max_upstream_connections)
    openai = OpenAIProvider(env, redact=redactor, outgoing=outgoing)
    litellm = _litellm(settings, env, redactor, openai)
    clients: dict[ProviderType, ProviderClient] = {
        "ion": ion,
        "openai": openai,
        "litellm": litellm,
        "fake": FakeClient(keeps_calls=False),
    }
    stats = StatsBook(before_reading=lambda: observers.flush())
    observers = DeferredObservers((AccessLog(), stats, metrics))
    router = Router(
        table,
        clients,
        engine_load=_engine_load(ion),
        observers=(observers,),
        books=accounts,
        witnesses=(stats.record, metrics.record),
        may_measure=lambda: readiness.phase is Phase.READY,
    )
    take_over: Callable[[RoutingTable], None] = lambda new: service.take_over(new)  # noqa: E731 - made below
    reloader = Reloader(settings.config_path, env, lists, router, openai.list_models, take_over, digest)
    readiness = Readiness(can_serve=lambda: service.can_serve(), details=lambda whole: service.details(whole))
    owner = accounts.ledger.instance  # None: there is no database
    edge = Edge(
        settings=settings,
        router=router,
        stats=stats,
        metrics=metrics,
        readiness=readiness,
        reload=reloader.reload,
        asks_for_keys=needs_keys,
        keys=keys,
        endpoint_status=lambda endpoint: endpoint_status(router, endpoint),
        unavailable=lambda endpoint, whole: unavailable(router, endpoint, whole=whole),
        engine_load=router.engine_load,
        accounts=accounts,
        tracing=open_traces(settings, env, redactor, metrics),
        batches=BatchStore(database, owner.name) if settings.batch_concurrency and owner else None,
    )
    service = Service(
        settings, edge, router, ion, litellm, openai, redactor, env, reloader, accounts, observers
    )
    return service


def _litellm(
    settings: Settings, env: Mapping[str, str], redactor: Redactor, relay: OpenAIProvider
) -> LiteLLMProvider:
    return LiteLLMProvider(
        env,
        settings.state_dir,
        redact=redactor,
        relay=relay,
        tables=settings.cache_dir / "litellm",
        media=MediaFetcher() if settings.fetch_media else None,
    )


def open_traces(
    settings: Settings, env: Mapping[str, str], redactor: Redactor, metrics: Metrics
) -> Tracing | None:
    """Trace where the environment says so; raises ConfigError if it does and that cannot be done."""
    if not wants_traces(settings.traces, env):
        return None
    redactor.register(*secrets(env))
    return Tracing(collector(env), metrics.spans)


def open_keys(settings: Settings, database: Database) -> KeyStore | None:
    """Open the key store and leave a management key at the first start.

    A state folder that cannot be written stops a server that needs keys and only warns on loopback without
    them: the one thing lost is the management routes. A database that was asked for must be there.
    """
    try:
        keys = KeyStore.open(database)
        if ensure_management_key(keys, settings.management_key_path, time.time()):
            _log.info("management_key_written", path=str(settings.management_key_path))
    except (ConfigError, StoreFault, OSError) as error:
        is_optional = settings.store_url is None and not settings.require_keys
        if not is_optional or not (settings.no_auth or is_loopback(settings.host)):
            raise ConfigError(str(error)) from error
        _log.warning("state_unavailable", path=str(settings.state_dir), error=str(error))
        return None
    return keys


def open_accounts(settings: Settings, database: Database, keys: KeyStore | None, fault: Fault) -> Accounts:
    """Join keys, spending and generations; without a state folder memory is all there is."""
    if keys is None:
        return Accounts(None, Ledger(SpendingBook()))
    try:
        instance = claim(settings.state_dir)
        if instance.living and not database.is_shared:
            _log.warning("state_shared", path=str(settings.state_dir), num_servers=len(instance.living))
        with closing(database.open()) as link:
            unbooked = book_left(link, settings.state_dir, instance)
            spending = SpendingBook.load(link, day_of(time.time()))
            left = unfinished(link, instance, None if database.is_shared else time.time() - MAX_REQUEST_S)
    except (StoreFault, OSError) as error:
        raise ConfigError(f"the state cannot be read: {error}") from error
    limits, watch = (SharedLimits(database), KeyWatch(database, keys)) if database.is_shared else (None, None)
    # A journal of its own would take the place of one that is not booked yet.
    journal = None if unbooked else _journal(settings, database, instance)
    writer = Writer(database, fault, journal=journal)
    ledger = Ledger(
        spending,
        writer,
        Reader(database, settled=writer.settled),
        settings.log_prompts,
        limits=limits,
        instance=instance,
        unfinished=left,
        unbooked=unbooked,
    )
    return Accounts(keys, ledger, watch=watch)


def _journal(settings: Settings, database: Database, instance: Instance) -> Journal | None:
    """Answers wait for their commit where it must survive a power cut, or is in another machine's hands."""
    if settings.store_sync == "full" or database.is_shared:
        return None
    try:
        return Journal(journal_path(settings.state_dir, instance.name))
    except OSError as error:
        _log.warning("no_journal", error=str(error), consequence="answers wait for their commit")
        return None


def _engine_load(ion: IonProvider) -> Any:
    def load_of(endpoint: Endpoint) -> EngineLoad | None:
        return ion.load_of(endpoint) if endpoint.provider.type == "ion" else None

    return load_of


def _tell_crash(task: asyncio.Task[None]) -> None:
    """Say that what should run to the end of the process has ended: nobody awaits it before that."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task_crashed", task=task.get_name(), exc_info=error)


def _enabled(table: RoutingTable) -> Iterable[Endpoint]:
    templates = (pattern.endpoint for pattern in table.patterns)
    configured = (endpoint for model in table.models.values() for endpoint in model.endpoints)
    return [endpoint for endpoint in (*configured, *templates) if endpoint.disabled is None]


def _local(table: RoutingTable) -> list[Endpoint]:
    return [endpoint for endpoint in _enabled(table) if endpoint.local is not None]


def _local_state(endpoint: Endpoint, load: EngineLoad, whole: bool) -> Mapping[str, Any]:
    reason = load.whole_reason if whole else load.reason
    return {"endpoint": endpoint.id, "ready": load.ready, "reason": reason, "device": load.device}


async def run(
    settings: Settings,
    env: Mapping[str, str],
    redactor: Redactor,
    *,
    announce: Announce = lambda _url: None,
) -> None:
    """Build, listen, and serve until a signal; raises ConfigError."""
    service = build(settings, env, redactor)
    hangups: set[asyncio.Task[None]] = set()  # the loop keeps weak references only

    def reload() -> None:
        task = asyncio.create_task(service.reloader.try_reload(), name="reload")
        hangups.add(task)
        task.add_done_callback(hangups.discard)

    def listening(url: str) -> None:
        _rest_memory()
        _track_no_generators()
        huge_pages.adopt_in_a_while()
        announce(url)
        service.listening.set()

    await serve(service.application, service.edge, announce=listening, hangup=reload)


def _track_no_generators() -> None:
    """Let the loop keep no list of generators that have begun: five a request, for nobody but its own end.

    Whoever runs one closes it, tasks that are cancelled at the end too; a dropped one is closed as ever.
    """
    sys.set_asyncgen_hooks(firstiter=None, finalizer=sys.get_asyncgen_hooks().finalizer)


def _rest_memory() -> None:
    """Let the garbage collector leave alone what stays for good: modules, routes, parts.

    A request's own garbage is freed by counting; looking through everything for cycles every 700 objects
    took a fifth of a request's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
