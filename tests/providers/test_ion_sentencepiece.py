"""A SentencePiece model behind the provider: prompts as Hugging Face has them, spaces where texts go on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Fast

from ionrouter.providers.ion import IonProvider
from tests.support import tiny_sentencepiece as tiny
from tests.support.ion_provider import ask, ion_request, local_endpoint, provider_of
from tests.support.tiny_sentencepiece import write_model

THE = tiny.vocabulary()["▁the"]
SAY_THE: dict[str, Any] = {"temperature": 0, "max_tokens": 3, "logit_bias": {str(THE): 100}}
USER = {"role": "user", "content": "say </s> it"}


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[tuple[IonProvider, Any]]:
    endpoint = local_endpoint(write_model(tmp_path / "x.gguf"))
    async with provider_of(endpoint, cache=tmp_path) as provider:
        yield provider, endpoint


async def test_a_chats_answer_begins_without_the_space_that_nobody_wrote(asked: Any) -> None:
    provider, endpoint = asked
    reply = await ask(provider, ion_request(endpoint, SAY_THE | {"messages": [USER]}))
    assert reply.text == "the the the"


async def test_a_text_that_is_continued_keeps_the_space_between_its_words(asked: Any) -> None:
    provider, endpoint = asked
    begun = [USER, {"role": "assistant", "content": "Once upon"}]
    assert (await ask(provider, ion_request(endpoint, SAY_THE | {"messages": begun}))).text == " the the the"
    raw = ion_request(endpoint, SAY_THE | {"prompt": "Once upon", "echo": True}, "completions")
    assert (await ask(provider, raw)).text == "Once upon the the the"


async def test_a_prompt_of_ids_is_echoed_as_its_text(asked: Any) -> None:
    provider, endpoint = asked
    body = SAY_THE | {"prompt": [THE, THE], "echo": True}
    assert (await ask(provider, ion_request(endpoint, body, "completions"))).text == "the the the the the"


async def test_the_prompt_has_one_bos_and_no_special_token_that_a_user_typed(asked: Any) -> None:
    provider, endpoint = asked
    theirs = Fast.from_str(json.dumps(tiny.tokenizer_json()))
    theirs.encode_special_tokens = True
    reply = await ask(provider, ion_request(endpoint, SAY_THE | {"messages": [USER]}))
    rendered = "[INST] say </s> it [/INST]"  # the template's own <s> is the one BOS
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 1 + len(theirs.encode(rendered, add_special_tokens=False).ids)
    raw = await ask(provider, ion_request(endpoint, SAY_THE | {"prompt": "<s>the"}, "completions"))
    assert raw.usage is not None and raw.usage.prompt_tokens == 2
