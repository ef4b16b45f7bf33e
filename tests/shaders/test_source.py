"""Snapshots of GLSL files: includes, definitions, digests."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkep.plan.records import ShaderVariant
from vkep.shaders.errors import ShaderSourceError
from vkep.shaders.source import find_source, glsl_root, parse_source, read_source, with_defines

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True)
VALUES = st.text(alphabet="abc01 +*(),;\n", max_size=20)


def test_glsl_root_holds_the_contract_files() -> None:
    for name in ("vkep.glsl", "args.glsl", "epilogue.glsl"):
        assert (glsl_root() / name).is_file()


def test_includes_are_found_transitively_and_once(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.glsl").write_text('#include "b.glsl"\nint a;\n')
    (tmp_path / "lib" / "b.glsl").write_text("int b;\n")
    main = tmp_path / "k.comp"
    main.write_text('#version 460\n  # include "lib/a.glsl"\n#include <b.glsl>\n')
    source = read_source(main, [tmp_path / "lib"])
    assert [Path(file.path).name for file in source.includes] == ["a.glsl", "b.glsl"]


def test_an_include_is_searched_beside_its_includer_first(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.glsl").write_text('#include "same.glsl"\n')
    (tmp_path / "lib" / "same.glsl").write_text("near\n")
    (tmp_path / "same.glsl").write_text("far\n")
    source = parse_source('#include "lib/a.glsl"\n', str(tmp_path / "k.comp"))
    assert [file.text for file in source.includes] == ['#include "same.glsl"\n', "near\n"]


def test_a_cycle_of_includes_ends(tmp_path: Path) -> None:
    (tmp_path / "a.glsl").write_text('#include "b.glsl"\n')
    (tmp_path / "b.glsl").write_text('#include "a.glsl"\n')
    source = parse_source('#include "a.glsl"\n', str(tmp_path / "k.comp"))
    assert len(source.includes) == 2


def test_the_digest_follows_content_not_place(tmp_path: Path) -> None:
    digests = set()
    for folder, included in (("one", "int b;"), ("two", "int b;"), ("three", "int c;")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "b.glsl").write_text(included)
        (tmp_path / folder / "k.comp").write_text('#include "b.glsl"\n')
        digests.add((included, read_source(tmp_path / folder / "k.comp").digest({})))
    assert len(digests) == 2
    assert len({digest for _, digest in digests}) == 2


@given(st.dictionaries(NAMES, VALUES, max_size=6), st.randoms())
def test_the_order_of_definitions_does_not_change_the_digest(defines: dict[str, str], random: Random) -> None:
    source = parse_source("void main() {}\n", "k.comp")
    items = list(defines.items())
    random.shuffle(items)
    assert source.digest(dict(items)) == source.digest(defines)
    assert with_defines(source.main.text, dict(items), "k") == with_defines(source.main.text, defines, "k")


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.dictionaries(NAMES, VALUES, max_size=4))
def test_other_definitions_give_another_digest(first: dict[str, str], second: dict[str, str]) -> None:
    source = parse_source("void main() {}\n", "k.comp")
    assert (source.digest(first) == source.digest(second)) == (first == second)


def test_text_does_not_slide_between_parts() -> None:
    source = parse_source("", "k.comp")
    assert source.digest({"A": "BC"}) != source.digest({"AB": "C"})
    assert source.digest({"A": "1", "B": "2"}) != source.digest({"A": "1B2"})


def test_definitions_stand_behind_the_version_line() -> None:
    text = "/* a\n comment */ // more\n#version 460\n#extension X : require\n"
    lines = with_defines(text, {"T": "float"}, "k.comp").split("\n")
    assert lines[2] == "#version 460"
    assert lines[lines.index("#define T float") + 1] == '#line 4 "k.comp"'
    assert lines[lines.index("#define T float") + 2] == "#extension X : require"


def test_a_value_of_several_lines_is_continued() -> None:
    lines = with_defines("#version 460\n", {"BODY": "a;\nb; \\\nc;\r\nd;"}, "k.comp").split("\n")
    start = lines.index("#define BODY a; \\")
    assert lines[start + 1 : start + 4] == ["b; \\", "c; \\", "d;"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("1A", "1", "no macro name"),
        ("A B", "1", "no macro name"),
        ("A\n#error", "1", "no macro name"),
        ("A", "x \\", "ends in a backslash"),
        ("A", "x; // note\ny;", "comment"),
    ],
)
def test_definitions_that_cannot_be_written_are_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_defines("#version 460\n", {name: value}, "k.comp")


def test_a_missing_source_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(ShaderSourceError, match=r"nothere\.comp.*looked at") as caught:
        find_source(ShaderVariant("nothere.comp").source, [tmp_path])
    assert str(tmp_path) in str(caught.value)


def test_a_source_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "k.comp").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ShaderSourceError, match="cannot read"):
        read_source(tmp_path / "k.comp")
