"""Plans as readable text: each dispatch described, and its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vkep.plan.records import Plan
from vkep.text import one_line

if TYPE_CHECKING:
    from vkep.device.measure.limits import DeviceLimits
    from vkep.session import InferenceSession


@dataclass(frozen=True)
class DispatchTime:
    """One dispatch's measured GPU time, with the work that its plan counts."""

    island: int
    index: int
    label: str
    kernel: str
    grid: tuple[int, int, int]
    nanoseconds: float
    flops: int
    bytes: int
    share: float  #: of the time of all dispatches
    limit_ns: float = 0.0  #: the least possible time for this work on the device (`vkep.device.measure.limits`)

    @property
    def lost_ns(self) -> float:
        """The time beyond the limit."""
        return self.nanoseconds - self.limit_ns

    @property
    def of_limit(self) -> float:
        """The limit divided by the time: 1 is as fast as the device allows."""
        return self.limit_ns / self.nanoseconds if self.nanoseconds else 0.0

    @property
    def gflops_per_s(self) -> float:
        """Arithmetic operations a nanosecond."""
        return self.flops / self.nanoseconds if self.nanoseconds else 0.0

    @property
    def gbytes_per_s(self) -> float:
        """Bytes a nanosecond, counting each byte that must move once."""
        return self.bytes / self.nanoseconds if self.nanoseconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The fields and rates, for ``--json``: nanoseconds, GFLOP/s, GB/s."""
        rates = {"gflops_per_s": self.gflops_per_s, "gbytes_per_s": self.gbytes_per_s}
        return {**asdict(self), **rates, "lost_ns": self.lost_ns, "of_limit": self.of_limit}


def dispatch_times(
    plans: Sequence[Plan], samples: Sequence[Sequence[Sequence[float]]], limits: DeviceLimits | None = None
) -> list[DispatchTime]:
    """Times in plan order. ``samples`` are results of `InferenceSession.profile`: the time is each dispatch's
    median."""
    medians = [
        [sorted(s[island][i] for s in samples)[(len(samples) - 1) // 2] for i in range(len(plan.dispatches))]
        for island, plan in enumerate(plans)
    ]
    total = sum(map(sum, medians)) or 1.0
    return [
        DispatchTime(
            island,
            index,
            dispatch.label,
            plan.pipelines[dispatch.pipeline].shader.source,
            dispatch.grid,
            medians[island][index],
            dispatch.flops,
            dispatch.bytes,
            medians[island][index] / total,
            limits.of_dispatch(plan, dispatch) if limits is not None else 0.0,
        )
        for island, plan in enumerate(plans)
        for index, dispatch in enumerate(plan.dispatches)
    ]


def profile(session: InferenceSession, feeds: Mapping[str, Any], runs: int = 1) -> list[DispatchTime]:
    """Profile some runs of a session, against the device's measured limits: see `dispatch_times`."""
    from vkep.device.measure.limits import device_limits

    limits = device_limits(session.context.capabilities)
    samples = [session.profile(feeds) for _ in range(runs)]
    return dispatch_times([i.plan for i in session.islands()], samples, limits)


def format_dispatch(d: Mapping[str, Any]) -> list[str]:
    """The lines of one described dispatch."""
    size = "x".join(map(str, d["grid"])) + " of " + "x".join(map(str, d["workgroup"]))
    spec = " ".join(f"{k}={v}" for k, v in d["spec"].items())
    lines = [f"{d['index']:4d}  {d['kernel']}  {one_line(d['label'])}" + ("  [barrier]" if d["barrier"] else "")]
    lines.append(f"      grid {size}; {d['flops']:,} flop, {d['bytes']:,} bytes; {spec}".rstrip("; "))
    lines.append("      " + ", ".join(f"{name} = {one_line(where)}" for name, where in d["operands"].items()))
    if d["candidate"]:
        lines.append(f"      chosen: {d['candidate']}")
        lines += [f"        not {one['candidate']}: {one['reason']}" for one in d["rejected"]]
    if d["params"]:
        scalars = " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in d["params"].items())
        lines.append(f"      {d['argument_bytes']} bytes in {d['arguments_in']}: {scalars}")
    return lines
