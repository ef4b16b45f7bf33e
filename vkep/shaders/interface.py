"""Checks the kernel contract: the differences between a module's reflection and a `Kernel` declaration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vkep.kernels.kernel import ADDRESS_BYTES, FOLD_IDS, Kernel, Operand
from vkep.shaders.reflect import Reflection
from vkep.shaders.spirv import LOCAL_SIZE_IDS

OPERAND_TYPE = "uvec2"  #: the types of a tensor's address in the argument block
SCALAR_BYTES = 4
_DECLARATION = re.compile(r"\s*(\w+)\s+(\w+)\s*\Z")


def declared_members(text: str) -> tuple[tuple[str, str], ...]:
    """(name, type) of the members in an EXTRA_OPERANDS or EXTRA_PARAMS text such as ``uvec2 bias; uvec2 skip;``.

    Raises `ValueError` for anything but a list of simple declarations.
    """
    members = []
    for statement in re.sub(r"\\\n", " ", text).split(";"):
        if statement.strip():
            match = _DECLARATION.match(statement)
            if not match:
                raise ValueError(f"{statement.strip()!r} is no declaration of an argument, expected 'type name'")
            members.append((match[2], match[1]))
    return tuple(members)


def expected_arguments(
    kernel: Kernel, extra_operands: Sequence[Operand] = (), extra_params: Sequence[tuple[str, str]] = ()
) -> tuple[tuple[str, str, int], ...]:
    """(name, type, offset in bytes) of every argument, in the order of the kernel contract."""
    members = [(operand.name, OPERAND_TYPE) for operand in (*kernel.operands, *extra_operands)]
    members += [(name, kind) for name, kind in (*kernel.params, *extra_params)]
    expected, offset = [], 0
    for name, kind in members:
        expected.append((name, kind, offset))
        offset += ADDRESS_BYTES if kind == OPERAND_TYPE else SCALAR_BYTES
    return tuple(expected)


def differences(
    kernel: Kernel,
    reflection: Reflection,
    defines: Mapping[str, str],
    extra_operands: Sequence[Operand] | None = None,
    extra_params: Sequence[tuple[str, str]] | None = None,
) -> list[str]:
    """Every difference between the module and the declaration, as sentences; empty where they agree."""
    found: list[str] = []
    if extra_operands is None:
        extra_operands = []
        for name, kind in _extra("EXTRA_OPERANDS", defines, found):
            if kind == OPERAND_TYPE:
                extra_operands.append(Operand(name))
            else:
                found.append(f"EXTRA_OPERANDS declares {kind} {name}, expected {OPERAND_TYPE} (an address)")
    if extra_params is None:
        extra_params = _extra("EXTRA_PARAMS", defines, found)
    expected = expected_arguments(kernel, extra_operands, extra_params)
    return found + _arguments(expected, reflection) + _spec_constants(kernel, reflection) + _bindings(reflection)


def _extra(name: str, defines: Mapping[str, str], found: list[str]) -> tuple[tuple[str, str], ...]:
    try:
        return declared_members(defines.get(name, ""))
    except ValueError as error:
        found.append(f"the definition of {name} cannot be read: {error}")
        return ()


def _arguments(expected: Sequence[tuple[str, str, int]], reflection: Reflection) -> list[str]:
    actual = {member.name: member for member in reflection.arguments}
    declared = {name for name, _, _ in expected}
    found = [
        f"argument {name!r} ({kind}) is declared in Python but missing in GLSL"
        for name, kind, _ in expected
        if name not in actual
    ]
    found += [
        f"argument {member.name!r} ({member.type}) is in GLSL but not declared in Python"
        for member in reflection.arguments
        if member.name not in declared
    ]
    glsl_order = [m.name for m in reflection.arguments if m.name in declared]
    python_order = [name for name, _, _ in expected if name in actual]
    if glsl_order != python_order:
        found.append(f"arguments are in another order: {glsl_order} in GLSL, {python_order} in Python")
    for name, kind, offset in expected:
        member = actual.get(name)
        if member is None:
            continue
        if member.type != kind:
            found.append(f"argument {name!r} is {member.type} in GLSL, {kind} in Python")
        if member.offset != offset:
            found.append(f"argument {name!r} lies at byte {member.offset} in GLSL, {offset} in Python")
    return found


def _spec_constants(kernel: Kernel, reflection: Reflection) -> list[str]:
    found: list[str] = []
    wanted = (1, 2, 3)
    if reflection.local_size_ids != wanted:
        found.append(
            f"the workgroup size is set by constants {reflection.local_size_ids}, expected {wanted} "
            f'(LOCAL_X, LOCAL_Y, LOCAL_Z): #include "vkep.glsl" and declare no local_size of its own'
        )
    own: dict[str, int] = {}
    for constant in reflection.spec_constants:
        label = f"spec constant {constant.name!r} (id {constant.id})"
        if constant.id == 0 or constant.name == "INDIRECT":
            if (constant.id, constant.name, constant.type) != (0, "INDIRECT", "uint"):
                found.append(f"{label} of type {constant.type} stands where id 0 is the uint INDIRECT")
        elif constant.id in LOCAL_SIZE_IDS:
            if (constant.name, constant.type) != (LOCAL_SIZE_IDS[constant.id], "uint"):
                found.append(f"{label} of type {constant.type} stands where the uint {LOCAL_SIZE_IDS[constant.id]} is")
        elif constant.id in FOLD_IDS or constant.name in FOLD_IDS.values():
            if (constant.name, constant.type) != (FOLD_IDS.get(constant.id), "uint"):
                found.append(
                    f"{label} of type {constant.type} stands where ids 32 to 34 are the uints FOLD_X to FOLD_Z"
                )
        elif not constant.name:
            found.append(f"the spec constant with id {constant.id} has no name")
        else:
            if constant.id in own.values():
                others = [name for name, number in own.items() if number == constant.id]
                found.append(f"{label} has the same id as {others[0]!r}")
            if constant.name in own:
                found.append(f"{label} has the same name as the one with id {own[constant.name]}")
            own[constant.name] = constant.id
            if constant.name not in kernel.spec:
                found.append(f"{label} is in GLSL but not declared in Python")
    if not any(constant.id == 0 for constant in reflection.spec_constants):
        found.append('spec constant 0 (INDIRECT) is missing: #include "vkep.glsl"')
    reserved = {"INDIRECT", *LOCAL_SIZE_IDS.values(), *FOLD_IDS.values()}
    for name in kernel.spec:
        if name in reserved:
            found.append(f"spec constant {name!r} is declared in Python, but that name is the contract's own")
        elif name not in own:
            found.append(f"spec constant {name!r} is declared in Python but missing in GLSL")
    return found


def _bindings(reflection: Reflection) -> list[str]:
    return [
        f"{b.name or 'a resource'!r} uses a descriptor (set {b.set}, binding {b.binding}); kernels take addresses only"
        for b in reflection.bindings
    ]
