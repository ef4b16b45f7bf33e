"""Valid calls of declared operators, and small graphs of them: those of ONNX's tests, and those of `tests/ops`."""

from __future__ import annotations

import functools
import pickle
import re
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


@dataclass(frozen=True)
class Graph:
    """A model of several nodes, and the values of its inputs. No size of an input or result is known."""

    operator: str  #: the group of models that it is one of
    model: onnx.ModelProto
    values: dict[str, Array]


def calls(recorded: bool = True) -> list[Call]:
    """The calls of all declared operators, in an order that is the same in each process. ``recorded``: also those of
    `tests/ops`."""
    from vkep.ops import registry

    found: dict[bytes, Call] = {}
    for _, model, feeds in (*_node_tests(), *(_recorded() if recorded else ())):
        call = _call(model, feeds)
        if call is None or not registry.is_declared(call.node.domain, call.node.op_type):
            continue
        shapes = [(n, v.shape, v.dtype.str) for n, v in sorted(call.values.items())]
        found.setdefault(call.node.SerializeToString(deterministic=True) + repr(shapes).encode(), call)
    return [found[key] for key in sorted(found)]


def graphs(recorded: bool = True) -> list[Graph]:
    """The small models of several nodes, grouped by the first word of ONNX's name. ``recorded``: also those of `tests/ops`."""
    found: dict[bytes, Graph] = {}
    for name, model, feeds in (*_node_tests(("node", "simple")), *(_recorded() if recorded else ())):
        nodes = [node for node in model.graph.node if node.op_type != "Constant"]
        values = {i.name: feeds[i.name] for i in model.graph.input if i.name in feeds}
        if len(nodes) < 2 or any(node.op_type in RANDOM for node in nodes) or not all(map(_is_small, values.values())):
            continue
        if any(not info.type.HasField("tensor_type") for info in (*model.graph.input, *model.graph.output)):
            continue
        word = re.match(r"(\w+/test_)?([a-z0-9]+)", name)
        assert word is not None
        graph = Graph(f"({word[2]})", _without_sizes(model), values)
        shapes = [(n, v.shape, v.dtype.str) for n, v in sorted(values.items())]
        found.setdefault(graph.model.SerializeToString(deterministic=True) + repr(shapes).encode(), graph)
    return [found[key] for key in sorted(found)]


def _without_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.ClearField("value_info")
    for info in made.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{axis}"
    for info in made.graph.output:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{axis}"
    return made


@functools.cache
def _recorded() -> list[tuple[str, onnx.ModelProto, dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls"
        subprocess.run([sys.executable, "-m", "tools.fuzz.corpus", str(path)], check=True, stdout=subprocess.DEVNULL)
        return [("recorded", *made) for made in pickle.loads(path.read_bytes())]


def _node_tests(kinds: tuple[str, ...] = ("node",)) -> Iterator[tuple[str, onnx.ModelProto, dict[str, Any]]]:
    from tools.backend_suite.cases import load_cases

    for case in load_cases().values():
        if case.kind in kinds:
            model = case.model()
            for inputs, _ in case.data(model):
                yield case.name, model, {i.name: v for i, v in zip(model.graph.input, inputs, strict=False)}


def _is_small(value: object) -> bool:
    """Whether it is a small tensor of numbers."""
    return isinstance(value, np.ndarray) and value.dtype.kind not in "OUS" and value.nbytes <= _MOST_BYTES


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
    if not all(map(_is_small, read.values())):
        return None
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.ClearField("name")
    copy.domain = "" if node.domain == "ai.onnx" else node.domain
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    return Call(copy, opsets, read, tuple(n for n in read if n in constants))  # type: ignore[arg-type]


def _record(path: Path) -> None:
    """Run the tests in ``tests/ops`` up to the point where each runs a session, and record the models and inputs. Where ONNX
    Runtime has the operator of its own domain, its results let a test go on to its next call.
    """
    import pytest

    from tools.fuzz.worker import OnnxRuntime
    from vkep import InferenceSession

    made: list[tuple[onnx.ModelProto, dict[str, Any]]] = []
    models: dict[int, Any] = {}

    def init(self: InferenceSession, model: Any, *args: Any, **options: Any) -> None:
        models[id(self)] = model

    def run(self: InferenceSession, names: Any, feeds: dict[str, Any], *args: Any, **options: Any) -> Any:
        model = models[id(self)]
        if isinstance(model, onnx.ModelProto):
            made.append((model, dict(feeds)))
            if any(node.domain == "com.microsoft" for node in model.graph.node):
                answer = OnnxRuntime(model).run(feeds)
                if answer.kind == "result":
                    return list(answer.outputs)
        pytest.skip("recorded")

    nothing = {"__enter__": lambda self: self, "__exit__": lambda self, *args: None, "close": lambda self: None}
    for name, function in {**nothing, "__init__": init, "run": run, "report": lambda self: pytest.skip("")}.items():
        setattr(InferenceSession, name, function)
    pytest.main(["tests/ops", "-q", "-n", "0", "--tb=no", "-p", "no:cacheprovider"])
    path.write_bytes(pickle.dumps(made))


if __name__ == "__main__":
    _record(Path(sys.argv[1]))
