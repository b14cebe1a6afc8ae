import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from ionrouter.routing.discovery import Discovery, discover, with_cached
from ionrouter.routing.document import Catalog
from ionrouter.routing.graph import compile_table
from ionrouter.routing.resolve import resolve
from ionrouter.routing.table import Provider
from tests.routing.build import catalog

TEXT = """\
providers:
  vllm: {type: openai, base_url: "http://vllm:8000/v1", discover: true}
  hub: {type: openai, base_url: "https://hub.example.com/v1", keys: [HUB_KEY], discover: true}
  script: {type: fake}
models:
  acme/big: {endpoints: [{provider: script}]}
  mine:
    endpoints:
      - {provider: hub, model: acme/small}
aliases: {nick: acme/big}
"""
ROW = {"id": "acme/small", "context_length": 99, "pricing": {"prompt": "0.000001", "completion": "0.000002"}}
ANSWERS = {
    "vllm": {"data": [{"id": "qwen"}, {"id": "acme/big"}, {"id": "NICK"}, {"id": "nick"}]},
    "hub": {"data": [ROW, {"id": "qwen"}]},
}
ENV = {"HUB_KEY": "k"}


async def fetch(provider: Provider) -> Any:
    return ANSWERS[provider.slug]


async def offline(provider: Provider) -> Any:
    raise OSError("no network")


async def run(loaded: Catalog, folder: Path, fetcher: Any = fetch, env: dict[str, str] = ENV) -> Discovery:
    return await discover(loaded, fetcher, folder, env, now=1000.0)


async def test_what_upstreams_list_is_served_under_their_names(tmp_path: Path) -> None:
    found = await run(catalog(TEXT), tmp_path)
    table = compile_table(found.catalog, ENV)
    assert [e.id for e in table.models["qwen"].endpoints] == ["vllm/qwen", "hub/qwen"]
    small = table.models["acme/small"].endpoints[0]
    assert (small.price.prompt, small.price_source, small.context_length) == (1e-06, "upstream", 99)
    assert [(x.slug, x.is_fresh, x.fetched_at, x.problem) for x in found.listings] == [
        ("vllm", True, 1000.0, None),
        ("hub", True, 1000.0, None),
    ]


async def test_entries_of_the_file_go_before_discovered_ones(tmp_path: Path) -> None:
    table = compile_table((await run(catalog(TEXT), tmp_path)).catalog, ENV)
    assert [e.provider.slug for e in table.models["acme/big"].endpoints] == ["script"]
    assert resolve(table, "nick") is table.models["acme/big"]
    assert resolve(table, "Nick") is table.models["acme/big"]
    assert "nick" not in table.models


async def test_an_entry_of_the_file_learns_price_and_context_from_the_upstream(tmp_path: Path) -> None:
    table = compile_table((await run(catalog(TEXT), tmp_path)).catalog, ENV)
    (mine,) = table.models["mine"].endpoints
    assert (mine.price.completion, mine.price_source, mine.context_length) == (2e-06, "upstream", 99)


async def test_without_a_network_the_last_answer_serves(tmp_path: Path) -> None:
    await run(catalog(TEXT), tmp_path / "state")
    again = await run(catalog(TEXT), tmp_path / "state", offline)
    assert "acme/small" in compile_table(again.catalog, ENV).models
    assert {listing.problem for listing in again.listings} == {"OSError: no network"}
    assert {listing.fetched_at for listing in again.listings} == {1000.0}
    cached = with_cached(catalog(TEXT), tmp_path / "state")
    assert compile_table(cached.catalog, ENV) == compile_table(again.catalog, ENV)


async def test_nothing_known_is_nothing_served_and_says_why(tmp_path: Path) -> None:
    first = await run(catalog(TEXT), tmp_path, offline)
    assert [listing.problem for listing in first.listings] == ["OSError: no network"] * 2
    assert [x.problem for x in with_cached(catalog(TEXT), tmp_path).listings] == ["never fetched"] * 2
    assert set(compile_table(first.catalog, ENV).models) == {"acme/big", "mine"}


async def test_one_upstreams_fault_does_not_touch_another(tmp_path: Path) -> None:
    async def half(provider: Provider) -> Any:
        return ANSWERS["vllm"] if provider.slug == "vllm" else {"error": "html"}

    found = await run(catalog(TEXT), tmp_path, half)
    assert "qwen" in compile_table(found.catalog, ENV).models
    assert found.listings[1].problem == "ValueError: the answer to /models holds no list of models"


async def test_an_upstream_without_its_key_is_not_asked(tmp_path: Path) -> None:
    found = await run(catalog(TEXT), tmp_path, env={})
    assert found.listings[1].problem == "HUB_KEY is unset"
    assert not [name for name in os.listdir(tmp_path) if "hub" in name]


async def test_a_new_address_does_not_get_the_old_addresss_list(tmp_path: Path) -> None:
    await run(catalog(TEXT), tmp_path)
    moved = with_cached(catalog(TEXT.replace("//vllm:8000", "//other:8000")), tmp_path)
    assert [listing.problem for listing in moved.listings] == ["never fetched", None]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b'{"fetched_at": null, "answer": []}'])
async def test_a_damaged_copy_is_told_and_replaced(tmp_path: Path, damage: bytes) -> None:
    await run(catalog(TEXT), tmp_path)
    for name in os.listdir(tmp_path):
        (tmp_path / name).write_bytes(damage)
    broken = with_cached(catalog(TEXT), tmp_path)
    assert all("is unreadable" in (listing.problem or "") for listing in broken.listings)
    assert all(listing.is_fresh for listing in (await run(catalog(TEXT), tmp_path)).listings)
    assert "qwen" in compile_table(with_cached(catalog(TEXT), tmp_path).catalog, ENV).models


async def test_a_cancelled_discovery_ends(tmp_path: Path) -> None:
    async def hang(provider: Provider) -> Any:
        await asyncio.Event().wait()

    task = asyncio.create_task(run(catalog(TEXT), tmp_path, hang))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_version_of_a_table_tells_what_was_discovered(tmp_path: Path) -> None:
    plain = catalog(TEXT)
    found = (await run(plain, tmp_path)).catalog
    assert found.version != plain.version
    assert found.version == (await run(plain, tmp_path, offline)).catalog.version


async def test_a_list_that_cannot_be_kept_serves_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = await run(catalog(TEXT), tmp_path / "file" / "lists")
    assert "qwen" in compile_table(found.catalog, ENV).models
    assert all("cannot be kept" in (listing.problem or "") for listing in found.listings)


async def test_half_a_character_in_a_list_is_kept_like_any_text(tmp_path: Path) -> None:
    """A description that was cut in the middle of an emoji."""

    async def cut(provider: Provider) -> Any:
        return {"data": [{"id": "qwen", "description": "fast \ud83d"}]}

    found = await run(catalog(TEXT), tmp_path, cut)
    assert [listing.problem for listing in found.listings] == [None, None]
    assert "qwen" in compile_table((await run(catalog(TEXT), tmp_path, offline)).catalog, ENV).models
