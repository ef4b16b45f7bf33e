"""Memory between guard pages shows a kernel that leaves its operands; calls drawn wrong are refused."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from gpu_shared import DeviceInfo, SharedGpuContext
from tools.fuzz.guard import guarded
from tools.fuzz.mutate import Case
from tools.fuzz.sizes import _drawn
from tools.fuzz.worker import Answer, is_unordered, values_are_open
from vkep import InferenceSession
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import _TABLES, Candidate, Emission, implement
from vkep.ops import operator, registry

pytestmark = pytest.mark.usefixtures("vulkan")
ROOT = Path(__file__).parents[2]

STRAY = Kernel(
    str(Path(__file__).parent / "data" / "stray.comp"),
    reach=lambda call: {"x": 4 * call["count"], "y": 4 * call["count"]},  # which is not true
)


@dataclass(frozen=True)
class StrayProblem(Problem):
    count: int
    beyond: int

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", "float32", (self.count,)),)

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", "float32", (self.count,)),)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x


def _emit(problem: StrayProblem, e: Emission) -> list[KernelCall]:
    operands = {"x": e["x"], "y": e["y"]}
    params = {"count": problem.count, "beyond": problem.beyond}
    return [STRAY.call(grid=(-(-problem.count // 64),), operands=operands, params=params)]


@pytest.fixture
def _declared() -> Iterator[None]:
    declare()
    yield
    del registry._OPERATORS["com.example", "Stray"], _TABLES[StrayProblem]


def declare() -> None:
    @operator("Stray", domain="com.example", types={"x": ("float32",)})
    def stray(b: Builder, x: Tensor, *, beyond: int = 0) -> Tensor:
        y = b.empty(x.dtype, x.shape)
        b.compute(StrayProblem(x.size, beyond), [b.contiguous(x)], [y])
        return y

    implement(StrayProblem, Candidate("stray", _emit))


def model(beyond: int, place: str, size: int | str = 7) -> onnx.ModelProto:
    """What the kernel writes is the run's output, or an activation."""
    made, rest = ("y", []) if place == "output" else ("t", [helper.make_node("Softmax", ["t"], ["y"])])
    graph = helper.make_graph(
        [helper.make_node("Stray", ["x"], [made], domain="com.example", beyond=beyond), *rest],
        "stray",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [size])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)])


@pytest.mark.usefixtures("_declared")
@pytest.mark.parametrize("place", ["output", "activation"])
@pytest.mark.parametrize("beyond", [0, 1, -1])
def test_writes_beside_a_tensor_are_reported(own_context: SharedGpuContext, beyond: int, place: str) -> None:
    if "llvmpipe" not in own_context.device.label:
        pytest.skip("shaders do not run on host addresses")
    with guarded() as guards:
        with InferenceSession(model(beyond, place), context=own_context, save_plans=False) as session:
            session.run(None, {"x": np.arange(7, dtype=np.float32)})
        assert [what.split(" ")[0] for what in guards.broken()] == ([place] if beyond else [])


@pytest.mark.usefixtures("_declared")
def test_results_between_guard_pages_are_the_same(own_context: SharedGpuContext) -> None:
    if "llvmpipe" not in own_context.device.label:
        pytest.skip("shaders do not run on host addresses")
    x = np.arange(7, dtype=np.float32)
    with guarded() as guards:
        with InferenceSession(model(0, "activation"), context=own_context, save_plans=False) as session:
            for scale in (1, 2):
                e = np.exp(x * scale - x.max() * scale)
                np.testing.assert_allclose(session.run(None, {"x": x * scale})[0], e / e.sum(), rtol=1e-5)
        assert {what.split(" ")[0] for what in guards.made} == {"input", "output", "activation"}


@pytest.mark.usefixtures("_declared")
@pytest.mark.parametrize("place", ["output", "activation"])
@pytest.mark.parametrize("beyond", [0, 1, -1])
def test_a_plan_for_many_sizes_has_tensors_of_each_runs_size(
    own_context: SharedGpuContext, beyond: int, place: str
) -> None:
    if "llvmpipe" not in own_context.device.label:
        pytest.skip("shaders do not run on host addresses")
    sizes = (6, 201, 131, 7, 1, 130, 7)
    with guarded() as guards:
        with InferenceSession(model(beyond, place, "n"), context=own_context, save_plans=False) as session:
            for k, n in enumerate(sizes):
                x = np.linspace(-1, 1, n, dtype=np.float32)
                expected = x if place == "output" else np.exp(x) / np.exp(x).sum()
                got = session.run(None, {"x": x})[0]
                if not beyond:
                    np.testing.assert_allclose(got, expected, rtol=1e-5)
                assert [what.split(" ")[0] for what in guards.broken()] == [place] * (k + 1 if beyond else 0)
        # the first size has a plan of its own; 7 is far from 201, so that there are two plans for many sizes
        assert (guards.fitted, guards.refitted) == (6, 4)


def _python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, which finds this checkout's packages."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "registry"), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("beyond", "sizes", "ran"),
    [(0, [7], 1), (8, [7], 0), (-4096, [7], 0), (0, [7, 201, 200], 3), (1, [7, 201, 200], 2)],
)
def test_accesses_in_the_guard_pages_end_the_process(
    own_context: SharedGpuContext, beyond: int, sizes: list[int], ran: int
) -> None:
    """The last plan is set to another size, whose tensors end at the guard pages: 200 elements leave no bytes before them."""
    if "llvmpipe" not in own_context.device.label:
        pytest.skip("shaders do not run on host addresses")
    code = f"""
import numpy as np
from tests.tools.test_fuzz import declare, model
from tools.fuzz.guard import guarded
from vkep import InferenceSession
declare()
with guarded(), InferenceSession(model({beyond}, "output", {"n" if len(sizes) > 1 else 7!r}), save_plans=False) as session:
    for n in {sizes}:
        session.run(None, {{"x": np.zeros(n, np.float32)}})
        print("ran", flush=True)
"""
    done = _python("-c", code)
    assert done.returncode == (0 if ran == len(sizes) else -signal.SIGSEGV)
    assert done.stdout.split() == ["ran"] * ran


@pytest.mark.slow
def test_calls_that_onnx_runtime_refuses_are_refused(vulkan: DeviceInfo) -> None:
    """A short form of ``python -m tools.fuzz.operators``: each operator once."""
    pytest.importorskip("onnxruntime")
    if "llvmpipe" not in vulkan.name:
        pytest.skip("shaders do not run on host addresses")
    command = ["-W", "ignore", "-m", "tools.fuzz.operators", "--cases", "200", "--seed", "5"]
    done = _python(*command, VKEP_VALIDATION="0")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"^all +200 .* none$", done.stdout, re.MULTILINE), done.stdout[-2000:]


@pytest.mark.parametrize(
    ("op_type", "places", "shape", "attributes", "unordered"),
    [
        ("Scatter", [[1, 0, 2], [0, 2, 2]], [3, 3], {}, True),
        ("ScatterElements", [[1, 0, 2], [0, 2, 1]], [3, 3], {}, False),
        ("ScatterElements", [[1, 0, -1], [0, 2, 2]], [3, 3], {}, True),
        ("ScatterElements", [[1, 0, 1], [0, 2, 1]], [3, 3], {"axis": 1}, True),
        ("ScatterElements", [[1, 0, 2], [0, 2, 2]], [3, 3], {"axis": -1, "reduction": "none"}, True),
        ("ScatterElements", [[1, 0, 2], [0, 2, 2]], [3, 3], {"reduction": "add"}, False),
        ("ScatterND", [[1, 0], [0, 1]], [3, 3], {}, False),
        ("ScatterND", [[1, 2], [1, -1]], [3, 3], {}, True),
        ("MaxUnpool", [[[0, 3]]], [1, 1, 2], {"kernel_shape": [2]}, False),
        ("MaxUnpool", [[[3, 3]]], [1, 1, 2], {"kernel_shape": [2]}, True),
        ("Gather", [1, 1], [3, 3], {}, False),
    ],
)
def test_two_writes_to_one_place_have_no_order(
    op_type: str, places: list[int], shape: list[int], attributes: dict[str, Any], unordered: bool
) -> None:
    """ONNX gives them none without a reduction, and lanes run at the same time: results are not compared."""
    values: dict[str, Any] = {"x": np.zeros(shape, np.float32), "at": np.array(places, np.int64)}
    node = helper.make_node(op_type, ["x", "at", "u"], ["y"], **attributes)
    for constants in (set[str](), {"at"}):
        case = Case(node, {"": 18}, values, constants)
        assert is_unordered(case.model(), case.feeds) == unordered


@pytest.mark.parametrize(
    ("number", "is_open"), [(-128.9, False), (127.5, False), (-129.0, True), (np.nan, True), (1e30, True)]
)
def test_a_cast_of_numbers_that_the_type_does_not_have_is_open(number: float, is_open: bool) -> None:
    node, feeds = helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.INT8), {"x": np.array([1.0, number])}
    ours, theirs = (Answer("result", "", (np.array([1, k], np.int8),)) for k in (0, 1))
    assert values_are_open(ours, theirs, Case(node, {"": 18}, feeds, set()).model(), feeds) == is_open


def test_a_number_below_0_stays_there() -> None:
    numbers = [_drawn(-5, 0, random.Random(seed)) for seed in range(50)]
    assert max(numbers) < 0 and len({*numbers}) > 5


def test_a_series_of_sizes_between_guard_pages_gives_the_same_results(vulkan: DeviceInfo) -> None:
    """A short form of ``python -m tools.fuzz.operators --sizes``."""
    pytest.importorskip("onnxruntime")
    if "llvmpipe" not in vulkan.name:
        pytest.skip("shaders do not run on host addresses")
    command = ["-W", "ignore", "-m", "tools.fuzz.operators", "--sizes", "--node-tests", "--jobs", "1"]
    command += ["--cases", "21", "--seed", "5", "--only", r"Softmax|Concat|MatMul|Gather|Conv|\(softmax\)"]
    done = _python(*command, VKEP_VALIDATION="0")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"^all +21 .* none$", done.stdout, re.MULTILINE), done.stdout[-2000:]
    fitted = re.search(r"(\d+) set a plan to sizes, (\d+) a plan in memory of other sizes", done.stdout)
    assert fitted is not None and int(fitted[1]) > 40 and int(fitted[2]) > 8, done.stdout[-2000:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        (["tools.fuzz.kills", "--count", "4"], ", 0 with something wrong"),
        (
            [
                "tools.fuzz.files",
                "--cases",
                "20",
                "--jobs",
                "1",
                "--what",
                "onnx=10",
                "external",
                "pte",
                "ptd",
                "vgf",
                "spec",
                "cache=4",
            ],
            "114 files, 0 with something wrong",
        ),
        (
            ["tools.fuzz.folders", "--count", "1", "--jobs", "2"],
            " cases, 0 with something wrong",
        ),
        (
            ["tools.soak", "--seconds", "2", "--rounds", "6", "--pieces", "15", "--threads", "3", "--allow", "64"],
            ", 0 wrong; left behind: nothing",
        ),
    ],
    ids=lambda value: value[0].split(".")[-1] if isinstance(value, list) else "",
)
def test_a_short_form_finds_nothing(arguments: list[str], ends: str) -> None:
    done = _python("-m", *arguments, VKEP_VALIDATION="0")
    assert done.returncode == 0 and ends in done.stdout, done.stdout + done.stderr
