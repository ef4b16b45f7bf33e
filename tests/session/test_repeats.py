"""Loops that repeat elements: those in the exporter's form are replaced, others are not, and all give ONNX Runtime's results."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from tests.calls import noted
from tests.session.models import model
from tools.ort_cpu import cpu_session
from vkep import InferenceSession
from vkep.session.planning.planner import Planner

Open = Callable[..., InferenceSession]

#: parts of the model that differ between cases, with the exporter's form of each
FORM: Mapping[str, str] = {
    "trips": "trips = Unsqueeze(n, lead)",
    "split": "rs = SplitToSequence(counts, ones) xs = SplitToSequence(x, ones)",
    "shape": """c = Concat <axis = 0> (single, r, rest) cs = Shape(c) os = ConstantOfShape <value = int64[1] {1}> (cs)
                minus = Constant <value = int64 {-1}> () mm = Mul(os, minus) eq = Equal(c, mm) w = Where(eq, os, c)""",
    "step": "row = Reshape(ex, flat) q = SequenceInsert(p, row)",
    "goes": "d = Cast <to = 9> (on)",
    "element": "e = SequenceAt(xs, i)",
    "more": "",
}
REPLACED: Mapping[str, Mapping[str, str]] = {
    "as the exporter writes it": {},
    "a plain shape": {"shape": "w = Concat <axis = 0> (single, r, rest)"},
    "no lengths of the parts": {"split": "rs = SplitToSequence(counts) xs = SplitToSequence(x)"},
    "the condition is the step's": {"goes": "d = Identity(g)"},
    "as many steps as counts": {"trips": "cn = Shape(counts) cz = Gather(cn, zero) trips = Cast <to = 7> (cz)"},
    "the counts' parts have another use": {"more": "part = SequenceAt(rs, zero) extra = Add(part, part)"},
}
KEPT: Mapping[str, Mapping[str, str]] = {
    "a step less": {"trips": "one = Constant <value = int64 {1}> () less = Sub(n, one) trips = Unsqueeze(less, lead)"},
    "the parts of another tensor": {"split": "rs = SplitToSequence(counts, ones) xx = Concat <axis = 0> (x, x) "
                                    "two = Constant <value = int64 {2}> () xs = SplitToSequence(xx, two)"},
    "inserted in front": {"step": "row = Reshape(ex, flat) at = Constant <value = int64 {0}> () q = SequenceInsert(p, row, at)"},
    "another result of each step": {"step": "row = Reshape(ex, flat) twice = Add(row, row) q = SequenceInsert(p, twice)"},
    "once more": {"shape": "add = Constant <value = int64[1] {1}> () s = Add(r, add) w = Concat <axis = 0> (single, s, rest)"},
    "from the last": {"element": "one = Constant <value = int64 {1}> () j = Sub(n, i) at = Sub(j, one) e = SequenceAt(xs, at)"},
    "a condition that ends it": {"goes": "four = Constant <value = int64 {4}> () d = Less(i, four)"},
}  # fmt: skip


def text(changed: Mapping[str, str], wide: int, kind: str) -> str:
    """A model that repeats rows of ``wide`` elements (0: numbers)."""
    form = {**FORM, **changed}
    row, rest = (f",{wide}", f"{wide}") if wide else ("", "")
    outputs = f"{kind}[t{row}] y" + (", int64[1] extra" if form["more"] else "")
    return f"""g (int64[n] counts, {kind}[n{row}] x) => ({outputs})
    <bool on = {{1}}, int64[{1 + bool(wide)}] flat = {{-1{row}}}, int64[{int(bool(wide))}] rest = {{{rest}}},
     int64[1] single = {{1}}, int64[1] lead = {{0}}, int64 zero = {{0}}> {{
        shape = Shape(x) n = Gather(shape, zero) {form["trips"]} of = Shape(counts)
        ones = ConstantOfShape <value = int64[1] {{1}}> (of) {form["split"]} {form["more"]}
        empty = SequenceEmpty <dtype = {7 if kind == "int64" else 1}> ()
        s = Loop (trips, on, empty) <body = b (int64 i, bool g, seq({kind}[k]) p) => (bool d, seq({kind}[k]) q) {{
            r = SequenceAt(rs, i) {form["element"]} axis = Constant <value = int64[1] {{1}}> () u = Unsqueeze(e, axis)
            {form["shape"]} ex = Expand(u, w) {form["step"]} {form["goes"]}
        }}> y = ConcatFromSequence <axis = 0> (s)
    }}"""


def checked(session: InferenceSession, data: bytes, wide: int, kind: str) -> None:
    peer, draw = cpu_session(data), np.random.default_rng(4)
    for _ in range(8):
        n = int(draw.integers(2, 30))
        x = draw.integers(0, 99, (n, wide) if wide else n).astype("int64" if kind == "int64" else "float32")
        feeds = {"counts": draw.integers(0, 5, n), "x": x}
        for got, expected in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
            np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize("wide", [0, 3])
@pytest.mark.parametrize("kind", ["int64", "float"])
@pytest.mark.parametrize("case", REPLACED)
def test_replaced(open_session: Open, monkeypatch: pytest.MonkeyPatch, case: str, kind: str, wide: int) -> None:
    data = model(text(REPLACED[case], wide, kind), opset=17).SerializeToString()
    session = open_session(data)
    plans = noted(monkeypatch, Planner, "plan", lambda *_, **__: 1)
    checked(session, data, wide, kind)
    assert "another use" in case or (
        len(plans) <= 3 and set(session.report().counts) <= {"folded", "vulkan", "inlined"}
    )


@pytest.mark.parametrize("case", KEPT)
def test_kept(open_session: Open, case: str) -> None:
    data = model(text(KEPT[case], 0, "int64"), opset=17).SerializeToString()
    checked(open_session(data), data, 0, "int64")


def test_expand_widens_rows(open_session: Open) -> None:
    form = text({}, 2, "float").replace("float[n,2] x", "float[n,1] x")
    data = model(form, opset=17).SerializeToString()
    session, peer = open_session(data), cpu_session(data)
    for counts in ([1, 2, 0, 1], [0, 3, 1, 2]):
        feeds = {"counts": np.array(counts), "x": np.arange(4, dtype=np.float32)[:, None]}
        np.testing.assert_array_equal(session.run(None, feeds)[0], peer.run(None, feeds)[0], strict=True)
