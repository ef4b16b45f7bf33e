"""C++ test files: one text each, with the tests' own headers in it, in blocks that can be left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

#: folders of a checkout's `onnxruntime/test` whose files test operators of the CPU provider
FOLDERS = ("contrib_ops", "providers/cpu")
#: headers of the test interface itself, which `cpp/recorder.h` declares
_OWN = re.compile(
    r"(^|/)(unittest_util|util/include)/|(provider_test_utils|default_providers|(cuda|dnnl)_op_test_utils)\.h$"
)
#: headers outside of the tests that tests need and that need nothing else
_MORE = ("contrib_ops/cpu/bert/attention_common.h",)
_INCLUDE = re.compile(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
_STANDARD = re.compile(r"[a-z_0-9]+(\.h)?$")
_TOKEN = re.compile(
    r'R"(?P<mark>[^(\s"]*)\((?:.|\n)*?\)(?P=mark)"|//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*|[{}();]|\bnamespace\b|\bextern\b",
    re.M,
)
#: text that may precede a declaration
_BLANK = re.compile(r"(?:\s+|//[^\n]*|/\*(?:.|\n)*?\*/|(?<![^\n])[ \t]*#(?:\\\n|[^\n])*)*")
#: after a closing brace: the declaration continues to a semicolon
_GOES_ON = re.compile(r"\s*[;,=\[(]|\s*[A-Za-z_]\w*\s*(;|=[^=]|\[|\{)")
_TEST = re.compile(r"(TYPED_TEST|TEST|TEST_F|TEST_P)\s*\(")


@dataclass(frozen=True)
class Block:
    """Characters ``start`` to ``end`` of one declaration outside all others; a test, or what tests use."""

    start: int
    end: int
    first_line: int  #: from 1
    last_line: int
    is_test: bool


def sources_of_tests(folder: Path) -> list[Path]:
    """The test files under ``folder``, which holds ``onnxruntime/test`` (or is it)."""
    root = root_of_tests(folder)
    found = [f for name in FOLDERS for f in (root / name).rglob("*test*.cc")]
    return sorted(f for f in found if "OpTester" in f.read_text(errors="replace"))


def root_of_tests(folder: Path) -> Path:
    """The folder ``onnxruntime/test`` of a checkout. Raises `FileNotFoundError` where there is none."""
    for root in (folder / "onnxruntime" / "test", folder / "test", folder):
        if (root / FOLDERS[1]).is_dir():
            return root
    raise FileNotFoundError(f"{folder}: a checkout of ONNX Runtime's sources, with onnxruntime/test/{FOLDERS[1]}")


def flatten(path: Path, root: Path) -> str:
    """The file's text after the tests' own headers that it includes; all other includes of the project are left out."""
    seen: set[Path] = set()

    def text(file: Path) -> str:
        seen.add(file)
        out = []
        for line in file.read_text("utf-8-sig", errors="replace").splitlines():
            match = _INCLUDE.match(line)
            if match is None:
                out.append("" if line.strip() == "#pragma once" else line)
            elif match[1]:
                inner = _find(match[1], file.parent, root)
                out.append(text(inner) if inner is not None and inner not in seen else "")
            else:
                out.append(line if _STANDARD.match(match[2]) and "cuda" not in match[2] else "")
        return "\n".join(out)

    return text(path)


def _find(name: str, beside: Path, root: Path) -> Path | None:
    if _OWN.search(name):
        return None
    for candidate in (beside / name, root.parent / name):
        resolved = candidate.resolve()
        if resolved.is_file() and (root.resolve() in resolved.parents or name in _MORE):
            return resolved
    return None


def blocks(text: str) -> list[Block]:
    """The declarations of ``text``, inside of namespaces, outside of everything else."""
    found: list[Block] = []
    depth = parens = 0  # nesting depth of braces and parentheses within the declaration
    begin = 0
    namespace = False
    for match in _TOKEN.finditer(text):
        token, after = match[0], match.end()
        if depth == 0 and token in ("namespace", "extern"):
            namespace = True
        elif token == "{":
            if depth == 0 and namespace and parens == 0:
                namespace, begin = False, after
                continue
            depth += 1
        elif token == "}":
            if depth == 0:  # the end of a namespace
                begin = after
                continue
            depth -= 1
        elif token in "()":
            parens += 1 if token == "(" else -1
        if depth == 0 and parens == 0 and (token == ";" or (token == "}" and not _GOES_ON.match(text, after))):
            start = _BLANK.match(text, begin).end()  # type: ignore[union-attr]  # it matches the empty string
            first, last = text.count("\n", 0, start) + 1, text.count("\n", 0, after) + 1
            found.append(Block(start, after, first, last, _TEST.match(text, start) is not None))
            begin, namespace = after, False
    return found


def without(text: str, left_out: list[Block]) -> str:
    """The text with blocks left out; their lines stay, empty, and preprocessor lines stay as they are."""
    for block in left_out:
        lines = text[block.start : block.end].split("\n")
        directive = False
        for k, line in enumerate(lines):
            if directive or (k and line.lstrip().startswith("#")):
                directive = line.endswith("\\")
            else:
                lines[k] = " " * len(line)
        text = text[: block.start] + "\n".join(lines) + text[block.end :]
    return text
