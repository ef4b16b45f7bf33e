"""Chat templates: texts in Jinja's language that come with models. They are not trusted."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any

from gpu_shared.steady import steady
from vkep.errors import InvalidInputError, VkepError
from vkep.text import shortened

#: limits of a template: characters of its own, of a text that it makes, and lines of its code that run
LONGEST_TEMPLATE, LONGEST_TEXT, MOST_STEPS = 1 << 20, 1 << 24, 1_000_000
#: the largest whole number that a method of texts or a filter with a width may be called with
_WIDEST = 10_000
#: filters whose arguments are widths
_WIDTHS = ("center", "format", "indent", "tojson", "truncate", "wordwrap")


class MissingPackageError(VkepError, ImportError):
    """A package of the extra ``vkep[generate]`` is not installed."""


class _RaiseException:
    """The function ``raise_exception`` of templates. An object: functions refer to their module."""

    __slots__ = ()

    def __call__(self, message: object) -> None:
        raise ValueError(shortened(str(message)))


class _Range:
    """The function ``range`` of templates."""

    __slots__ = ()

    def __call__(self, *bounds: int) -> range:
        numbers = range(*bounds)
        _check_length(len(numbers), 100_000)
        return numbers


class _Now:
    """The function ``strftime_now`` of templates."""

    __slots__ = ()

    def __call__(self, form: str) -> str:
        _check_widths((form,))
        return datetime.now().strftime(form)


@steady
def render(template: str, values: Mapping[str, Any]) -> str:
    """Render a chat template in Jinja's sandbox, which keeps it from accessing the interpreter.

    Raises `InvalidInputError` where it fails, or exceeds a limit of this module; `MissingPackageError` without jinja2.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"chat templates need the package jinja2: pip install 'vkep[generate]' ({error})"
        ) from None
    try:
        _check_length(len(template), LONGEST_TEMPLATE)
        pieces, length = [], 0
        with _counted_steps():
            for piece in _environment().from_string(template).generate(values):
                pieces.append(piece)
                length += len(piece)
                _check_length(length)
        return "".join(pieces)
    except Exception as error:  # a template may raise exceptions of any class
        raise InvalidInputError(f"the chat template refuses the messages: {type(error).__name__}: {error}") from None


@functools.cache
def _environment() -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):  # type: ignore[misc]  # without jinja2
        """The sandbox, with limits of what single operations may make."""

        intercepted_binops = frozenset(["+", "*", "**", "%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**":
                _check_length(_size(left) * abs(right) if isinstance(right, int) else 0, _WIDEST)
            elif operator == "%" and isinstance(left, str):
                _check_widths((left, *right) if isinstance(right, tuple) else (left, right))
            elif operator == "*":
                _check_length(_size(left) * right if isinstance(right, int) else 0)
                _check_length(_size(right) * left if isinstance(left, int) else 0)
            elif isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
                _check_length(len(left) + len(right))
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
            text = getattr(__obj, "__self__", None)
            if isinstance(text, str):
                _check_widths((text, *args) if __obj.__name__ in ("format", "format_map") else args)
                _check_length(
                    len(text) * max([len(a) for a in args if isinstance(a, str)], default=0), LONGEST_TEXT << 6
                )
            return super().call(__context, __obj, *args, **kwargs)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _to_json
    for name in _WIDTHS:
        environment.filters[name] = _with_widths(environment.filters[name])
    environment.globals = {
        **{name: environment.globals[name] for name in ("dict", "namespace")},
        "range": _Range(),
        "raise_exception": _RaiseException(),
        "strftime_now": _Now(),
    }
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _with_widths(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_widths((*args, *kwargs.values()))
        return function(*args, **kwargs)

    return checked


def _check_widths(values: tuple[Any, ...]) -> None:
    """Raise ``ValueError`` for widths that are too large, also in the texts of formats."""
    for value in values:
        digits = (
            max(map(len, "".join(c if c.isdigit() else " " for c in value).split()), default=0)
            if _may_format(value)
            else 0
        )
        if digits > len(str(_WIDEST)) - 1 or (isinstance(value, int) and abs(value) > _WIDEST):
            raise ValueError(f"a width of more than {_WIDEST}")


def _may_format(value: Any) -> bool:
    return isinstance(value, str) and ("%" in value or "{" in value)


def _check_length(length: int, most: int = LONGEST_TEXT) -> None:
    if length > most:
        raise ValueError(f"a text or list of {length} elements, and {most} are allowed")


def _size(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else len(value) if hasattr(value, "__len__") else 0


@contextmanager
def _counted_steps() -> Iterator[None]:
    """Raise ``ValueError`` in this thread once `MOST_STEPS` lines of a template have run: no other means ends its loops."""
    from jinja2.runtime import markup_join, str_join

    joins = (markup_join.__code__, str_join.__code__)
    steps = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > MOST_STEPS:
            raise ValueError(f"it takes more than {MOST_STEPS} steps")
        if frame.f_code in joins:  # {{ a ~ b }}
            parts = frame.f_locals.get("seq", ())
            _check_length(sum(len(part) for part in parts if isinstance(part, str)) if isinstance(parts, tuple) else 0)
            return None
        return trace if frame.f_code.co_filename == "<template>" else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
