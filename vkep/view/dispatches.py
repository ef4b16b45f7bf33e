"""Dispatches as plain data: kernel, grid, constants, arguments, and the memory of each operand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from vkep.kernels.kernel import Kernel
from vkep.plan.records import FRESH, Plan, Relocation, Space
from vkep.shaders.errors import ShaderSourceError
from vkep.shaders.interface import ADDRESS_BYTES, Interface


def describe_plan(plan: Plan) -> list[dict[str, Any]]:
    """Each dispatch as plain data: kernel, grid, spec constants, arguments by name, addresses as symbols."""
    described = []
    kernels: dict[str, Kernel] = {}
    for index, dispatch in enumerate(plan.dispatches):
        key = plan.pipelines[dispatch.pipeline]
        source, defines = key.shader.source, dict(key.shader.defines)
        try:
            interface = kernels.setdefault(source, Kernel(source)).interface(defines)
        except ShaderSourceError:  # a plan is shown also where the GLSL of a user's kernel is not
            interface = Interface((), (), {})
        spec = dict(key.spec)
        described.append(
            {
                "index": index,
                "label": dispatch.label,
                "kernel": source,
                "candidate": dispatch.candidate,
                "rejected": [{"candidate": name, "reason": reason} for name, reason in dispatch.rejected],
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
                "operands": _operands(plan, dispatch.relocations, [operand.name for operand in interface.operands]),
                "params": _params(dispatch.arguments, interface),
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


def _params(arguments: bytes, interface: Interface) -> dict[str, int | float]:
    if len(arguments) != interface.argument_bytes:
        return {}  # a kernel whose GLSL is not here: its argument block cannot be decoded
    values = struct.unpack_from("<" + interface.codes, arguments, ADDRESS_BYTES * len(interface.operands))
    return dict(zip((name for name, _ in interface.params), values, strict=True))
