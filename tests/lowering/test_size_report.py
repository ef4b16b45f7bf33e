"""What `size_states` says of each dimension: open, open under conditions, or fixed, with operator, line and reason."""

from __future__ import annotations

import onnx

from tests.session.models import model
from tools.plan_devices import DEVICES
from vkep.graph import load_model
from vkep.placement.size_report import SizeState, size_states

CPU = DEVICES["cpu"]


def states(proto: onnx.ModelProto, **sizes: int) -> dict[str, SizeState]:
    return {state.name: state for state in size_states(load_model(proto.SerializeToString()), CPU, sizes)}


def test_open_and_conditional_and_fixed() -> None:
    text = """g (float[n,c,h,w] x, float[n,m] z) => (float[n,m] y, float[w] g) {
        s = Shape(x) three = Constant <value = int64 {3}> () last = Gather(s, three)
        q = Add(z, z) y = Mul(q, q) g = HannWindow(last)
    }"""
    found = states(model(text, opset=20), n=3, c=5, h=6, w=8, m=7)
    assert {name: state.state for name, state in found.items()} == {
        "n": "open",
        "c": "open",
        "h": "open",
        "w": "fixed",
        "m": "open",
    }
    (condition,) = [c for c in found["w"].conditions if c.why]
    assert condition.why == "a window is a constant" and condition.text == "(w + -8) == 0"
    assert condition.place.node.startswith("HannWindow") and condition.place.code[0].startswith("ops/generators.py:")


def test_conditions_that_near_sizes_do_not_meet() -> None:
    text = "g (float[1,4,h] x) => (float[1,4,k] y) { y = MaxPool <kernel_shape: ints = [5]> (x) }"
    (state,) = states(model(text), h=9).values()
    assert state.state == "conditional" and state.least == 5 and state.most is not None
    (condition,) = [c for c in state.conditions if c.near]
    assert condition.text == "(h + -5) >= 0" and condition.place.node.startswith("MaxPool")
    assert state.to_dict()["conditions"][0].keys() == {"condition", "near", "why", "node", "code"}
