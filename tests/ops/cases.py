"""One-operator models, run wholly on Vulkan, beside ONNX's reference evaluator or onnxruntime."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from gpu_shared import SharedGpuContext
from tests import pipelines
from tests.nightly import interpreting, nightly
from tools.ort_cpu import cpu_session
from tools.passes.interpreted import interpreted
from tools.plan_devices import DEVICES
from vkep import InferenceSession
from vkep.kernels.problem import NoReference
from vkep.session.session_state import Feed

Array = np.ndarray[Any, Any]
OPSET = 23


def model_of(
    op_type: str,
    inputs: Mapping[str, Array | None],
    *,
    outputs: Sequence[str] = ("y",),
    constants: Sequence[str] = (),
    domain: str = "",
    opset: int = OPSET,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node. Inputs of value None are absent; those named in ``constants`` are initializers."""
    names = ["" if value is None else name for name, value in inputs.items()]
    given = {name: value for name, value in inputs.items() if value is not None}
    node = helper.make_node(op_type, names, list(outputs), domain=domain, **attributes)
    return graph_of([node], given, outputs, constants, opset, domain)


def graph_of(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Sequence[str] = (),
    opset: int = OPSET,
    domain: str = "",
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in values.items()
            if name not in constants
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
        [numpy_helper.from_array(values[name], name) for name in constants],
    )
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@functools.cache
def shared_context() -> SharedGpuContext:
    """One for all: to make one takes longer than most cases. Only results are compared here: the validation layers, which take a
    fifth of the time, watch it at night."""
    context = SharedGpuContext.create(
        {"gpu_shared_context_token": "operators"}, validation=None if nightly() else False
    )
    pipelines.keep(context)
    return context


def on_vulkan(model: onnx.ModelProto, values: Mapping[str, Feed]) -> list[Array]:
    """The outputs, with every node on Vulkan or folded; `UnsupportedModelError` says what was declined. ``values`` may have
    more than the model's inputs, such as None for an absent one. With ``--interpreter``, by the interpreter of operations: what
    only kernels do, rounding to float32 and finding faults in data, is for tests that are marked ``gpu``."""
    given = {i.name: values[i.name] for i in model.graph.input}
    if interpreting():
        try:
            return interpreted(model, given, DEVICES["cpu"])
        except NoReference as error:
            pytest.skip(f"not interpreted: {error}")
    with InferenceSession(model, context=shared_context(), fallback="error") as session:
        return session.run(None, given)


def by_reference(model: onnx.ModelProto, values: Mapping[str, Feed]) -> list[Array]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, {i.name: values[i.name] for i in model.graph.input}))


def by_onnxruntime(model: onnx.ModelProto, values: Mapping[str, Feed]) -> list[Any]:
    results: list[Any] = cpu_session(model).run(None, {i.name: values[i.name] for i in model.graph.input})
    return results


def assert_like(got: Sequence[Array], expected: Sequence[Array], rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Equal shapes and dtypes, and values that are near (integers and texts: equal)."""
    assert len(got) == len(expected)
    for k, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        theirs = np.asarray(theirs)
        assert ours.dtype == theirs.dtype, f"output {k}"
        assert ours.shape == theirs.shape, f"output {k}"
        if theirs.dtype.kind in "iubO":
            np.testing.assert_array_equal(ours, theirs, err_msg=f"output {k}")
        else:
            np.testing.assert_allclose(
                ours.astype(np.float64), theirs.astype(np.float64), rtol=rtol, atol=atol, err_msg=f"output {k}"
            )


def check(
    op_type: str,
    inputs: Mapping[str, Array | None],
    *,
    against: str = "reference",
    rtol: float = 1e-5,
    atol: float = 1e-5,
    **rest: Any,
) -> list[Array]:
    """Run one node on Vulkan and hold it against another implementation; the outputs."""
    model = model_of(op_type, inputs, **rest)
    got = on_vulkan(model, inputs)
    expected = (by_reference if against == "reference" else by_onnxruntime)(model, inputs)
    assert_like(got, expected, rtol, atol)
    return got
