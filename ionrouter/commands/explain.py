"""`ionrouter explain`: every endpoint of a model with its figures, or the filter that removed it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from ionrouter.api.responses import plain
from ionrouter.commands.client import ServerUnreachable, ask, server_url
from ionrouter.commands.console import make_console
from ionrouter.commands.table import Column, fitting
from ionrouter.reload import load_table
from ionrouter.router import Router
from ionrouter.schema.request import EXAMPLE_PROMPT_TOKENS, InferenceRequest, Kind
from ionrouter.schema.usage import CHARACTERS_PER_TOKEN
from ionrouter.settings import Settings

_CANDIDATE = (
    Column("endpoint", "text"),
    Column("$/M in", rank=3),
    Column("$/M out", rank=4),
    Column("time", rank=2),
    Column("first token", rank=6),
    Column("success", rank=5),
    Column("score $", rank=1),
    Column("share"),
)
_EXCLUDED = (Column("endpoint", "text"), Column("filter", "text"), Column("reason", "text"))


# By API: what the router calls such a request, and its fields about a text.
_APIS: Mapping[str, tuple[Kind, Callable[[str], dict[str, Any]]]] = {
    "chat/completions": ("chat", lambda text: {"messages": [{"role": "user", "content": text}]}),
    "embeddings": ("embeddings", lambda text: {"input": text}),
    "rerank": ("rerank", lambda text: {"query": "x", "documents": [text]}),
}


def run(settings: Settings, model: str, *, api: str, url: str | None, is_offline: bool) -> int:
    """Print the dry run; the live one unless a file is named or nobody listens."""
    console = make_console()
    if is_offline and url is None:
        explanation = dry_run(settings, model, api)
        console.print("[dim]from routes.yaml alone, nothing measured[/dim]")
    else:
        explanation = _ask(settings, model, api, url, console)
    show(explanation, console)
    return 0


def _ask(settings: Settings, model: str, api: str, url: str | None, console: Console) -> Mapping[str, Any]:
    base = server_url(settings, url)
    text = "x" * CHARACTERS_PER_TOKEN * EXAMPLE_PROMPT_TOKENS
    _, fields = _APIS[api]
    try:
        path, body = f"/api/v1/routing/explain?api={api}", {"model": model, **fields(text)}
        explanation: Mapping[str, Any] = ask(settings, base, path, body)["data"]
    except ServerUnreachable:
        if url is not None:
            raise
        console.print(f"[dim]no server at {base}; from routes.yaml alone, nothing measured[/dim]")
        return dry_run(settings, model, api)
    console.print(f"[dim]as measured by {base}[/dim]")
    return explanation


def dry_run(settings: Settings, model: str, api: str) -> Mapping[str, Any]:
    """Explain with priors only; raises RequestError for a model nobody serves."""
    table = load_table(settings.config_path, os.environ, settings.cache_dir / "lists")
    request = InferenceRequest("explain", _APIS[api][0], model, {}, prompt_tokens=EXAMPLE_PROMPT_TOKENS)
    found: Mapping[str, Any] = plain(Router(table, {}).explain(request))
    return found


def show(explanation: Mapping[str, Any], console: Console) -> None:
    """Print candidates in the order of trying, then what was left out and why."""
    console.print(f"[bold]{explanation['requested_model']}[/bold] -> {' -> '.join(explanation['models'])}")
    for line in _strategies(explanation):
        console.print(line)
    for line in _traffic(explanation):
        console.print(line)
    if explanation["candidates"]:
        console.print(_candidates(explanation["candidates"], console.width))
    if explanation["excluded"]:
        console.print(_excluded(explanation["excluded"], console.width))


def _strategies(explanation: Mapping[str, Any]) -> Iterator[str]:
    """The first candidate's strategy, then those of models that have another, each with its source."""
    first = next((c["model_id"] for c in explanation["candidates"]), explanation["models"][0])
    rows = {row["model_id"]: row for row in explanation["strategies"]}
    told = rows.pop(first)
    yield f"strategy {told['strategy']} ({told['source']}): {explanation['reason']}"
    for name, row in rows.items():
        if (row["strategy"], row["source"]) != (told["strategy"], told["source"]):
            yield f"strategy of {name}: {row['strategy']} ({row['source']})"


def _traffic(explanation: Mapping[str, Any]) -> Iterator[str]:
    """Splits, hedges, shadows, and breakers that are not closed, a line each."""
    for split in explanation["splits"]:
        percents = ", ".join(f"{percent:g}% {arm}" for arm, percent in split["percents"].items())
        yield f"{split['name']}: {percents}; this one, by {split['by']}: {split['arm']}"
    if explanation["hedge"]:
        waits = [c for c in explanation["candidates"] if c["hedge_after_s"] is not None]
        measured = ", ".join(f"{c['endpoint_id']} {c['hedge_after_s']:.2f} s" for c in waits)
        yield f"hedge {explanation['hedge']}; now: {measured or 'nothing measured'}"
    if explanation["shadow"]:
        yield f"shadow: {explanation['shadow']}"
    for row in (*explanation["candidates"], *explanation["excluded"]):
        if row["breaker"] != "closed":
            yield f"breaker of {row['endpoint_id']}: {row['breaker'].replace('_', '-')}"


def _price(usd: float | None) -> str:
    return "?" if usd is None else f"{usd:g}"  # None: nobody said


def _candidates(rows: list[Mapping[str, Any]], width: int) -> Table:
    cells = [
        (
            row["endpoint_id"],
            _price(row["prompt_price"]),
            _price(row["completion_price"]),
            f"{row['expected_s']:.2f} s",
            f"{row['expected_ttft_s']:.2f} s",
            f"{row['success_rate']:.1%}",
            f"{row['score']:.6f}",
            f"{row['share']:.0%}",
        )
        for row in rows
    ]
    return fitting(_CANDIDATE, cells, width, title="would be tried")


def _excluded(rows: list[Mapping[str, Any]], width: int) -> Table:
    cells = [(row["endpoint_id"], row["filter"], row["reason"]) for row in rows]
    return fitting(_EXCLUDED, cells, width, title="left out")
