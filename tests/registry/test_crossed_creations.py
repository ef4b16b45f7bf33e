"""Creations that wait for one another in a circle end with an error; those that merely wait for others do not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gpu_shared import SharedGpuContextRegistry
from gpu_shared.resources import ResourceStore
from gpu_shared.steady import Started, run_steady

#: asks for the object of a key; the function creates it where there is none
Ask = Callable[[str, Callable[[], Any]], Any]


class Context:
    is_valid, forked = True, False


def in_registry() -> Ask:
    registry, kept = SharedGpuContextRegistry(), []

    def ask(key: str, create: Callable[[], Any]) -> Any:
        kept.append(registry.lookup_or_create((key, 0), create))
        return kept[-1]

    return ask


def created_only() -> Ask:
    registry, kept = SharedGpuContextRegistry(), []

    def ask(key: str, create: Callable[[], Any]) -> Any:
        kept.append(registry.create((key, 0), create))
        return kept[-1]

    return ask


def in_store() -> Ask:
    store = ResourceStore()
    return lambda key, factory: store.acquire(key, factory).making.result()


def by_turns() -> Ask:
    """A registry whose contexts ask for resources of a store, whose factories ask for contexts."""
    asks = {"a": in_registry(), "b": in_store(), "c": in_registry()}
    return lambda key, create: asks[key](key, create)


def in_threads_of_their_own() -> Ask:
    """The factory waits for a thread that asks, as a session does that opens its context while it reads its model."""
    ask = in_registry()
    return lambda key, create: run_steady(lambda: Started(lambda: ask(key, create)).result())


KINDS = {made.__name__: made for made in (in_registry, created_only, in_store, by_turns, in_threads_of_their_own)}
#: which keys the creation of each key asks for
CIRCLES: dict[str, Mapping[str, str]] = {
    "itself": {"a": "a"},
    "two": {"a": "b", "b": "a"},
    "three": {"a": "b", "b": "c", "c": "a"},
    "two, and one that waits for them": {"a": "b", "b": "a", "c": "a"},
}


def outcomes(ask: Ask, asked: Mapping[str, str]) -> dict[str, Any]:
    """What each thread has that creates one of the keys; all creations have begun before one asks for another."""
    begun = threading.Barrier(len(asked), timeout=20)
    found: dict[str, Any] = {}

    def create(key: str) -> Any:
        begun.wait()
        for other in asked[key]:
            ask(other, Context)
        return Context()

    def run(key: str) -> None:
        try:
            found[key] = ask(key, lambda: create(key))
        except BaseException as error:
            found[key] = error

    threads = [threading.Thread(target=run, args=(key,), daemon=True) for key in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "it waits for ever"
    return found


@pytest.mark.parametrize("circle", CIRCLES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_circle_is_an_error(kind: str, circle: str) -> None:
    ask = KINDS[kind]()
    found = outcomes(ask, CIRCLES[circle])
    errors = [e for e in found.values() if isinstance(e, RuntimeError) and "asked for in" in str(e)]
    assert errors  # those that come later create what failed
    for key in found if kind != "created_only" else ():
        assert ask(key, Context).is_valid, "nothing is left of the failed creations"


@pytest.mark.parametrize("kind", ["in_registry", "in_store", "by_turns", "in_threads_of_their_own"])
@pytest.mark.parametrize("asked", [{"a": "bc", "b": "c", "c": ""}, {"a": "c", "b": "c", "c": ""}])
def test_those_that_wait_in_no_circle_have_their_objects(kind: str, asked: Mapping[str, str]) -> None:
    found = outcomes(KINDS[kind](), asked)
    assert all(made.is_valid for made in found.values())
    assert len({id(made) for made in found.values()}) == 3
