"""Valid calls of declared operators: those of ONNX's node tests, and those of `tests/ops`."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Array = np.ndarray[Any, Any]
#: operators that draw random numbers, which differ between engines
RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
#: limit of the bytes of a call's values: larger ones are slow and find no other errors
_MOST_BYTES = 1 << 18


@dataclass(frozen=True)
class Call:
    """One node and the values of its inputs, by name. ``constants`` are those that an initializer holds."""

    node: onnx.NodeProto
    opsets: dict[str, int]
    values: dict[str, Array]
    constants: tuple[str, ...]

    @property
    def operator(self) -> str:
        return f"{self.node.domain}.{self.node.op_type}" if self.node.domain else self.node.op_type


def calls() -> list[Call]:
    """The calls of all declared operators, in an order that is the same in each process."""
    import vkep.ops  # noqa: F401  # declares the operators
    from vkep.ops import registry

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls"
        subprocess.run([sys.executable, "-m", "tools.fuzz.corpus", str(path)], check=True, stdout=subprocess.DEVNULL)
        recorded = pickle.loads(path.read_bytes())
    found: dict[bytes, Call] = {}
    for model, feeds in (*_node_tests(), *recorded):
        call = _call(model, feeds)
        if call is None or not registry.is_declared(call.node.domain, call.node.op_type):
            continue
        shapes = [(n, v.shape, v.dtype.str) for n, v in sorted(call.values.items())]
        found.setdefault(call.node.SerializeToString(deterministic=True) + repr(shapes).encode(), call)
    return [found[key] for key in sorted(found)]


def _node_tests() -> Iterator[tuple[onnx.ModelProto, dict[str, Any]]]:
    from tools.backend_suite.cases import load_cases

    for case in load_cases().values():
        if case.kind == "node":
            model = case.model()
            for inputs, _ in case.data(model):
                yield model, {i.name: v for i, v in zip(model.graph.input, inputs, strict=False)}


def _call(model: onnx.ModelProto, feeds: dict[str, Any]) -> Call | None:
    """The call of a model that consists of one node and constants; None for other models, and for inputs that are not
    small tensors."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        else:
            nodes.append(node)
    if len(nodes) != 1 or nodes[0].op_type in RANDOM or any(a.HasField("g") for a in nodes[0].attribute):
        return None
    [node] = nodes
    values = {**constants, **feeds}
    read = {n: values.get(n) for n in node.input if n}
    for value in read.values():
        if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS" or value.nbytes > _MOST_BYTES:
            return None
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.ClearField("name")
    copy.domain = "" if node.domain == "ai.onnx" else node.domain
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    return Call(copy, opsets, read, tuple(n for n in read if n in constants))  # type: ignore[arg-type]


def _record(path: Path) -> None:
    """Run the tests in ``tests/ops`` up to the point where each runs a session, and record the models and inputs."""
    import pytest

    from vkep import InferenceSession

    made: list[tuple[onnx.ModelProto, dict[str, Any]]] = []
    models: dict[int, Any] = {}

    def init(self: InferenceSession, model: Any, *args: Any, **options: Any) -> None:
        models[id(self)] = model

    def run(self: InferenceSession, names: Any, feeds: dict[str, Any], *args: Any, **options: Any) -> Any:
        model = models[id(self)]
        if isinstance(model, onnx.ModelProto):
            made.append((model, dict(feeds)))
        pytest.skip("recorded")

    nothing = {"__enter__": lambda self: self, "__exit__": lambda self, *args: None, "close": lambda self: None}
    for name, function in {**nothing, "__init__": init, "run": run, "report": lambda self: pytest.skip("")}.items():
        setattr(InferenceSession, name, function)
    pytest.main(["tests/ops", "-q", "-n", "0", "--tb=no", "-p", "no:cacheprovider"])
    path.write_bytes(pickle.dumps(made))


if __name__ == "__main__":
    _record(Path(sys.argv[1]))
