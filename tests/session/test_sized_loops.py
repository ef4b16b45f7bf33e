"""Loops whose number of steps is a size of the run: few plans serve every number, and results are ONNX Runtime's."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from tests.session.models import model
from tools.ort_cpu import cpu_session
from vkep import InferenceSession
from vkep.errors import InvalidInputError
from vkep.graph.model import ValueInfo
from vkep.placement.control import MAX_UNROLLED_NODES
from vkep.session.execution.control import ControlExecutor

Open = Callable[..., InferenceSession]

COUNT = """
    shape = Shape(x)
    zero = Constant <value_int: int = 0> ()
    trips = Gather(shape, zero)
    go = Constant <value = bool {1}> ()
"""
#: outputs and nodes for a sequence "x" of any length, a matrix "w" and a first state "h"
LOOPS = {
    "a state of one size": f"""(float[2,4] y, float[t,2,4] ys) {{ {COUNT}
        y, ys = Loop (trips, go, h) <body = body (int64 i, bool c, float[2,4] s) => (bool d, float[2,4] r, float[2,4] o) {{
            d = Identity(c)
            e = Gather (x, i)
            p = MatMul(s, w)
            q = Add(p, e)
            r = Tanh(q)
            o = Neg(r)
        }}>
    }}""",
    "a constant outside that is cast to the condition": f"""(float[2,4] y, float[t,2,4] ys) {{ {COUNT}
        y, ys = Loop (trips, go, h) <body = body (int64 i, bool c, float[2,4] s) => (bool d, float[2,4] r, float[2,4] o) {{
            d = Cast <to: int = 9> (go)
            e = Gather (x, i)
            r = Add(s, e)
            o = Neg(r)
        }}>
    }}""",
    "a state that grows": f"""(float[u,4] y, float[t,1,4] ys) {{ {COUNT}
        y, ys = Loop (trips, go, h) <body = body (int64 i, bool c, float[g,4] s) => (bool d, float[k,4] r, float[1,4] o) {{
            d = Identity(c)
            e = Gather (x, i)
            r = Concat <axis: int = 0> (s, e)
            o = ReduceMean <axes: ints = [0], keepdims: int = 1> (r)
        }}>
    }}""",
    "a condition of its own": f"""(float[2,4] y, int64[t] ys) {{ {COUNT}
        y, ys = Loop (trips, go, h) <body = body (int64 i, bool c, float[2,4] s) => (bool d, float[2,4] r, int64 o) {{
            r = Add(s, s)
            a = ReduceMax <keepdims: int = 0> (r)
            most = Constant <value = float {{20.0}}> ()
            d = Less(a, most)
            o = Add(i, i)
        }}>
    }}""",
    "a body of more nodes than are unrolled": f"""(float[2,4] y, float[t,2,4] ys) {{ {COUNT}
        y, ys = Loop (trips, go, h) <body = body (int64 i, bool c, float[2,4] s) => (bool d, float[2,4] r, float[2,4] o) {{
            d = Identity(c)
            e = Gather (x, i)
            n0 = Sub(e, s)
            {" ".join(f"n{k + 1} = Identity(n{k})" for k in range(MAX_UNROLLED_NODES))}
            r = Tanh(n{MAX_UNROLLED_NODES})
            o = Neg(r)
        }}>
    }}""",
    "a scan, and one backwards": """(float[2,4] y, float[t,2,4] ys, float[2,t,4] zs) {
        y, ys, zs = Scan <num_scan_inputs: int = 2, scan_input_directions: ints = [0, 1], scan_output_axes: ints = [0, 1],
            scan_output_directions: ints = [0, 1], body = body (float[2,4] s, float[2,4] e, float[2,4] f)
            => (float[2,4] r, float[2,4] o, float[2,4] b) {
            p = MatMul(s, w)
            r = Add(p, e)
            o = Tanh(r)
            b = Sub(f, r)
        }> (h, x, x)
    }""",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_few_plans_serve_every_number_of_steps(open_session: Open, loop: str) -> None:
    proto = model(f"g (float[t,2,4] x, float[4,4] w, float[2,4] h) => {LOOPS[loop]}", opset=13)
    session = open_session(proto.SerializeToString(), fallback="error")
    peer = cpu_session(proto)
    draw, random_numbers = random.Random(3), np.random.default_rng(3)
    weights = {
        name: random_numbers.normal(0, 0.4, shape).astype(np.float32) for name, shape in (("w", (4, 4)), ("h", (2, 4)))
    }
    counts: list[list[int]] = []
    for steps in (5, 22, 37, 59, *[draw.randint(2, 60) for _ in range(7)], 1):
        given = {"x": random_numbers.normal(0, 1, (steps, 2, 4)).astype(np.float32), **weights}
        for got, expected in zip(session.run(None, given), peer.run(None, given), strict=True):
            assert got.shape == expected.shape and got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        counts.append(plans(session))
    assert (
        sum(counts[-2]) <= sum(counts[4]) + 1
    )  # lengths that are new make no plan, but where they are far from others
    parts = 1 if "of its own" in loop or "more nodes" in loop else 3
    assert len(counts[-1]) == 1 + parts and max(counts[-1]) <= 4


@pytest.mark.parametrize("condition", ["d = Identity(c)", "d = Less(i, most)"])
def test_steps_whose_results_differ_in_shape_are_an_error_that_names_the_loop(
    open_session: Open, condition: str
) -> None:
    proto = model(
        f"""g (float[t,2,4] x, float[2] h) => (float[2] y, float[t,k] ys) {{ {COUNT}
        y, ys = Loop (trips, go, h) <body = body (int64 i, bool c, float[2] s) => (bool d, float[2] r, float[k] o) {{
            most = Constant <value = int64 {{9}}> ()
            {condition}
            r = Neg(s)
            four = Constant <value = int64 {{4}}> ()
            quarter = Div(i, four)
            one = Constant <value = int64[1] {{1}}> ()
            length = Add(quarter, one)
            o = Expand(one_value, length)
        }}>
    }}""",
        opset=13,
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), "one_value"))
    session = open_session(proto.SerializeToString(), fallback="error")
    given = {"x": np.zeros((4, 2, 4), np.float32), "h": np.ones(2, np.float32)}
    assert session.run(None, given)[1].shape == (4, 1)
    with pytest.raises(InvalidInputError, match=r"Loop .*shapes \[\(1,\), \(2,\)\]; expected one shape"):
        session.run(None, given | {"x": np.zeros((5, 2, 4), np.float32)})


#: loops of as many steps as a computed number says, which is known in a run; ``r`` and ``o`` have no declared types
NO_TYPES = """g (float n, float[k,2] x, float[2] h) => (float[2] y, float[t,2] ys) {{
    trips = Cast <to: int = 7> (n)
    go = Constant <value = bool {{1}}> ()
    y, ys = Loop (trips, go, h) <body = body (int64 i, bool c, float[2] s) => (bool d, float[2] r, float[2] o) {{
        d = {condition}
        e = {element}
        r = Add(s, e)
        o = Neg(r)
    }}>
}}"""


@pytest.mark.parametrize("condition", ["Identity(c)", "Less(i, i)"])
def test_a_loop_without_steps_has_results_of_the_types_that_steps_make(open_session: Open, condition: str) -> None:
    proto = without_types(
        NO_TYPES.format(condition=condition, element="ReduceMax <axes: ints = [0], keepdims: int = 0> (x)")
    )
    session = open_session(proto.SerializeToString(), fallback="error")
    peer = cpu_session(proto)
    for steps in (3, 0, 4, -1):
        given = {"n": np.array(steps, np.float32), "x": np.ones((5, 2), np.float32), "h": np.ones(2, np.float32)}
        for got, expected in zip(session.run(None, given), peer.run(None, given), strict=True):
            np.testing.assert_array_equal(got, expected, strict=True)


def test_a_step_that_finds_types_and_fails_is_an_error_of_the_loop(open_session: Open) -> None:
    session = open_session(without_types(NO_TYPES.format(condition="Identity(c)", element="Gather(x, i)")))
    given = {"n": np.array(3, np.float32), "x": np.ones((5, 2), np.float32), "h": np.ones(2, np.float32)}
    assert session.run(None, given)[1].shape == (3, 2)
    with pytest.raises(InvalidInputError, match=r"Loop .*: it has no steps, and its body does not declare the types"):
        session.run(None, given | {"n": np.array(0, np.float32), "x": np.ones((0, 2), np.float32)})


def without_types(text: str) -> onnx.ModelProto:
    proto = model(text, opset=13)
    [body] = [a.g for node in proto.graph.node for a in node.attribute if a.name == "body"]
    for output in body.output[1:]:
        output.ClearField("type")
    return proto


def test_results_of_one_shape_that_numpy_cannot_join_are_no_error_of_shapes() -> None:
    control = ControlExecutor.__new__(ControlExecutor)
    piece = np.broadcast_to(np.float32(0), (1 << 60,))
    with pytest.raises(ValueError, match="array is too big"):
        control._joined([piece, piece], ValueInfo("ys", 1, None), 0)


@pytest.mark.parametrize("loop", ["a state of one size", "a state that grows"])
def test_a_profile_is_of_the_run_that_it_follows(open_session: Open, loop: str) -> None:
    proto = model(f"g (float[t,2,4] x, float[4,4] w, float[2,4] h) => {LOOPS[loop]}", opset=13)
    session = open_session(proto.SerializeToString(), fallback="error")
    for steps in (5, 9, 13, 5, 9):
        shapes = {"x": (steps, 2, 4), "w": (4, 4), "h": (2, 4)}
        times = session.profile({name: np.ones(shape, np.float32) for name, shape in shapes.items()})
        assert all(t > 0 for island in times for t in island)


def plans(session: InferenceSession) -> list[int]:
    """The number of plans of the model, and of each part of its loop, where one plan serves several lengths."""
    graph = session._parts.graph
    sized = graph._plans._plans if graph._plans is not None else []
    steps = [step for plan in sized[:1] for step in plan.executable.steps if isinstance(step, ControlExecutor)]
    return [graph.plan_count, *[part.program.graph.plan_count for step in steps for part in step._parts]]
