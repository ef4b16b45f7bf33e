"""Graph capture: a run whose inputs and outputs are all bound to device memory is recorded and submitted again.

ONNX Runtime requests it by an annotation id (run option ``gpu_graph_id``, 0 by default, -1: not this run). A replay
skips ONNX Runtime's executor; it submits the recorded command buffers of the plans.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vkep.device.tensor import open_checks
from vkep.errors import InvalidInputError
from vkep.ort.boundary import NULL, ffi
from vkep.ort.memory import PointerTensor

if TYPE_CHECKING:
    from vkep.ort.api import Ort
    from vkep.ort.checks import RunChecks
    from vkep.session.executor import Executable
    from vkep.session.planned_graph import PlannedGraph

_RUN_OPTION = b"gpu_graph_id"
_NOT_THIS_RUN = -1


def run_id(ort: Ort, options: Any) -> int:
    """The annotation id of a run. Raises `ValueError` for a run option that is not a number."""
    text = NULL if options == NULL else ort.api.GetRunConfigEntry(options, _RUN_OPTION)
    if text == NULL:
        return 0
    word = ffi.string(text).decode()
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"run option 'gpu_graph_id' is {word!r}, expected a whole number (-1: no capture)") from None


class _CapturedNode:
    """One fused node's part of a captured run; it protects its executable from eviction."""

    def __init__(self, graph: PlannedGraph, key: Any, values: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
        self._use = graph.use_key(key, _absent)
        self._executable: Executable = self._use.executable
        self._values, self._targets = dict(values), dict(targets)
        self._held = [(t, t.domain.holding(t.pointer)) for t in self._tensors() if t.nbytes]

    def _tensors(self) -> list[PointerTensor]:
        everything = [*self._values.values(), *self._targets.values()]
        return [t for t in everything if isinstance(t, PointerTensor)]

    def run(self, checks: RunChecks) -> None:
        for tensor, allocation in self._held:
            try:
                same = tensor.domain.holding(tensor.pointer) == allocation
            except ValueError:
                same = False
            if not same:
                raise InvalidInputError(
                    f"graph replay: the captured run used a tensor of {tensor.dtype} {tensor.shape} whose memory has been freed "
                    "since; bind all inputs and outputs to OrtValues that stay (IOBinding), or run with gpu_graph_id = -1"
                )
        self._executable.run(dict(self._values), self._targets)
        checks.add(open_checks(self._targets.values()))

    def close(self) -> None:
        self._use.hold.release()


class Captures:
    """The captured runs of one session, by annotation id. Runs of different threads are kept separate."""

    def __init__(self, enabled: bool, checks: RunChecks) -> None:
        self.enabled, self._checks = enabled, checks
        self._runs: dict[int, list[_CapturedNode]] = {}
        self._lock = threading.Lock()
        self._now = threading.local()

    def start(self, number: int) -> None:
        """Mark the beginning of a run on this thread."""
        wanted = self.enabled and number != _NOT_THIS_RUN and number not in self._runs
        self._now.number, self._now.steps = number, [] if wanted else None

    @property
    def recording(self) -> bool:
        """Whether the run on this thread is being captured."""
        return self.enabled and getattr(self._now, "steps", None) is not None

    def add(self, graph: PlannedGraph, key: Any, values: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
        """Record one fused node of the run, with its inputs and outputs."""
        self._now.steps.append(_CapturedNode(graph, key, values, targets))

    def end(self) -> None:
        """Mark the end of the run on this thread; it is captured unless a node failed."""
        steps = getattr(self._now, "steps", None)
        self._now.steps = None
        if steps:
            with self._lock:
                if self._now.number not in self._runs:
                    self._runs[self._now.number] = steps
                    return
            for step in steps:
                step.close()

    def captured(self, number: int) -> bool:
        """Whether a run is captured under the annotation id."""
        return number in self._runs

    def replay(self, number: int) -> None:
        """Run a captured graph again. Raises `InvalidInputError` for an id that was not captured, and for data that break
        an operator's specification.
        """
        steps = self._runs.get(number)
        if steps is None:
            raise InvalidInputError(
                f"no graph is captured under the annotation id {number}; there are {sorted(self._runs)}"
            )
        for step in steps:
            step.run(self._checks)

    def drop(self, number: int) -> None:
        """Release a captured graph. Raises `InvalidInputError` for an id that was not captured."""
        with self._lock:
            steps = self._runs.pop(number, None)
        if steps is None:
            raise InvalidInputError(f"no graph is captured under the annotation id {number}")
        for step in steps:
            step.close()

    def close(self) -> None:
        """Release all captured runs."""
        for number in list(self._runs):
            self.drop(number)


def _absent() -> Executable:
    raise AssertionError("a captured run's executable is in use, so it is in its cache")
