"""Interrupts at random moments and at each point, a short form of ``python -m tools.fuzz.interrupts``."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkep
from gpu_shared import steady
from gpu_shared.lease import DelegateLease
from tests.nightly import nightly
from tests.session.models import ADD_RELU, SLOW
from tools.fuzz.interrupts import WHAT
from tools.fuzz.moments import PROGRAMS, ones
from tools.waiting import LONG_S, comes_true
from vkep.executorch import Program
from vkep.pte import container

Open = Callable[..., vkep.InferenceSession]
ROOT = Path(__file__).parents[2]
#: kinds of work that one process does, and how many interrupts of each: opening takes long
TOGETHER = [
    (40, ("runs", "parts", "shapes", "binds", "reads", "retires", "asynchronous", "closes", "handles", "executes")),
    (20, ("opens", "contexts", "loads")),
    (40, ("steps", "generates")),
]


def test_every_kind_is_tried() -> None:
    assert sorted(kind for _, kinds in TOGETHER for kind in kinds) == sorted(WHAT)


@pytest.mark.parametrize(
    ("where", "count", "kinds"),
    [
        pytest.param(where, *together, marks=[] if usual == where else pytest.mark.nightly)
        for usual, together in zip(("main", "thread", "main"), TOGETHER, strict=True)
        for where in ("main", "thread")
    ],
)
def test_nothing_is_lost(
    vulkan: object, request: pytest.FixtureRequest, kinds: tuple[str, ...], count: int, where: str
) -> None:
    count = count if nightly() else count // 4
    if "opens" in kinds:  # an interrupted one creates its device beside the next
        request.getfixturevalue("no_layers")
    interrupts = _campaign("--what", *kinds, "--count", str(count), *(["--threads"] if where == "thread" else []))
    assert list(interrupts) == list(kinds) and min(interrupts.values()) >= count


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="interrupts at each point are for CPython 3.11")
@pytest.mark.skipif(not Path(sysconfig.get_path("include"), "Python.h").exists(), reason="needs Python.h")
@pytest.mark.skipif(not any(shutil.which(c) for c in ("cc", "gcc", "clang")), reason="needs a C compiler")
@pytest.mark.parametrize("where", ["main", "thread"])
def test_nothing_is_lost_at_any_point(vulkan: object, where: str) -> None:
    """Of threads those kinds alone that start none: a thread that an exception ends at its start is replaced after 5 s."""
    kinds = TOGETHER[0][1] if where == "main" else ("runs", "reads", "asynchronous", "closes", "executes")
    threads = ["--threads"] if where == "thread" else []
    interrupts = _campaign("--what", *kinds, "--each", "1", "--count", "100000", *threads)
    assert list(interrupts) == list(kinds) and min(interrupts.values()) > 8 and interrupts["runs"] > 100


@pytest.mark.usefixtures("no_layers")
def test_the_garbage_collector_waits_for_nothing(vulkan: object) -> None:
    """It runs within calls, and deletes objects that close sessions."""
    kinds = ("opens", "shapes", "executes", "steps")
    assert list(_campaign("--collector", "--what", *kinds, "--count", "10" if nightly() else "3")) == list(kinds)


def _campaign(*arguments: str) -> dict[str, int]:
    """The number of interrupts, or collections, of each kind."""
    command = [sys.executable, "-m", "tools.fuzz.interrupts", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    logged = ("live blocks", "unreferenced", "no caller waits for")
    assert not any(text in done.stderr for text in logged), done.stderr
    return {
        kind: int(n) for kind, n in re.findall(r"^(\w+): (\d+) (?:interrupts|collections)", done.stdout, re.MULTILINE)
    }


class _Watched:
    """A lock that says when a thread is about to wait for it."""

    def __init__(self, lock: Any) -> None:
        self._lock, self.wanted = lock, threading.Event()

    def __enter__(self) -> Any:
        self.wanted.set()
        return self._lock.__enter__()

    def __exit__(self, *exc: object) -> Any:
        return self._lock.__exit__(*exc)


def _interrupt(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object], owner: Any, name: str) -> None:
    """Interrupt ``work()`` while its thread waits for a lock, and return when that thread has ended the work."""

    handled = threading.Event()

    def handle(*_: object) -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    lock, watched = getattr(owner, name), _Watched(getattr(owner, name))
    main, idle = threading.get_ident(), steady.idle_threads()

    def send() -> None:
        assert watched.wanted.wait(LONG_S)
        while not handled.is_set():  # one that comes just before the main thread waits does not wake it
            signal.pthread_kill(main, signal.SIGALRM)
            handled.wait(0.05)

    sender, before = threading.Thread(target=send), signal.signal(signal.SIGALRM, handle)
    try:
        with monkeypatch.context() as patched, lock:
            patched.setattr(owner, name, watched)
            sender.start()
            with pytest.raises(KeyboardInterrupt):
                work()
    finally:
        sender.join()
        signal.signal(signal.SIGALRM, before)
    assert comes_true(lambda: steady.idle_threads() >= max(idle, 1))


def test_an_interrupted_write_does_not_come_later(
    own_context: vkep.SharedGpuContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vkep.InferenceSession(ADD_RELU, context=own_context) as session:
        tensor = session.device_tensor(np.zeros(5, np.float32))
        _interrupt(monkeypatch, lambda: tensor.write(np.ones(5, np.float32)), session._parts.delegate, "lock")
        np.testing.assert_array_equal(tensor.numpy(), np.zeros(5))


def test_an_interrupted_run_does_not_come_later(
    own_context: vkep.SharedGpuContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, b = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    with vkep.InferenceSession(ADD_RELU, context=own_context) as session:
        y = session.device_tensor(np.zeros((2, 3), np.float32))
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_cpu_input("b", b)
        binding.bind_output("y", y)
        session.run_with_iobinding(binding)
        y.write(np.zeros((2, 3), np.float32))

        def run() -> None:
            session.run_with_iobinding(binding, vkep.RunOptions())

        _interrupt(monkeypatch, run, own_context.device, "queue_lock")
        np.testing.assert_array_equal(y.numpy(), np.zeros((2, 3)))
        run()
        np.testing.assert_array_equal(y.numpy(), x + b)


def test_a_write_waits_for_an_interrupted_run(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after its submit, before the submit's number is known, behind submits of other threads."""
    session = open_session(SLOW)
    sizes = (256, 256)
    x, y, other = (session.device_tensor(np.ones(sizes, np.float32)) for _ in range(3))
    bindings = []
    for out in (y, other):
        bindings.append(session.io_binding())
        bindings[-1].bind_input("x", x)
        bindings[-1].bind_cpu_input("w", np.eye(256, dtype=np.float32))
        bindings[-1].bind_output("y", out)
    submit = DelegateLease.submit

    def interrupted(*arguments: Any) -> int:
        monkeypatch.undo()
        session.run_with_iobinding(bindings[1])
        submit(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(DelegateLease, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.run_with_iobinding(bindings[0])
    y.write(np.zeros(sizes, np.float32))
    np.testing.assert_array_equal(y.numpy(), np.zeros(sizes))


def test_a_write_waits_no_longer_for_runs_that_failed(
    own_context: vkep.SharedGpuContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vkep.InferenceSession(ADD_RELU, context=own_context) as session:
        x = session.device_tensor(np.ones((2, 3), np.float32))
        feeds: dict[str, Any] = {"x": x, "b": np.ones(3, np.float32)}

        def fail(*_: object) -> int:
            raise vkep.GpuError("vkQueueSubmit", "VK_ERROR_OUT_OF_HOST_MEMORY")

        with monkeypatch.context() as patched:
            patched.setattr(DelegateLease, "submit", fail)
            for _ in range(3):
                with pytest.raises(vkep.GpuError, match="OUT_OF_HOST_MEMORY"):
                    session.run(None, feeds)
        session.run(None, feeds)
        last = own_context.timeline.submitted
        assert x.uses.last(last + 100) == last


def test_an_interrupted_method_does_not_come_later(vulkan: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with Program.load(PROGRAMS / "vulkan.pte", token="later") as program:
        method = program.load_method(min(program.method_names))
        given, calls = ones(method), []
        run = method._run

        def counted() -> None:
            calls.append(1)
            run()

        method._run = counted  # type: ignore[method-assign]
        _interrupt(monkeypatch, lambda: method.execute(given), method, "_lock")
        assert not calls
        method.execute(given)
        assert calls == [1]


def test_an_error_of_a_signals_handler_is_no_missing_file(vulkan: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of a program reports each OSError as one of its file."""
    raised: list[TimeoutError] = []
    caller = threading.get_ident()

    def handle(*_: object) -> None:
        if not raised:
            raised.append(TimeoutError("of the handler"))
            raise raised[0]

    def interrupted(*_: object) -> bytes:
        while not raised:  # one that comes just before the main thread waits does not wake it
            signal.pthread_kill(caller, signal.SIGALRM)
            time.sleep(0.01)
        return b""

    monkeypatch.setattr(container, "check_memory", interrupted)
    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(TimeoutError) as caught:
            Program.load(PROGRAMS / "vulkan.pte")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert caught.value is raised[0]
