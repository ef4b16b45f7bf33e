"""Errors pass between processes: a worker of a pool may raise any of them."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

import vkep.ops.registry
import vkep.ort.library
import vkep.session.execution.executor
import vkep.shaders.errors
import vkep.vgf.convert  # noqa: F401  # with the others: they declare errors
from gpu_shared import errors
from gpu_shared.errors import PicklableError
from vkep.arena.records import ArenaOutOfMemory
from vkep.errors import Decline, UnsupportedProgramError
from vkep.session.execution.vgf import GraphRefused
from vkep.shaders.errors import Diagnostic, ShaderCompileError, ShaderInterfaceError

#: those whose constructors take more than a text
MADE = [
    errors.GpuError("vkCreateDevice", "VK_ERROR_UNKNOWN", "device 0", "update the driver"),
    errors.OutOfDeviceMemoryError("vkAllocateMemory", asked=3, budget=2, used=1),
    errors.ContextNotFoundError("token", 3, "hint"),
    errors.ContextExistsError("token", 3),
    errors.ContextIncompatibleError("label", extensions=["b", "a"], hint="hint"),
    errors.ForkedProcessError("context"),
    UnsupportedProgramError("text", ["a", "b"]),
    ArenaOutOfMemory("a", asked=5, in_use=1, allocated=2, limit=4, largest_free=1, reason="fragmented"),
    GraphRefused((), "reason"),
    ShaderCompileError([Diagnostic("a.comp", 3, "message", "line")], {"T": "float"}, "glslang"),
    ShaderInterfaceError("a.comp", ["one", "two"]),
]


def kinds(base: type[PicklableError] = PicklableError) -> Iterator[type[PicklableError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


def blank(kind: type[PicklableError]) -> PicklableError:
    """One of a kind, whatever its constructor takes."""
    error = kind.__new__(kind)
    error.args = ("text",)
    return error


OTHERS = [blank(kind) for kind in sorted(set(kinds()) - {type(e) for e in MADE}, key=lambda kind: kind.__qualname__)]


def test_long_names_are_shortened_in_messages() -> None:
    """A name is a file's, and may have any length."""
    name = "Name" * (1 << 18)
    text = str(UnsupportedProgramError(f"node {name!r} runs nowhere: {name}: {'p' * 4000}"))
    assert text.startswith("node 'NameName") and text.endswith("p" * 4000) and text.count(" characters ...]") == 2
    assert len(text) < 5000
    assert len(str(Decline("a " * (1 << 20)))) < 70_000
    assert len(Decline(name).reason) < 300


@pytest.mark.parametrize("error", [*MADE, *OTHERS], ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_it_was_pickled(error: PicklableError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def _refuse() -> None:
    raise errors.ContextNotFoundError("token", 3)


def test_a_pool_hands_an_error_on() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(errors.ContextNotFoundError, match="token 'token' and group 3") as raised:
            pool.submit(_refuse).result(timeout=600)
        assert raised.value.group_id == 3
        assert pool.submit(int, "7").result(timeout=600) == 7, "and goes on"
