"""Where each part of a method runs: as text and as data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpu_shared.notebook import Readable
from vkep.pte.flow import INPUT, Flow
from vkep.pte.method import DecodedMethod
from vkep.pte.steps import DelegateStep, KernelStep
from vkep.session.reports.introspection import flatten
from vkep.session.reports.report import IslandReport
from vkep.text import counted

if TYPE_CHECKING:
    from vkep.executorch.context_resources import ContextResources
    from vkep.executorch.delegates import Runner


@dataclass(frozen=True)
class DelegateReport:
    """One delegate: its context, and for a Vulkan one its islands and the operators that run on the CPU."""

    backend: str
    context: str
    device: str
    sync_mode: str
    nodes: int = 0
    islands: Sequence[IslandReport] = ()
    on_cpu: Sequence[str] = ()  #: "operator: reason" of each operator that vkep's kernels decline


@dataclass(frozen=True)
class MethodReport(Readable):
    """``str`` prints it."""

    method: str
    delegates: Sequence[DelegateReport]
    in_numpy: Mapping[str, int]  #: operators outside delegates, and how many calls each has
    on_device: int  #: number of tensors that pass from one delegate to another on the device
    through_host: int  #: number of tensors that delegates copy to or from the arenas on the host
    interpreted: bool  #: whether the method has jumps: then all its tensors pass through the host

    @property
    def nodes(self) -> Sequence[Any]:
        """Empty: a delegate's graph counts as one part of the program."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)

    def to_json(self, indent: int | None = 2) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        lines = [self.method]
        for number, delegate in enumerate(self.delegates):
            text = f"  delegate {number}: {delegate.backend} on {delegate.device} (context {delegate.context})"
            if delegate.islands:
                dispatches = sum(i.dispatches for i in delegate.islands)
                text += f", {counted(delegate.nodes, 'node')} in {counted(len(delegate.islands), 'island')}"
                text += f", {counted(dispatches, 'dispatch')}"
            lines.append(text)
            lines += [f"    on the CPU: {line}" for line in delegate.on_cpu]
        if self.in_numpy:
            calls = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in self.in_numpy.items())
            lines.append(f"  in numpy: {calls}")
        if self.delegates:
            lines.append(
                f"  between delegates: {self.on_device} tensors stay on the device, {self.through_host} pass through the host"
            )
        if self.interpreted:
            lines.append("  it has jumps: instructions are interpreted, tensors pass through the host")
        return "\n".join(lines)


def method_report(
    decoded: DecodedMethod, flow: Flow, resources: Sequence[ContextResources], runners: Sequence[Runner]
) -> MethodReport:
    """The report of a method, from its analysis and its delegates."""
    delegates = []
    for delegate, held, runner in zip(decoded.delegates, resources, runners, strict=True):
        context = held.vulkan.context
        nodes, islands, on_cpu = 0, [], []
        for executable in runner.executables():
            flat = flatten(executable)
            nodes += len(flat.placements)
            islands += [IslandReport.of(i.plan, len(i.nodes)) for i in flat.islands]
            engine = f" ({', '.join(sorted(flat.engines))})" if flat.engines else ""
            on_cpu += [f"{p.node.title}: {p.reason}{engine}" for p in flat.placements if p.where == "cpu"]
        delegates.append(
            DelegateReport(
                delegate.backend,
                context.label,
                context.capabilities.name,
                held.options.sync_mode,
                nodes,
                tuple(islands),
                tuple(on_cpu),
            )
        )
    calls = Counter(step.name for step in decoded.steps if isinstance(step, KernelStep))
    handed = [s for sources in flow.sources.values() for s in sources if s is not None and s[0] != INPUT]
    asked = sum(s is None for sources in flow.sources.values() for s in sources)
    spilled = sum(w.to_arena for who, w in flow.writes.items() if who[0] != INPUT)
    numbers = sum(
        not hasattr(decoded.values[i], "dtype")
        for step in decoded.steps
        if isinstance(step, DelegateStep)
        for i in step.inputs
    )
    return MethodReport(
        decoded.name, tuple(delegates), dict(calls), len(handed), asked - numbers + spilled, not flow.linear
    )
