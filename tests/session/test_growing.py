"""Caches that grow by Concat in memory that has room for more: what is written, and what reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import vkep
from tests.session.test_in_place import kernels

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
BATCH, HEADS, SIZE, ROOM = 2, 3, 8, 24
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
ATTENTION = (
    "t{0} = Transpose<perm=[0,1,3,2]>(n{0}) s{0} = MatMul(q, t{0}) "
    "p{0} = Softmax<axis=-1>(s{0}) y{0} = MatMul(p{0}, n{0})"
)
LAYERS = (0, 1)
#: a cache of each layer's own, and one of all
FORMS = {
    "apart": f"""{HEAD} g (float[B,{HEADS},N,{SIZE}] q, float[B,{HEADS},P,{SIZE}] c0, float[B,{HEADS},P,{SIZE}] c1,
        float[B,{HEADS},N,{SIZE}] r0, float[B,{HEADS},N,{SIZE}] r1) => (y0, y1, n0, n1) {{
        {" ".join(f"n{k} = Concat<axis=2>(c{k}, r{k}) {ATTENTION.format(k)}" for k in LAYERS)} }}""",
    "in one": f"""{HEAD} g (float[B,{HEADS},N,{SIZE}] q, float[{BATCH * len(LAYERS)},{HEADS},P,{SIZE}] c,
        float[B,{HEADS},N,{SIZE}] r0, float[B,{HEADS},N,{SIZE}] r1) => (y0, y1, n)
        <int64[1] i0 = {{0}}, int64[1] i1 = {{{BATCH}}}, int64[1] i2 = {{{2 * BATCH}}}, int64[1] first = {{0}}> {{
        {
        " ".join(
            f"c{k} = Slice(c, i{k}, i{k + 1}, first) n{k} = Concat<axis=2>(c{k}, r{k}) {ATTENTION.format(k)}"
            for k in LAYERS
        )
    }
        n = Concat<axis=0>(n0, n1) }}""",
    "stacked": f"""{HEAD} g (float[B,{HEADS},N,{SIZE}] q, float[2,{BATCH},{HEADS},P,{SIZE}] c,
        float[B,{HEADS},N,{SIZE}] r0, float[B,{HEADS},N,{SIZE}] r1) => (y0, y1, n) <int64[1] first = {{0}}> {{
        h0, h1 = Split<axis=0>(c)
        c0 = Squeeze(h0, first) n0 = Concat<axis=-2>(c0, r0) c1 = Squeeze(h1, first) n1 = Concat<axis=-2>(c1, r1)
        {" ".join(ATTENTION.format(k) for k in LAYERS)}
        u0 = Unsqueeze(n0, first) u1 = Unsqueeze(n1, first) n = Concat<axis=0>(u0, u1) }}""",
}
#: what leads the heads in a cache
LEADS = {"apart": (BATCH,), "in one": (BATCH * len(LAYERS),), "stacked": (2, BATCH)}


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def rows(count: int, lead: tuple[int, ...] = (BATCH,)) -> Array:
    return RNG.normal(size=(*lead, HEADS, count, SIZE)).astype(np.float32)


def step(session: vkep.InferenceSession, feeds: dict[str, Array], grown: dict[str, Any]) -> dict[str, Any]:
    """One run; ``grown``: the caches by their inputs' names, each also the memory of its output."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name, cache in grown.items():
        binding.bind_input(name, cache)
    for output in session.get_outputs():
        place = grown.get(output.name.replace("n", "c"))
        binding.bind_output(output.name, place) if place is not None else binding.bind_output(output.name, device="cpu")
    session.run_with_iobinding(binding)
    return dict(zip([o.name for o in session.get_outputs()], binding.get_outputs(), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_new_rows_alone_are_written(form: str) -> None:
    model = parsed(FORMS[form])
    caches = [i.name for i in model.graph.input if i.name.startswith("c")]
    with vkep.InferenceSession(model, fallback="error") as session, vkep.InferenceSession(model) as apart:
        lead = LEADS[form]
        empty = np.full((*lead, HEADS, ROOM, SIZE), np.nan, np.float32)
        whole = {name: session.device_tensor(empty) for name in caches}
        past = {name: tensor.leading((*lead, HEADS, 0, SIZE)) for name, tensor in whole.items()}
        kept = {name: rows(0, lead) for name in caches}
        for count in (5, 1, 1, 1, 3, 1, 1):
            feeds = {"q": rows(count), **{f"r{k}": rows(count) for k in LAYERS}}
            results = step(session, feeds, past)
            expected = dict(zip([o.name for o in apart.get_outputs()], apart.run(None, {**feeds, **kept}), strict=True))
            for name, value in expected.items():
                if name.startswith("y"):
                    np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-5)
                else:
                    np.testing.assert_array_equal(results[name].numpy(), value)
            past = {name: results[name.replace("c", "n")] for name in caches}
            kept = {name: expected[name.replace("c", "n")] for name in caches}
        assert [t.address for t in past.values()] == [t.address for t in whole.values()]
        length = next(iter(past.values())).shape[-2]
        assert all(np.isnan(t.numpy()[..., length:, :]).all() for t in whole.values())
        [island] = session.islands()
        ports = {port.name: k for k, port in enumerate(island.plan.ports)}
        touched = {r.index for d in island.plan.dispatches for r in (*d.reads, *d.writes) if r.space.name == "PORT"}
        assert not touched & {ports[name.replace("c", "n")] for name in caches}  # what is there stays where it is
        assert kernels(session).count("pointwise.comp") == len(LAYERS)  # the new rows of each
        assert session._parts.graph.plan_count <= 5


#: outputs that are no Concat of their input and new rows, or whose readers want dense rows
OTHERS = {
    "rows before": "n = Concat<axis=2>(r, c)",
    "rows on both sides": "n = Concat<axis=2>(r, c, r)",
    "another's rows first": "m = Neg(c) n = Concat<axis=2>(m, r)",
    "twice its own": "n = Concat<axis=2>(c, c)",
    "by way of another": "m = Concat<axis=2>(c, r) n = Identity(m)",
    "each element": "n = Exp(c)",
    "itself": "n = Identity(c)",
    "the past is read later": "n = Concat<axis=2>(c, r) s = ReduceSum<keepdims=0>(n) z = Mul(c, s)",
    "read by the CPU": "n = Concat<axis=2>(c, r) z = Det(n)",
    "read by dense kernels": "n = Concat<axis=2>(c, r) m = CumSum(n, two) z = Softmax<axis=2>(m)",
    "read as another shape": "n = Concat<axis=2>(c, r) m = Reshape(n, flat) z = Exp(m)",
    "other heads are selected": "n = Concat<axis=2>(c, r) z = Gather<axis=1>(n, heads)",
}
GIVEN = "<int64 two = {2}, int64[2] flat = {0, -1}, int64[2] heads = {2, 0}>"


def test_an_identity_is_no_copy() -> None:
    model = parsed(
        f"{HEAD} g (float[a,b,p,d] c, float[a,b,q,d] r) => (n) {{ m = Concat<axis=2>(c, r) n = Identity(m) }}"
    )
    with vkep.InferenceSession(model, fallback="error") as session:
        past = session.device_tensor(rows(ROOM)).leading((BATCH, HEADS, 4, SIZE))
        step(session, {"r": rows(2)}, {"c": past})
        assert kernels(session) == ["pointwise.comp"]


@pytest.mark.parametrize("what", OTHERS)
def test_every_model_takes_leading_elements(what: str) -> None:
    body = OTHERS[what]
    if "Det" in body:  # of square matrices
        past, new = RNG.normal(size=(2, 3, 4, 6)).astype(np.float32), RNG.normal(size=(2, 3, 2, 6)).astype(np.float32)
    else:
        past, new = rows(4), rows(2)
    outputs = ["n", "z"] if "z =" in body else ["n"]
    results = ", ".join(f"float[] {name}" for name in outputs)
    model = parsed(f"{HEAD} g (float[a,b,p,d] c, float[a,b,q,d] r) => ({results}) {GIVEN} {{ {body} }}")
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    if "r" not in body.replace("ReduceSum", "").split("(", 1)[1]:
        del model.graph.input[1]
    feeds = {i.name: {"c": past, "r": new}[i.name] for i in model.graph.input}
    with vkep.InferenceSession(model) as session:
        expected = dict(zip(outputs, session.run(None, feeds), strict=True))
        for _ in range(2):
            cache = session.device_tensor(np.full((3, 4, 12, past.shape[3]), np.nan, np.float32)).leading(past.shape)
            cache.write(past)
            binding = session.io_binding()
            binding.bind_input("c", cache)
            if "r" in feeds:
                binding.bind_cpu_input("r", new)
            for name in outputs:
                binding.bind_output(name, cache) if name == "n" else binding.bind_output(name, device="cpu")
            session.run_with_iobinding(binding)
            made = dict(zip(outputs, binding.copy_outputs_to_cpu(), strict=True))
            for name, value in expected.items():
                np.testing.assert_allclose(made[name], value, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(cache.leading(expected["n"].shape).numpy(), made["n"])


def test_a_full_buffer_is_an_error_before_anything_is_submitted() -> None:
    model = parsed(FORMS["apart"])
    with vkep.InferenceSession(model, fallback="error") as session:
        caches = {f"c{k}": session.device_tensor(rows(6)).leading((BATCH, HEADS, 4, SIZE)) for k in LAYERS}
        for past in (4, 5):
            cut = {name: cache.leading((BATCH, HEADS, past, SIZE)) for name, cache in caches.items()}
            feeds = {"q": rows(1), "r0": rows(1), "r1": rows(1)}
            step(session, feeds, cut)
        held = caches["c0"].leading((BATCH, HEADS, 6, SIZE)).numpy()
        feeds = {"q": rows(3), "r0": rows(3), "r1": rows(3)}
        told = r"dimension 2 of the result \[2, 3, 7, 8\] is 7; .* memory of input 'c0', which has room for 6"
        with pytest.raises(vkep.InvalidInputError, match=told):
            step(session, feeds, caches)
        np.testing.assert_array_equal(caches["c0"].leading((BATCH, HEADS, 6, SIZE)).numpy(), held)
        assert step(session, {"q": rows(2), "r0": rows(2), "r1": rows(2)}, caches)["n1"].shape[2] == 6


def test_leading_elements_that_are_no_input() -> None:
    """The result is copied there; other memory stays."""
    model = parsed(f"{HEAD} g (float[a,b] x) => (float[a,b] y) {{ y = Neg(x) }}")
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    with vkep.InferenceSession(model, fallback="error") as session:
        whole = session.device_tensor(np.zeros((5, 6), np.float32))
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y", whole.leading((0, 0)))
        session.run_with_iobinding(binding)
        assert binding.get_outputs()[0].shape == (3, 4)
        expected = np.zeros((5, 6), np.float32)
        expected[:3, :4] = -x
        np.testing.assert_array_equal(whole.numpy(), expected)
        binding.bind_cpu_input("x", np.zeros((6, 6), np.float32))
        with pytest.raises(vkep.InvalidInputError, match=r"dimension 0 is 6, .* room for 5"):
            session.run_with_iobinding(binding)


def test_values_in_onnx_runtimes_words() -> None:
    model = parsed(f"{HEAD} g (float[a,b,p,d] c, float[a,b,q,d] r) => (n) {{ n = Concat<axis=2>(c, r) }}")
    new = rows(2)
    with vkep.InferenceSession(model, fallback="error") as session:
        value = vkep.OrtValue.of(session.device_tensor(rows(ROOM)).leading((BATCH, HEADS, 4, SIZE)))
        binding = session.io_binding()
        binding.bind_ortvalue_input("c", value)
        binding.bind_cpu_input("r", new)
        binding.bind_ortvalue_output("n", value)
        session.run_with_iobinding(binding)
        [made] = binding.get_outputs()
        assert made.shape() == [BATCH, HEADS, 6, SIZE] and value.shape() == [BATCH, HEADS, 4, SIZE]
        np.testing.assert_array_equal(made.numpy(), np.concatenate((value.numpy(), new), 2))


def test_leading_elements() -> None:
    model = parsed(f"{HEAD} g (float[a,b] x) => (float[a,b] y) {{ y = Neg(x) }}")
    x = RNG.normal(size=(5, 6)).astype(np.float32)
    with vkep.InferenceSession(model, fallback="error") as session:
        whole = session.device_tensor(x)
        part = whole.leading((3, 2))
        assert (part.shape, part.capacity, part.nbytes, whole.capacity) == ((3, 2), (5, 6), 24, ())
        assert part.leading((4, 6)).shape == (4, 6)
        np.testing.assert_array_equal(part.numpy(), x[:3, :2])
        np.testing.assert_array_equal(session.run(None, {"x": part})[0], -x[:3, :2])
        np.testing.assert_array_equal(np.asarray(part), x[:3, :2])
        part.write(np.ones((3, 2), np.float32))
        x[:3, :2] = 1
        np.testing.assert_array_equal(whole.numpy(), x)
        for shape in ((6, 1), (3,), (3, 7)):
            with pytest.raises(ValueError, match=r"\(5, 6\): it has no leading elements"):
                part.leading(shape)
        with pytest.raises(ValueError, match="do not lie densely"):
            part.reshaped((2, 3))
        with pytest.raises(ValueError, match="do not lie densely"):
            part.rows(0, 1)
        whole.close()
        assert part.closed
        with pytest.raises(vkep.InvalidInputError, match="is closed"):
            session.run(None, {"x": part})


def test_memory_that_lies_differently_is_refused() -> None:
    model = parsed(f"{HEAD} g (float[a,b] x) => (float[a,b] y) {{ y = Neg(x) }}")
    with vkep.InferenceSession(model) as session:
        whole = session.device_tensor(np.zeros((4, 4), np.float32))
        binding = session.io_binding()
        binding.bind_input("x", whole)
        binding.bind_output("y", whole.leading((4, 4)))
        with pytest.raises(vkep.InvalidInputError, match="output 'y': its memory is bound to 'x'"):
            session.run_with_iobinding(binding)
