"""Indices, lengths and divisors in a run's data that an operator's specification forbids: the run fails, and no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.session.models import model
from vkep import DeviceTensor, InferenceSession, InvalidInputError
from vkep.session.execution.submit_batch import SubmitBatch

Open = Callable[..., InferenceSession]
Feeds = Mapping[str, np.ndarray]

DIVIDE = model("g (int32[n] x, int32[n] d) => (int32[n] y) { [split] q = Div(x, d) y = Neg(q) }")
X, GOOD, BAD = np.arange(4, dtype=np.int32) * 6, np.array([1, 2, 3, 6], np.int32), np.array([1, 2, 0, 6], np.int32)
Y = -(X // GOOD)
REFUSED = r"Div 'split': an integer is divided by zero"


def ints(*values: int, dtype: str = "int64") -> np.ndarray:
    return np.array(values, dtype)


def floats(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape), dtype=np.float32) + 1).reshape(shape)


def check(session: InferenceSession, good: Feeds, bad: Feeds, message: str) -> None:
    """A bad run fails and says why; the good ones before and after it are alike."""
    before = session.run(None, dict(good))
    with pytest.raises(InvalidInputError, match=message):
        session.run(None, {**good, **bad})
    for one, other in zip(session.run(None, dict(good)), before, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("node", ["Div(x, d)", "Mod(x, d)", "Mod<fmod = 1>(x, d)"])
def test_division_by_zero(open_session: Open, node: str, dtype: str) -> None:
    proto = model(f"g ({dtype}[3] x, {dtype}[3] d) => ({dtype}[3] y) {{ [n] y = {node} }}")
    good = {"x": ints(7, 8, 9, dtype=dtype), "d": ints(1, 2, 3, dtype=dtype)}
    check(
        open_session(proto), good, {"d": ints(1, 2, 0, dtype=dtype)}, f"{node[:3]} 'n': an integer is divided by zero"
    )


def test_the_lowest_integer_by_minus_one_wraps(open_session: Open) -> None:
    lowest = ints(-(2**31), dtype="int32")
    proto = model("g (int32[1] x, int32[1] d) => (int32[1] q, int32[1] r) { q = Div(x, d) r = Mod(x, d) }")
    quotient, rest = open_session(proto).run(None, {"x": lowest, "d": ints(-1, dtype="int32")})
    assert (quotient[0], rest[0]) == (lowest[0], 0)


def test_a_known_divisor_is_checked_too(open_session: Open) -> None:
    proto = model("g (int32[3] x) => (int32[3] y) { d = Constant<value = int32[3] {1, 0, 2}>() [n] y = Div(x, d) }")
    session = open_session(proto)
    with pytest.raises(InvalidInputError, match="Div 'n'"):
        session.run(None, {"x": ints(1, 2, 3, dtype="int32")})
    harmless = model("g (int32[3] x) => (int32[3] y) { d = Constant<value = int32[3] {1, 1, 2}>() y = Div(x, d) }")
    session = open_session(harmless)
    assert [island.plan.faults for island in session.islands()] == [()]


@pytest.mark.parametrize("node", ["Div(a, d)", "Mod(a, d)", "Mod<fmod = 1>(a, d)"])
def test_a_division_by_zero_is_not_folded(open_session: Open, node: str) -> None:
    proto = model(
        "g (int32[3] x) => (int32[3] y)"
        "{ a = Constant<value = int32[3] {4, 5, 6}>() d = Constant<value = int32[3] {1, 0, 2}>()"
        f"  [n] q = {node} y = Add(q, x) }}"
    )
    session = open_session(proto)
    with pytest.raises(InvalidInputError, match=f"{node[:3]} 'n'"):
        session.run(None, {"x": ints(1, 2, 3, dtype="int32")})


def test_float_division_is_none(open_session: Open) -> None:
    proto = model("g (float[2] x, float[2] d) => (float[2] y) { y = Div(x, d) }")
    session = open_session(proto)
    assert session.run(None, {"x": floats(2), "d": np.zeros(2, np.float32)})[0].tolist() == [np.inf] * 2
    assert session.islands()[0].plan.faults == ()


def test_a_check_stays_with_what_is_fused(open_session: Open) -> None:
    """One dispatch computes all three nodes, and no matrix product takes a division into its epilogue."""
    session = open_session(DIVIDE)
    check(session, {"x": X, "d": GOOD}, {"d": BAD}, REFUSED)
    assert len(session.islands()[0].plan.dispatches) == 1
    proto = model(
        "g (float[4,4] a, float[4,4] b, int32[4,4] d) => (float[4,4] y)"
        "{ one = Constant<value = int32 {12}>() p = MatMul(a, b) [n] q = Div(one, d) f = Cast<to = 1>(q) y = Add(p, f) }"
    )
    a = floats(4, 4)
    good = {"a": a, "b": a, "d": np.full((4, 4), 5, np.int32)}
    session = open_session(proto)
    np.testing.assert_array_equal(session.run(None, good)[0], a @ a + 2)
    check(session, good, {"d": np.eye(4, dtype=np.int32)}, "Div 'n'")


def test_nodes_that_no_output_needs_are_not_checked(open_session: Open) -> None:
    proto = model("g (int32[n] x, int32[n] d) => (int32[n] y) { q = Div(x, d) y = Neg(x) }")
    np.testing.assert_array_equal(open_session(proto).run(None, {"x": X, "d": BAD})[0], -X)


def test_switched_off(open_session: Open) -> None:
    session = open_session(DIVIDE, check_data=False)
    np.testing.assert_array_equal(session.run(None, {"x": X, "d": BAD})[0], np.where(BAD == 0, 0, Y))
    assert session.islands()[0].plan.faults == ()


def test_only_the_bad_runs_of_many_threads_fail(open_session: Open) -> None:
    session = open_session(DIVIDE, concurrency=3)

    def one(step: int) -> bool:
        bad = step % 3 == 1
        try:
            result = session.run(None, {"x": X, "d": BAD if bad else GOOD})[0]
        except InvalidInputError:
            return bad
        np.testing.assert_array_equal(result, Y)
        return not bad

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(60)))


def test_a_bound_tensor_is_no_result_until_it_is_written_again(open_session: Open) -> None:
    session = open_session(DIVIDE)
    binding = session.io_binding()
    with session.empty_device_tensor((4,), "int32") as y, session.device_tensor(X) as x:
        view = y.reshaped((2, 2))
        binding.bind_input("x", x)
        binding.bind_output("y", y)
        for divisors in (GOOD, BAD, GOOD, BAD):
            binding.bind_cpu_input("d", divisors)
            session.run_with_iobinding(binding)
            if divisors is GOOD:
                np.testing.assert_array_equal(y.numpy(), Y)
                continue
            for tensor in (y, view, y):  # every time that it is asked for
                with pytest.raises(InvalidInputError, match=REFUSED):
                    tensor.numpy()
            with pytest.raises(InvalidInputError, match=REFUSED):
                binding.copy_outputs_to_cpu()
            with pytest.raises(InvalidInputError, match=REFUSED):
                session.run(None, {"x": y, "d": GOOD})
        y.write(X)
        np.testing.assert_array_equal(session.run(None, {"x": y, "d": GOOD})[0], Y)


def test_runs_that_do_not_wait_hand_a_failure_on(open_session: Open) -> None:
    """Run after run on the device: the last one's result is none, where the first one failed."""
    session = open_session(DIVIDE)
    tensors = [session.empty_device_tensor((4,), "int32") for _ in range(3)]
    binding = session.io_binding()

    def chain(divisors: np.ndarray) -> np.ndarray:
        binding.bind_cpu_input("x", X)
        binding.bind_cpu_input("d", divisors)
        for tensor in tensors:
            binding.bind_output("y", tensor)
            session.run_with_iobinding(binding)
            binding.bind_input("x", tensor)
            binding.bind_cpu_input("d", np.ones(4, np.int32))
        return tensors[-1].numpy()

    with pytest.raises(InvalidInputError, match=REFUSED):
        chain(BAD)
    np.testing.assert_array_equal(chain(GOOD), Y)
    for tensor in tensors:
        tensor.close()


def test_a_check_outlives_its_session(open_session: Open) -> None:
    keeper, session = open_session(DIVIDE), open_session(DIVIDE)
    with keeper.empty_device_tensor((4,), "int32") as y:
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_cpu_input("d", BAD)
        binding.bind_output("y", y)
        session.run_with_iobinding(binding)
        session.close()
        with pytest.raises(InvalidInputError, match=REFUSED):
            y.check()


def test_host_code_gets_no_result_of_a_failed_run(open_session: Open) -> None:
    """The CPU's node between two islands, and an If that asks for a value, come after the check."""
    proto = model(
        "g (int32[9] x, int32[9] d) => (float[1] y)"
        "{ [n] q = Div(x, d) f = Cast<to = 1>(q) s = Constant<value = int64[3] {1, 3, 3}>() m = Reshape(f, s)"
        "  a = Det(m) y = Neg(a) }"
    )
    x = np.eye(3, dtype=np.int32).reshape(-1) * 6
    good = {"x": x, "d": np.full(9, 2, np.int32)}
    check(open_session(proto), good, {"d": x}, "Div 'n'")


def test_a_profile_of_a_bad_run_fails(open_session: Open) -> None:
    session = open_session(DIVIDE)
    with pytest.raises(InvalidInputError, match=REFUSED):
        session.profile({"x": X, "d": BAD})
    assert session.profile({"x": X, "d": GOOD})


def test_saved_plans_keep_their_faults(open_session: Open, tmp_path: Path) -> None:
    steps = " ".join(f"[n{k}] y{k} = Div(y{k - 1}, d) z{k} = Neg(y{k})" for k in range(1, 20))
    outputs = ", ".join(f"int32[4] z{k}" for k in range(1, 20))
    proto = model(f"g (int32[4] x, int32[4] d) => ({outputs}) {{ y0 = Neg(x) {steps} }}")
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    for check_data in (True, False):
        for _ in range(2):
            session: Any = open_session(path, cache_dir=tmp_path, check_data=check_data)
            if not check_data:
                session.run(None, {"x": X, "d": BAD})
                continue
            check(session, {"x": X, "d": GOOD}, {"d": BAD}, "Div 'n1'")
            session.close()


def test_a_failed_run_leaves_no_mark_on_what_the_next_one_overwrites(open_session: Open) -> None:
    """Regions of one submit: the second reads a tensor of which the first run's failure is known when it is staged."""
    gather = open_session(model("g (float[4] x, int64[3] i) => (float[3] y) { y = Gather(x, i) }"))
    relu = open_session(model("g (float[3] y) => (float[3] z) { z = Relu(y) }"))
    x, steps = floats(4), []
    for session, feeds in ((gather, {"x": x, "i": ints(0, 1, 2)}), (relu, {"y": floats(3)})):
        session.run(None, feeds)
        island = session._parts.graph.use(feeds).executable.island
        assert island is not None
        steps.append(island)
    delegate = gather._parts.delegate
    batch = SubmitBatch(delegate, steps)
    shared = DeviceTensor.from_numpy(delegate, np.zeros(3, np.float32))
    for indices, right in ((ints(0, 1, 2), True), (ints(0, 1, 99), False), (ints(3, 2, 1), True)):
        values = {"x": x, "i": indices}
        if right:
            batch.run(values, {"y": shared})
            np.testing.assert_array_equal(values["z"], x[indices])
        else:
            with pytest.raises(InvalidInputError, match="an index is outside"):
                batch.run(values, {"y": shared})
