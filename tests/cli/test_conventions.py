"""What all commands have in common: options, exit statuses, errors as JSON, and names that do not change the terminal."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import typer

from tests.nightly import alternately
from vkep.cli import app, common
from vkep.cli.examples import EXAMPLES, PANELS
from vkep.graph import load_model
from vkep.text import finite, one_line, printable
from vkep.view.document import new_document, without_folders
from vkep.view.page import Page

Run = Callable[..., Any]
#: sequences that a terminal obeys, marks that turn text around, and what ends a line
ATTACKS = ("\x1b]0;title\x07", "\x1b[2J", "\x9b2J", "\r\x08", "\u202e", "\u2066", "\u2028", "\u200f", "\x7f", "\0")


def commands() -> Iterator[tuple[list[str], Any]]:
    """The words of each command, and the command."""

    def within(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield words, command
        for name, one in (inner or {}).items():
            yield from within([*words, name], one)

    yield from within([], typer.main.get_command(app))


COMMANDS = list(commands())
NAMES = [" ".join(words) for words, _ in COMMANDS]


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=NAMES)
def test_every_command_has_the_common_options(run: Run, words: list[str], command: Any) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--verbose", "-v"} <= options
    for flag in ("-h", "--help"):
        found = run(*words, flag)
        assert found.exit_code == 0 and "Usage" in found.stdout


def test_every_command_has_examples_that_parse(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saxpy.comp").touch()
    assert set(EXAMPLES) == set(NAMES)
    for words, command in COMMANDS:
        for line in EXAMPLES[" ".join(words)]:
            program, *given = shlex.split(line.partition(" > ")[0])
            assert line in run(*words, "-h").stdout or len(line) > 70  # longer ones are wrapped
            if program == "vkep" and "--import" not in given:  # which imports
                assert given[: len(words)] == words
                command.make_context("vkep", given[len(words) :])


def test_every_command_is_in_a_panel() -> None:
    shown = [name for names in PANELS.values() for name in names]
    assert sorted(shown) == sorted({words[0] for words, _ in COMMANDS})


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS], ids=NAMES)
@pytest.mark.parametrize("wrong", [["--devic", "0"], ["a", "b", "c", "d"]])
def test_a_wrong_option_is_an_object_with_json(run: Run, words: list[str], wrong: list[str]) -> None:
    found = run(*words, "--json", *wrong)
    assert found.exit_code == 2
    error = json.loads(found.stdout)["error"]
    assert error["message"] and error["kind"]


@pytest.mark.parametrize("name", ["run", "bench", "compare", "explain", "view", "generate"])
def test_commands_with_a_session_have_its_options(name: str) -> None:
    command = dict(zip(NAMES, [command for _, command in COMMANDS], strict=True))[name]
    names = {parameter.name for parameter in command.params}
    assert names >= inspect.signature(common.session_options).parameters.keys()


def test_the_documentation_lists_the_options_of_a_session() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    for parameter in inspect.signature(common.session_options, eval_str=True).parameters.values():
        assert parameter.annotation.__metadata__[0].rich_help_panel == common.SESSION
        option = parameter.annotation.__metadata__[0].default  # the first name, where the option has one of its own
        assert (option if isinstance(option, str) else f"--{parameter.name.replace('_', '-')}") in text


@pytest.mark.parametrize(
    "words",
    [
        ["run"], ["bench"], ["explain"], ["view"], ["tune"], ["generate"], ["vgf", "dump"], ["vgf", "run"],
        ["shaders", "reflect"], ["shaders", "compile"], ["bench", "."], ["generate", "."],
    ],
)  # fmt: skip
def test_what_is_not_there_is_a_usage_error(run: Run, tmp_path: Path, words: list[str]) -> None:
    name = str(tmp_path) if words[-1] == "." else str(tmp_path / "nothere.html")
    found = run(*[word for word in words if word != "."], name, "--json")
    assert found.exit_code == 2, found.output
    assert "overwrite" not in found.output and json.loads(found.stdout)["error"]["message"]


def named(tag: str) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] y) { t = Add (x, w) y = Relu (t) }'
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "w"))
    for node in proto.graph.node:
        node.name = f"node{tag}"
    proto.graph.output[0].name = proto.graph.node[1].output[0] = f"y{tag}"
    return proto


@pytest.mark.gpu
def test_names_cannot_change_the_terminal(run: Run, tmp_path: Path) -> None:
    tag = "".join(ATTACKS[:-1]) + "\nerror: forged"
    (tmp_path / "m.onnx").write_bytes(named(tag).SerializeToString())
    outputs = []
    for words in (
        ["run", "--report"],
        ["explain", "--nodes", "--plan"],
        ["explain", "--time"],
        ["run", "-vv"],
        ["run", "--device", tag],
    ):
        found = run(words[0], tmp_path / "m.onnx", *words[1:])
        outputs += [found.stdout, found.stderr]
    text = "".join(outputs)
    assert "node" in text and not [c for c in text if c in "".join(ATTACKS) and not c.isprintable()]
    assert not re.search("^error: forged", text, re.MULTILINE)


def test_texts_are_printable() -> None:
    for attack in ATTACKS:
        assert printable(f"a{attack}b").isprintable()
    assert printable("ä\n\tb") == "ä\n\tb" and one_line("a\nb\t") == "a\\nb\\t"
    assert printable(b"bad\xff".decode(errors="surrogateescape")) == "bad\\udcff"
    assert finite({"a": [float("nan"), (1.5, float("inf"))]}) == {"a": [None, [1.5, None]]}


@pytest.mark.gpu
@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="names of files are UTF-8 there")
@pytest.mark.parametrize(
    ("words", "encoding"),
    alternately(
        ["run NAME", "explain NAME", "view NAME --no-open", "run NAME --devic", "run NAMEx"], ["ascii", "utf-8"]
    ),
)
def test_a_file_whose_name_is_no_utf8(tmp_path: Path, words: str, encoding: str) -> None:
    name = b"bad\xff\xc3\xa4\x1b[2J.onnx".decode(errors="surrogateescape")
    (tmp_path / name).write_bytes(named("ü").SerializeToString())
    code = "import sys; from vkep.cli import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", code, *(word.replace("NAME", name) for word in words.split())],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        timeout=120,
    )
    assert b"Traceback" not in ran.stderr and b"\x1b[2J" not in ran.stdout + ran.stderr
    assert ran.returncode == (2 if words.endswith(("--devic", "NAMEx")) else 0)


# ---- pages


def page_data(page: Page) -> Any:
    found = re.search(r'id="documents"[^>]*>(.*?)</script>', page.html(), re.DOTALL)
    assert found is not None

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(found[1], parse_constant=refuse)


def test_a_page_has_the_json_of_browsers_and_no_paths() -> None:
    document = new_document("/srv/secret place/m\x1b[2J<script>.onnx", "d", "c")
    document["nodes"] = [{"value": [np.float32(-np.inf), float("nan"), np.float64(1.5), np.int64(3), {2, 1}]}]
    page = Page([document])
    (data,) = page_data(page)
    assert data["nodes"][0]["value"] == ["-inf", "nan", 1.5, 3, [1, 2]]
    assert "secret" not in page.html() and "\x1b" not in page.html() and "m\\x1b[2J<script>" not in page.html()
    assert without_folders("session of C:\\a b\\m.onnx") == "session of m.onnx"
    assert without_folders("session of the model (12 bytes)") == "session of the model (12 bytes)"
    Page([new_document(b"bad\xff".decode(errors="surrogateescape"), "d", "c")]).html().encode()


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (b"<!DOCTYPE html><html>404</html>", "HTML"),
        (b"\xef\xbb\xbf\n <HTML lang=en>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123456\n", "Git LFS"),
        (b"PK\x03\x04\x14\0", "ZIP"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"GGUF\3\0", "GGUF"),
        (b"\x80\x02}q\0", "pickle"),
        (b"\x20\0\0\0TFL3", "TensorFlow Lite"),
        (b"\x10\0\0\0\0\0\0\0{\"a\":", "safetensors"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_named(tmp_path: Path, start: bytes, says: str) -> None:
    (tmp_path / "m.onnx").write_bytes(start)
    with pytest.raises(ValueError, match=says):
        load_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("producer", ["TFL3 converter", "ET12", 'the {"old"} one', 'abcd{"x"'])
def test_a_producer_whose_name_looks_like_another_format_is_read(producer: str) -> None:
    info = onnx.helper.make_tensor_value_info("x", 1, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [info], [
        onnx.helper.make_tensor_value_info("y", 1, [1])
    ])  # fmt: skip
    model = onnx.helper.make_model(graph, producer_name=producer)
    assert [node.op_type for node in load_model(model.SerializeToString()).graph.nodes] == ["Identity"]


def test_notebooks_show_texts() -> None:
    from gpu_shared.capabilities import DeviceCapabilities, DeviceInfo
    from vkep.session.reports.report import Report

    class Printer:
        shown = ""

        def text(self, text: str) -> None:
            self.shown += text

    for value in (DeviceInfo(DeviceCapabilities.for_tests()), Report("m", "d", "c")):
        printer = Printer()
        value._repr_pretty_(printer, False)
        assert printer.shown == str(value) and len(printer.shown) < 2000


def test_notebooks_show_tables() -> None:
    from html.parser import HTMLParser

    import vkep
    from gpu_shared.capabilities import DeviceCapabilities, DeviceInfo, DeviceList

    def cells(html: str) -> list[str]:
        """The texts of a page whose tags are closed in order."""
        texts, open_tags = [], []

        class Parser(HTMLParser):
            def handle_starttag(self, tag: str, attrs: object) -> None:
                open_tags.append(tag)

            def handle_endtag(self, tag: str) -> None:
                assert open_tags.pop() == tag

            def handle_data(self, data: str) -> None:
                texts.append(data)

        Parser().feed(html)
        assert not open_tags
        return texts

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "x" : 1]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    model.graph.node[0].name = "<b>\n"
    with vkep.InferenceSession(model) as session:
        assert cells(session._repr_html_())[0] == repr(session) and "\n" not in repr(session)
        assert {"vulkan", "1", "Islands on Vulkan", "dispatches"} <= {*cells(session.report()._repr_html_())}
        assert "Device memory of the context" in cells(session.memory()._repr_html_())
    assert cells(session._repr_html_()) == [repr(session)] and "closed" in repr(session)
    declined = vkep.session.reports.report.NodeReport("<b>", "Odd", "", "cpu", "no kernel", {"vgf": "no TOSA"})
    shown = cells(vkep.session.reports.report.Report("m", "d", "c", [declined])._repr_html_())
    assert {"<b>", "Odd", "no kernel", "no TOSA"} <= {*shown}
    found = DeviceList([DeviceInfo(DeviceCapabilities.for_tests(name="A & B"), ("no compute queue",))])
    assert {"A & B", "unusable: no compute queue"} <= {*cells(found._repr_html_())}
    assert cells(found[0]._repr_html_()) == cells(found._repr_html_())
    assert vkep.devices()._repr_html_().count("<tr>") == 1 + len(vkep.devices())
