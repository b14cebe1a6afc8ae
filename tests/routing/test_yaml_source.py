from pathlib import Path

import pytest

from ionrouter.errors import ConfigError
from ionrouter.routing.yaml_source import parse_source, path_of, read_source

HERE = Path("routes.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_source(text, HERE)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb:\n\tc: 1\n", "line 3: a tab in the indentation; YAML allows spaces only"),
        ("a:\n  - 1\n\t- 2\n", "line 3: a tab in the indentation; YAML allows spaces only"),
        ("a: *nobody\n", "line 1: not valid YAML: found undefined alias 'nobody'"),
        ("a: 1\n---\nb: 2\n", "line 2: a second document starts here; the file must hold one"),
        ("a: b: c\n", "line 1: a second colon here; quote the value, or break the line"),
        ("a: &x [*x]\n", "line 1: a[0]: an anchor that contains itself"),
        ("b: 1\na: \x00\n", "line 2: character U+0000 is not allowed in YAML"),
        ("? [a]\n: 1\n", "line 1: a key must be plain text"),
        ("a:\n  <<: 5\n", "line 2: a: `<<` needs a mapping, or a list of mappings"),
        (
            "b: 1\na: 2024-13-45\n",
            "line 2: not valid YAML: a value cannot be read as !!timestamp: month must be in 1..12",
        ),
        ("b: 1\na: [!!bool s3cret]\n", "line 2: not valid YAML: a value cannot be read as !!bool"),
        ("a:\n  b: !!int s3cret\n", "line 2: not valid YAML: a value cannot be read as !!int"),
        ("a: !!float s3cret\n", "line 1: not valid YAML: a value cannot be read as !!float"),
        ("a:\n- " + "9" * 5000, "line 2: not valid YAML: a value cannot be read as !!int"),
        ("[" * 1200, "nested too deeply"),
    ],
)
def test_a_text_that_is_not_yaml_is_refused_with_its_line(text: str, expected: str) -> None:
    assert problems(text) == [expected]


def test_every_duplicate_key_is_reported_with_both_lines() -> None:
    assert problems("a: 1\nm:\n  x: 1\n  x: 2\na: 2\n") == [
        "line 4: m.x: given twice; first in line 3",
        "line 5: a: given twice; first in line 1",
    ]


def test_a_tag_that_would_run_code_is_refused() -> None:
    (problem,) = problems("a: !!python/object/apply:os.system [id]\n")
    assert problem.startswith("line 1: not valid YAML: could not determine a constructor")


def test_values_from_an_anchor_have_a_line_where_they_are_used() -> None:
    source = parse_source("x: &t\n  k: 1\nm:\n  <<: *t\n  z: 2\nn: [*t]\n", HERE)
    assert source.data == {"x": {"k": 1}, "m": {"k": 1, "z": 2}, "n": [{"k": 1}]}
    assert source.line(("m", "k")) == 2
    assert source.line(("m", "z")) == 5
    assert source.line(("n", 0, "k")) == 2


def test_own_keys_win_over_merged_ones_and_keep_their_line() -> None:
    source = parse_source("x: &t {k: 1}\nm:\n  <<: [*t]\n  k: 2\n", HERE)
    assert source.data["m"] == {"k": 2}
    assert source.line(("m", "k")) == 4


def test_a_location_without_a_line_gets_its_parents() -> None:
    source = parse_source("a:\n  b: {c: 1}\n", HERE)
    assert source.line(("a", "b", "missing", 3)) == 2
    assert source.line(("nothing",)) is None


def test_nested_anchors_cannot_fill_the_memory() -> None:
    lines = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert problems("\n".join(lines)) == ["more than 500000 values after anchors are expanded"]


def test_yaml_1_2_words_stay_words() -> None:
    assert parse_source("a: [no, on, 1e-4, 0o17]", HERE).data == {"a": ["no", "on", 1e-4, 15]}


def test_a_file_that_is_missing_or_not_text_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_source(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        read_source(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("a: 1\nb: é\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="line 2: not UTF-8 text"):
        read_source(tmp_path / "latin.yaml")
    (tmp_path / "big.yaml").write_bytes(b"#" * (8 * 1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="more than 8388608"):
        read_source(tmp_path / "big.yaml")


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "windows.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb:\r\n  c: 2\r\n")
    source = read_source(tmp_path / "windows.yaml")
    assert source.data == {"a": 1, "b": {"c": 2}}
    assert source.line(("b", "c")) == 3


def test_paths_are_written_as_people_read_them() -> None:
    assert path_of(("models", "a/b", "endpoints", 1, "provider")) == "models.a/b.endpoints[1].provider"


def test_the_version_changes_exactly_with_the_text() -> None:
    assert parse_source("a: 1", HERE).version == parse_source("a: 1", Path("other")).version
    assert parse_source("a: 1", HERE).version != parse_source("a: 1 ", HERE).version


def test_merges_of_merges_are_counted_like_values() -> None:
    """Each level repeats the last one ten times under the same names: few values, and no end of looking."""
    levels = ["a0: &a0 {k: 1}"]
    for i in range(1, 9):
        levels.append(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}")
    assert problems("\n".join(levels)) == ["more than 500000 values after anchors are expanded"]
