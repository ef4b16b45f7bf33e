"""Plans for people: each dispatch in words, and the time that it takes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vkep.kernels.catalog import all_kernels
from vkep.kernels.kernel import ADDRESS_BYTES, SCALAR_CODES
from vkep.plan.records import FRESH, Plan, Relocation, Space
from vkep.shaders.interface import declared_members

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
    limit_ns: float = 0.0  #: the least time for this work on the device, as measured (`vkep.device.measure.limits`)

    @property
    def lost_ns(self) -> float:
        """What lies between the time and its limit."""
        return self.nanoseconds - self.limit_ns

    @property
    def of_limit(self) -> float:
        """The limit over the time: 1 is as fast as the device allows."""
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
        rates = {"gflops_per_s": self.gflops_per_s, "gbytes_per_s": self.gbytes_per_s}
        return {**asdict(self), **rates, "lost_ns": self.lost_ns, "of_limit": self.of_limit}


def dispatch_times(
    plans: Sequence[Plan], samples: Sequence[Sequence[Sequence[float]]], limits: DeviceLimits | None = None
) -> list[DispatchTime]:
    """Times in plan order. ``samples`` are results of `InferenceSession.profile`: each dispatch's median counts."""
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


def describe_plan(plan: Plan) -> list[dict[str, Any]]:
    """Each dispatch as plain data: kernel, grid, spec constants, arguments by name, addresses as symbols."""
    operands = {k.source: [o.name for o in k.operands] for k in all_kernels()}
    params = {k.source: k.params for k in all_kernels()}
    described = []
    for index, dispatch in enumerate(plan.dispatches):
        key = plan.pipelines[dispatch.pipeline]
        source, defines = key.shader.source, dict(key.shader.defines)
        names = [*operands.get(source, ()), *(n for n, _ in declared_members(defines.get("EXTRA_OPERANDS", "")))]
        scalars = [*params.get(source, ()), *declared_members(defines.get("EXTRA_PARAMS", ""))]
        spec = dict(key.spec)
        described.append(
            {
                "index": index,
                "label": dispatch.label,
                "kernel": source,
                "candidate": dispatch.candidate,
                "turned_down": [{"candidate": name, "reason": reason} for name, reason in dispatch.turned_down],
                "defines": defines,
                "grid": list(dispatch.grid),
                "workgroup": [spec.pop(f"LOCAL_{axis}", 1) for axis in "XYZ"],
                "spec": spec,
                "subgroup_size": key.subgroup_size,
                "barrier": dispatch.barrier,
                "bytes": dispatch.bytes,
                "flops": dispatch.flops,
                "argument_bytes": key.argument_bytes,
                "arguments_in": "memory" if key.arguments_in_memory else "push constants",
                "operands": _operands(plan, dispatch.relocations, names),
                "params": _params(dispatch.arguments, ADDRESS_BYTES * len(names), scalars),
            }
        )
    return described


def _operands(plan: Plan, relocations: Sequence[Relocation], names: Sequence[str]) -> dict[str, str]:
    """Operand name to the symbol of its address; operands without a relocation are absent (null)."""
    symbols = {r.offset // ADDRESS_BYTES: symbol(plan, r) for r in relocations}
    known = dict(enumerate(names))
    every = sorted(set(symbols) | set(known))
    return {known.get(i, f"operand {i}"): symbols.get(i, "null") for i in every}


def symbol(plan: Plan, relocation: Relocation) -> str:
    """An address as ``activation+0x1200``, ``weight 3 'conv.weight'``, ``input 'x'`` or ``output 'y'``."""
    addend = relocation.addend
    if relocation.space is Space.ACTIVATION:
        return f"activation+{addend:#x}"
    if relocation.space is Space.FAULT:
        return "fault word"
    if relocation.space is Space.CONSTANT:
        name = f"weight {relocation.index} {plan.constants[relocation.index].label!r}"
    else:
        slot = plan.slots[relocation.index]
        if slot.port == FRESH:
            return "fresh random bits"
        port = plan.ports[slot.port]
        name, addend = f"{'input' if port.is_input else 'output'} {port.name!r}", addend + slot.addend
    return f"{name}{addend:+#x}" if addend else name


def _params(arguments: bytes, offset: int, scalars: Sequence[tuple[str, str]]) -> dict[str, int | float]:
    codes = "<" + "".join(SCALAR_CODES[kind] for _, kind in scalars)
    if len(arguments) != offset + struct.calcsize(codes):
        return {}  # a kernel that is not declared: its block cannot be read
    values = struct.unpack_from(codes, arguments, offset)
    return dict(zip((name for name, _ in scalars), values, strict=True))


def format_dispatch(d: Mapping[str, Any]) -> list[str]:
    """The lines of one described dispatch."""
    size = "x".join(map(str, d["grid"])) + " of " + "x".join(map(str, d["workgroup"]))
    spec = " ".join(f"{k}={v}" for k, v in d["spec"].items())
    lines = [f"{d['index']:4d}  {d['kernel']}  {d['label']}" + ("  [barrier]" if d["barrier"] else "")]
    lines.append(f"      grid {size}; {d['flops']:,} flop, {d['bytes']:,} bytes; {spec}".rstrip("; "))
    lines.append("      " + ", ".join(f"{name} = {where}" for name, where in d["operands"].items()))
    if d["candidate"]:
        lines.append(f"      chosen: {d['candidate']}")
        lines += [f"        not {one['candidate']}: {one['reason']}" for one in d["turned_down"]]
    if d["params"]:
        scalars = " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in d["params"].items())
        lines.append(f"      {d['argument_bytes']} bytes in {d['arguments_in']}: {scalars}")
    return lines
