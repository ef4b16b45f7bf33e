"""Records of the operator cases in C++ test files: the files are compiled against ``cpp/recorder.h``, which writes down what a
test says where ONNX Runtime's own header would run it. What does not compile against it is left out and counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.ort_suite.sources import Block, blocks, flatten, root_of_tests, without

_CPP = Path(__file__).parent / "cpp"
_FLAGS = ("-std=c++20", "-O0", "-w", "-fmax-errors=0", "-ftemplate-backtrace-limit=0", "-fno-diagnostics-show-caret")
_AT = re.compile(r"tests\.cc:(\d+):")
#: compilations of a file before it is given up: each leaves out what did not compile in the one before
_ROUNDS = 12


@dataclass(frozen=True)
class Recorded:
    """The results of one test file: its records, the names of tests that ended early, and the number of tests that were
    left out."""

    file: str
    records: tuple[dict[str, Any], ...]  #: arrays are not made yet: each record has its bytes under ``data``
    left_out: tuple[str, ...]  #: tests that did not compile, each with the first reason
    ended_early: tuple[str, ...]
    tests: int


def prepare(cache: Path) -> None:
    """Compile the recorder's own header once. Raises `RuntimeError` without a C++ compiler."""
    compiler = _compiler()
    target = cache / f"header-{_digest_of_header()}" / "recorder.h.gch"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, *_FLAGS, "-x", "c++-header", str(_CPP / "recorder.h"), "-o", str(target)], check=True)


def record(path: Path, folder: Path, cache: Path) -> Recorded:
    """Compile and run one test file; the result is stored in ``cache``, by the file's content.

    Raises `RuntimeError` where the program is compiled and does not start.
    """
    root = root_of_tests(folder)
    text = flatten(path, root)
    key = hashlib.sha256(f"{_digest_of_header()}{text}".encode()).hexdigest()[:24]
    work = cache / f"{path.stem}-{key}"
    if not (work / "done.json").exists():
        work.mkdir(parents=True, exist_ok=True)
        _make(text, work, cache / f"header-{_digest_of_header()}")
    summary = json.loads((work / "done.json").read_text())
    records = tuple(read_records((work / "records.bin").read_bytes())) if (work / "records.bin").exists() else ()
    name = path.relative_to(root).as_posix()
    return Recorded(name, records, tuple(summary["left_out"]), tuple(summary["ended_early"]), summary["tests"])


def _make(text: str, work: Path, header: Path) -> None:
    parts = blocks(text)
    left_out: dict[Block, str] = {}
    source, program = work / "tests.cc", work / "tests"
    built = False
    for _ in range(_ROUNDS):
        body = without(text, list(left_out))
        source.write_text(f'#include "recorder.h"\n#line 1 "tests.cc"\n{body}\n#include "main.h"\n')
        command = [_compiler(), *_FLAGS, f"-I{header}", f"-I{_CPP}", str(source), "-o", str(program)]
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=os.environ | {"LC_ALL": "C"}
        )
        if result.returncode == 0:
            built = True
            break
        new = _faulty(result.stderr, [b for b in parts if b not in left_out])
        if not new:
            (work / "errors.txt").write_text(result.stderr)
            break
        left_out.update(new)
    tests = [b for b in parts if b.is_test]
    ended: list[str] = []
    if built:
        (work / "records.bin").unlink(missing_ok=True)
        ran = subprocess.run([str(program), str(work / "records.bin")], capture_output=True, text=True, timeout=1200)
        if ran.returncode > 0:
            raise RuntimeError(f"{program}: the tests do not start, status {ran.returncode}: {ran.stderr[-500:]}")
        ended = [line for line in ran.stdout.splitlines() if not line.endswith(" ran")]
        if ran.returncode < 0:
            ended.append(f"the tests after these: ended by signal {-ran.returncode}")
        program.unlink()
    else:
        left_out.update({b: "the file does not compile" for b in tests if b not in left_out})
    names = [f"{text[b.start :].splitlines()[0][:120]}: {left_out[b]}" for b in tests if b in left_out]
    summary = {"left_out": names, "ended_early": ended, "tests": len(tests)}
    (work / "done.json").write_text(json.dumps(summary, indent=1))


def _faulty(errors: str, parts: list[Block]) -> dict[Block, str]:
    """The blocks that the compiler's errors name, each with its first error.

    An error in a template counts against the test that asked for the instance.
    """

    def at(line: int) -> Block | None:
        return next((b for b in parts if b.first_line <= line <= b.last_line), None)

    found: dict[Block, str] = {}
    asked: list[int] = []
    for line in errors.splitlines():
        match = _AT.search(line)
        if " error: " in line or " fatal error: " in line:
            places = [*asked[::-1], *([int(match[1])] if match else [])]
            candidates = [b for b in map(at, places) if b is not None]
            chosen = next((b for b in candidates if b.is_test), candidates[-1] if candidates else None)
            if chosen is not None:
                found.setdefault(chosen, line.partition("error: ")[2][:160])
            asked = []
        elif match and "required from" in line:
            asked.append(int(match[1]))
        elif "In instantiation of" in line or "In function" in line or "In member function" in line:
            asked = []
    return found


def read_records(data: bytes) -> Iterator[dict[str, Any]]:
    """The records of a recorder's file: each is its length, JSON, a length and bytes, which become ``data``."""
    position = 0
    seen: set[bytes] = set()
    while position + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, position)
        start = position + 4 + length
        (size,) = struct.unpack_from("<Q", data, start)
        whole = data[position : start + 8 + size]
        position = start + 8 + size
        digest = hashlib.sha256(whole).digest()
        if digest in seen:  # the same case, run for each of several providers
            continue
        seen.add(digest)
        entry = json.loads(whole[4 : 4 + length])
        entry["data"] = whole[12 + length :]
        yield entry


def _digest_of_header() -> str:
    whole = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(_CPP.glob("*.h"))))
    return whole.hexdigest()[:16]


def _compiler() -> str:
    for name in ("g++", "clang++"):
        found = shutil.which(name)
        if found:
            return found
    raise RuntimeError("reading the tests needs a C++20 compiler: g++ (12 or later) or clang++ on the PATH")
