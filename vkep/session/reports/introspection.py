"""The steps of a program, including those of deferred steps and loop bodies, for reports and profiling."""

from __future__ import annotations

from dataclasses import dataclass, field

from vkep.ir.program import Placement
from vkep.session.execution.control import ControlExecutor
from vkep.session.execution.cpu import CpuRunner
from vkep.session.execution.executor import Executable, IslandExecutor
from vkep.session.execution.kompute import KpRunner
from vkep.session.execution.vgf import VgfExecutor
from vkep.session.planning.planned_graph import DeferredExecutor


@dataclass
class Flat:
    """Steps in execution order; placements of deferred nodes replace "deferred"."""

    placements: list[Placement]
    islands: list[IslandExecutor] = field(default_factory=list)
    engines: set[str] = field(default_factory=set)  #: of the CPU groups
    graphs: list[VgfExecutor] = field(default_factory=list)
    kompute: list[KpRunner] = field(default_factory=list)

    @property
    def others(self) -> list[VgfExecutor | KpRunner]:
        """The regions of other delegates than Vulkan's, in the order of a page."""
        return [*self.graphs, *self.kompute]


def flatten(executable: Executable) -> Flat:
    """The steps of an executable and of the programs that its deferred steps and loops planned last."""
    placements = {id(p.node): p for p in executable.program.placements}
    flat = Flat([])
    for step in executable.steps:
        if isinstance(step, IslandExecutor):
            flat.islands.append(step)
        elif isinstance(step, VgfExecutor):
            flat.graphs.append(step)
        elif isinstance(step, KpRunner):
            flat.kompute.append(step)
        elif isinstance(step, CpuRunner):
            flat.engines.add(step.engine)
        elif isinstance(step, (DeferredExecutor, ControlExecutor)) and step.latest is not None:
            inner = flatten(step.latest)
            placements.update({id(p.node): p for p in inner.placements})
            flat.islands += inner.islands
            flat.graphs += inner.graphs
            flat.kompute += inner.kompute
            flat.engines |= inner.engines
    flat.placements = list(placements.values())
    return flat
