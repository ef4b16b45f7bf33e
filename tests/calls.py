"""Calls that a test counts or reads, which are made as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def noted(patch: pytest.MonkeyPatch, owner: object, name: str, what: Callable[..., T]) -> list[T]:
    """What ``what`` gives for the arguments of each call of ``owner``'s function ``name`` from now on.

    Where ``owner`` is a class, the first argument is the method's object.
    """
    found: list[T] = []
    real = getattr(owner, name)

    def call(*given: Any, **options: Any) -> Any:
        found.append(what(*given, **options))
        return real(*given, **options)

    patch.setattr(owner, name, call)
    return found
