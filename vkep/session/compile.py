"""Making a program ready: its islands compiled and uploaded, its CPU groups and deferred parts set up."""

from __future__ import annotations

import logging

from vkep.device.delegate import VulkanDelegate
from vkep.device.runner import PlanRunner
from vkep.errors import UnsupportedModelError
from vkep.graph.model import Model
from vkep.lowering.program import CpuStep, IslandStep, Program, Step
from vkep.session.cpu import CpuRunner
from vkep.session.executor import DeferredExecutor, Executable, IslandExecutor
from vkep.session.options import SessionOptions

logger = logging.getLogger("vkep.session")


class Compiler:
    """Makes programs of one session ready. It knows nothing of the session, whose end it must not delay."""

    def __init__(self, delegate: VulkanDelegate, options: SessionOptions, model: Model) -> None:
        self._delegate, self._options = delegate, options
        self._opsets = model.opsets

    def __call__(self, program: Program) -> Executable:
        """Compile and upload. Raises `UnsupportedModelError` where ``fallback="error"`` refuses the CPU, or a node runs
        nowhere; `ArenaOutOfMemory`, `GpuError`; nothing is left behind then.
        """
        declined = [p for p in program.placements if p.where == "cpu"]
        if declined and self._options.fallback == "error":
            lines = "\n  ".join(f"{p.node.title}: {p.reason}" for p in declined)
            raise UnsupportedModelError(f"fallback='error', and Vulkan declines {len(declined)} nodes:\n  {lines}")
        for placement in declined:
            logger.info("on the CPU: %s: %s", placement.node.title, placement.reason)
        steps: list[IslandExecutor | CpuRunner | DeferredExecutor] = []
        try:
            for step in program.steps:
                steps.append(self._step(step))
        except BaseException:
            for made in steps:
                if not isinstance(made, CpuRunner):
                    made.close()
            raise
        return Executable(program, steps)

    def _step(self, step: Step) -> IslandExecutor | CpuRunner | DeferredExecutor:
        if isinstance(step, IslandStep):
            concurrency, progress = self._options.concurrency, self._options.progress
            runner = PlanRunner(self._delegate, step.plan, step.weights, concurrency=concurrency, progress=progress)
            return IslandExecutor(step, runner)
        if isinstance(step, CpuStep):
            return CpuRunner(step, self._opsets)
        return DeferredExecutor(step, self, self._opsets, self._delegate.capabilities, self._options.plan_cache_size)
