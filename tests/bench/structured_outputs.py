"""How often random JSON Schemas are followed: each answer that ends by itself must validate.

    python tests/bench/structured_outputs.py MODEL.gguf [--count 500] [--seed 1] [--numerics fast]

Prints one line of counts and times; exits 1 when an answer that ended by `stop` is not valid.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import sys
import tempfile
import time
from pathlib import Path

import jsonschema

from ionrouter.engine.grammar import GrammarRefused, from_json_schema
from ionrouter.engine.ion import LocalEngine, SamplingParams
from ionrouter.engine.loading import EngineSettings
from tests.support.json_schemas import Schema, schemas

MAX_TOKENS = 512


async def answer(
    engine: LocalEngine, schema: Schema, seed: int, has_grammar: bool = True
) -> tuple[str, str, int]:
    """Ask the model for an instance; returns the text, why it ended, and its tokens."""
    assert engine.template is not None
    from datetime import datetime

    ask = f"Answer with one JSON object for this schema: {json.dumps(schema, ensure_ascii=False)}"
    rendered = engine.template.render([{"role": "user", "content": ask}], now=datetime(2026, 1, 1))
    ids = engine.tokenizer.encode_template(rendered.text, rendered.mark)
    grammar = from_json_schema(schema) if has_grammar else None
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, seed=seed, grammar=grammar)
    text, finish, num_tokens = "", "", 0
    async for event in engine.generate(ids, params):
        text += event.text
        num_tokens += event.num_tokens
        finish = event.finish or finish
    return text, finish, num_tokens


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--numerics", default="fast")
    args = parser.parse_args()
    engine = await LocalEngine.open(
        EngineSettings(args.model, numerics=args.numerics, max_running=16), cache=Path(tempfile.mkdtemp())
    )
    limit, counts, lengths = asyncio.Semaphore(16), collections.Counter[str](), []
    started_at = time.monotonic()

    async def one(index: int, schema: Schema) -> None:
        async with limit:
            try:
                text, finish, num_tokens = await answer(engine, schema, index)
            except GrammarRefused as error:
                counts["refused"] += 1
                print(f"{index}: refused: {error}", file=sys.stderr)
                return
        counts[finish] += 1
        lengths.append(num_tokens)
        if finish != "stop":
            print(f"{index}: {finish}: ...{text[-80:]!r}", file=sys.stderr)
            return
        try:
            jsonschema.validate(json.loads(text), schema)
            counts["valid"] += 1
        except (ValueError, jsonschema.ValidationError) as error:
            counts["invalid"] += 1
            print(
                f"{index}: {text}\n{json.dumps(schema, ensure_ascii=False)}\n{str(error)[:300]}",
                file=sys.stderr,
            )

    await asyncio.gather(*(one(index, schema) for index, schema in enumerate(schemas(args.seed, args.count))))
    seconds = time.monotonic() - started_at
    stats = engine.stats()
    await engine.close()
    print(
        f"{args.count} schemas: {dict(counts)}, {sum(lengths)} tokens in {seconds:.0f} s "
        f"({sum(lengths) / seconds:.0f} tok/s, {stats['steps']:.0f} steps)"
    )
    return 1 if counts["invalid"] else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
