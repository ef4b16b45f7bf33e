"""The passes of an island, in order. `tools.passes` checks each of them with the interpreter of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpu_shared.capabilities import DeviceCapabilities
from vkep.ir.ops import Op
from vkep.ir.tensor import Tensor
from vkep.passes.attention import lower_attention
from vkep.passes.fuse import FUSION
from vkep.passes.in_place import in_place
from vkep.passes.layout import lay_out
from vkep.passes.norms import add_to_norms, fold_head_norms, fold_norms
from vkep.passes.pairs import pair_products
from vkep.passes.turned import join_updates, turn_products


@dataclass(frozen=True)
class Goal:
    """What passes must keep: the tensors that exist at the end, on a device. ``shared``: ports of outputs that are in the memory
    of an input, each with the input's port."""

    results: list[Tensor]
    caps: DeviceCapabilities
    shared: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Pass:
    """A function from operations to operations with the same results. ``shares``: it runs only where outputs are in the memory of
    inputs, and from then on they are."""

    name: str
    run: Callable[[list[Op], Goal], list[Op]]
    shares: bool = False


def _fusion(step: Callable[..., list[Op]]) -> Callable[[list[Op], Goal], list[Op]]:
    return lambda ops, goal: step(ops, {t.storage for t in goal.results}, goal.caps)


def _in_place(ops: list[Op], goal: Goal) -> list[Op]:
    whole = {t.storage.port: t for t in goal.results if t.storage.port is not None}
    return in_place(ops, whole, goal.shared)


PASSES: tuple[Pass, ...] = (
    Pass("layout", lambda ops, goal: lay_out(ops, goal.caps)),
    Pass("attention", lambda ops, goal: lower_attention(ops, goal.results, goal.caps)),
    *(Pass(name, _fusion(step)) for name, step in FUSION),
    Pass("pairs of products", lambda ops, goal: pair_products(ops, goal.results, goal.caps)),
    Pass("sums of norms", lambda ops, goal: add_to_norms(ops, goal.results)),
    Pass("norms of products", lambda ops, goal: fold_norms(ops, goal.results, goal.caps)),
    Pass("norms of heads", lambda ops, goal: fold_head_norms(ops, goal.results, goal.caps)),
    Pass("in place", _in_place, shares=True),
    Pass("turned products", lambda ops, goal: turn_products(ops, goal.results, goal.caps, goal.shared), shares=True),
    Pass("cache updates", lambda ops, goal: join_updates(ops, goal.results, goal.caps, goal.shared), shares=True),
)


def run_passes(ops: Iterable[Op], goal: Goal) -> list[Op]:
    """The operations after all passes."""
    made = list(ops)
    for step in PASSES:
        if goal.shared or not step.shares:
            made = step.run(made, goal)
    return made
