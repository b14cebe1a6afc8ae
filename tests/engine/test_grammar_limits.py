"""What a stranger's grammar may cost: no depth of it ends the process, and its size is bounded by name."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from ionrouter.engine import grammar
from ionrouter.engine.grammar import GrammarRefused, from_choice, from_ebnf, from_json_schema, from_regex
from ionrouter.engine.grammar_keeper import GrammarVocabulary
from ionrouter.engine.tokenizer import Tokenizer, from_gguf
from tests.support.tiny_tokenizer import metadata

# Compiles and starts what it reads: in a process of its own, which a fault would end.
PROGRAM = """
import json, sys
from llguidance import LLMatcher, LLTokenizer
from ionrouter.engine import grammar
kind, given = json.load(sys.stdin)
compiled = getattr(grammar, kind)(given)
tokens = LLTokenizer("byte")
matcher = grammar.with_room_for(compiled.source, lambda: LLMatcher(tokens, compiled.source, log_level=0))
assert not matcher.is_error(), matcher.get_error()
print("followed")
"""


def followed(kind: str, given: Any) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([kind, given]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout.strip() or f"{done.returncode}: {done.stderr[-300:]}"


def named(count: int, step: Any) -> dict[str, Any]:
    """Definitions of which each names the next one."""
    chain = {f"{i}": step({"$ref": f"#/$defs/{i + 1}"}) for i in range(count)}
    return {"$defs": chain | {f"{count}": {"type": "integer"}}, "$ref": "#/$defs/0"}


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("from_json_schema", named(10_000, lambda ref: ref)),
        ("from_json_schema", named(5_000, lambda ref: {"anyOf": [{"anyOf": [{"anyOf": [ref]}]}]})),
        ("from_json_schema", named(4_000, lambda ref: {"items": ref, "maxItems": 1})),
        ("from_ebnf", "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(8_000)) + 'r8000: "a"'),
        ("from_ebnf", "start: R0\n" + "".join(f"R{i}: R{i + 1}\n" for i in range(8_000)) + 'R8000: "a"'),
        (
            "from_ebnf",
            "start: r0\n"
            + "".join(f"r{i}: {'(' * 20}r{i + 1}{')' * 20}\n" for i in range(2_000))
            + 'r2000: "a"',
        ),
    ],
    ids=["refs", "unions", "arrays", "rules", "terminals", "brackets"],
)
def test_what_names_the_next_thousands_of_times_ends_no_process(kind: str, given: Any) -> None:
    assert followed(kind, given) == "followed"


def test_what_is_longer_than_the_stack_was_made_for_is_refused_by_its_size() -> None:
    for compiled, given in [
        (from_json_schema, named(50_000, lambda ref: ref)),
        (from_ebnf, 'start: "' + "a" * grammar.MAX_EBNF_CHARACTERS + '"'),
        (from_choice, ["a" * 100] * (grammar.MAX_CHOICE_CHARACTERS // 100 + 1)),
        (from_regex, "a?" * grammar.MAX_REGEX_CHARACTERS),
    ]:
        with pytest.raises(GrammarRefused, match=r"\d+ characters are more than \d+"):
            compiled(given)  # type: ignore[operator]


def test_a_schema_nested_too_deeply_is_refused_in_words() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(5_000):
        schema = {"items": schema}
    with pytest.raises(GrammarRefused, match="nested too deeply"):
        from_json_schema(schema)


LOWEST = -(1 << 63)  # llguidance negates it into itself, without end
BOUNDS = {"type": "integer", "minimum": LOWEST, "maximum": LOWEST}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"const": LOWEST}, ".const"),
        ({"enum": [1, {"a": [LOWEST + 512]}]}, ".enum[1].a[0]"),  # as a double it is the same number
        (BOUNDS, ".maximum"),
        ({"type": "integer", "minimum": -1e20, "exclusiveMaximum": -1e19}, ".exclusiveMaximum"),
        ({"allOf": [{"type": "integer", "minimum": -1e20}, {"maximum": -1e20}]}, ".allOf[1].maximum"),
        ({"$ref": "#/x/y", "x": {"y": BOUNDS}}, ".x.y.maximum"),
    ],
)
def test_the_lowest_number_ends_no_process(schema: dict[str, Any], path: str) -> None:
    told = f"{path}: a number of -2^63 or below cannot be followed"
    assert followed("from_json_schema", schema).endswith(f"GrammarRefused: {told}\n")
    assert followed("from_ebnf", f"start: %json {json.dumps(schema)}").endswith(
        f": {told[len(path) + 2 :]}\n"
    )


def test_low_numbers_that_are_no_whole_schema_are_followed() -> None:
    schema = {"type": "integer", "maximum": LOWEST + 1024, "default": LOWEST, "minimum": LOWEST + 1024}
    assert followed("from_json_schema", schema) == "followed"
    assert followed("from_ebnf", f'start: "{LOWEST}"') == "followed"


@pytest.mark.parametrize("length", [300, 10_000])  # of which the second is compiled on a deep stack
def test_what_breaks_the_compiler_is_refused(length: int) -> None:
    """llguidance cuts a value that it quotes after 100 bytes, in the middle of a character, and panics."""
    with pytest.raises(GrammarRefused, match="its compiler failed: end byte index 100 is not") as caught:
        from_json_schema({"properties": {"a": {"required": "é" * length}}})
    assert caught.value.path == ".properties.a.required"
    assert len(caught.value.message) < 400


LONG = "a?" * grammar.MAX_REGEX_CHARACTERS
MANY = {f"^a{i}[a-z]*$": True for i in range(grammar.MAX_PATTERN_PROPERTIES)}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"items": {"pattern": LONG}}, ".items.pattern"),
        ({"$defs": {"x": {"pattern": LONG}}, "$ref": "#/$defs/x"}, ".$defs.x.pattern"),
        ({"patternProperties": {LONG: True}}, ".patternProperties"),
        ({"patternProperties": MANY | {"^b$": True}}, ".patternProperties"),
    ],
)
def test_patterns_are_bounded_where_they_stand(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        from_json_schema(schema)
    assert caught.value.path == path


def test_a_long_regular_expression_within_a_grammar_is_refused() -> None:
    with pytest.raises(GrammarRefused, match="regular expression"):
        from_ebnf(f"start: A\nA: /{LONG}/")


def test_the_search_for_a_fault_ends_where_definitions_are_many() -> None:
    """Each definition is compiled with all others: the innermost fault of 300 took 5 seconds."""
    defs = {
        f"d{i}": {"type": "object", "properties": {"a": {}, "b": {"$ref": f"#/$defs/d{(i + 1) % 300}"}}}
        for i in range(300)
    }
    defs["d299"]["properties"]["c"] = {"not": {}}  # type: ignore[index]
    num_searched = grammar._MAX_SEARCHED // len(json.dumps(defs))
    with pytest.raises(GrammarRefused) as caught:
        from_json_schema({"$defs": defs, "$ref": "#/$defs/d0"})
    assert "not" in caught.value.message
    assert caught.value.path.startswith(".$defs.d")
    assert int(caught.value.path.split(".")[2][1:]) <= num_searched


@pytest.mark.parametrize(
    ("compiled", "given", "text"),
    [
        (from_regex, "(ab){50000}", "ab" * 50_000),
        (from_choice, ["the quick brown fox " * 5000], "the quick brown fox " * 5000),
        (from_json_schema, {"const": "naïve 漢字 🙂 " * 8000}, '"' + "naïve 漢字 🙂 " * 8000 + '"'),
    ],
    ids=["regex", "choice", "schema"],
)
def test_a_long_text_that_is_dictated_is_cut_into_tokens_from_its_beginning_alone(
    compiled: Any, given: Any, text: str
) -> None:
    asked: list[int] = []

    class Recorded(Tokenizer):
        def encode_continuation(self, text: str) -> list[int]:
            asked.append(len(text))
            return super().encode_continuation(text)

    tokenizer = from_gguf(metadata())
    recorded = Recorded(**{field.name: getattr(tokenizer, field.name) for field in fields(Tokenizer)})
    vocabulary = GrammarVocabulary(recorded, tokenizer.num_tokens)
    following = vocabulary.start(compiled(given))
    token = -1
    for expected in tokenizer.encode_continuation(text)[:60]:
        mask = following.mask(token)
        token = expected
        assert [i for i in range(tokenizer.num_tokens) if mask[i // 8] >> i % 8 & 1] == [token]
    assert max(asked) < 5000
