"""Programs run, and give what eager torch gives."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.executorch.cases import GIVEN, NO_GRAPHS, SPECIAL, calls, given
from tests.vgf.harness import need_vgf
from vkep.device.runner import PlanRunner
from vkep.errors import InvalidInputError
from vkep.executorch import Program, Runtime
from vkep.session.planning import planner

Load = Callable[..., Program]
PROGRAMS = sorted(p.stem for p in GIVEN.glob("*.pte"))
SPECIALS = sorted(p.stem for p in SPECIAL.glob("*.npz"))
ROOT = Path(__file__).resolve().parents[2]


def same(got: Any, want: Any, tolerance: float = 1e-4) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
def test_given_programs(load: Load, request: pytest.FixtureRequest, name: str) -> None:
    context = None
    if name not in NO_GRAPHS:
        need_vgf()
        context = request.getfixturevalue("graph_context")
    program = load(name, context=context)
    call = given(name)
    method = program.load_method("forward")
    for scale in (1.0, 1.0):  # a replay gives the same
        (got,) = method.execute([call.inputs[0] * np.float32(scale)])
        same(got, call.outputs[0])
    assert program.execute(call.inputs)[0] is not got, "outputs are the caller's"
    if name == "cnn_vgf":
        assert program.memory()[0].graph_constant_bytes > 40_000, "its weights are in the file, and so the driver's"


@pytest.mark.parametrize("name", SPECIALS)
def test_special_programs(load: Load, name: str) -> None:
    data = SPECIAL / f"{name}.ptd"
    program = load(SPECIAL / f"{name}.pte", [data] if data.exists() else [])
    made = list(calls(name))
    assert made
    for call in made:
        kept = [x.copy() if isinstance(x, np.ndarray) else x for x in call.inputs]
        outputs = program.load_method(call.method).execute(call.inputs)
        assert len(outputs) == len(call.outputs)
        for got, want in zip(outputs, call.outputs, strict=True):
            same(got, want)
        for before, after in zip(kept, call.inputs, strict=True):
            np.testing.assert_array_equal(before, after, err_msg="the caller's array was written")


def test_outputs_do_not_share_memory(load: Load) -> None:
    program = load(SPECIAL / "aliases.pte")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    first = program.execute([x])
    for output in first:
        output[...] = -1
    assert (x == np.arange(6).reshape(2, 3)).all()
    second = program.execute([x])
    for got, old in zip(second, first, strict=True):
        assert not np.shares_memory(got, old) and (got != -1).any()


def test_state_is_each_methods_own(load: Load) -> None:
    one, two = load(SPECIAL / "counter.pte"), load(SPECIAL / "counter.pte")
    ones = np.ones(3, np.float32)
    assert [one.execute([ones])[0][0] for _ in range(3)] == [2, 4, 6]
    assert two.execute([ones])[0][0] == 2
    one.load_method("forward").close()
    assert one.execute([ones])[0][0] == 2, "a method that is loaded again starts anew"


def test_constant_methods(load: Load) -> None:
    program = load(SPECIAL / "methods.pte")
    assert program.method_names == {"forward", "other", "version", "ratio", "flag"}
    assert [program.execute([], name) for name in ("version", "ratio", "flag")] == [[7], [0.25], [True]]


def test_a_plan_for_each_signature(load: Load) -> None:
    program = load(SPECIAL / "dynamic_vulkan.pte", plan_cache_size=2)
    for rows in (1, 2, 3, 6, 1):
        x = np.full((rows, 8), 0.5, np.float32)
        (got,) = program.execute([x])
        assert got.shape == (rows, 4)
    with pytest.raises(InvalidInputError, match=r"got shape \[7, 8\], expected float32 at most \[6, 8\]"):
        program.execute([np.zeros((7, 8), np.float32)])


def test_few_plans_for_images_of_any_size(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PlanRunner] = []

    def counted(*args: Any, **options: Any) -> PlanRunner:
        made.append(PlanRunner(*args, **options))
        return made[-1]

    monkeypatch.setattr(planner, "PlanRunner", counted)
    source = SPECIAL.parent / "cnn_dynamic" / "vulkan.pte"
    sizes, program = [(8, 8), (10, 12), (24, 16), (14, 22), (20, 10), (12, 12), (24, 24)], load(source)
    images = [np.random.default_rng(h).normal(size=(1, 3, h, w)).astype(np.float32) for h, w in sizes]
    results = [program.execute([image])[0] for image in images]
    assert len(made) == 2  # of the first size, and of all
    for image, result in zip(images[1::3], results[1::3], strict=True):
        np.testing.assert_allclose(result, load(source).execute([image])[0], rtol=1e-4, atol=1e-5)


# ---- the interface of executorch.runtime


def test_the_interface_of_executorchs_runtime(vulkan: object) -> None:
    runtime = Runtime.get()
    assert runtime is Runtime.get()
    assert runtime.backend_registry.registered_backend_names == ["VulkanBackend", "VgfBackend"]
    assert runtime.backend_registry.is_available("VulkanBackend")
    assert not runtime.backend_registry.is_available("XnnpackBackend")
    assert "aten::convolution.out" in runtime.operator_registry.operator_names
    call = given("vk")
    with runtime.load_program(GIVEN / "vk.pte") as program:
        assert program.method_names == {"forward"}
        method = program.load_method("forward")
        assert program.load_method("forward") is method
        same(method.execute(call.inputs)[0], call.outputs[0])
        meta = program.metadata("forward")
        assert (meta.name(), meta.num_inputs(), meta.num_outputs()) == ("forward", 1, 1)
        info = meta.input_tensor_meta(0)
        assert info.sizes() == (1, 3, 8, 8) and info.dtype() == 6 and info.nbytes() == 768 and info.is_memory_planned()
        assert meta.uses_backend("VulkanBackend") and not meta.uses_backend("VgfBackend")
        with pytest.raises(InvalidInputError, match="has 1 outputs; got number 1"):
            meta.output_tensor_meta(1)
    with (GIVEN / "none.pte").open("rb") as file, runtime.load_program(file) as program:
        same(program.execute(call.inputs)[0], call.outputs[0])
    with runtime.load_program(bytearray((GIVEN / "none.pte").read_bytes())) as program:
        same(program.execute(call.inputs)[0], call.outputs[0])
    with runtime.load_program(SPECIAL / "external.pte", data_path=SPECIAL / "external.ptd") as program:
        assert program.method_names == {"forward"}
    with pytest.raises(TypeError, match="expected a path, bytes or a file object"):
        runtime.load_program(3)  # type: ignore[arg-type]


def test_programs_run_without_torch_and_without_vulkan_where_no_delegate_is() -> None:
    code = f"""
        import sys
        sys.modules.update(torch=None, executorch=None, vulkan=None)
        import numpy as np
        from vkep.executorch import Program
        x, want = np.load({str(GIVEN / "input0.npy")!r}), np.load({str(GIVEN / "expected0.npy")!r})
        with Program.load({str(GIVEN / "none.pte")!r}) as program:
            print(abs(program.execute([x])[0] - want).max() < 1e-5)
    """
    path = f"{ROOT}:{ROOT / 'registry'}"
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": path, "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.stdout.strip() == "True", result.stderr


def test_torch_tensors_come_back_as_torch_tensors(load: Load) -> None:
    torch = pytest.importorskip("torch")
    call = given("none")
    (got,) = load("none").execute([torch.from_numpy(call.inputs[0])])
    assert isinstance(got, torch.Tensor)
    same(got.numpy(), call.outputs[0])


# ---- wrong inputs


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], r"got 0 inputs, expected 1: \['float32 \[1, 3, 8, 8\]'\]"),
        ([np.zeros((1, 3, 8, 8), np.float32)] * 2, "got 2 inputs, expected 1"),
        ([np.zeros((1, 3, 8, 8), np.float64)], r"input 0: got dtype float64, expected float32 \[1, 3, 8, 8\]"),
        ([np.zeros((1, 3, 8), np.float32)], r"input 0: got shape \[1, 3, 8\], expected float32 \[1, 3, 8, 8\]"),
        ([np.zeros((2, 3, 8, 8), np.float32)], "input 0: got shape"),
        ([object()], "input 0: got a object, expected a numpy array or torch tensor"),
        (np.zeros((1, 3, 8, 8), np.float32), "got a ndarray, expected a list or tuple of inputs"),
    ],
)
def test_wrong_inputs(load: Load, inputs: Any, message: str) -> None:
    program = load("none")
    with pytest.raises(InvalidInputError, match=message):
        program.execute(inputs)
    call = given("none")
    same(program.execute(call.inputs)[0], call.outputs[0])


def test_wrong_names_and_numbers(load: Load) -> None:
    program = load(SPECIAL / "methods.pte")
    with pytest.raises(InvalidInputError, match="has no method 'backward'; it has"):
        program.load_method("backward")
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(InvalidInputError, match="input 1: got a list, expected a int"):
        program.execute([x, [1], 0.5], "other")


def test_the_code_of_the_page_runs(vulkan: object, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "executorch.md").read_text(encoding="utf-8")
    code = page[page.index("## Run") :].split("```python\n")[1].split("```")[0]
    (tmp_path / "program.pte").write_bytes((GIVEN / "vk.pte").read_bytes())
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'registry'}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "in numpy: aten::reciprocal.out" in result.stdout
