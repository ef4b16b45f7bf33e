"""ONNX Runtime's own Python tests of its API, with ``vkep`` in the place of ``onnxruntime``.

    python -m tools.ort_python FOLDER                   # a checkout of its sources; prints each test that fails only with vkep
    python -m tools.ort_python FOLDER --match profiler  # tests whose name matches; with the tracebacks
    python -m tools.ort_python FOLDER --write           # writes the table of docs/ort.md

A test counts where it passes with onnxruntime itself. Exit status 1 where one fails with vkep that `LEFT` does not name, or one
of `LEFT` passes.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import types
import unittest
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/ort.md"
BEGIN, END = "<!-- python tests: python -m tools.ort_python FOLDER --write -->", "<!-- end of these tests -->"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
#: the test files, without ``onnxruntime_test_python`` and ``.py``
FILES = (
    "",
    "_iobinding",
    "_sparse_matmul",
    "_symbolic_shape_infer",
    "_symlink_data",
    "_global_threadpool",
    "_backend",
    "_mlops",
)
#: tests that fail with vkep, by the reason
LEFT: dict[str, tuple[str, ...]] = {
    "vkep writes no models": (
        "test_model_serialization",
        "test_model_serialization_with_external_initializers",
        "test_model_serialization_with_original_external_initializers_to_current_directory",
        "test_blocked_session_option_optimized_model_filepath_raises",
        "test_run_model_with_blocked_session_option_raises",
    ),
    "it uses C classes or functions below onnxruntime's package": (
        "test_check_and_normalize_provider_args",
        "test_run_sparse_output_ort_value_vector",
        "test_ort_value",
        "test_bind_onnx_types_supported_by_numpy",
        "test_bind_input_types",
    ),
    "it wants each node of the CPU provider by itself, and an error without a session entry; vkep gives Vulkan's nodes, always": (
        "test_get_graph_provider_assignment_info",
        "test_get_graph_provider_assignment_info_not_enabled",
    ),
    "it compares an error's text or class; vkep has the error with another one": (
        "test_dict_vectorizer",
        "test_symlink_with_data_not_in_model_sub_dir",
        "test_bind_input_rejects_string_tensor",
    ),
    "`vkep.backend` refuses unknown options, and takes those that write profiles and end runs": (
        "test_blocked_run_option_terminate_raises",
        "test_blocked_session_option_enable_profiling_raises",
        "test_blocked_session_option_profile_file_prefix_raises",
        "test_run_model_with_blocked_run_option_raises",
        "test_unknown_kwarg_is_silently_ignored",
        "test_unknown_kwarg_is_silently_ignored_in_run",
        "test_unknown_kwarg_is_silently_ignored_in_run_model",
    ),
    "`set_providers` warns of another provider, as the constructor does": ("test_invalid_set_providers",),
    "options in a model's metadata are not read": ("test_loading_session_options_from_model",),
    'a device called "cuda" is a Vulkan device, of any vendor': ("test_ort_device",),
    "an output is an array that owns its memory": ("test_run_session_owned_output_is_zero_copy",),
    "the trees are summed in float64, and differ in the ninth digit": ("test_run_model_tree_ensemble_aionnxml_3",),
}
_PREFIX = "onnxruntime_test_python"
#: files with tests of a GPU, which are skipped without such a provider: there vkep takes the name of one
_ON_GPU = ("_iobinding",)
_GPU = "CUDAExecutionProvider"
#: what takes the place of onnxruntime, and how it is started
_COMMANDS = {
    "onnxruntime": [],
    "vkep": [],
    "vkep as a GPU": [],
    "the provider as a GPU": ["-m", "vkep.ort", "--as", _GPU],
}
_SECONDS = 900  #: for the tests of a file


@dataclass(frozen=True)
class Outcome:
    """How a test ended; ``text`` is the traceback or why it was skipped."""

    how: str
    text: str = ""


def main(argv: list[str] | None = None) -> int:
    """Run the tests with both packages. Exit status 1 where something differs from `LEFT`."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.ort_python", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a checkout of ONNX Runtime's sources: its tests and their data")
    parser.add_argument("--match", default="", help="a regular expression over the tests' names")
    parser.add_argument("--write", action="store_true", help="write the table of docs/ort.md")
    parser.add_argument("--child", choices=tuple(_COMMANDS), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.child:
        _child(given.folder, given.child, given.match)
        return 0
    folder = given.folder.resolve() / "onnxruntime/test/python"
    if not (folder / f"{_PREFIX}.py").is_file():
        parser.error(f"{folder} has no {_PREFIX}.py, expected the folder of a checkout of ONNX Runtime")
    unexplained = 0
    rows = []
    for name in FILES:
        file = folder / f"{_PREFIX}{name}.py"
        theirs = dict(outcomes(file, "onnxruntime", given.match))
        counted = {test for test, outcome in theirs.items() if outcome.how == PASSED}
        for package in list(_COMMANDS)[1:] if name in _ON_GPU else ["vkep"]:
            ours = dict(outcomes(file, package, given.match))
            if package != "vkep":
                counted = {test for test, outcome in ours.items() if outcome.how != SKIPPED}
            failed = [test for test in ours if test in counted and ours[test].how != PASSED]
            rows.append((file.name, package, len(counted), len(counted) - len(failed)))
            print(
                f"{file.name}: {dict(Counter(o.how for o in theirs.values()))}; {package}: {len(failed)} of {len(counted)} fail"
            )
            left = [test for tests in LEFT.values() for test in tests]
            for test in sorted(counted):
                passes = test not in failed
                # with the provider, onnxruntime's own classes are there
                if passes == (test.rpartition(".")[2] in left) and (not passes or package.startswith("vkep")):
                    unexplained += 1
                    last = ours[test].text.strip().splitlines()[-1:] or ["it passes, and LEFT has it"]
                    print(f"    {test}: {ours[test].text if given.match else last[0]}")
    if given.write:
        _write(rows)
    return 1 if unexplained else 0


def _write(rows: list[tuple[str, str, int, int]]) -> None:
    lines = ["| file | in the place of onnxruntime | tests | pass |", "|---|---|---:|---:|"]
    lines += [f"| `{name}` | {package} | {of} | {passed} |" for name, package, of, passed in rows]
    lines += ["", "| left | reason |", "|---|---|"]
    lines += [f"| {', '.join(f'`{test}`' for test in tests)} | {reason} |" for reason, tests in LEFT.items()]
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")


def outcomes(file: Path, package: str, match: str = "") -> Iterator[tuple[str, Outcome]]:
    """Each test of a file with its outcome, in a process; in another one after a test that ended it."""
    done: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        while True:
            command = [sys.executable, *_COMMANDS[package], "-m", "tools.ort_python", str(file)]
            command += ["--child", package, "--match", match]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "registry")])}
            environment["VKEP_ORT_PYTHON_DONE"] = ",".join(done)
            run = subprocess.run(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, timeout=_SECONDS, check=False
            )
            started = ""
            for line in run.stdout.decode(errors="replace").split("\n"):
                if line.startswith("\x1e"):
                    record = json.loads(line[1:])
                    done.add(started := record["test"])
                    if "how" in record:
                        yield started, Outcome(record["how"], record["text"])
                        started = ""
            if not run.returncode:
                return
            if not started:
                raise RuntimeError(f"{file.name} with {package}: exit status {run.returncode} outside its tests")
            yield started, Outcome(FAILED, f"ended the process with status {run.returncode}")


def _child(file: Path, package: str, match: str) -> None:
    """Run the tests of a file and print a line for each start and each end."""
    sys.path.insert(0, str(file.parent))
    done = set(os.environ["VKEP_ORT_PYTHON_DONE"].split(","))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module = types.ModuleType(file.stem)
    module.__file__ = str(file)
    sys.modules[file.stem] = module
    if package.startswith("vkep"):
        if package != "vkep":
            vkep = importlib.import_module("vkep")
            found = [*vkep.get_available_providers(), _GPU]
            vars(vkep)["get_available_providers"] = lambda: found
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), vars(module))

    def say(**record: str) -> None:
        print("\x1e" + json.dumps(record), file=out, flush=True)

    for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
        tests: Any = suite  # of one class
        for test in tests:
            name = test.id().split(".", 1)[1]
            if name in done or not re.search(match, name):
                continue
            say(test=name)
            result = _Result()
            type(test).setUpClass()
            with contextlib.redirect_stdout(io.StringIO()):
                test.run(result)
            problems = [text for _, text in (*result.errors, *result.failures)]
            if problems:
                say(test=name, how=FAILED, text="\n".join(problems))
            else:
                skipped = result.skipped and not result.parts
                say(test=name, how=SKIPPED if skipped else PASSED, text=str(result.skipped or ""))
    out.flush()


class _Result(unittest.TestResult):
    parts = 0  #: subtests that passed

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        self.parts += err is None
        super().addSubTest(test, subtest, err)


def _import(
    name: str,
    globals_: Mapping[str, Any] | None = None,
    locals_: Mapping[str, Any] | None = None,
    from_: Any = (),
    level: int = 0,
) -> Any:
    """``import`` as the tests see it: `vkep` for onnxruntime, but for its tools in Python, which do not run models."""
    top, _, rest = name.partition(".")
    if top != "onnxruntime" or rest.startswith(("tools", "quantization", "transformers")):
        return builtins.__import__(name, globals_, locals_, from_, level)
    found: Any = importlib.import_module("vkep")
    if rest and importlib.util.find_spec(f"vkep.{rest.partition('.')[0]}"):
        importlib.import_module(f"vkep.{rest}")
    for part in rest.split(".") if from_ and rest else ():
        found = getattr(_Names(found), part)
    return found


class _Names:
    """The names of a module of vkep's below ``vkep.capi``; one that it lacks is `_Absent`."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name, None)
        if found is None:
            return _Absent(name)
        return _Names(found) if isinstance(found, (types.ModuleType, types.SimpleNamespace)) else found


class _Absent:
    """A name that vkep lacks: the tests that use it fail, the others of its file run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return _Absent(f"{self._name}.{name}")

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        raise AttributeError(f"vkep has no {self._name!r}")


if __name__ == "__main__":
    sys.exit(main())
