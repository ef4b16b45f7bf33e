"""Choosing a kernel: for each kind of problem one ordered table of candidates.

The same table serves every question about the kernel of a problem: the claim of a node (`choose`), lowering (`emit`),
`vkep explain` (`explain`), `vkep tune` and the bench.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import Decline
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.fastdiv import LIMIT
from vkep.kernels.kernel import KernelCall
from vkep.kernels.launch import Workspace, element_type
from vkep.kernels.problem import Problem, Product
from vkep.kernels.tuning import Choice as MeasuredChoice
from vkep.kernels.tuning import Tuned, estimated
from vkep.sizes import cached, hint, record_at_hand

P = TypeVar("P", bound=Problem)


class Target(Workspace, Protocol):
    """The interface that a candidate uses while it emits."""

    @property
    def caps(self) -> DeviceCapabilities:
        """The device that kernels are chosen for."""

    def tuned(self, candidates: Callable[[], Iterable[MeasuredChoice]], *problem: object) -> MeasuredChoice | None:
        """The candidate that measuring chose for a problem; None where nothing was measured."""

    def prepack(self, weight: Any, transform: Callable[[np.ndarray], np.ndarray], tag: str) -> Any:
        """A weight transformed once on the host; None where ``weight`` is not a constant.

        ``transform`` gets the elements from the tensor's address on, in memory order. The tag names the transformation:
        equal tags on equal weights give equal bytes.
        """

    def has_packed(self, weight: Any, tag: str) -> bool:
        """Whether an earlier plan has transformed a weight under this tag."""

    def fault(self, reason: str) -> tuple[Any, int]:
        """The operand that a kernel reports a fault in (4 bytes; None where faults are not checked), and the code that
        it writes (`shaders/fault.glsl`): the run then raises `InvalidInputError` with the node and ``reason``."""


@dataclass(frozen=True, slots=True)
class Emission:
    """The arguments of a candidate's emission: the operands by name, and the target."""

    target: Target
    operands: Mapping[str, Any]
    epilogue: Epilogue | None = None

    @property
    def caps(self) -> DeviceCapabilities:
        """The device that kernels are chosen for."""
        return self.target.caps

    def __getitem__(self, name: str) -> Any:
        return self.operands[name]

    def get(self, name: str) -> Any:
        """An operand, or None where it is absent."""
        return self.operands.get(name)


#: why a candidate does not support a problem on a device, "" where it does
When = Callable[[Any, DeviceCapabilities], str]


def always(problem: Problem, caps: DeviceCapabilities) -> str:
    """The condition of a candidate that supports every problem on every device."""
    return ""


def takes_floats(problem: Any, caps: DeviceCapabilities) -> str:
    """The condition of a candidate that computes in float32 on elements of ``problem.dtype``."""
    if element_type(problem.dtype).glsl_compute != "float":
        return f"element type is {problem.dtype!r}, expected float32, float16 or bfloat16"
    return ""


@dataclass(frozen=True)
class Candidate(Generic[P]):
    """One way to compute a problem.

    Attributes:
        name: as `vkep explain` prints it.
        emit: makes the dispatches. It supports every problem that ``when`` accepts. A single dispatch that is not in a
            list counts as all of the problem's arithmetic, unless it has its own count.
        when: why it does not take a problem on a device ("" where it does): the problem's shape, what the device lacks,
            limits of shared memory and arguments (of grids there are none: `KernelCall.folded`). The operands'
            addresses are not known yet.
        worth: for a problem that it supports, why a later candidate is expected to be faster. `vkep tune` may override
            it, by the candidate's name and the problem's key.
        layout: the memory layout of its images: "nchw" or "nhwc".
        wide: whether it stores results of another type than the operands' (`Narrowing.to`).
    """

    name: str
    emit: Callable[[P, Emission], KernelCall | list[KernelCall]]
    when: When = always
    worth: When = always
    layout: str = "nchw"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Choice(Generic[P]):
    """The candidate that runs a problem, and the ones before it in the table with the reasons against them."""

    candidate: Candidate[P]
    rejected: tuple[tuple[str, str], ...] = ()

    def emit(self, problem: P, e: Emission) -> list[KernelCall]:
        """The candidate's dispatches, with grids that the device allows, and how they were chosen. Where a candidate
        computes a part of its problem by another problem, both choices are recorded."""
        name = self.candidate.name
        made = self.candidate.emit(problem, e)
        if isinstance(made, KernelCall):
            made.flops = made.flops or problem.flops
            made = [made]
        calls = [call.folded(e.caps.max_workgroup_count) for call in made]
        for call in calls:
            call.candidate = f"{name}: {call.candidate}" if call.candidate else name
            call.rejected = self.rejected + call.rejected
        return calls


_TABLES: dict[type[Problem], tuple[Candidate[Any], ...]] = {}


def implement(problem: type[P], *candidates: Candidate[P]) -> None:
    """Declare the candidates of a kind of problem, the best first. Each kind has one table. Raises ``ValueError`` for a
    second one."""
    if problem in _TABLES:
        raise ValueError(f"{problem.__name__} has its table of candidates already")
    _TABLES[problem] = candidates


def candidates(problem: type[P]) -> tuple[Candidate[P], ...]:
    """The table of a kind of problem."""
    return _TABLES[problem]


def tables() -> Mapping[type[Problem], tuple[Candidate[Any], ...]]:
    """Every table, by the kind of problem."""
    return _TABLES


def choose(problem: P, caps: DeviceCapabilities, tuned: Tuned = estimated) -> Choice[P]:
    """The first candidate that supports a problem on a device. Raises `Decline` with every candidate's reason where
    none does, and for operands with more elements than kernels count."""
    rejected: list[tuple[str, str]] = []
    asked = _asked if problem.recurs else _asked.__wrapped__  # problems that do not recur are not cached
    for candidate, refused in asked(problem, caps):
        reason = refused or _not_worth(candidate, problem, caps, tuned)
        if not reason:
            return Choice(candidate, tuple(rejected))
        rejected.append((candidate.name, reason))
    reasons = dict.fromkeys(reason for _, reason in rejected)
    raise Decline("; ".join(reasons) or f"no kernel computes a {type(problem).__name__}")


def supports(problem: Problem, caps: DeviceCapabilities) -> bool:
    """Whether a candidate supports a problem on a device."""
    try:
        choose(problem, caps)
    except Decline:
        return False
    return True


@cached  # layers recur, and each is looked up when its node is claimed and when it is emitted
def _asked(problem: Problem, caps: DeviceCapabilities) -> tuple[tuple[Candidate[Any], str], ...]:
    """The candidates up to the first one that supports the problem regardless of measurements, each with the reason
    against it."""
    needs, makes = problem.operands
    for need in (*needs, *makes):
        if need.extent >= LIMIT:
            raise Decline(f"{need.name} has {need.extent} elements; the kernels take fewer than 2**31")
    asked = []
    for candidate in _TABLES[type(problem)]:
        narrow = isinstance(problem, Product) and problem.to and not candidate.wide
        reason = "it stores results of the operands' type" if narrow else _no_bytes(problem, caps)
        reason = reason or candidate.when(problem, caps)
        asked.append((candidate, reason))
        if not asked[-1][1] and candidate.worth is always:
            break
    return tuple(asked)


def _no_bytes(problem: Problem, caps: DeviceCapabilities) -> str:
    """Why the device does not store a product's results; "" where it does."""
    codes = isinstance(problem, Product) and problem.to in ("int8", "uint8")
    return "the device has no 8-bit integers" if codes and not caps.has("int8", "storage_8bit") else ""


def _not_worth(candidate: Candidate[P], problem: P, caps: DeviceCapabilities, tuned: Tuned) -> str:
    if candidate.worth is always:
        return ""
    choice = tuned(lambda: [(0,), (1,)], candidate.name, *map(hint, problem.key))
    if choice is None:
        return candidate.worth(record_at_hand(problem), caps)
    return "" if choice[0] else "another one was measured to be faster"


def emit(
    problem: P,
    target: Target,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    epilogue: Epilogue | None = None,
) -> list[KernelCall]:
    """The dispatches of the chosen candidate for operands in the order of `Problem.needs` and `Problem.makes`; none
    where the results have no elements."""
    if 0 in [need.extent for need in problem.operands[1]]:
        return []
    operands = bind(problem, inputs, outputs)
    return choose(problem, target.caps, target.tuned).emit(problem, Emission(target, operands, epilogue))


def bind(problem: Problem, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
    """The operands by the problem's names for them."""
    needs, makes = problem.operands
    return {need.name: operand for need, operand in zip((*needs, *makes), (*inputs, *outputs), strict=True)}
