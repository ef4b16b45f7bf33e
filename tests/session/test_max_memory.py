"""`max_memory`: sessions on a context give their device memory back while others need it, and take it again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from gpu_shared.steady import run_steady
from tests.session.models import model
from vkep import InferenceSession, SharedGpuContext
from vkep.device.constants import ConstantStore

WIDTH = 128
BYTES = 4 * WIDTH * WIDTH  #: of one weight
LAYERS = (8, 6, 4)
WEIGHTS = [BYTES * count for count in LAYERS]
ROOM = 120 << 10  #: for what a run takes besides weights
Array = np.ndarray[Any, Any]


def chain(seed: int, layers: int, rows: str | int = "n") -> ModelProto:
    """``layers`` products with weights of their own."""
    nodes = " ".join(f"y{k} = MatMul({'x' if k == 0 else f'y{k - 1}'}, w{k})" for k in range(layers))
    last = f"y{layers - 1}"
    proto = model(f"g (float[{rows},{WIDTH}] x) => (float[{rows},{WIDTH}] {last}) {{ {nodes} }}")
    rng = np.random.default_rng(seed)
    for k in range(layers):
        weight = rng.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5
        proto.graph.initializer.append(numpy_helper.from_array(weight, f"w{k}"))
    return proto


def inputs(rows: int = 3) -> dict[str, Array]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, WIDTH), np.float32)}


def expected(proto: ModelProto, feeds: dict[str, Array]) -> Array:
    x = feeds["x"].astype(np.float64)
    for weight in proto.graph.initializer:
        x = x @ numpy_helper.to_array(weight)
    return x


def check(session: InferenceSession, proto: ModelProto, rows: int = 3) -> None:
    np.testing.assert_allclose(session.run(None, inputs(rows))[0], expected(proto, inputs(rows)), atol=1e-4)


@pytest.fixture
def parts() -> list[ModelProto]:
    return [chain(seed, layers) for seed, layers in enumerate(LAYERS)]


@pytest.fixture
def opened(own_context: SharedGpuContext) -> Iterator[Callable[..., list[InferenceSession]]]:
    with ExitStack() as held:

        def open_(protos: Sequence[ModelProto], **options: Any) -> list[InferenceSession]:
            made = [InferenceSession(proto, context=own_context, save_plans=False, **options) for proto in protos]
            return [held.enter_context(session) for session in made]

        yield open_


def test_parts_are_loaded_in_turn(
    parts: list[ModelProto], opened: Callable[..., list[InferenceSession]], monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads: list[int] = []
    own = ConstantStore._upload

    def counted(self: ConstantStore, refs: Any, *rest: Any) -> None:
        uploads.append(sum(ref.nbytes for ref in refs))
        own(self, refs, *rest)

    monkeypatch.setattr(ConstantStore, "_upload", counted)
    most = max(WEIGHTS) + ROOM
    sessions = opened(parts, max_memory=most)
    seen = []
    for turn in range(6):
        for session, proto in zip(sessions, parts, strict=True):
            for rows in (3, 5, 3):
                check(session, proto, rows)
            stats = session.memory().arena
            assert stats.total_allocated_bytes <= most == stats.bytes_limit
        seen.append((sessions[0].memory().arena.bytes_in_use, len(uploads)))
        if turn == 1:  # plans exist
            uploads.clear()
    # each turn uploads each part once, and ends with the same memory
    assert [bytes_ for bytes_, _ in seen[2:]] == [seen[2][0]] * 4
    assert sorted(uploads) == sorted(4 * WEIGHTS)
    assert sessions[0].memory().arena.max_bytes_in_use <= most < sum(WEIGHTS)


def test_what_fits_stays(
    parts: list[ModelProto], opened: Callable[..., list[InferenceSession]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = opened(parts, max_memory=sum(WEIGHTS) + 4 * ROOM)
    for session, proto in zip(sessions, parts, strict=True):
        check(session, proto)
    monkeypatch.setattr(ConstantStore, "_upload", lambda *_: pytest.fail("weights were uploaded again"))
    for session, proto in zip(sessions, parts, strict=True):
        check(session, proto)


def test_any_limit_is_kept_or_refused(parts: list[ModelProto], opened: Callable[..., list[InferenceSession]]) -> None:
    outcomes = set()
    for most in np.random.default_rng(0).integers(BYTES * 3, sum(WEIGHTS) + 4 * ROOM, 12).tolist():
        for proto, weights in zip(parts, WEIGHTS, strict=True):
            if weights <= most <= weights + ROOM:
                continue  # it depends on what a run takes besides weights
            (session,) = opened([proto], max_memory=most)
            with session:
                fits = most > weights + ROOM
                with nullcontext() if fits else pytest.raises(MemoryError, match="max_memory"):
                    check(session, proto)
                outcomes.add("kept" if fits else "refused")
                assert session.memory().arena.total_allocated_bytes <= most
    assert outcomes == {"kept", "refused"}


def test_a_part_that_does_not_fit_is_named_and_others_go_on(
    parts: list[ModelProto], opened: Callable[..., list[InferenceSession]]
) -> None:
    most = WEIGHTS[1] + ROOM
    large, *others = opened(parts, max_memory=most)
    for _ in range(2):
        with pytest.raises(MemoryError, match=rf"{WEIGHTS[0]} of weights.*max_memory is {most}: use a smaller batch"):
            large.run(None, inputs())
        for session, proto in zip(others, parts[1:], strict=True):
            check(session, proto)


def test_plans_of_one_session(own_context: SharedGpuContext) -> None:
    """Two parts of one session, of which one is planned once a value is known: they share rooms."""
    both = model(
        "g (float[n,128] x, bool c) => (float[n,128] y) {"
        " y = If (c) <then_branch = t () => (float[n,128] a) { h = MatMul(x, u0) a = MatMul(h, u1) },"
        " else_branch = e () => (float[n,128] b) { i = MatMul(x, v0) b = MatMul(i, v1) }> }"
    )
    weights = {
        name: np.random.default_rng(k).standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5
        for k, name in enumerate(("u0", "u1", "v0", "v1"))
    }
    both.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    most = 2 * BYTES + ROOM // 2
    with InferenceSession(both, context=own_context, save_plans=False, max_memory=most) as session:
        for turn in range(6):
            x, first = inputs()["x"], turn % 2 == 0
            (got,) = session.run(None, {"x": x, "c": np.array(first)})
            names = ("u0", "u1") if first else ("v0", "v1")
            np.testing.assert_allclose(got, x @ weights[names[0]] @ weights[names[1]], atol=1e-4)
            assert session.memory().arena.total_allocated_bytes <= most


def test_runs_that_were_not_waited_for_end_before_memory_is_given_back(
    parts: list[ModelProto], opened: Callable[..., list[InferenceSession]]
) -> None:
    first, second = opened(parts[:2], max_memory=max(WEIGHTS) + ROOM)
    for rows in range(1, 7):
        feeds = inputs(rows)
        binding = first.io_binding()
        binding.bind_input("x", first.device_tensor(feeds["x"]))
        binding.bind_output(first.get_outputs()[0].name)
        first.run_with_iobinding(binding)  # returns at once
        check(second, parts[1], rows)
        np.testing.assert_allclose(binding.get_outputs()[0].numpy(), expected(parts[0], feeds), atol=1e-4)


def test_runs_in_threads_wait_for_memory(
    parts: list[ModelProto], opened: Callable[..., list[InferenceSession]]
) -> None:
    sessions = opened(parts, max_memory=max(WEIGHTS) + ROOM)

    def work(which: int) -> int:
        done = 0
        for rows in range(1, 12):
            check(sessions[which], parts[which], 1 + rows % 4)
            done += 1
        return done

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(3))) == [11] * 3


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that interrupt here")
def test_interrupts_leave_all_parts_usable(
    parts: list[ModelProto], opened: Callable[..., list[InferenceSession]]
) -> None:
    class Stop(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    most = max(WEIGHTS) + ROOM
    sessions = opened(parts, max_memory=most)
    for session, proto in zip(sessions, parts, strict=True):
        check(session, proto)
    before = signal.signal(signal.SIGALRM, stop)
    interrupted = 0
    try:
        for delay in np.random.default_rng(0).uniform(0.0002, 0.02, 40).tolist():
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                for session in sessions * 3:
                    session.run(None, inputs())
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Stop:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    run_steady(lambda: None)
    assert interrupted > 10
    for session, proto in zip(sessions, parts, strict=True):
        check(session, proto)
        assert session.memory().arena.total_allocated_bytes <= most


def test_the_smaller_of_both_limits_applies(
    parts: list[ModelProto], opened: Callable[..., list[InferenceSession]], caplog: pytest.LogCaptureFixture
) -> None:
    most = max(WEIGHTS) + ROOM
    options = {"arena": {"max_mem": most}}
    for max_memory, limit in ((64 << 20, most), (most // 2, most // 2)):
        sessions = opened(parts[1:], max_memory=max_memory, **options)
        assert sessions[0].memory().arena.bytes_limit == limit
        for session in sessions:
            session.close()
    (session,) = opened(parts[:1], **options)
    check(session, parts[0])
    assert session.memory().arena.bytes_limit == most
    assert caplog.records == []  # a limit of a session is no other configuration


def test_memory_of_other_sessions_inputs_and_of_runs_in_progress_is_free(
    opened: Callable[..., list[InferenceSession]],
) -> None:
    """Inputs and outputs of the host in the memory of those of another session, which is no longer assigned to it; a tensor in
    that of one which a run reads."""
    protos, rows = [chain(seed, 2) for seed in range(3)], 1000
    ports = 2 * 4 * WIDTH * rows
    most = 2 * BYTES + 2 * ports + ROOM
    sessions = opened(protos, max_memory=most)
    for _ in range(2):
        for session, proto in zip(sessions, protos, strict=True):
            check(session, proto, rows)
    shape = (rows, WIDTH)
    for _ in range(8):
        binding, x = sessions[0].io_binding(), sessions[0].empty_device_tensor(shape, "float32")
        x.write(inputs(rows)["x"])
        y = sessions[0].empty_device_tensor(shape, "float32")
        binding.bind_input("x", x)
        binding.bind_output("y1", y)
        sessions[0].run_with_iobinding(binding)  # returns at once
        binding.clear()
        for tensor in (x, y):
            tensor.close()
        left = most - 2 * BYTES - 2 * 4 * WIDTH * rows
        with sessions[1].empty_device_tensor((left // 4,), "float32"):
            pass
    assert sessions[0].memory().arena.max_bytes_in_use <= most


@pytest.mark.parametrize("value", [0, -1, "4 GiB", 1.5])
def test_only_bytes_are_a_limit(value: Any) -> None:
    with pytest.raises(ValueError, match=r"max_memory is .*, expected an integer of at least 1, or None"):
        InferenceSession(chain(0, 1), max_memory=value)
