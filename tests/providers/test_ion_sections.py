"""An answer's text in pieces: wherever it is cut, the same thought, content and calls come out."""

from __future__ import annotations

import itertools
import random

import pytest

from ionrouter.engine.tool_format import HERMES, LLAMA, MISTRAL, ToolFormat
from ionrouter.providers.ion_sections import Section, Sections

FORMATS = {form.name: form for form in (HERMES, LLAMA, MISTRAL)}
CITY = '{"city": "Pa}ris \\"{\\\\", "at": [1, {"x": "]"}]}'


def call(form: ToolFormat, name: str, arguments: str) -> str:
    return form.open + name + form.middle + arguments + form.close


def calls(form: ToolFormat, *each: str) -> str:
    return form.begin + form.between.join(each) + form.end


def joined(sections: list[Section]) -> list[tuple[str, str]]:
    """Neighbours of one kind are one; a call stands alone."""
    out: list[tuple[str, str]] = []
    for section in sections:
        if out and section.kind != "call" and out[-1][0] == section.kind:
            out[-1] = (section.kind, out[-1][1] + section.text)
        else:
            out.append((section.kind, section.text))
    return out


def read(text: str, form: ToolFormat | None, pieces: list[str], **how: bool) -> list[tuple[str, str]]:
    assert "".join(pieces) == text
    sections, short = (Sections(form, **({"thinks": False} | how)) for _ in range(2))
    out = [section for piece in pieces for section in sections.feed(piece)]
    found = joined(out + sections.end())
    by_short_way = [section for piece in pieces for section in passed_or_fed(short, piece)]
    assert joined(by_short_way + short.end()) == found, "what passes as it stands is what would be said"
    return found


def passed_or_fed(sections: Sections, piece: str) -> list[Section]:
    if not piece:
        return sections.feed(piece)
    return [Section("content", piece)] if sections.passes(piece) else sections.feed(piece)


def cuts(text: str) -> list[list[str]]:
    """Whole, every character alone, and twenty random ways between."""
    rng = random.Random(len(text))
    ways = [[text], list(text)]
    for _ in range(20):
        at = sorted(rng.sample(range(len(text) + 1), k=min(5, len(text))))
        bounds = [0, *at, len(text)]
        ways.append([text[a:b] for a, b in itertools.pairwise(bounds)])
    return ways


@pytest.mark.parametrize("name", FORMATS)
def test_calls_come_out_whole_however_the_text_is_cut(name: str) -> None:
    form = FORMATS[name]
    text = calls(form, call(form, "get_weather", CITY), call(form, "add", "{}"))
    for pieces in cuts(text):
        assert read(text, form, pieces) == [
            ("call", "get_weather"),
            ("arguments", CITY),
            ("call", "add"),
            ("arguments", "{}"),
        ]


@pytest.mark.parametrize("name", ["hermes", "mistral"])
def test_text_before_calls_is_content_without_the_space_between(name: str) -> None:
    form = FORMATS[name]
    text = "Let me look. <tool [TOOL\n" + calls(form, call(form, "f", "{}"))
    for pieces in cuts(text):
        assert read(text, form, pieces)[-2:] == [("call", "f"), ("arguments", "{}")]
        assert read(text, form, pieces)[0][0] == "content"
        assert read(text, form, pieces)[0][1].rstrip() == "Let me look. <tool [TOOL"


@pytest.mark.parametrize("form", [None, *FORMATS.values()], ids=str)
@pytest.mark.parametrize("text", ["Hello.", "a < b", "ends in <tool", "[TOOL_CALL", "say {", "  spaced "])
def test_ordinary_text_is_content_to_its_last_character(form: ToolFormat | None, text: str) -> None:
    for pieces in cuts(text):
        assert read(text, form, pieces) == [("content", text)]


def test_without_tools_a_call_is_text() -> None:
    text = calls(HERMES, call(HERMES, "f", "{}"))
    assert read(text, None, list(text)) == [("content", text)]


@pytest.mark.parametrize("begun", [False, True])
def test_a_thought_ends_before_the_answer_however_the_text_is_cut(begun: bool) -> None:
    text = ("" if begun else "<think>") + "\nHm. 1 < 2 </thin\n</think>\n\nYes."
    for pieces in cuts(text):
        (kind, thought), said = read(text, None, pieces, thinks=True, is_thinking=begun)
        assert (kind, thought.rstrip(), said) == ("reasoning", "Hm. 1 < 2 </thin", ("content", "Yes."))


def test_calls_may_follow_a_thought() -> None:
    text = "<think>\nWeather?\n</think>\n\n" + calls(HERMES, call(HERMES, "f", '{"a": 1}'))
    for pieces in cuts(text):
        kinds = read(text, HERMES, pieces, thinks=True)
        assert [kind for kind, _ in kinds] == ["reasoning", "call", "arguments"]


def test_a_model_that_may_think_and_does_not_just_answers() -> None:
    for text in ("Yes.", "<b>Yes</b>", " <thing>"):
        for pieces in cuts(text):
            assert read(text, None, pieces, thinks=True) == [("content", text)]


def test_a_thought_that_never_ends_is_all_thought() -> None:
    text = "<think>on and on </thi"
    for pieces in cuts(text):
        assert read(text, None, pieces, thinks=True) == [("reasoning", "on and on </thi")]


def test_arguments_that_never_end_are_given_as_far_as_they_go() -> None:
    text = HERMES.open + "f" + HERMES.middle + '{"a": "b'
    for pieces in cuts(text):
        assert read(text, HERMES, pieces) == [("call", "f"), ("arguments", '{"a": "b')]


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.trigger is not None])
@pytest.mark.parametrize("before", ["Sure.\n\n", "a b \n c ", "\n"])
def test_white_space_before_a_call_is_nobodys_however_the_text_is_cut(name: str, before: str) -> None:
    form = FORMATS[name]
    text = before + calls(form, call(form, "add", "{}"))
    said = [("content", before.rstrip())] if before.strip() else []
    for pieces in cuts(text):
        assert read(text, form, pieces) == [*said, ("call", "add"), ("arguments", "{}")]


def test_white_space_around_a_thought_is_nobodys_however_the_text_is_cut() -> None:
    text = "<think>\nWell,\n\n so  \n\n</think>\n\nYes. \n"
    for pieces in cuts(text):
        assert read(text, None, pieces, thinks=True) == [
            ("reasoning", "Well,\n\n so"),
            ("content", "Yes. \n"),
        ]


def test_white_space_at_the_end_of_what_is_cut_off_stays() -> None:
    for text, said in (("<think>\nWell,\n", ("reasoning", "Well,\n")), ("Yes. \n", ("content", "Yes. \n"))):
        for pieces in cuts(text):
            assert read(text, HERMES, pieces, thinks=True) == [said]
