"""A decoded and checked method of a program: everything that the runtime needs, without a device."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from vkep.errors import InvalidPteError
from vkep.pte import schema
from vkep.pte.container import PtdFile, PteFile
from vkep.pte.flow import Flow, analyse, resolve_views
from vkep.pte.steps import KernelStep, Step, check_ports, decode_steps
from vkep.pte.values import Value, decode_values


@dataclass(frozen=True)
class Delegate:
    """A delegate in the file."""

    backend: str
    data: memoryview
    compile_specs: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class DecodedMethod:
    """``flow`` is computed by `analysed`, once it is known which delegates share a context."""

    name: str
    where: str  #: for messages
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    delegates: tuple[Delegate, ...]
    arenas: tuple[int, ...]  #: bytes of each planned arena; the first entry is unused

    @property
    def kernels(self) -> list[str]:
        """Names of the operators outside delegates, in order, each once."""
        return list(dict.fromkeys(step.name for step in self.steps if isinstance(step, KernelStep)))

    def analysed(self, contexts: Sequence[Hashable], as_stored: Collection[int] = ()) -> Flow:
        """See `analyse`."""
        return analyse(self.values, self.inputs, self.outputs, self.steps, contexts, self.where, as_stored)


def delegates_of(file: PteFile, plan: schema.ExecutionPlan) -> tuple[Delegate, ...]:
    """The delegates of a method. Raises `InvalidPteError` for data that does not exist."""
    return tuple(
        Delegate(d.id, file.processed(d), tuple((s.key, bytes(s.value)) for s in d.compile_specs))
        for d in plan.delegates
    )


def decode_method(
    file: PteFile,
    name: str,
    arity: Sequence[tuple[int, int]],
    data: Mapping[str, PtdFile] | None = None,
) -> DecodedMethod:
    """Decode one method. ``arity`` has (inputs, outputs) of each of its delegates, which only their backends know.

    Raises `InvalidPteError`, `UnsupportedProgramError` (types, chains, missing external data).
    """
    plan = file.methods[name]
    where = f"{file.name}: method {name!r}"
    if any(size < 0 for size in plan.non_const_buffer_sizes):
        raise InvalidPteError(f"{where}: arenas of {plan.non_const_buffer_sizes} bytes")
    values = decode_values(file, plan, data or {})
    check_ports(plan, values, where)
    steps = decode_steps(plan, values, arity, where)
    return DecodedMethod(
        name,
        where,
        tuple(resolve_views(values, steps, where)),
        plan.inputs,
        plan.outputs,
        tuple(steps),
        delegates_of(file, plan),
        plan.non_const_buffer_sizes,
    )
