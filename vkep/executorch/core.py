"""What a program and its methods hold on devices, and must give back: apart from both, so that finalisers can hold it."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from vkep.device.gc_safe_finalizer import on_end
from vkep.executorch.calls import ChainedCalls
from vkep.executorch.context_resources import ContextResources, ProgramResources
from vkep.executorch.delegates import Runner


class MethodParts:
    """What a method must give back, apart from itself so that a finaliser can hold it. ``lock`` is held by a run."""

    def __init__(self) -> None:
        self.runners: list[Runner] = []
        self.chains: list[ChainedCalls] = []
        self.resources: list[ContextResources] = []
        self.closed = False
        self.lock = threading.RLock()

    def close(self) -> None:
        if any(resources.vulkan.forked for resources in self.resources):  # all of it is the parent's, its lock too
            self.closed = True
            return
        with self.lock:
            if not self.closed:
                self.closed = True
                for chain in self.chains:
                    chain.close()
                for runner in reversed(self.runners):
                    runner.close()


class ProgramParts:
    def __init__(self, resources: ProgramResources) -> None:
        self.resources = resources
        self.methods: dict[str, MethodParts] = {}
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            try:
                for method in list(self.methods.values()):
                    method.close()
            finally:
                self.resources.close()


class Core:
    """What a program and its methods hold together: it ends when both are gone, or when the program is closed."""

    def __init__(self, named_data: Mapping[str, memoryview], resources: ProgramResources) -> None:
        self.named_data = named_data
        self.parts = ProgramParts(resources)
        self.close = on_end(self, self.parts.close)

    @property
    def closed(self) -> bool:
        return self.parts.closed
