"""The registry, with contexts that are no contexts: modes, races, failures, stale entries."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpu_shared.compile_spec import ContextMode, SharedGpuCompileSpec
from gpu_shared.context_registry import SharedGpuContextRegistry
from gpu_shared.errors import (
    ContextExistsError,
    ContextIncompatibleError,
    ContextNotFoundError,
    ForkedProcessError,
    GpuError,
)
from gpu_shared.once import InFlight


class FakeContext:
    def __init__(self, key: Any = ("default", 0), extensions: Any = ()) -> None:
        self.key = key
        self.is_valid = True
        self.forked = False
        self.extensions = set(extensions)

    def require(self, extensions: Any = (), features: Any = (), queue_flags: Any = ()) -> None:
        missing = set(extensions) - self.extensions
        if missing:
            raise ContextIncompatibleError("fake", extensions=missing)


def spec(mode: str = "lookup_or_create", token: str = "default", group: int = 0) -> Any:
    return SharedGpuCompileSpec(token=token, mode=ContextMode(mode), group_id=group)


@pytest.fixture
def registry() -> Any:
    return SharedGpuContextRegistry()


def test_get_is_one_object() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len({id(r) for r in pool.map(lambda _: SharedGpuContextRegistry.get(), range(32))}) == 1


def test_lookup_or_create_reuses_by_token_and_group(registry: Any) -> None:
    one = registry.resolve(spec(), FakeContext)
    assert registry.resolve(spec(), FakeContext) is one
    other_group = registry.resolve(spec(group=1), FakeContext)
    other_token = registry.resolve(spec(token="x"), FakeContext)
    assert len({id(c) for c in (one, other_group, other_token)}) == 3
    assert sorted(registry.keys()) == [("default", 0), ("default", 1), ("x", 0)]


def test_lookup_only_on_a_missing_key_names_it(registry: Any) -> None:
    with pytest.raises(ContextNotFoundError, match=r"'scene' and group 7"):
        registry.resolve(spec("lookup_only", "scene", 7), FakeContext)
    context = FakeContext()
    registry.register_context(spec(token="scene", group=7), context)
    assert registry.resolve(spec("lookup_only", "scene", 7), FakeContext) is context


def test_create_only_on_an_existing_key_names_it_and_creates_nothing(registry: Any) -> None:
    first = registry.resolve(spec("create_only", "scene", 7), FakeContext)
    made = []
    with pytest.raises(ContextExistsError, match=r"'scene' and group 7"):
        registry.resolve(spec("create_only", "scene", 7), lambda: made.append(1))
    assert not made
    assert registry.lookup(spec(token="scene", group=7)) is first


def test_disabled_is_private(registry: Any) -> None:
    one = registry.resolve(spec("disabled"), FakeContext)
    two = registry.resolve(spec("disabled"), FakeContext)
    assert one is not two
    assert registry.lookup(("default", 0)) is None


def test_contexts_are_held_weakly(registry: Any) -> None:
    context = registry.resolve(spec(), FakeContext)
    del context
    gc.collect()
    assert registry.lookup(("default", 0)) is None
    assert registry.keys() == []
    assert registry._contexts == {}
    again = registry.resolve(spec("create_only"), FakeContext)
    assert registry.lookup(("default", 0)) is again


def test_an_invalid_context_is_stale(registry: Any) -> None:
    context = registry.resolve(spec(), FakeContext)
    context.is_valid = False
    fresh = registry.resolve(spec(), FakeContext)
    assert fresh is not context
    fresh.is_valid = False
    with pytest.raises(ContextNotFoundError):
        registry.resolve(spec("lookup_only"), FakeContext)


def test_sixteen_racing_threads_create_once(registry: Any) -> None:
    barrier, made = threading.Barrier(16), []

    def create() -> Any:
        made.append(FakeContext())
        time.sleep(0.02)
        return made[-1]

    def race(_: Any) -> Any:
        barrier.wait()
        return registry.resolve(spec(), create)

    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(race, range(16)))
    assert len(made) == 1
    assert all(context is made[0] for context in got)


def test_a_failed_creation_reaches_every_waiter_and_leaves_nothing(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier, calls, waiting = threading.Barrier(16), [], threading.Semaphore(0)
    result = InFlight.result

    def noted(self: InFlight[Any]) -> Any:
        waiting.release()
        return result(self)

    monkeypatch.setattr(InFlight, "result", noted)

    def create() -> None:
        calls.append(1)
        assert all(waiting.acquire(timeout=120) for _ in range(15))
        raise GpuError("vkCreateDevice", "VK_ERROR_INITIALIZATION_FAILED")

    def race(_: Any) -> Any:
        barrier.wait()
        try:
            registry.resolve(spec(), create)
        except GpuError as error:
            return error.result
        return None

    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(race, range(16)))
    assert got == ["VK_ERROR_INITIALIZATION_FAILED"] * 16
    assert calls == [1]
    assert registry._creating == {}
    assert registry._contexts == {}
    assert isinstance(registry.resolve(spec(), FakeContext), FakeContext)


def test_different_keys_are_made_in_parallel(registry: Any) -> None:
    both = threading.Barrier(2, timeout=120)  # breaks unless both creations run at once

    def create() -> Any:
        both.wait()
        return FakeContext()

    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda g: registry.resolve(spec(group=g), create), range(2)))
    assert got[0] is not got[1]


def test_create_only_racing_gives_one_context_and_errors(registry: Any) -> None:
    barrier = threading.Barrier(8)

    def create() -> Any:
        time.sleep(0.05)
        return FakeContext()

    def race(_: Any) -> Any:
        barrier.wait()
        try:
            return registry.resolve(spec("create_only"), create)
        except ContextExistsError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(race, range(8)))
    assert sum(isinstance(g, FakeContext) for g in got) == 1
    assert sum(isinstance(g, ContextExistsError) for g in got) == 7


def test_create_only_tries_itself_after_anothers_failure(registry: Any) -> None:
    started, release = threading.Event(), threading.Event()

    def fail() -> None:
        started.set()
        assert release.wait(120)
        raise GpuError("vkCreateDevice", "VK_ERROR_INITIALIZATION_FAILED")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(registry.resolve, spec("create_only"), fail)
        assert started.wait(120)
        second = pool.submit(registry.resolve, spec("create_only"), FakeContext)
        release.set()
        assert isinstance(first.exception(), GpuError)
        assert isinstance(second.result(), FakeContext)


def test_creating_ones_own_key_recursively_is_an_error(registry: Any) -> None:
    with pytest.raises(RuntimeError, match="in its own creation"):
        registry.resolve(spec(), lambda: registry.resolve(spec(), FakeContext))
    assert isinstance(registry.resolve(spec(), FakeContext), FakeContext)


def test_register_and_take_back(registry: Any) -> None:
    mine = FakeContext(("app", 3))
    registry.register_context(None, mine)
    assert registry.lookup(("app", 3)) is mine
    with pytest.raises(ContextExistsError, match="'app' and group 3"):
        registry.register_context(("app", 3), FakeContext())
    assert registry.unregister_context(("app", 3)) is mine
    assert registry.lookup(("app", 3)) is None
    with pytest.raises(ContextNotFoundError):
        registry.unregister_context(("app", 3))


def test_bad_contexts_and_keys_are_refused(registry: Any) -> None:
    closed = FakeContext()
    closed.is_valid = False
    with pytest.raises(ValueError, match="closed"):
        registry.register_context(spec(), closed)
    with pytest.raises(TypeError, match="expected a SharedGpuContext"):
        registry.resolve(spec(), lambda: None)
    assert registry._creating == {}
    with pytest.raises(TypeError, match="token, group_id"):
        registry.lookup("default")
    with pytest.raises(ValueError, match="-1"):
        registry.lookup(("default", -1))


def test_a_found_context_that_misses_something_says_what(registry: Any) -> None:
    registry.register_context(spec(), kept := FakeContext(extensions={"VK_a"}))
    assert registry.resolve(spec(), FakeContext, extensions=["VK_a"]) is kept
    with pytest.raises(ContextIncompatibleError, match="VK_b") as caught:
        registry.resolve(spec(), FakeContext, extensions=["VK_a", "VK_b"])
    assert caught.value.extensions == ("VK_b",)


def test_a_parents_context_is_refused_after_a_fork(registry: Any) -> None:
    registry.register_context(spec(), parents := FakeContext())
    parents.forked = True
    with pytest.raises(ForkedProcessError):
        registry.resolve(spec(), FakeContext)


def test_clear_for_testing(registry: Any) -> None:
    kept = registry.resolve(spec(), FakeContext)
    registry.clear_for_testing()
    assert registry.lookup(("default", 0)) is None
    assert kept.is_valid
