"""A user's ``__del__`` method closes objects of vkep, and the garbage collector calls it: it must wait for no lock."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import parser

import vkep
from gpu_shared import steady
from gpu_shared.collector import released, steady_close
from gpu_shared.memory import Buffer
from tests.collecting import Ring, held_elsewhere

if TYPE_CHECKING:
    from gpu_shared import SharedGpuContext

MODEL = parser.parse_model('<ir_version: 9, opset_import: ["": 18]> g (float[n] x) => (float[n] y) { y = Relu(x) }')


def _session(context: SharedGpuContext) -> Any:
    made = vkep.InferenceSession(MODEL, context=context)
    made.run(None, {"x": np.ones(3, np.float32)})
    return made


def _tensor(context: SharedGpuContext) -> Any:
    with vkep.InferenceSession(MODEL, context=context) as session:
        return session.device_tensor(np.ones(3, np.float32))


#: makes an object that has ``close`` and ``closed``
CLOSED: dict[str, Callable[[SharedGpuContext], Any]] = {
    "session": _session,
    "tensor": _tensor,
    "lease": lambda context: context.lease("test"),
    "buffer": lambda context: Buffer(context.device, 256, "device", label="test"),
    "context": lambda context: context,
}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("kind", CLOSED)
def test_what_it_closes(own_context: SharedGpuContext, kind: str) -> None:
    made = CLOSED[kind](own_context)
    closes = getattr(made, "_parts", made)  # a session's
    Ring(ends=made.close)
    with held_elsewhere(steady._gate):  # work that waits for another thread does not begin
        gc.collect()
        assert not closes.closed
    steady.settle()
    assert closes.closed


@pytest.mark.usefixtures("no_collection")
def test_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Bad:
        @steady_close
        def close(self) -> None:
            raise ValueError("a bad one")

    Ring(ends=Bad().close)
    gc.collect()
    steady.settle()
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["a bad one"]
    with pytest.raises(ValueError, match="a bad one"):
        Bad().close()


@pytest.mark.usefixtures("no_collection")
def test_releases_keep_their_order(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def release(name: str) -> None:
        done.append(name)
        if name == "first":
            raise ValueError("a bad one")

    Ring(ends=lambda: released(release, "first"))
    with held_elsewhere(steady._gate):
        gc.collect()
        released(release, "second")  # after the first, though the collector does not call it
        assert done == []
    steady.settle()
    assert done == ["first", "second"]
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["a bad one"]
    released(release, "third")
    assert done[2:] == ["third"]
