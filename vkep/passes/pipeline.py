"""The passes of an island, in order. `tools.passes` checks each of them with the interpreter of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from vkep.ir.ops import Op
from vkep.passes.attention import fuse_attention
from vkep.passes.cache_updates import update_into_attention, update_into_product
from vkep.passes.copies import elide_copy
from vkep.passes.dead import remove_dead
from vkep.passes.fuse import fuse_epilogue, fuse_pointwise
from vkep.passes.group_norms import group_norm
from vkep.passes.in_place import in_place
from vkep.passes.layout import lay_out
from vkep.passes.norms import add_to_norm, head_norms_into_update, norm_into_products
from vkep.passes.pairs import pair_products
from vkep.passes.rewrite import Goal, Rule, rewrite
from vkep.passes.simplify import codes_in_floats
from vkep.passes.split import split_wide


@dataclass(frozen=True)
class Pass:
    """A function from operations to operations with the same results. ``shares``: it runs only where outputs are in the memory of
    inputs, and from then on they are."""

    name: str
    run: Callable[[list[Op], Goal], list[Op]]
    shares: bool = False


def _by(rule: Rule, *, backward: bool = False) -> Callable[[list[Op], Goal], list[Op]]:
    return lambda ops, goal: rewrite(ops, goal, rule, backward=backward)


PASSES: tuple[Pass, ...] = (
    Pass("group norms", _by(group_norm)),
    Pass("layout", lambda ops, goal: lay_out(ops, goal.caps)),
    Pass("dead operations", remove_dead),
    Pass("attention", _by(fuse_attention)),
    Pass("masks of attention", remove_dead),
    Pass("wide expressions", _by(split_wide)),
    Pass("pointwise fusion", _by(fuse_pointwise, backward=True)),
    Pass("codes in floats", _by(codes_in_floats)),
    Pass("epilogues", _by(fuse_epilogue)),
    Pass("copies", _by(elide_copy)),
    Pass("pairs of products", _by(pair_products)),
    Pass("sums of norms", _by(add_to_norm)),
    Pass("norms of products", _by(norm_into_products)),
    Pass("norms of heads", _by(head_norms_into_update)),
    Pass("in place", in_place, shares=True),
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
