"""A pytest plugin that lists tests in which a thread creates or destroys a device while another one is in a Vulkan function.

    VKEP_VALIDATION=1 python -m pytest -n 2 -p tools.concurrent_devices

Most versions of the validation layers may crash there (see `tools.validation_layers.settle_for_layers`). The plugin sees
the calls of `gpu_shared` in pytest's processes. It leaves out waits: a call looks its device up when it begins.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import pytest

from gpu_shared import vk

CHANGES = {"vkCreateInstance", "vkDestroyInstance", "vkCreateDevice", "vkDestroyDevice"}
WAITS = {"vkDeviceWaitIdle", "vkQueueWaitIdle", "vkWaitSemaphores", "vkWaitForFences"}

_in_call: dict[int, str] = {}  #: by thread
_test = ""
_found: Counter[str] = Counter()


class _Watched:
    """The loader library; its functions that create or destroy are watched."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._library, name)
        return _watch(name, value) if name in CHANGES else value


def _watch(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        here = threading.get_ident()
        for thread, other in list(_in_call.items()):
            if thread != here and other not in WAITS and not CHANGES.isdisjoint((name, other)):
                _found[f"{_test}: {name} during {other}"] += 1
        outer = _in_call.get(here)  # a callback of the layers may call others
        _in_call[here] = name
        try:
            return function(*arguments)
        finally:
            if outer is None:
                del _in_call[here]
            else:
                _in_call[here] = outer

    return call


def pytest_configure() -> None:
    fetch = vk.Functions.__getattr__

    def watched(self: vk.Functions, name: str) -> Any:
        function = self.__dict__[name] = _watch(name, fetch(self, name))
        loaded = vk.load()
        if not isinstance(loaded.lib, _Watched):
            loaded.lib = vk.__dict__["lib"] = _Watched(loaded.lib)
        return function

    vk.Functions.__getattr__ = watched  # type: ignore[method-assign]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    global _test
    _test = item.nodeid
    yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # in a worker of pytest-xdist
    if output is not None:
        output["concurrent_devices"] = dict(_found)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _found.update(getattr(node, "workeroutput", {}).get("concurrent_devices", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    tests = {line.rpartition(": ")[0] for line in _found}
    terminalreporter.section(f"{len(tests)} tests in which a device was created or destroyed beside other calls")
    for line, count in sorted(_found.items()):
        terminalreporter.write_line(f"{count} x {line}")
