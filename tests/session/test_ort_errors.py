"""``except`` clauses with onnxruntime's classes catch what vkep raises for the same mistake."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import parser

import vkep
from tests.processes import python
from vkep import errors

onnxruntime = pytest.importorskip("onnxruntime")


def _model(text: str, opset: int = 18) -> bytes:
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}, "other": 1]> {text}')
    return bytes(proto.SerializeToString())


RELU = _model("g (float[n,4] x) => (float[n,4] y) { y = Relu(x) }")
GATHER = _model("g (float[3] x, int64[n] i) => (float[n] y) { y = Gather(x, i) }")
RESHAPE = _model("g (float[n] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }")
X = np.ones((2, 4), np.float32)
#: what a program does wrong with either library
MISTAKES: dict[str, Callable[[Any], object]] = {
    "no file": lambda ort: ort.InferenceSession("no such file.onnx"),
    "no model": lambda ort: ort.InferenceSession(b"no model at all"),
    "a truncated model": lambda ort: ort.InferenceSession(RELU[:-5]),
    "an unknown operator": lambda ort: ort.InferenceSession(
        _model("g (float[2] x) => (float[2] y) { y = other.Nix(x) }")
    ),
    "no such operator in ONNX": lambda ort: ort.InferenceSession(
        _model("g (float[2] x) => (float[2] y) { y = Nix(x) }")
    ),
    "a value that nothing makes": lambda ort: ort.InferenceSession(
        _model("g (float[2] x) => (float[2] y) { y = Add(x, z) }")
    ),
    "an attribute that is missing": lambda ort: ort.InferenceSession(
        _model("g (float[2] x) => (int64[2] y) { y = Cast(x) }")
    ),
    "an opset of the future": lambda ort: ort.InferenceSession(
        _model("g (float[2] x) => (float[2] y) { y = Relu(x) }", 999)
    ),
    "a wrong size": lambda ort: ort.InferenceSession(RELU).run(None, {"x": np.ones((2, 5), np.float32)}),
    "a wrong rank": lambda ort: ort.InferenceSession(RELU).run(None, {"x": X[0]}),
    "a wrong type": lambda ort: ort.InferenceSession(RELU).run(None, {"x": X.astype(np.float64)}),
    "an unknown input": lambda ort: ort.InferenceSession(RELU).run(None, {"x": X, "z": X}),
    "a missing input": lambda ort: ort.InferenceSession(RELU).run(None, {}),
    "an unknown output": lambda ort: ort.InferenceSession(RELU).run(["z"], {"x": X}),
    "an index outside": lambda ort: ort.InferenceSession(GATHER).run(None, {"x": X[0, :3], "i": np.array([7])}),
    "a shape that does not fit": lambda ort: ort.InferenceSession(RESHAPE).run(
        None, {"x": X[0], "s": np.array([3, 3])}
    ),
    "a run that is ended": lambda ort: ort.InferenceSession(RELU).run(None, {"x": X}, _ended(ort)),
}


def _ended(ort: Any) -> Any:
    options = ort.RunOptions()
    options.terminate = True
    return options


@pytest.mark.gpu
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught_by_onnxruntimes_class(mistake: str) -> None:
    onnxruntime.set_default_logger_severity(4)
    try:
        with pytest.raises(Exception) as theirs:
            MISTAKES[mistake](onnxruntime)
    finally:
        onnxruntime.set_default_logger_severity(2)
    with pytest.raises(theirs.type):
        MISTAKES[mistake](vkep)


CAUGHT = """
import sys
{first}
import numpy as np, vkep as ort
from onnx import parser
proto = parser.parse_model('<ir_version: 9, opset_import: ["": 18]> g (float[n,4] x) => (float[n,4] y) {{ y = Relu(x) }}')
state = ort.capi.onnxruntime_pybind11_state
try:
    ort.InferenceSession("no such file.onnx")
except (state.NoSuchFile, state.EPFail) as error:
    print(type(error).__name__)
try:
    ort.InferenceSession(proto).run(None, {{"x": np.ones((2, 5), np.float32)}})
except state.InvalidArgument as error:
    print(type(error).__name__)
print(hasattr(state, "NoSuchClass"))
"""


@pytest.mark.gpu
@pytest.mark.parametrize("first", ["", "sys.modules['onnxruntime'] = None"], ids=["installed", "absent"])
def test_classes_by_their_path_in_onnxruntime(first: str) -> None:
    done = python(CAUGHT.format(first=first))
    assert done.stdout.split() == ["NoFileError", "InvalidInputError", "False"], done.stderr


def test_errors_keep_their_own_families() -> None:
    errors.join_onnxruntime()
    for kind in (vkep.InvalidInputError, vkep.InvalidModelError, vkep.UnsupportedModelError):
        error = pickle.loads(pickle.dumps(kind("a text")))
        assert type(error) is kind and isinstance(error, ValueError) and str(error) == "a text"
    assert issubclass(vkep.ArenaOutOfMemory, MemoryError) and issubclass(errors.NoFileError, FileNotFoundError)


def test_without_onnxruntime_errors_are_vkeps_alone() -> None:
    done = python("""
        import sys, vkep, vkep.errors
        sys.modules["onnxruntime"] = None  # as where it is not installed
        try:
            raise vkep.InvalidInputError("x")
        except ValueError as error:
            print([base.__module__ for base in type(error).__mro__])
    """)
    assert done.returncode == 0 and "onnxruntime" not in done.stdout, done.stderr
