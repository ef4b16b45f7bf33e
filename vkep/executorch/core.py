"""The device objects of programs and methods, in objects that finalizers can hold."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from gpu_shared.steady import closing, on_end, settle
from vkep.executorch.calls import ChainedCalls
from vkep.executorch.context_resources import ContextResources, ProgramResources
from vkep.executorch.delegates import Runner


class MethodParts:
    """The device objects of a method, in an object that its finalizer can hold. A run holds ``lock``."""

    def __init__(self) -> None:
        self.runners: list[Runner] = []
        self.chains: list[ChainedCalls] = []
        self.resources: list[ContextResources] = []
        self.closed = False
        self.lock = threading.RLock()

    def close(self) -> None:
        """Close the delegates, once a run in another thread has ended; idempotent. A forked child gives nothing back."""
        if any(resources.vulkan.forked for resources in self.resources):  # device objects and lock belong to the parent
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
    """The methods and contexts of a program. ``lock`` is held while a method is loaded."""

    def __init__(self, resources: ProgramResources) -> None:
        self.resources = resources
        self.methods: dict[str, MethodParts] = {}
        self.closed = False
        self.lock = threading.RLock()

    def close(self) -> None:
        """Close the methods, then the contexts, once a method that is being loaded is complete; idempotent. A forked child
        gives nothing back."""
        if self.resources.forked:
            self.closed = True
            return
        with self.lock:
            if not self.closed:
                self.closed = True
                try:
                    for method in list(self.methods.values()):
                        method.close()
                finally:
                    self.resources.close()


class Core:
    """The state that a program shares with its methods. It is closed with the program, or when nothing references
    it."""

    def __init__(self, named_data: Mapping[str, memoryview], resources: ProgramResources) -> None:
        self.named_data = named_data
        self.parts = ProgramParts(resources)
        self._end = on_end(self, self.parts.close)

    @closing
    def close(self) -> None:
        """Close the methods, then the contexts; idempotent."""
        self._end()
        settle()  # as in `InferenceSession.close`

    @property
    def closed(self) -> bool:
        """Whether the program was closed."""
        return self.parts.closed
