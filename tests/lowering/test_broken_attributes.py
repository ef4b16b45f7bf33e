"""Attributes that no kernel can take become a decline or an invalid model, whatever their size; never another error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_shared.capabilities import DeviceCapabilities
from tests.ops.cases import model_of
from vkep.errors import InvalidModelError, VkepError
from vkep.graph import load_model
from vkep.ir.program import declared_value
from vkep.kernels.elimination import InverseProblem
from vkep.kernels.kernel import Kernel
from vkep.kernels.select import candidates
from vkep.placement.partition import lower

MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
NUMBER = st.one_of(
    st.integers(0, 3),
    st.sampled_from([-1, -5, 7, 2**31 - 1, 2**31, 2**32, -(2**31), -(2**31) - 1, 2**40, 2**62, 2**63 - 1, -(2**63)]),
)
AUTO_PAD = st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "ODD"])
Array = np.ndarray[Any, Any]


def _numbers(count: int) -> st.SearchStrategy[list[int]]:
    exact = st.lists(NUMBER, min_size=count, max_size=count)
    return st.one_of(exact, exact, exact, st.lists(NUMBER, min_size=1, max_size=6))


def _reasons(
    op_type: str, values: Mapping[str, Array | None], constants: tuple[str, ...] = (), **rest: Any
) -> list[str]:
    """Why nodes are declined, for a model that is lowered for an imagined device; none where the model is invalid."""
    model = model_of(op_type, values, constants=constants, opset=22, **rest)
    try:
        loaded = load_model(model)
    except InvalidModelError:
        return []
    known: dict[str, Any] = {**loaded.graph.weights, **{v.name: declared_value(v) for v in loaded.graph.inputs}}
    try:
        program = lower(loaded.graph.nodes, known, ["y"], loaded.opsets, DeviceCapabilities.for_tests())
    except VkepError as error:
        return [str(error)]
    return [p.reason for p in program.placements if p.where == "cpu"]


@pytest.mark.parametrize(
    "op_type", ["Conv", "ConvTranspose", "ConvInteger", "MaxPool", "AveragePool", "LpPool", "MaxUnpool"]
)
@MANY
@given(data=st.data())
def test_windows(op_type: str, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    spatial = data.draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank))
    x = np.ones((1, 4, *spatial), np.uint8 if op_type == "ConvInteger" else np.float32)
    values: dict[str, Array | None] = {"x": x}
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "kernel_shape": _numbers(rank),
        "strides": _numbers(rank),
        "pads": _numbers(2 * rank),
    }
    if op_type != "MaxUnpool":
        strategies |= {"dilations": _numbers(rank), "auto_pad": AUTO_PAD}
    if op_type.startswith("Conv"):
        values["w"] = np.ones((4, 4, *[2] * rank), x.dtype)
        strategies["group"] = NUMBER
    if op_type == "ConvTranspose":
        strategies |= {"output_padding": _numbers(rank), "output_shape": _numbers(rank)}
    if op_type == "MaxUnpool":
        values["i"] = np.zeros(x.shape, np.int64)
    if op_type.endswith("Pool"):
        strategies["ceil_mode"] = st.integers(0, 1)
    needed = {"kernel_shape"} if op_type.startswith(("M", "A", "L")) else set()
    attributes = {n: data.draw(s) for n, s in strategies.items() if n in needed or data.draw(st.booleans())}
    _reasons(op_type, values, **attributes)


@MANY
@given(data=st.data())
def test_resize(data: st.DataObject) -> None:
    x = np.ones((1, 2, 3, 4), np.float32)
    values: dict[str, Array | None] = {"x": x, "roi": None}
    if data.draw(st.booleans()):
        factor = st.sampled_from([0, -1, 1, 2, 0.5, 1e30, float("inf"), float("nan"), 1e-30])
        values["scales"] = np.array(data.draw(st.lists(factor, min_size=4, max_size=4)), np.float32)
        constants: tuple[str, ...] = ("scales",)
    else:
        values |= {"scales": None, "sizes": np.array(data.draw(_numbers(4)), np.int64)}
        constants = ("sizes",)
    _reasons(
        "Resize",
        values,
        constants,
        mode=data.draw(st.sampled_from(["nearest", "linear", "cubic"])),
        antialias=data.draw(st.integers(0, 1)),
        keep_aspect_ratio_policy=data.draw(st.sampled_from(["not_larger", "stretch", "not_smaller"])),
    )


#: an input whose values are numbers, and the attributes that are
GIVEN: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "Pad": ((8,), ()),
    "Slice": ((2, 2, 2, 2), ()),
    "Tile": ((4,), ()),
    "Expand": ((4,), ()),
    "Reshape": ((4,), ()),
    "TopK": ((1,), ("axis",)),
    "Trilu": ((1,), ("upper",)),
    "Unsqueeze": ((2,), ()),
    "Split": ((2,), ("axis",)),
    "Gather": ((2,), ("axis",)),
    "Concat": ((), ("axis",)),
    "DepthToSpace": ((), ("blocksize",)),
    "EyeLike": ((), ("k",)),
}


@pytest.mark.parametrize("op_type", GIVEN)
@MANY
@given(data=st.data())
def test_shapes_axes_and_counts(op_type: str, data: st.DataObject) -> None:
    lengths, attributes = GIVEN[op_type]
    x = np.ones((3, 3) if op_type == "EyeLike" else (1, 4, 4, 4), np.float32)
    values: dict[str, Array | None] = {"x": x}
    values |= {f"v{k}": np.array(data.draw(_numbers(n)), np.int64) for k, n in enumerate(lengths)}
    outputs = ("y", "z") if op_type in ("TopK", "Split") else ("y",)
    constants = tuple(f"v{k}" for k in range(len(lengths)))
    _reasons(op_type, values, constants, outputs=outputs, **{name: data.draw(NUMBER) for name in attributes})


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"strides": [2**31, 1]}, r"strides \(2147483648, 1\); each must be at least 1 and below 2\*\*31"),
        ({"dilations": [1, 2**40]}, r"dilations \(1, 1099511627776\)"),
        ({"pads": [0, 2**31, 0, 0]}, r"pads \(0, 2147483648, 0, 0\); 4 are expected, each of a size below 2\*\*31"),
        ({"kernel_shape": [2**31, 1]}, r"kernel_shape \[2147483648, 1\] for weights"),
        ({"strides": [0, 1]}, r"strides \(0, 1\); each must be at least 1"),
        ({"strides": [1]}, r"strides \(1,\) has 1 entries; the input has 2 spatial axes"),
        ({"dilations": [2**30, 1], "pads": [2**30, 0, 2**30, 0]}, r"must be below 2\*\*31|does not fit"),
    ],
)
def test_reasons_name_the_attribute(attributes: dict[str, Any], reason: str) -> None:
    values = {"x": np.ones((1, 4, 9, 9), np.float32), "w": np.ones((4, 4, 3, 3), np.float32)}

    reasons = _reasons("Conv", values, **attributes)
    assert reasons
    assert re.search(reason, reasons[0]), reasons[0]


def test_a_pool_whose_padded_input_cannot_be_counted() -> None:
    most = 2**31 - 1
    attributes: dict[str, Any] = {
        "kernel_shape": [most],
        "pads": [0, most - 1],
        "strides": [most],
        "count_include_pad": 1,
    }
    (reason,) = _reasons("AveragePool", {"x": np.ones((1, 1, 9), np.float32)}, **attributes)
    assert "of 2147483655 with pads" in reason


def test_temporary_memory_that_a_kernel_cannot_address() -> None:
    (candidate,) = candidates(InverseProblem)
    assert candidate.when is not None
    reason = candidate.when(InverseProblem((1 << 28, 2, 2), "float32"), DeviceCapabilities.for_tests())
    assert "2147483648 elements of temporary memory" in reason


def test_a_kernel_names_an_argument_that_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "some.comp").write_text("#define ARGS_BODY { WRITTEN y; uint n; }")
    kernel = Kernel(str(tmp_path / "some.comp"))
    with pytest.raises(
        ValueError, match=r"some.comp: an argument does not fit its 32 bits: .*; got \{'n': 4294967296\}"
    ):
        kernel.call(grid=(1,), operands={"y": None}, params={"n": 1 << 32})
