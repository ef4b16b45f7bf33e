"""The passes of an island, in order. `tools.passes` checks each of them with the interpreter of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from vkep.ir.ops import Op
from vkep.passes.attention import lower_attention
from vkep.passes.cache_updates import update_into_attention, update_into_product
from vkep.passes.fuse import FUSION
from vkep.passes.in_place import in_place
from vkep.passes.layout import lay_out
from vkep.passes.norms import add_to_norm, head_norms_into_update, norm_into_products
from vkep.passes.pairs import pair_products
from vkep.passes.rewrite import Goal, Rule, rewrite


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


def _by(rule: Rule) -> Callable[[list[Op], Goal], list[Op]]:
    return lambda ops, goal: rewrite(ops, goal, rule)


PASSES: tuple[Pass, ...] = (
    Pass("layout", lambda ops, goal: lay_out(ops, goal.caps)),
    Pass("attention", lambda ops, goal: lower_attention(ops, goal.results, goal.caps)),
    *(Pass(name, _fusion(step)) for name, step in FUSION),
    Pass("pairs of products", _by(pair_products)),
    Pass("sums of norms", _by(add_to_norm)),
    Pass("norms of products", _by(norm_into_products)),
    Pass("norms of heads", _by(head_norms_into_update)),
    Pass("in place", _in_place, shares=True),
    Pass("updates in products", _by(update_into_product), shares=True),
    Pass("updates in attention", _by(update_into_attention), shares=True),
)


def run_passes(ops: Iterable[Op], goal: Goal) -> list[Op]:
    """The operations after all passes."""
    made, apart = list(ops), replace(goal, shared={})
    for step in PASSES:
        if goal.shared or not step.shares:
            made = step.run(made, goal if step.shares else apart)
    return made
