"""Masks that a model computes from positions: what is recognized, the keys that are left out, and results of drawn masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from tests.lowering.test_match_attention_plans import _plan
from tests.lowering.written_attention import exported_decoder
from tests.nightly import alternately
from tests.ops.cases import shared_context
from tools.fuzz.attention import draw, verdict
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.attention import split as attention_split
from vkep.kernels.attention import stream as attention_stream
from vkep.ops.attention import sdpa
from vkep.ops.generators import positions
from vkep.passes.position_masks import Rule, rule_of
from vkep.passes.rewrite import Goal, Graph

CPU = DeviceCapabilities.for_tests()
#: without a kernel that computes everything
STORED = replace(CPU, features=CPU.features - {"subgroup_arithmetic"})
QUERIES, KEYS, PAST = 5, 8, 3
LOWEST = float(np.finfo(np.float32).min)
Written = Callable[[ex.Expr, ex.Expr, ex.Expr], ex.Expr]


def _hidden(seen: ex.Expr, score: float = -math.inf) -> ex.Expr:
    return fn.where(seen, ex.literal(0.0, "float"), ex.literal(score, "float"))


#: the mask of a query's and a key's positions and of a boolean of keys; its bounds, other booleans, whether they are all
RULES: dict[str, tuple[Written, tuple[list[int], list[int], int, bool] | None]] = {
    "causal": (lambda q, k, row: _hidden(k <= q), ([], [4], 0, True)),
    "turned": (lambda q, k, row: _hidden(q >= k), ([], [4], 0, True)),
    "by the distance": (lambda q, k, row: _hidden(q - k > -1), ([], [4], 0, True)),
    "of more positions": (lambda q, k, row: _hidden((k + 2) * 3 - k * 2 <= q + 7), ([], [5], 0, True)),
    "replaced": (lambda q, k, row: fn.where(k > q, ex.literal(-math.inf, "float"), 0.0), ([], [4], 0, True)),
    "a window": (lambda q, k, row: _hidden((k <= q) & (k > q - 2)), ([2], [4], 0, True)),
    "one key": (lambda q, k, row: _hidden(fn.equal(k, q)), ([3], [4], 0, True)),
    "all but one key": (lambda q, k, row: _hidden(fn.not_equal(k, q)), ([], [], 0, False)),
    "with padding": (lambda q, k, row: _hidden((k <= q) & row), ([], [4], 1, True)),
    "neither of two": (lambda q, k, row: _hidden(~((k > q) | ~row)), ([], [4], 1, True)),
    "a sum": (lambda q, k, row: _hidden(k <= q) + _hidden(row), ([], [4], 1, True)),
    "a product": (lambda q, k, row: fn.cast(k > q, "float") * LOWEST, ([], [4], 0, True)),
    "two products": (lambda q, k, row: fn.cast(k > q, "float") * LOWEST * fn.cast(row, "float"), ([], [], 0, False)),
    "either": (lambda q, k, row: _hidden((k <= q) | row), ([], [], 0, False)),
    "a window or a key": (lambda q, k, row: _hidden((k <= q) & ((k > q - 2) | row)), ([], [4], 0, False)),
    "a sum of the lowest": (lambda q, k, row: _hidden(k <= q, LOWEST) + _hidden(row, LOWEST), None),
    "two scores": (lambda q, k, row: _hidden(k <= q) + _hidden(row, -2.0), None),
    "more than hidden": (lambda q, k, row: _hidden(k <= q, 2.0), None),
    "all hidden": (lambda q, k, row: _hidden((k <= q) & (k > q)), None),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("stored", [False, True])
def test_rules(name: str, stored: bool) -> None:
    """Also of a mask that is in memory, as an operator's result."""
    build, expected = RULES[name]
    b = Builder(CPU)
    full = (1, 1, QUERIES, KEYS)
    moved = b.store(b.expr("add", positions(b, QUERIES), PAST), b.constant(np.zeros(1, np.int32)).dtype)
    query = moved.view((1, 1, QUERIES, 1), (0, 0, 1, 0)).expand(full)
    key = positions(b, KEYS).view((1, 1, 1, KEYS), (0, 0, 0, 1)).expand(full)
    row = b.empty(b.constant(np.zeros(1, bool)).dtype, (KEYS,)).view((1, 1, 1, KEYS), (0, 0, 0, 1)).expand(full)
    mask = build(ex.leaf(query), ex.leaf(key), ex.leaf(row))
    if stored:
        kind = b.constant(np.zeros(1, np.float32)).dtype
        mask = ex.leaf(b.store(mask, kind, out=Tensor.contiguous(kind, full)))
    found = rule_of(mask, Graph(b.ops, Goal([], CPU)))
    assert (found is None) == (expected is None), found
    if expected is not None:
        assert isinstance(found, Rule)
        assert (list(found.firsts), list(found.ends), len(found.others), found.is_all) == expected
        assert found.by_key


@pytest.mark.parametrize(("sliding", "most"), [(0, 0.62), (256, 0.21)])
@pytest.mark.parametrize("caps", [CPU, STORED, GPU], ids=["one kernel", "scores in memory", "gpu"])
def test_keys_that_no_query_sees_are_left_out(caps: DeviceCapabilities, sliding: int, most: float) -> None:
    """And no mask of all queries and keys is in memory."""
    length, heads, size = 4096, 4, 64
    plan = _plan(exported_decoder(length, sliding), caps)
    both = 4 * heads * size * length**2  # operations of both products
    assert sum(dispatch.flops for dispatch in plan.dispatches) < most * both
    scores = 0 if caps is CPU else 2 * 4 * heads * length**2 / (16 if sliding else 8)
    assert plan.activation_bytes < scores + 4 * 4 * heads * size * length
    assert sum(constant.nbytes for constant in plan.constants) < length**2 / 8


def test_layers_of_a_step_read_one_mask() -> None:
    """A row that is in memory stays a bias: no layer writes it again."""
    few, more = (len(_plan(exported_decoder(1024, queries=1, layers=n), GPU).dispatches) for n in (1, 5))
    assert more - few == 4


@pytest.mark.parametrize(
    ("index", "way"), alternately(list(range(15)), ["one kernel", "blocks of queries", "as a GPU, for few queries"])
)
def test_a_drawn_mask(index: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a plan for one size, and then for others."""
    monkeypatch.setattr(
        sdpa, "_block", lambda *args: 5
    )  # as where the scores are large: there is something to win always
    if way == "blocks of queries":
        monkeypatch.setattr(sdpa, "gains_by_attention", lambda problem, caps: False)
    if way == "as a GPU, for few queries":
        for module in (attention_split, attention_stream):
            monkeypatch.setattr(module, "is_cpu", lambda caps: False)
    case = draw(4, index, ["written"])
    result, why = verdict(case, shared_context())
    assert result == "equal", f"{result}: {why} in {case.text}"
