"""What a plan's sizes change, as JSON and back; and what a file may not say of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vkep.plan import encoded
from vkep.plan.sized import Buffer, PlanSizes
from vkep.sizes import Trace


def made() -> tuple[PlanSizes, Any]:
    trace = Trace()
    n = trace.symbol(12)
    assert n % 4 == 0
    values = trace.formulas([n * 768, -(-n // 5), 1 / n])
    sizes = PlanSizes(
        values,
        arguments=((0, 16, "I", 0), (1, 8, "f", 2)),
        grids=((0, 0, 1),),
        faults=((0, ("outside of ", 1, " places")),),
        buffers=(Buffer(0, 0, 2),),
    )
    return sizes, trace.holds()


def test_sizes_and_conditions_come_back() -> None:
    sizes, conditions = made()
    back = encoded.read_sizes(json.loads(json.dumps(encoded.sizes_fields(sizes))))
    holds = encoded.read_formulas(json.loads(json.dumps(encoded.sizes_fields(conditions))))
    assert back == sizes and holds == conditions
    assert back is not None and back.values([20]) == (20 * 768, 4, 1 / 20)
    assert holds.hold([20]) and not holds.hold([21])


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f[0][1].append(["__import__('os')", [1, 2]]),
        lambda f: f[0][1].append(["+", [["node", 99], 1]]),
        lambda f: f[0].__setitem__(3, ["== 0 or True"]),
        lambda f: f[0][2].append(["sum", [[["x"], 1]], 0]),
        lambda f: f[0][2].append(["text", [], 0]),
        lambda f: f[1].append([0, 0, "Q", 0]),
    ],
)
def test_a_file_names_nothing_else(change: Any) -> None:
    """Formulas are compiled: names that are none of theirs, and numbers that are no numbers, are refused."""
    fields = json.loads(json.dumps(encoded.sizes_fields(made()[0])))
    change(fields)
    with pytest.raises(encoded.DAMAGED):
        encoded.read_sizes(fields)
