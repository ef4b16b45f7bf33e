"""Programs, delegates and ONNX sessions on one device: counted, shared, closed in any order, used by many threads."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_shared import SharedGpuContextRegistry, live_counts
from gpu_shared.errors import ClosedError, ContextExistsError, ContextIncompatibleError, ContextNotFoundError
from tests.executorch.cases import DATA, GIVEN, SPECIAL, calls, given
from tests.session.models import ADD_RELU, model
from tests.vgf.harness import need_vgf
from vkep import InferenceSession, make_shared_gpu_compile_specs
from vkep.errors import InvalidPteError
from vkep.executorch import Program, ProgramOptions
from vkep.executorch.context_resources import ProgramResources
from vkep.pte.method import Delegate

Load = Callable[..., Program]
Alive = Callable[[], dict[str, int]]
MIXED = GIVEN / "unified_vgf_and_vk.pte"
FEEDS = {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}


@pytest.fixture
def graphs(graph_context: Any) -> None:
    """Data graphs are available; contexts made by these tests have the emulation layers on."""
    need_vgf()


@pytest.mark.usefixtures("collected")
def test_one_instance_and_one_device_for_a_mixed_program_and_a_session(graphs: None, vulkan: Any) -> None:
    """The RFC's token and group come from the compile specs; the session names them."""
    before = live_counts()
    with Program.load(MIXED, validation=False) as program:
        method = program.load_method("forward")
        with InferenceSession(ADD_RELU, token="vgf_vk_unified_e2e", group_id=7) as session:
            call = given("unified_vgf_and_vk")
            np.testing.assert_allclose(method.execute(call.inputs)[0], call.outputs[0], atol=1e-4)
            assert session.run(None, FEEDS)[0].shape == (2, 3)
            assert program.contexts() == [session.context]
            now = live_counts()
            assert {k: now.get(k, 0) - before.get(k, 0) for k in ("instance", "device")} == {"instance": 1, "device": 1}
            assert SharedGpuContextRegistry.get().lookup(("vgf_vk_unified_e2e", 7)) is session.context
            report = method.report()
            assert (report.on_device, report.through_host) == (2, 0), "tensors pass between delegates on the device"
            assert [d.backend for d in report.delegates] == ["VgfBackend", "VulkanBackend", "VgfBackend"]
            assert len({d.context for d in report.delegates}) == 1
            assert "2 tensors stay on the device" in str(report) and report.to_json()


def test_load_time_options_override_compile_specs(graphs: None, vulkan: Any) -> None:
    with Program.load(MIXED, token="mine", group_id=3, sync_mode="queue_wait_idle", validation=False) as program:
        report = program.load_method("forward").report()
        assert {d.context for d in report.delegates} == {"mine:3"}
        assert {d.sync_mode for d in report.delegates} == {"queue_wait_idle"}
        call = given("unified_vgf_and_vk")
        np.testing.assert_allclose(program.execute(call.inputs)[0], call.outputs[0], atol=1e-4)
    with pytest.raises(ContextNotFoundError), Program.load(MIXED, context_mode="lookup_only") as program:
        program.load_method("forward")


def test_a_context_without_data_graphs_says_so(vulkan: Any, own_context: Any) -> None:
    need_vgf()
    with Program.load(GIVEN / "vgf.pte", context=own_context) as program, pytest.raises(ContextIncompatibleError):
        program.load_method("forward")


@pytest.mark.usefixtures("collected")
def test_modes(vulkan: Any) -> None:
    """A program of its own is not found by others; create_only refuses a context that there is."""
    devices = live_counts().get("device", 0)
    with (
        Program.load(GIVEN / "vk.pte", token="modes") as one,
        Program.load(GIVEN / "vk.pte", token="modes") as two,
        Program.load(GIVEN / "vk.pte", context_mode="disabled") as alone,
    ):
        for program in (one, two, alone):
            program.load_method("forward")
        assert one.contexts() == two.contexts() != alone.contexts()
        assert live_counts()["device"] == devices + 2
        with (
            pytest.raises(ContextExistsError),
            Program.load(GIVEN / "vk.pte", token="modes", context_mode="create_only") as p,
        ):
            p.load_method("forward")


def test_without_options_programs_share_the_sessions_context(vulkan: Any) -> None:
    with InferenceSession(ADD_RELU) as session, Program.load(GIVEN / "vk.pte") as program:
        program.load_method("forward")
        assert program.contexts() == [session.context]


def test_bad_options_and_bad_compile_specs(vulkan: Any) -> None:
    with pytest.raises(ValueError, match="did you mean 'timeline'"):
        ProgramOptions(sync_mode="timelin")
    with pytest.raises(ValueError, match="fallback"):
        ProgramOptions(fallback="gpu")
    data = MIXED.read_bytes().replace(b"lookup_or_create", b"lookup_or_delete")
    with pytest.raises(InvalidPteError, match=r"delegate 0.*lookup_or_delete"), Program.load(data) as program:
        program.load_method("forward")


# ---- constants


def test_a_weight_lies_once_on_the_device(load: Load) -> None:
    """In two delegates of a program, in another program, and in an ONNX model: by content."""
    one = load(SPECIAL / "twice_vulkan.pte", token="weights")
    one.load_method("forward")
    (memory,) = one.memory()
    by_use = sorted((users, memory.constants[key]) for key, users in memory.users.items())
    # (32, 32) and (32,) of float32; the folded transpose counts as content too
    assert [n for _, n in by_use].count(4096) == 1 and [n for _, n in by_use].count(128) == 1
    assert all(users == 2 for users, _ in by_use)
    two = load(SPECIAL / "twice_vulkan.pte", token="weights")
    two.load_method("forward")
    (after,) = two.memory()
    assert after.constants == memory.constants, "nothing new on the device"
    assert set(after.users.values()) == {4}
    assert "used by several plans" in str(after)
    one.close()
    (left,) = two.memory()
    assert left.constants == memory.constants and set(left.users.values()) == {2}
    (call,) = calls("twice_vulkan")
    np.testing.assert_allclose(two.execute(call.inputs)[0], call.outputs[0], atol=1e-4)


# ---- ends of life


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3], ids=lambda o: "".join(map(str, o)))
def test_closed_in_every_order(vulkan: Any, no_leak: Alive, order: tuple[int, ...]) -> None:
    first, second = Program.load(GIVEN / "vk.pte", token="orders"), Program.load(GIVEN / "cnn_vk.pte", token="orders")
    session = InferenceSession(ADD_RELU, token="orders")
    method = first.load_method("forward")
    second.load_method("forward")
    things: list[Any] = [first, second, session, method]
    call = given("cnn_vk")
    for done, index in enumerate(order):
        things[index].close()
        things[index].close()
        if 1 not in order[: done + 1]:
            np.testing.assert_allclose(second.execute(call.inputs)[0], call.outputs[0], atol=1e-4)
    with pytest.raises(ClosedError):
        method.execute(given("vk").inputs)
    with pytest.raises(ClosedError):
        second.load_method("forward")
    assert no_leak() == {}


def test_dropped_without_close(vulkan: Any, no_leak: Alive) -> None:
    program = Program.load(GIVEN / "vk.pte", token="dropped")
    method = program.load_method("forward")
    del program
    method.execute(given("vk").inputs)
    del method
    gc.collect()
    assert no_leak() == {}


def test_a_forked_child_raises(vulkan: Any) -> None:
    """And what it ends with leaves the parent's program alone."""
    code = f"""
        import os, numpy as np
        from gpu_shared.errors import ForkedProcessError
        from vkep.executorch import Program
        program = Program.load({str(GIVEN / "vk.pte")!r})
        x = [np.load({str(GIVEN / "input0.npy")!r})]
        program.execute(x)
        child = os.fork()
        if child == 0:
            try:
                program.execute(x)
            except ForkedProcessError:
                program.close()
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), program.execute(x)[0].shape)
        program.close()
    """
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'registry'}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.stdout.strip() == "7 (1, 3, 4, 4)", result.stderr


def test_a_method_that_fails_to_load_leaves_nothing(
    vulkan: Any, no_leak: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkep.session.planning.planned_graph import PlannedGraph

    def refuse(*_: Any) -> None:
        raise RuntimeError("no plan")

    program = Program.load(GIVEN / "vk.pte", token="failing")
    with monkeypatch.context() as patch:
        patch.setattr(PlannedGraph, "plan", refuse)
        with pytest.raises(RuntimeError, match="no plan"):
            program.load_method("forward")
    call = given("vk")
    np.testing.assert_allclose(program.execute(call.inputs)[0], call.outputs[0], atol=1e-4)
    program.close()
    assert no_leak() == {}


# ---- threads


def test_many_threads(load: Load) -> None:
    """Two programs and a session on one context, in eight threads; state is added up without a loss."""
    program, other = load("vk", token="threads"), load(SPECIAL / "counter_vulkan.pte", token="threads")
    counter = load(SPECIAL / "counter.pte")
    call, ones = given("vk"), np.ones(3, np.float32)
    session = InferenceSession(model("g (float[4,4] x) => (float[4,4] y) { y = MatMul(x, x) }"), token="threads")
    square = np.eye(4, dtype=np.float32) * 2

    def work(index: int) -> None:
        for _ in range(15):
            if index % 2:
                np.testing.assert_allclose(program.execute(call.inputs)[0], call.outputs[0], atol=1e-4)
            else:
                np.testing.assert_allclose(session.run(None, {"x": square})[0], square * 2)
            other.execute([ones])
            counter.execute([ones])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert other.execute([ones])[0].tolist() == counter.execute([ones])[0].tolist() == [242.0] * 3
    session.close()


def test_state_of_a_delegate_stays_on_the_device(load: Load) -> None:
    program = load(SPECIAL / "counter_vulkan.pte")
    first = [program.execute([np.ones(3, np.float32)])[0][0] for _ in range(4)]
    assert first == [2, 4, 6, 8]
    program.load_method("forward").close()
    assert program.execute([np.ones(3, np.float32)])[0][0] == 2


def test_a_device_tensor_with_another_shape(open_session: Callable[..., InferenceSession]) -> None:
    """What an elided view between two delegates is."""
    session = open_session(ADD_RELU)
    with session.device_tensor(np.arange(6, dtype=np.float32).reshape(2, 3)) as tensor:
        view = tensor.reshaped((3, 2))
        assert view.shape == (3, 2) and view.address == tensor.address
        np.testing.assert_array_equal(view.numpy(), np.arange(6).reshape(3, 2))
        view.close()
        np.testing.assert_array_equal(tensor.numpy(), np.arange(6).reshape(2, 3))
        with pytest.raises(ValueError, match="no shape"):
            tensor.reshaped((4, 2))


@pytest.mark.parametrize("sync_mode", ["timeline", "queue_wait_idle", "none"])
def test_sync_modes(graph_context: Any, sync_mode: str) -> None:
    call = given("vk_vgf")
    with Program.load(GIVEN / "vk_vgf.pte", context=graph_context, sync_mode=sync_mode) as program:
        for scale in (1.0, 0.5, 1.0):
            (got,) = program.execute([call.inputs[0] * np.float32(scale)])
        np.testing.assert_allclose(got, call.outputs[0], atol=1e-4)


@pytest.mark.usefixtures("graphs")
def test_a_program_goes_on_once_its_context_is_closed(load: Load) -> None:
    """It is a user from its first method on: also with the plans and data graphs of a later one."""
    program = load(DATA / "two_methods" / "vgf_first.pte", token="closing program", context_mode="lookup_or_create")
    arrays = np.load(DATA / "two_methods" / "cases.npz")
    method = program.load_method("forward")
    (resources,) = method.parts.resources
    context = resources.vulkan.context
    context.close()
    for case, name in enumerate(("forward", "decode")):
        inputs = [arrays[n] for n in arrays.files if n.startswith(f"case{case}_input")]
        (output,) = program.load_method(name).execute(inputs)
        np.testing.assert_allclose(output, arrays[f"case{case}_expected0"], rtol=1e-4, atol=1e-4)
    with pytest.raises(ClosedError):
        load("vk", context=context).load_method("forward")
    program.close()
    assert context.closed


def test_each_delegate_has_its_own_sync_mode(vulkan: object) -> None:
    """Two delegates of one program, on one context."""
    modes = ("timeline", "queue_wait_idle", "timeline")
    delegates = [
        Delegate(
            "VulkanBackend",
            memoryview(b""),
            tuple(make_shared_gpu_compile_specs(token="modes", sync_mode=mode)),
        )
        for mode in modes
    ]
    program = ProgramResources(ProgramOptions(), None, False)
    first, second, third = (program.of(delegate, "here") for delegate in delegates)
    assert first is third and first is not second
    assert first.vulkan.context is second.vulkan.context
    assert [one.vulkan.lease.sync_mode for one in (first, second)] == ["timeline", "queue_wait_idle"]
    program.close()
