"""Caches of functions whose arguments may be sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: entries of each cache: a model has some hundred distinct shapes and problems, which recur in its layers
_ENTRIES = 1024
_caches: list[functools._lru_cache_wrapper[Any]] = []


def cached(function: Callable[..., T]) -> functools._lru_cache_wrapper[T]:
    """Decorates a function of hashable arguments, which may be sizes: its results are cached until `clear_caches`."""
    made = functools.lru_cache(_ENTRIES)(function)
    _caches.append(made)
    return made


def clear_caches() -> None:
    """Empty the caches of all `cached` functions. Call it when a trace ends: an entry with one of its sizes is not found
    again, and keeps the trace alive."""
    for cache in _caches:
        cache.cache_clear()
