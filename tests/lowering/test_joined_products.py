"""Products of the same rows by several weights are one product: results, and which are taken and which are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.lowering.drawn_products import draw
from tools.ort_cpu import cpu_session
from tools.passes.check import Report, watched
from tools.passes.models import check_model
from tools.plan_devices import DEVICES
from tools.size_conditions import declared
from vkep import InferenceSession
from vkep.graph import load_model
from vkep.ir.ops import KernelOp, Op
from vkep.kernels.matmul.matmul import MatMulProblem
from vkep.passes import joined_products, pipeline
from vkep.passes.joined_products import join_products
from vkep.passes.rewrite import Changes, Graph
from vkep.sizes import Trace

Open = Callable[..., InferenceSession]
GPU = DEVICES["gpu with cooperative matrices"]
DRAWN = range(24)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The columns of each product that was joined, of each change."""
    found: list[list[int]] = []
    inner = joined_products._changes

    def changes(products: Sequence[Any], op: KernelOp, graph: Graph) -> Changes | None:
        made = inner(products, op, graph)
        if made is not None:
            found.append([product.problem.n for product in products])
        return made

    monkeypatch.setattr(joined_products, "_changes", changes)
    return found


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are joined on any device, whatever kernel computes them."""
    monkeypatch.setattr(joined_products, "no_cooperative_tile", lambda *given: "")
    monkeypatch.setattr(joined_products, "_gains", lambda *given: True)


def _expected(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    return cpu_session(proto).run(None, dict(feeds))


@pytest.mark.parametrize("alike", [False, True], ids=["drawn", "alike"])
@pytest.mark.parametrize("seed", DRAWN)
def test_the_operations_of_a_drawn_graph(joined: list[list[int]], seed: int, alike: bool) -> None:
    """Interpreted for a GPU with cooperative matrices, before and after each pass, at fixed and at open sizes."""
    proto, feeds, text = draw(seed, alike)
    report = check_model(proto, GPU, feeds)
    assert not report.differences, f"{report.differences[0]}\n{text}"
    assert report.islands and (joined or not alike), text
    with watched(feeds) as sized:
        case = declared(load_model(proto.SerializeToString()), {"length": feeds["x"].shape[1]})
        case.with_trace(Trace(), GPU)
    assert not sized.differences, f"{sized.differences[0]}\n{text}"


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("alike", [False, True], ids=["drawn", "alike"])
@pytest.mark.parametrize("seed", DRAWN[::3])
def test_a_drawn_graph(open_session: Open, joined: list[list[int]], seed: int, alike: bool) -> None:
    """By kernels, at three lengths through one session, against ONNX Runtime."""
    proto, feeds, text = draw(seed, alike)
    session = open_session(proto, fallback="error")
    for length in (feeds["x"].shape[1], 3, 17):
        x = {"x": np.resize(feeds["x"], (feeds["x"].shape[0], length, feeds["x"].shape[2]))}
        if not alike and length != feeds["x"].shape[1] and any("matrix" in part for part in text):
            continue
        for got, expected in zip(session.run(None, x), _expected(proto, x), strict=True):
            np.testing.assert_allclose(got, expected, rtol=4e-3, atol=4e-3 * np.abs(expected).max(), err_msg=str(text))
    assert joined or not alike, text
