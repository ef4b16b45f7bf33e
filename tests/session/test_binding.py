"""IO binding: tensors that stay on the device, between runs and between sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkep
from tests.session.models import ADD_RELU, CPU_MIDDLE, DYNAMIC, SLOW, TWO_OUTPUTS, model
from vkep import DeviceTensor, InferenceSession, InvalidInputError

Open = Callable[..., InferenceSession]
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
B = np.array([1, 1, 1], np.float32)
Y = np.maximum(X + B, 0)


def test_device_tensors_in_and_out(open_session: Open) -> None:
    session = open_session(ADD_RELU)
    binding = session.io_binding()
    with session.device_tensor(X) as x, session.empty_device_tensor((2, 3)) as y:
        binding.bind_input("x", x)
        binding.bind_cpu_input("b", B)
        binding.bind_output("y", y)
        session.run_with_iobinding(binding)
        assert binding.get_outputs() == [y]
        np.testing.assert_array_equal(y.numpy(), Y)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], Y)
        np.testing.assert_array_equal(x.numpy(), X)


def test_an_output_that_is_an_input_has_memory_of_its_own(open_session: Open) -> None:
    session = open_session(model("g (float[2,3] x) => (float[2,3] x) { y = Neg(x) }"))
    binding = session.io_binding()
    x = session.device_tensor(X)
    binding.bind_input("x", x)
    binding.bind_output("x")
    session.run_with_iobinding(binding)
    (y,) = binding.get_outputs()
    assert y is not x
    np.testing.assert_array_equal(y.numpy(), X)


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_an_output_without_a_tensor(open_session: Open, device: Literal["gpu", "cpu"]) -> None:
    session = open_session(ADD_RELU)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("b", B)
    binding.bind_output("y", device=device)
    session.run_with_iobinding(binding)
    [first] = binding.get_outputs()
    assert isinstance(first, DeviceTensor if device == "gpu" else np.ndarray)
    binding.bind_cpu_input("b", -B)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], np.maximum(X - B, 0))
    kept = first.numpy() if isinstance(first, DeviceTensor) else first
    np.testing.assert_array_equal(kept, Y, err_msg="each run has a new tensor")


def test_run_takes_device_tensors_too(open_session: Open) -> None:
    session = open_session(ADD_RELU)
    with session.device_tensor(X) as x:
        np.testing.assert_array_equal(session.run(None, {"x": x, "b": B})[0], Y)


def test_a_chain_of_two_sessions_never_leaves_the_device(open_session: Open) -> None:
    first, second = open_session(ADD_RELU), open_session(DYNAMIC)
    middle, last = first.empty_device_tensor((2, 3)), first.empty_device_tensor((2, 3))
    one, two = first.io_binding(), second.io_binding()
    one.bind_cpu_input("b", B)
    one.bind_output("y", middle)
    with first.device_tensor(2 * B) as k:
        two.bind_input("x", middle)
        two.bind_input("b", k)
        two.bind_output("y", last)
        for step in range(1, 20):  # each run is sent while the last may still be in progress
            one.bind_cpu_input("x", X * step)
            first.run_with_iobinding(one)
            second.run_with_iobinding(two)
            if step % 7 == 0:
                np.testing.assert_array_equal(last.numpy(), -2 * np.maximum(X * step + 1, 0))
        np.testing.assert_array_equal(last.numpy(), -2 * np.maximum(X * 19 + 1, 0))
    middle.close()
    last.close()


def test_runs_that_do_not_wait_reuse_a_recording(open_session: Open) -> None:
    session = open_session(TWO_OUTPUTS, concurrency=1)
    tensors = [session.empty_device_tensor((4,)) for _ in range(12)]
    binding = session.io_binding()
    for i, tensor in enumerate(tensors):
        binding.bind_cpu_input("x", np.full(4, i, np.float32))
        binding.bind_output("square", tensor)
        session.run_with_iobinding(binding)
    for i, tensor in enumerate(tensors):
        np.testing.assert_array_equal(tensor.numpy(), np.full(4, i * i))
        tensor.close()


def test_one_tensor_at_two_inputs(open_session: Open) -> None:
    session = open_session(model("g (float[3] a, float[3] b) => (float[3] y) { y = Add(a, b) }"))
    with session.device_tensor(B) as b:
        np.testing.assert_array_equal(session.run(None, {"a": b, "b": b})[0], B + B)


@pytest.mark.parametrize(
    ("what", "tensor", "message"),
    [
        ("input", ((3, 2), "float32"), r"'x': got shape \(3, 2\), expected 2 on axis 0"),
        ("input", ((2, 3), "float16"), r"'x': got dtype float16, expected float32"),
        ("output", ((3, 2), "float32"), r"'y' is float32 \(2, 3\); the bound device tensor is float32 \(3, 2\)"),
        ("output", ((2, 3), "int32"), r"'y' is float32 \(2, 3\); the bound device tensor is int32"),
    ],
)
def test_tensors_that_do_not_fit(open_session: Open, what: str, tensor: Any, message: str) -> None:
    session = open_session(ADD_RELU)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("b", B)
    with session.empty_device_tensor(*tensor) as wrong, session.empty_device_tensor((2, 3)) as right:
        binding.bind_output("y", right)
        binding.bind_input("x", wrong) if what == "input" else binding.bind_output("y", wrong)
        with pytest.raises(InvalidInputError, match=message):
            session.run_with_iobinding(binding)
        binding.bind_input("x", right) if what == "input" else binding.bind_output("y", right)
    assert session.run(None, {"x": X, "b": B})[0].shape == (2, 3)


def test_wrong_names_and_kinds(open_session: Open) -> None:
    session = open_session(ADD_RELU)
    binding = session.io_binding()
    with pytest.raises(InvalidInputError, match=r"no input named 'q'; it has \['x', 'b'\]"):
        binding.bind_cpu_input("q", X)
    with pytest.raises(InvalidInputError, match=r"no output named 'q'; it has \['y'\]"):
        binding.bind_output("q")
    with pytest.raises(ValueError, match="device is 'tpu', expected 'gpu' or 'cpu'"):
        binding.bind_output("y", device="tpu")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="input 'x': expected a DeviceTensor, got ndarray"):
        binding.bind_input("x", X)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="dtype is 'complex64'"):
        session.empty_device_tensor((2,), "complex64")
    with pytest.raises(TypeError, match="no GPU element type for numpy dtype"):
        session.device_tensor(np.array(["a"]))
    binding.bind_cpu_input("x", X)
    with pytest.raises(InvalidInputError, match=r"inputs \(\['b'\]\) are missing"):
        session.run_with_iobinding(binding)


def test_closed_tensors(open_session: Open) -> None:
    session = open_session(ADD_RELU)
    binding = session.io_binding()
    x, y = session.device_tensor(X), session.empty_device_tensor((2, 3))
    binding.bind_input("x", x)
    binding.bind_cpu_input("b", B)
    binding.bind_output("y", y)
    x.close()
    x.close()
    with pytest.raises(InvalidInputError, match="input 'x': the device tensor is closed"):
        session.run_with_iobinding(binding)
    with pytest.raises(InvalidInputError, match="input 'x': the device tensor is closed"):
        session.run(None, {"x": x, "b": B})
    binding.bind_cpu_input("x", X)
    y.close()
    with pytest.raises(InvalidInputError, match="output 'y': the device tensor is closed"):
        session.run_with_iobinding(binding)
    for use in (x.numpy, lambda: x.write(X)):
        with pytest.raises(vkep.ClosedError, match="device tensor"):
            use()
    assert "closed" in repr(x)


def test_tensors_of_another_context(own_context: Any) -> None:
    with (
        InferenceSession(ADD_RELU, context=own_context) as session,
        InferenceSession(ADD_RELU, context_mode="disabled") as other,
        other.device_tensor(X) as x,
    ):
        with pytest.raises(InvalidInputError, match="input 'x': the device tensor lies on another context"):
            session.run(None, {"x": x, "b": B})
        with pytest.raises(InvalidInputError, match="output 'y': the device tensor lies on another context"):
            session.io_binding().bind_output("y", x)
        np.testing.assert_array_equal(other.run(None, {"x": x, "b": B})[0], Y)


def test_two_outputs_never_share_memory(open_session: Open) -> None:
    session = open_session(TWO_OUTPUTS)
    binding = session.io_binding()
    with session.device_tensor(np.ones(4, np.float32)) as t:
        binding.bind_cpu_input("x", np.ones(4, np.float32))
        binding.bind_output("twice", t)
        binding.bind_output("square", t)
        with pytest.raises(InvalidInputError, match=r"output 'square': .* also bound to output 'twice'"):
            session.run_with_iobinding(binding)


def test_outputs_that_no_island_makes(open_session: Open) -> None:
    proto = model("g (float[2] x) => (float[2] y, float[2] c, float[2] x) { y = Neg(x) }")
    proto.graph.initializer.append(helper.make_tensor("c", TensorProto.FLOAT, [2], [4.0, 6.0]))
    session = open_session(proto)
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.array([1, 2], np.float32))
    with session.empty_device_tensor((2,)) as c, session.empty_device_tensor((2,)) as x:
        binding.bind_output("c", c)
        binding.bind_output("x", x)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(c.numpy(), [4, 6])
        np.testing.assert_array_equal(x.numpy(), [1, 2])
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[2], [-1, -2])
        binding.bind_output("c", device="cpu")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.get_outputs()[0], [4, 6])


def test_an_output_that_the_cpu_makes(open_session: Open, rng: np.random.Generator) -> None:
    session = open_session(model("g (float[2,3,3] x) => (float[2] d, float[2] y) { d = Det(x) y = Neg(d) }"))
    x = rng.standard_normal((2, 3, 3), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    with session.empty_device_tensor((2,)) as d, session.empty_device_tensor((3,)) as wrong:
        binding.bind_output("d", d)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(d.numpy(), np.linalg.det(x), rtol=1e-4)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[1], -np.linalg.det(x), rtol=1e-4)
        binding.bind_output("d", wrong)
        with pytest.raises(
            InvalidInputError, match=r"'d' is float32 \(2,\); the bound device tensor is float32 \(3,\)"
        ):
            session.run_with_iobinding(binding)


def test_outputs_whose_shape_only_the_run_knows(open_session: Open) -> None:
    """The plan of one run's shapes must not decide another run's tensors."""
    text = "g (float[n] x) => (float[m] y) { i = NonZero(x) t = Transpose(i) y = GatherND(x, t) }"
    session = open_session(model(text))
    binding = session.io_binding()
    for x in ([1, 0, 2], [0, 3, 0, 0, 4, 5], [1, 0, 2], [7]):
        array = np.array(x, np.float32)
        binding.bind_cpu_input("x", array)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], array[array != 0])
        with session.empty_device_tensor((int(np.count_nonzero(array)),)) as y:
            binding.bind_output("y", y)
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(y.numpy(), array[array != 0])
        with session.empty_device_tensor((9,)) as y:
            binding.bind_output("y", y)
            with pytest.raises(InvalidInputError, match="the bound device tensor"):
                session.run_with_iobinding(binding)


def test_a_bound_value_that_the_cpu_reads_too(open_session: Open, rng: np.random.Generator) -> None:
    proto = model("g (float[2,3,3] x) => (float[2,3,3] a, float[2] y) { a = Mul(x, x) d = Det(a) y = Neg(d) }")
    session = open_session(proto)
    x = rng.standard_normal((2, 3, 3), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("a")
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    a, y = binding.copy_outputs_to_cpu()
    np.testing.assert_allclose(a, x * x, rtol=1e-6)
    np.testing.assert_allclose(y, -np.linalg.det(x * x), rtol=1e-3, atol=1e-4)


def test_a_tensor_outlives_its_session(own_context: Any, no_leak: Callable[[], dict[str, int]]) -> None:
    with InferenceSession(ADD_RELU, context=own_context) as session:
        x = session.device_tensor(X)
    with InferenceSession(ADD_RELU, context=own_context) as second:
        np.testing.assert_array_equal(second.run(None, {"x": x, "b": B})[0], Y)
    for use in (x.numpy, lambda: x.write(X)):
        with pytest.raises(vkep.ClosedError, match="session"):
            use()
    x.close()


def test_write_checks_dtype_and_shape(open_session: Open) -> None:
    session = open_session(CPU_MIDDLE)
    with session.device_tensor(X) as x:
        x.write(2 * X)
        np.testing.assert_array_equal(x.numpy(), 2 * X)
        x.write(np.asfortranarray(X))
        np.testing.assert_array_equal(x.numpy(), X)
        with pytest.raises(ValueError, match=r"float32 \(2, 3\): got an array of float64 \(2, 3\)"):
            x.write(X.astype(np.float64))
        with pytest.raises(ValueError, match=r"got an array of float32 \(3,\)"):
            x.write(B)


@pytest.mark.parametrize("view", ["the tensor", "reshaped", "leading"])
def test_a_write_waits_for_the_runs_that_use_the_tensor(open_session: Open, view: str) -> None:
    """A run with bound outputs returns before it ends."""
    session, sizes = open_session(SLOW), (256, 256)
    ones, twos = np.ones(sizes, np.float32), np.full(sizes, 2, np.float32)
    binding = session.io_binding()
    x, y = session.device_tensor(ones), session.empty_device_tensor(sizes)
    binding.bind_input("x", x)
    binding.bind_cpu_input("w", np.eye(256, dtype=np.float32))
    binding.bind_output("y", y)
    written = {"the tensor": x, "reshaped": x.reshaped(sizes), "leading": x.leading(sizes).leading(sizes)}[view]
    for _ in range(5):
        x.write(ones)
        session.run_with_iobinding(binding)
        written.write(twos)
        np.testing.assert_array_equal(y.numpy(), ones, "the run read what was written after it")
        session.run_with_iobinding(binding)
        y.write(ones)
        np.testing.assert_array_equal(y.numpy(), ones, "the run wrote after the write that followed it")


def test_a_tensor_is_written_from_a_view_of_itself(open_session: Open) -> None:
    session, rows = open_session(ADD_RELU), 5 << 10  # of 4 KiB: several pieces
    content = np.arange(rows, dtype=np.float32)[:, None].repeat(1024, axis=1)
    tensor = session.device_tensor(content)
    if tensor.block.mapped is None:
        pytest.skip("the host does not see this device's memory")
    tensor.rows(1, rows - 1).write(tensor.host_view()[:-1])
    np.testing.assert_array_equal(tensor.numpy()[1:], content[:-1])


def test_a_view_of_the_host_waits_for_runs_on_other_views(open_session: Open) -> None:
    session, sizes = open_session(SLOW), (256, 256)
    binding = session.io_binding()
    y = session.device_tensor(np.zeros((2, *sizes), np.float32))
    if y.block.mapped is None:
        pytest.skip("the host does not see this device's memory")
    part = y.rows(1, 1).reshaped(sizes)
    binding.bind_cpu_input("x", np.ones(sizes, np.float32))
    binding.bind_cpu_input("w", np.eye(256, dtype=np.float32))
    binding.bind_output("y", part)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y.host_view(), np.stack([np.zeros(sizes), np.ones(sizes)]))


def test_zero_sized_tensors(open_session: Open) -> None:
    session = open_session(DYNAMIC)
    binding = session.io_binding()
    with session.device_tensor(np.zeros((0, 3), np.float32)) as x, session.empty_device_tensor((0, 3)) as y:
        binding.bind_input("x", x)
        binding.bind_cpu_input("b", B)
        binding.bind_output("y", y)
        session.run_with_iobinding(binding)
        assert y.numpy().shape == (0, 3)


def test_clear(open_session: Open) -> None:
    session = open_session(ADD_RELU)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    binding.clear()
    assert not binding.inputs and not binding.outputs and not binding.get_outputs()
