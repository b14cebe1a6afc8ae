"""Batches over HTTP as their users run them: submitted, polled to their end, cancelled, deleted."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from tests.support.server import Server, eventually, headers

PATH = "/api/v1/batches"
OVER = ("completed", "failed", "expired", "cancelled")


def lines(count: int, **body: Any) -> list[dict[str, Any]]:
    """So many chat requests, named r0, r1, ..., whose texts are their names."""
    return [
        {"custom_id": f"r{n}", "body": {"messages": [{"role": "user", "content": f"r{n}"}], **body}}
        for n in range(count)
    ]


def submission(requests: Any = None, **fields: Any) -> dict[str, Any]:
    chosen = lines(2) if requests is None else requests
    return {"endpoint": "/v1/chat/completions", "model": "m", "requests": chosen, **fields}


def submit(server: Server, body: dict[str, Any], key: str | None = None) -> str:
    """Submit one that is accepted; returns its id."""
    status, batch = server.post(PATH, body, key)
    assert (status, batch["status"], batch["object"]) == (202, "validating", "batch"), batch
    return str(batch["id"])


def poll(server: Server, batch_id: str, key: str | None = None) -> Any:
    status, batch = server.get(f"{PATH}/{batch_id}", key)
    assert status == 200, batch
    return batch


def ended(server: Server, batch_id: str, key: str | None = None) -> Any:
    """Poll until the batch is over; returns it with its results."""
    return eventually(lambda: poll(server, batch_id, key), lambda batch: batch["status"] in OVER)


def delete(server: Server, path: str, key: str | None = None) -> tuple[int, Any]:
    asked = urllib.request.Request(server.url + path, headers=headers(key), method="DELETE")
    return server._open(asked)


def contents(batch: Any) -> list[str]:
    """Texts of the answers, in the order of the results."""
    return [r["response"]["body"]["choices"][0]["message"]["content"] for r in batch["results"]]


def asked(requests: Any) -> list[str]:
    """The last text of each request that an upstream got."""
    return [json.loads(r.body)["messages"][-1]["content"] for r in requests]
