"""Processes: forks, a missing loader, a missing driver, the end of the interpreter."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.processes import python

FORK = """
import atexit, gc, os, sys
import gpu_shared
from gpu_shared import SharedGpuContext, SharedGpuContextRegistry, SharedGpuCompileSpec, Buffer, ForkedProcessError
spec = SharedGpuCompileSpec(token="parent")
registry = SharedGpuContextRegistry.get()
context = registry.resolve(spec)
lease = context.lease("vulkan")
buffer = Buffer(context.device, 4096)
shared = context.shared_resource("x", object)
submit = lease.prepare([lease.allocate().begin().end()])
child = os.fork()
if child == 0:
    uses = {
        "lease": lambda: context.lease("child"),
        "queue": lambda: context.queue,
        "submit": lambda: submit.submit(),
        "lease.submit": lambda: lease.submit(submit),
        "wait": lambda: lease.wait(),
        "address": lambda: buffer.raw,
        "mapped": lambda: buffer.mapped,
        "new buffer": lambda: Buffer(context.device, 16),
        "lookup": lambda: registry.resolve(spec),
        "other key": lambda: registry.resolve(SharedGpuCompileSpec(token="child")),
        "list": gpu_shared.list_devices,
        "resource": lambda: context.shared_resource("y", object),
    }
    for name, use in uses.items():
        try:
            use()
        except ForkedProcessError as error:
            assert "fork" in str(error)
        else:
            print("no error:", name); sys.stdout.flush(); os._exit(1)
    assert gpu_shared.live_counts() == {}
    assert not context.is_valid
    lease.close(); shared.release(); buffer.close(); context.close()
    del lease, buffer, context, submit, shared
    gc.collect()
    atexit._run_exitfuncs()  # ours and weakref's; not the C library's, which a driver's may not bear in a child
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
lease.wait(lease.submit(submit), timeout_s=120)  # the parent's objects live
assert buffer.address
lease.close(); shared.release(); submit = None; buffer.close(); context.close()
assert gpu_shared.live_counts() == {}, gpu_shared.live_counts()
print("parent fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_gets_errors_and_harms_nothing(gpu: Any) -> None:
    done = python(FORK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "parent fine" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_may_open_the_gpu_that_its_parent_did_not(gpu: Any) -> None:
    done = python(
        "import os, gpu_shared\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    gpu_shared.list_devices()\n"
        "    os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    assert done.returncode == 0, done.stderr


DROPPED = """
import gc, os, sys, threading
from gpu_shared import SharedGpuContext, live_counts, steady
lease = SharedGpuContext.create().lease("dropped")
may_end, steady._FORK_PATIENCE = threading.Event(), 0
steady.later(may_end.wait)  # the thread that ends it waits
del lease
child = os.fork()
if child == 0:
    gc.collect()
    sys.exit(0)
may_end.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert live_counts() == {}
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_end_what_its_parent_dropped(gpu: Any) -> None:
    done = python(DROPPED)
    assert done.returncode == 0, done.stdout + done.stderr


EXIT = """
import atexit, sys
def late():
    from gpu_shared import lifetime
    assert not lifetime.live(), lifetime.live()
    print("nothing is left")
atexit.register(late)  # the first one registered runs last
from gpu_shared import SharedGpuContext
context = SharedGpuContext.create()
lease = context.lease("dropped")
if sys.argv[1:] == ["context"]:
    del context
del lease
"""


@pytest.mark.parametrize("what", ["lease", "context"])
def test_objects_that_are_dropped_before_the_exit_are_ended(gpu: Any, what: str) -> None:
    code = f"import sys; sys.argv[1:] = [{what!r}]\n" + EXIT
    done = python(code)
    assert done.returncode == 0 and "nothing is left" in done.stdout and done.stderr == "", done.stdout + done.stderr


NO_DRIVER = """
import gpu_shared
for use in (gpu_shared.list_devices, gpu_shared.SharedGpuContext.create):
    try:
        use()
    except gpu_shared.DriverNotFoundError as error:
        assert "install" in str(error) and "lavapipe" in str(error), error
    else:
        raise SystemExit("no error")
assert gpu_shared.live_counts() == {}
print("said so")
"""


def test_a_missing_driver_is_said_with_what_to_install() -> None:
    nowhere = "/nonexistent"
    done = python(NO_DRIVER, VK_DRIVER_FILES=nowhere, VK_ICD_FILENAMES=nowhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "said so" in done.stdout


def test_a_missing_loader_is_said_with_what_to_install() -> None:
    done = python("from gpu_shared import vk\nvk.LOADER_NAMES = ('libnosuchloader.so.9',)\n" + NO_DRIVER)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_interpreter_ends_well_with_everything_open(gpu: Any) -> None:
    done = python(
        "import numpy, gpu_shared\n"
        "context = gpu_shared.SharedGpuContext.create(validation=False)\n"
        "lease = context.lease('open')\n"
        "buffer = gpu_shared.Buffer(context.device, 1 << 20, 'upload')\n"
        "array = numpy.frombuffer(buffer.mapped, numpy.uint8)\n"
        "lease.submit(lease.prepare([lease.allocate().begin().end()]))\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
