"""Ends and beginnings, each in a process of its own: exit with live sessions, unregistering, forking, many sessions."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.nightly import nightly

PRELUDE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
import gc, os, sys
import numpy as np, onnxruntime
import vkep.ort
from tests.ort.conftest import graph, where
EP = vkep.ort.EP_NAME
ADD = graph("g (float[2,3] x) => (float[2,3] y) { y = Add(x, x) }")
X = np.arange(6, dtype=np.float32).reshape(2, 3)

def open_session(model=ADD, **options):
    made = onnxruntime.InferenceSession(model, providers=[(EP, options)], enable_fallback=0)
    made.disable_fallback()
    return made

def check(session):
    assert (session.run(None, {"x": X})[0] == 2 * X).all()
"""


def run(body: str, **environment: str) -> str:
    """The output of a process that must end with status 0 and say nothing on standard error."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(body)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def _a_device(vulkan: Any) -> None:
    """These tests need one too, though only their processes use it."""


def test_exit_with_live_sessions_and_values() -> None:
    assert "done" in run(
        """
        vkep.ort.register()
        session = open_session()
        check(session)
        vendor = next(d for d in onnxruntime.get_ep_devices() if d.ep_name == EP).device.vendor_id
        value = onnxruntime.OrtValue.ortvalue_from_numpy(X, "gpu", 0, vendor)
        print("done")
        """
    )


def test_unregistering_and_registering_again() -> None:
    assert (
        run(
            """
        for _ in range(3):
            vkep.ort.register()
            session = open_session()
            check(session)
            del session
            gc.collect()
            vkep.ort.unregister()
            print(EP in [d.ep_name for d in onnxruntime.get_ep_devices()])
        """
        ).split()
        == ["False"] * 3
    )


def test_a_session_lives_on_after_its_library_is_unregistered() -> None:
    assert "False 0" in run(
        """
        vkep.ort.register()
        session = open_session()
        check(session)
        vkep.ort.unregister()
        check(session)
        del session
        gc.collect()
        from vkep.ort.boundary import live_structs
        print(EP in [d.ep_name for d in onnxruntime.get_ep_devices()], live_structs().get("OrtEp", 0))
        """
    )


def test_everything_goes_with_the_last_session() -> None:
    out = run(
        """
        import gpu_shared
        from vkep.ort.boundary import live_structs
        from vkep.ort.memory.domain import live_domains
        vkep.ort.register()
        for number in range(20):
            session = open_session(token=f"t{number % 3}")
            check(session)
            del session
        gc.collect()
        print(sum(gpu_shared.live_counts().values()), live_domains(), live_structs())
        """
    )
    assert out.startswith("0 {} ")
    assert "OrtEp'" not in out and "OrtNodeComputeInfo" not in out


def test_a_forked_child_gets_an_error_not_a_crash() -> None:
    assert "child said: True" in run(
        """
        vkep.ort.register()
        session = open_session()
        check(session)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                session.run(None, {"x": X})
            except Exception as error:
                print("child said:", "fork" in str(error).lower())
                sys.stdout.flush()
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        check(session)
        """
    )


def test_a_forked_child_that_exits_says_nothing() -> None:
    """Its exit releases the parent's sessions."""
    assert "child ended: 0" in run(
        """
        vkep.ort.register()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # it has no threads that a fork would lose
        session = onnxruntime.InferenceSession(ADD, options, providers=[EP])
        check(session)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print("child ended:", status)
        """
    )


def test_without_a_driver_registering_says_why_and_once_is_enough(tmp_path: Path) -> None:
    assert (
        run(
            """
        import logging
        logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
        vkep.ort.register()
        vkep.ort.register()
        vkep.ort.unregister()
        vkep.ort.register()
        assert EP not in [d.ep_name for d in onnxruntime.get_ep_devices()]
        """,
            VK_DRIVER_FILES=str(tmp_path / "none.json"),
            VK_ICD_FILENAMES=str(tmp_path / "none.json"),
        ).count("vkep.ort WARNING VulkanExecutionProvider has no device: vkCreateInstance")
        == 2
    )


def test_registering_from_many_threads_at_once() -> None:
    run(
        """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: vkep.ort.register(), range(8)))
        check(open_session())
        """
    )


def test_ctrl_c_during_a_run_ends_a_program_that_goes_on_after_errors() -> None:
    assert "interrupted" in run(
        """
        import signal, threading, time
        vkep.ort.register()
        big = np.ones((256, 256), np.float32)
        session = open_session(graph("g (float[256,256] x) => (float[256,256] y) { a = MatMul(x, x) y = MatMul(a, x) }"))
        started = time.monotonic()
        def work():
            while time.monotonic() - started < 300:
                try:
                    session.run(None, {"x": big})
                except Exception:
                    continue
        try:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            work()
        except KeyboardInterrupt:
            print("interrupted")
        """
    )


def test_ctrl_c_while_a_session_is_made_is_not_a_session_on_the_cpu() -> None:
    out = run(
        """
        import signal, time
        from vkep.ort import boundary, ep
        vkep.ort.register()
        boundary._GRACE = 5  # before the second interrupt the error is printed
        ep.claim = lambda *args, **options: signal.raise_signal(signal.SIGINT)
        try:
            try:
                print("made", onnxruntime.InferenceSession(ADD, providers=[EP]).get_providers())
            except Exception as error:
                print(error)
            for _ in range(12000):  # another thread interrupts it, which does not wake it
                time.sleep(0.01)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert "vkep: KeyboardInterrupt" in out
    assert "interrupted" in out
    assert "made" not in out


@pytest.mark.parametrize("kind", ["status", "value"])
def test_what_another_signals_handler_raises_in_a_callback_arrives(kind: str) -> None:
    """In one that returns a status and in one that does not, where it is logged."""
    out = run(
        f"""
        import logging, signal, time
        from vkep.ort import ep
        from vkep.ort.nodes import fused
        logging.getLogger("vkep.ort").addHandler(logging.NullHandler())
        raised = []
        def handle(*_):
            raised.append(TimeoutError("of the handler"))
            raise raised[-1]
        signal.signal(signal.SIGUSR1, handle)
        vkep.ort.register()
        def interrupted(*arguments, **options):
            if len(raised) == 0:
                signal.raise_signal(signal.SIGUSR1)
            return False
        if "{kind}" == "status":
            ep.claim = interrupted
        else:
            fused.FusedNode.ReleaseState = interrupted
        try:
            try:
                onnxruntime.InferenceSession(ADD, providers=[EP])
            except Exception as error:
                if error is raised[-1]:
                    raise
            for _ in range(12000):
                time.sleep(0.01)
        except TimeoutError as error:
            print(len(raised), "times, arrived", error is raised[-1])
        """
    )
    assert "2 times, arrived True" in out


def test_an_exception_before_a_callbacks_first_line_fails_the_call() -> None:
    """As a signal's handler does. cffi would return zeros for it: a status of success."""
    assert "takes 0 positional arguments" in run(
        """
        from vkep.ort import boundary
        vkep.ort.register()
        session = open_session()
        name = "vkep_ep_OnRunEnd"
        boundary._define(name, lambda: None, lambda error: boundary.to_status(error, name))
        try:
            check(session)
        except Exception as error:
            print(error)
        """
    )


def test_registration_alone_opens_no_device() -> None:
    assert (
        run(
            """
        import gpu_shared
        vkep.ort.register()
        print(gpu_shared.live_counts())
        """
        ).strip()
        == "{}"
    )


def test_binding_while_other_threads_run_does_not_deadlock() -> None:
    """ONNX Runtime makes streams under a lock that ``bind_ortvalue_input`` takes while it holds Python's own."""
    assert "done" in run(
        """
        import faulthandler, threading
        faulthandler.dump_traceback_later(500, exit=True)
        vkep.ort.register()
        devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == EP]
        from tests.ort.conftest import device_number
        number = device_number(vkep.ort)
        vendor = devices[number].device.vendor_id
        session = open_session()

        def bind():
            for _ in range(60):
                binding = session.io_binding()
                binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(X, "gpu", number, vendor))

        def go():
            for _ in range(60):
                check(session)

        threads = [threading.Thread(target=work) for work in (bind, go) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("done")
        """
    )


@pytest.mark.usefixtures("no_layers")
def test_a_short_soak_leaves_nothing_behind() -> None:
    sizes = ["--sessions", "40", "--runs", "400"] if nightly() else ["--sessions", "12", "--runs", "120"]
    out = run(
        f"""
        from tools.ort_soak import main
        sys.exit(main([*{sizes}, "--threads", "8", "--allow", "20"]))
        """,
        MALLOC_ARENA_MAX="2",  # as the tool starts itself: glibc has up to eight heaps a core, which keep what was freed
    )
    assert "left behind: nothing; wrong answers: 0" in out


@pytest.mark.nightly
def test_memory_does_not_grow_over_many_sessions_and_runs() -> None:
    grown = float(
        run(
            """
            from tests.growth import growth
            vkep.ort.register()
            keep = open_session()
            def round():
                for _ in range(10):
                    session = open_session()
                    for _ in range(20):
                        session.run(None, {"x": X})
                    del session
            print(growth(round))
            """,
            MALLOC_ARENA_MAX="2",
        )
    )
    assert grown < 0.5  # MB for 10 sessions and 200 runs
