"""Which exceptions come from a signal's handler."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vkep.ort.signals import signal_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGUSR1")


def _handle(*_: object) -> None:
    raise ValueError("of the handler")


class Handler:
    def handle(self, *_: object) -> None:
        _handle()

    def __call__(self, *_: object) -> None:
        _handle()


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def _error(work: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        work()
    return caught.value


def _signalled() -> None:
    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("handler", [_handle, Handler(), Handler().handle, functools.partial(_handle, 1)])
def test_the_handlers_frame_tells(handler: Any) -> None:
    signal.signal(signal.SIGUSR1, handler)
    error = _error(_signalled)
    assert signal_of(error) == signal.SIGUSR1


def test_other_errors_are_nobodys() -> None:
    signal.signal(signal.SIGUSR1, _handle)
    error = _error(lambda: int("x"))
    assert signal_of(error) is None
    error.__cause__ = error
    assert signal_of(error) is None
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    assert signal_of(_error(_signalled)) is None


def test_a_cause_counts_and_what_was_handled_does_not() -> None:
    signal.signal(signal.SIGUSR1, _handle)

    def replaced() -> None:
        try:
            _signalled()
        except ValueError as error:
            raise KeyError from error

    def another() -> None:
        try:
            _signalled()
        except ValueError:
            raise KeyError  # noqa: B904

    assert signal_of(_error(replaced)) == signal.SIGUSR1
    assert signal_of(_error(another)) is None
