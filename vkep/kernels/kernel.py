"""Declaring a kernel, and calling one.

A `Kernel` is one ``.comp`` file, whose GLSL declares the operands, the scalar arguments and the spec constants, and what the
GLSL does not say: the variants that are built ahead of time, and the bytes that it may touch. `Kernel.call` makes a
`KernelCall`: a variant, its specialisation, operands, scalar arguments and grid, with operands still abstract (whatever the
caller plans with), so that it stays pure data.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vkep.errors import UnsupportedModelError
from vkep.plan.records import ShaderVariant
from vkep.shaders.interface import ADDRESS_BYTES, SCALAR_CODES, DeclaredInterface, Interface, Operand
from vkep.shaders.source import find_source, glsl_root, read_source
from vkep.shaders.spirv import FOLD_IDS
from vkep.sizes import hint, is_size, whole

#: larger argument blocks are stored in memory: every Vulkan device has this much room for push constants
#: (specification, "Required Limits")
PUSH_CONSTANT_BYTES = 128
#: operands of one call: the spec constant ``INDIRECT`` (``shaders/vkep.glsl``) has a bit for each
MOST_OPERANDS = 32
#: tensors that an elementwise expression's kernel can read, beside the result and the word for faults that it writes
MOST_READ = MOST_OPERANDS - 2
#: the reach of an operand whose addresses are generated from its view's own shape and strides
ITS_VIEW = -1
#: bytes of the GLSL types that kernels declare pointers to
GLSL_BYTES = {
    **dict.fromkeys(("uint8_t", "int8_t"), 1),
    **dict.fromkeys(("uint16_t", "int16_t", "float16_t"), 2),
    **dict.fromkeys(("uint", "int", "float", "u8vec4", "i8vec4"), 4),
    **dict.fromkeys(("uvec2", "ivec2", "vec2", "uint64_t", "int64_t", "double", "f16vec4", "u16vec4", "i16vec4"), 8),
    **dict.fromkeys(("uvec4", "ivec4", "vec4", "dvec2"), 16),
    **dict.fromkeys(("dvec4", "u64vec4", "i64vec4"), 32),
}


@dataclass(frozen=True)
class Kernel:
    """The kernel of a GLSL file: an absolute path, or a name in vkep's own folder. ``variants`` are the sets of defines that
    the tool compiles ahead of time.

    ``reach`` bounds the kernel's accesses: from a call's arguments (`KernelCall.__getitem__`, ``size_of``, ``grid``)
    the bytes of each operand, by name, that its lanes may touch from the operand's address on. It is derived from the
    GLSL by hand, and a plan is laid out only where every operand has that many bytes.
    """

    source: str
    variants: tuple[Mapping[str, str], ...] = ({},)
    reach: Callable[[KernelCall], Mapping[str, int]] | None = field(default=None, compare=False)

    def interface(self, defines: Mapping[str, str]) -> Interface:
        """Operands, scalar arguments and spec constants of the variant with these definitions, as its GLSL declares them.
        Raises `vkep.shaders.errors.ShaderSourceError` for GLSL that cannot be read, or that breaks the kernel contract."""
        return self._declared.of(defines)

    @functools.cached_property
    def _declared(self) -> DeclaredInterface:
        folders = (glsl_root(),)
        return DeclaredInterface(read_source(find_source(self.source, folders), folders))

    def call(
        self,
        *,
        grid: Sequence[int],
        operands: Mapping[str, Any],
        params: Mapping[str, int | float] | None = None,
        spec: Mapping[str, int] | None = None,
        defines: Mapping[str, str] | None = None,
        local_size: Sequence[int] = (64, 1, 1),
        extra_operands: Sequence[tuple[Operand, Any]] = (),
        extra_params: Sequence[tuple[str, str, int | float]] = (),
        subgroup_size: int | None = None,
        flops: int = 0,
    ) -> KernelCall:
        """Bind arguments. ``extra_operands`` and ``extra_params`` are those that a generated epilogue or expression
        adds (after the kernel's own operands and after its own scalars, as ``EXTRA_OPERANDS`` and ``EXTRA_PARAMS`` in
        the GLSL). An operand that is ``None`` is absent: its address is zero and the kernel must not read it.

        ``grid`` counts workgroups, ``local_size`` lanes of one; ``flops`` are floating-point operations, for reports.
        Raises ``ValueError`` for other operands, arguments or spec constants than the GLSL declares, for more than
        `MOST_OPERANDS` operands, and what `interface` raises.
        """
        params, spec, defines = params or {}, spec or {}, dict(defines or {})
        declared = self.interface(defines)
        if operands.keys() != declared.operand_names or params.keys() != declared.param_names:
            self._check("operand", declared.operand_names, operands)
            self._check("argument", declared.param_names, params)
        if not spec.keys() <= declared.spec.keys():
            unknown = set(spec) - set(declared.spec)
            raise ValueError(f"{self.source}: no spec constant named {sorted(unknown)}; it has {sorted(declared.spec)}")
        bound = tuple([(o, operands[o.name]) for o in declared.operands]) + tuple(extra_operands)
        if len(bound) > MOST_OPERANDS:
            raise ValueError(
                f"{self.source}: {len(bound)} operands, expected at most {MOST_OPERANDS} (bits of INDIRECT)"
            )
        codes = declared.codes + "".join([SCALAR_CODES[kind] for _, kind, _ in extra_params])
        values = [params[name] for name, _ in declared.params] + [value for _, _, value in extra_params]
        if extra_operands or extra_params:
            defines.setdefault("EXTRA_BASE", f"{len(declared.operands)}u")  # index of the first extra operand
            defines.setdefault("EXTRA_OPERANDS", " ".join(f"uvec2 {o.name};" for o, _ in extra_operands))
            defines.setdefault("EXTRA_PARAMS", " ".join(f"{kind} {name};" for name, kind, _ in extra_params))
        x, y, z = (*grid, 1, 1)[:3]
        scalars, sized = self._packed(codes, values, params)
        lx, ly, lz = (*local_size, 1, 1)[:3]
        return KernelCall(
            kernel=self,
            variant=ShaderVariant(self.source, tuple(sorted(defines.items()))),
            spec={**declared.spec, **spec, "LOCAL_X": lx, "LOCAL_Y": ly, "LOCAL_Z": lz},
            operands=bound,
            scalars=scalars,
            sized=sized,
            params=params,
            grid=(whole(x), whole(y), whole(z)),
            subgroup_size=subgroup_size,
            flops=int(hint(flops)),
        )

    def _packed(
        self, codes: str, values: Sequence[int | float], params: Mapping[str, int | float]
    ) -> tuple[bytes, tuple[tuple[int, str, Any], ...]]:
        """The scalars' bytes, and those of them that depend on sizes: (number of the scalar, code, size)."""
        sized: tuple[tuple[int, str, Any], ...] = ()
        try:
            if any(map(is_size, values)):
                sized = tuple([(k, codes[k], v) for k, v in enumerate(values) if is_size(v)])
                values = list(map(hint, values))
            return struct.pack("<" + codes, *values), sized
        except (struct.error, OverflowError) as error:
            raise UnsupportedModelError(
                f"{self.source}: an argument does not fit its 32 bits: {error}; got {dict(params)}"
            ) from error

    def _check(self, what: str, expected: frozenset[str], got: Mapping[str, Any]) -> None:
        if expected != got.keys():
            missing, unknown = sorted(expected - set(got)), sorted(set(got) - expected)
            raise ValueError(
                f"{self.source}: {what}s differ from those of the GLSL: missing {missing}, unknown {unknown}"
            )


@dataclass(slots=True)  # not frozen, for speed: selection adds how it was chosen, and nothing else changes one
class KernelCall:
    """One dispatch before planning: operands are still the planner's own objects (or None)."""

    kernel: Kernel
    variant: ShaderVariant
    spec: Mapping[str, int]
    operands: tuple[tuple[Operand, Any], ...]
    scalars: bytes
    grid: tuple[int, int, int]
    subgroup_size: int | None = None
    flops: int = 0
    sized: tuple[tuple[int, str, Any], ...] = ()  #: scalars that depend on sizes: number, struct code, size
    params: Mapping[str, int | float] = field(default_factory=dict)  #: the kernel's own, by name
    candidate: str = (
        #: the candidate that was chosen for the problem, and the ones before it in the table with the reasons against
        #: them
        ""
    )
    rejected: tuple[tuple[str, str], ...] = ()

    def __getitem__(self, name: str) -> int:
        """An integer argument or a spec constant."""
        found = self.params.get(name)
        return whole(self.spec[name] if found is None else found)

    @property
    def defines(self) -> dict[str, str]:
        """The definitions of preprocessor names."""
        return dict(self.variant.defines)

    def size_of(self, name: str) -> int:
        """Bytes of the GLSL type that a preprocessor name is defined as."""
        return GLSL_BYTES[self.defines[name]]

    def reaches(self) -> Mapping[str, int]:
        """Bytes that the call's lanes may touch of each of the kernel's own operands (`ITS_VIEW`: what its view covers)."""
        return self.kernel.reach(self) if self.kernel.reach is not None else {}

    @property
    def groups(self) -> tuple[int, int, int]:
        """The workgroups along each axis in the kernel (``group_count`` in ``shaders/workgroup.glsl``)."""
        x, y, z = (self.spec.get(name, size) for name, size in zip(FOLD_IDS.values(), self.grid, strict=True))
        return x, y, z

    def folded(self, limits: Sequence[int]) -> KernelCall:
        """The call for a device that allows this many workgroups along each axis (Vulkan: at least 65535, so that two
        axes cover everything that 32-bit indices count)."""
        x, y, z = self.grid
        if x <= limits[0] and y <= limits[1] and z <= limits[2]:
            return self
        total = math.prod(self.grid)
        rows = -(-total // limits[0])
        spec = {**self.spec, **dict(zip(FOLD_IDS.values(), self.grid, strict=True))}
        return replace(self, grid=(-(-total // rows), rows, 1), spec=spec)

    @property
    def argument_bytes(self) -> int:
        """Bytes of its argument block."""
        return ADDRESS_BYTES * len(self.operands) + len(self.scalars)
