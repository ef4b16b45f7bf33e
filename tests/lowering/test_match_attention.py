"""Attention that a model writes as separate operators: what is recognized has the same results, and what is not recognized."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.lowering.written_attention import BATCH, HEADS, KEYS, LOWEST, QUERIES, SCORES, SIZE, Spelling
from tests.ops.cases import assert_like, by_onnxruntime, by_reference, on_vulkan
from vkep import InferenceSession
from vkep.ops.attention import sdpa
from vkep.passes.match_attention import AttentionMatch


@pytest.fixture
def _two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two queries at a time, as where the scores are large: there is something to win always."""
    monkeypatch.setattr(sdpa, "_block", lambda *args: 2)


def _scaled(op: str, swap: bool = False) -> Callable[[Spelling], None]:
    def spell(g: Spelling) -> None:
        product = g.add("MatMul", g.q, g.add("Transpose", g.k, perm=[0, 1, 3, 2]))
        parts = (product, g.constant(2.5 if op == "Div" else 0.4))
        g.mix(g.add(op, *(parts[::-1] if swap else parts)))

    return spell


def _scaled_before(g: Spelling) -> None:
    q = g.add("Mul", g.q, g.constant(0.6))
    k = g.add("Mul", g.add("Transpose", g.k, perm=[0, 1, 3, 2]), g.constant(0.6))
    g.mix(g.add("MatMul", q, k))


def _biased(*shapes: tuple[int, ...], constant: bool = False) -> Callable[[Spelling], None]:
    def spell(g: Spelling) -> None:
        scores = g.scores()
        for position, shape in enumerate(shapes):
            bias = g.normal(*shape)
            g.constants += [bias] if constant else []
            scores = g.add("Add", *((scores, bias) if position % 2 else (bias, scores)))
        g.mix(scores)

    return spell


def _hidden(score: float, seen: bool = False) -> Callable[[Spelling], None]:
    return lambda g: g.mix(g.hide(g.scores(), score, seen=seen))


def _causal(score: float, biased: bool = False) -> Callable[[Spelling], None]:
    """With a constant mask; with another one added where ``biased``."""

    def spell(g: Spelling) -> None:
        scores = g.hide(g.scores(), score, g.constant(np.tri(QUERIES, KEYS, dtype=bool), np.bool_), seen=True)
        if biased:
            rows = np.zeros((BATCH, 1, 1, KEYS), g.dtype)
            rows[1, ..., :2] = score  # so that the first query is left without a key
            scores = g.add("Add", scores, g.input(rows))
        g.mix(scores)

    return spell


def _causal_bias(score: float) -> Callable[[Spelling], None]:
    def spell(g: Spelling) -> None:
        bias = np.where(np.tri(QUERIES, KEYS, k=1, dtype=bool), 0, score)
        g.mix(g.add("Add", g.scores(), g.constant(bias[None])))

    return spell


def _merged(g: Spelling) -> None:
    """Heads side by side in the result, as models have them."""
    g.mix(g.scores(), into="mixed")
    g.add("Reshape", g.add("Transpose", "mixed", perm=[0, 2, 1, 3]), g.constant([0, QUERIES, -1], np.int64), into="y")


def _merged_and_given(g: Spelling) -> None:
    _merged(g)
    g.outputs.append("mixed")


def _guarded(g: Spelling) -> None:
    hidden = g.rng.random((BATCH, 1, QUERIES, KEYS)) < 0.4
    hidden[1, 0, 2] = True
    p = g.add("Softmax", g.hide(g.scores(), -np.inf, g.input(hidden)), axis=-1)
    g.add("MatMul", g.add("Where", g.add("IsNaN", p), g.constant(0), p), g.v, into="y")


def _all_hidden(g: Spelling) -> None:
    """A row whose keys are all hidden by a finite score attends to all of them alike."""
    hidden = g.rng.random((BATCH, 1, QUERIES, KEYS)) < 0.4
    hidden[1, 0, 2] = True
    g.mix(g.hide(g.scores(), LOWEST, g.input(hidden)))


def _dropout(g: Spelling) -> None:
    g.add("MatMul", g.add("Dropout", g.add("Softmax", g.scores(), axis=3)), g.v, into="y")


def _three_axes(g: Spelling) -> None:
    """Heads in the batch's axis, and the scores taken apart for a mask and back."""

    def reshaped(x: str, *shape: int) -> str:
        return g.add("Reshape", x, g.constant(shape, np.int64))

    flat = BATCH * HEADS
    k = g.add("Transpose", reshaped(g.k, flat, KEYS, SIZE), perm=[0, 2, 1])
    product = g.add("MatMul", reshaped(g.q, flat, QUERIES, SIZE), k)
    scores = reshaped(g.add("Mul", product, g.constant(0.35)), *SCORES)
    scores = reshaped(g.add("Add", scores, g.normal(BATCH, 1, 1, KEYS)), flat, QUERIES, KEYS)
    g.add("MatMul", g.add("Softmax", scores, axis=2), reshaped(g.v, flat, KEYS, 4), into="y")


def _shared_keys(g: Spelling) -> None:
    """One head of keys and values for all queries' heads."""
    g.k, g.v = g.normal(1, 1, KEYS, SIZE), g.normal(1, 1, KEYS, 4)
    g.mix(g.add("Add", g.scores(), g.normal(BATCH, HEADS, QUERIES, KEYS)))


def _matrices(g: Spelling) -> None:
    g.q, g.k, g.v = g.normal(QUERIES, SIZE), g.normal(SIZE, KEYS), g.normal(KEYS, 4)
    g.mix(g.add("MatMul", g.q, g.k))


def _softmax_in_float32(g: Spelling) -> None:
    p = g.add("Softmax", g.add("Cast", g.scores(), to=onnx.TensorProto.FLOAT), axis=-1)
    g.add("MatMul", g.add("Cast", p, to=helper.np_dtype_to_tensor_dtype(np.dtype(g.dtype))), g.v, into="y")


def _values_scaled(g: Spelling) -> None:
    g.v = g.add("Mul", g.v, g.constant(3))
    g.mix(g.scores())


SPELLINGS: dict[str, Callable[[Spelling], None]] = {
    "scaled values": _values_scaled,
    "bare": lambda g: g.mix(g.add("MatMul", g.q, g.add("Transpose", g.k, perm=[0, 1, 3, 2]))),
    "multiplied": _scaled("Mul"),
    "a scale multiplied": _scaled("Mul", swap=True),
    "divided": _scaled("Div"),
    "scaled before": _scaled_before,
    "a row of bias": _biased((BATCH, 1, 1, KEYS)),
    "a plane of bias": _biased((QUERIES, KEYS)),
    "a bias of heads": _biased((1, HEADS, QUERIES, KEYS), constant=True),
    "a whole bias": _biased(SCORES),
    "two biases": _biased((BATCH, 1, 1, KEYS), (QUERIES, KEYS)),
    "hidden": _hidden(-np.inf),
    "seen": _hidden(-np.inf, seen=True),
    "causal": _causal(-np.inf),
    "causal, finite": _causal(-1e4),
    "causal bias": _causal_bias(-np.inf),
    "causal bias, finite": _causal_bias(-1e4),
    "merged": _merged,
    "merged and given": _merged_and_given,
    "guarded": _guarded,
    "dropout": _dropout,
    "three axes": _three_axes,
    "shared keys": _shared_keys,
    "matrices": _matrices,
    "softmax in float32": _softmax_in_float32,
}
SINGLE_SPELLINGS = {
    "lowest": _hidden(LOWEST),
    "lowest, seen": _hidden(LOWEST, seen=True),
    "lowest, all hidden": _all_hidden,
    "causal and biased": _causal(LOWEST, biased=True),
    "as torch exports": Spelling.as_torch_exports,
}


def _run(g: Spelling) -> None:
    got = on_vulkan(g.model(), g.values)
    with np.errstate(all="ignore"):
        assert_like(got, by_reference(g.model(), g.values))


@pytest.mark.usefixtures("_two_at_once")
@pytest.mark.parametrize("spell", [pytest.param(f, id=name) for name, f in (SPELLINGS | SINGLE_SPELLINGS).items()])
def test_spellings(taken: list[AttentionMatch], spell: Callable[[Spelling], None]) -> None:
    g = Spelling()
    spell(g)
    _run(g)
    assert len(taken) == 1


@pytest.mark.usefixtures("_two_at_once")
@pytest.mark.parametrize("spell", [pytest.param(f, id=name) for name, f in SPELLINGS.items()])
def test_spellings_in_float16(taken: list[AttentionMatch], spell: Callable[[Spelling], None]) -> None:
    g = Spelling(np.float16)
    spell(g)
    got = on_vulkan(g.model(), g.values)
    assert len(taken) == 1
    h = Spelling()  # the same draws, of which those of float16 are the rounded ones
    spell(h)
    h.values = {name: v.astype(h.values[name].dtype) for name, v in g.values.items()}
    with np.errstate(all="ignore"):
        assert_like([y.astype(np.float32) for y in got], by_reference(h.model(), h.values), 4e-3, 4e-3)


@pytest.mark.usefixtures("_two_at_once")
@pytest.mark.parametrize(("axis", "count"), [(3, 1), (1, 0)])
def test_softmax_that_flattens(taken: list[AttentionMatch], axis: int, count: int) -> None:
    """Before opset 13 all axes from ``axis`` on are one."""
    g = Spelling(opset=11)
    g.add("MatMul", g.add("Softmax", g.scores(), axis=axis), g.v, into="y")
    assert_like(on_vulkan(g.model(), g.values), by_onnxruntime(g.model(), g.values))
    assert len(taken) == count


# ---- what is not taken


def _read_twice(g: Spelling) -> None:
    scores = g.scores()
    g.mix(scores)
    g.add("ReduceMax", scores, keepdims=0, into="most")
    g.outputs.append("most")


def _scores_given(g: Spelling) -> None:
    scores = g.scores()
    g.mix(scores)
    g.outputs.append(scores)


def _probabilities_given(g: Spelling) -> None:
    g.mix(g.scores())
    g.outputs.append(g.nodes[-1].input[0])


def _other_axis(g: Spelling) -> None:
    g.add("MatMul", g.add("Softmax", g.scores(), axis=2), g.v, into="y")


def _logarithms(g: Spelling) -> None:
    g.add("MatMul", g.add("LogSoftmax", g.scores(), axis=-1), g.v, into="y")


def _scaled_after_a_bias(g: Spelling) -> None:
    g.mix(g.add("Mul", g.add("Add", g.scores(), g.normal(QUERIES, KEYS)), g.constant(0.5)))


def _scaled_by_an_input(g: Spelling) -> None:
    g.mix(g.add("Mul", g.scores(), g.normal(1)))


def _a_bias_that_widens(g: Spelling) -> None:
    """Each score is in two rows, with another bias each."""
    g.mix(g.add("Add", g.scores(), g.normal(2, 1, 1, 1, KEYS)))


def _little_hidden(g: Spelling) -> None:
    g.mix(g.hide(g.scores(), -3.0))


def _other_guard(g: Spelling) -> None:
    p = g.add("Softmax", g.hide(g.scores(), -np.inf), axis=-1)
    g.add("MatMul", g.add("Where", g.add("IsNaN", p), g.constant(0.5), p), g.v, into="y")


def _changed_probabilities(g: Spelling) -> None:
    g.add("MatMul", g.add("Relu", g.add("Softmax", g.scores(), axis=-1)), g.v, into="y")


def _turned_probabilities(g: Spelling) -> None:
    g.v = g.normal(BATCH, HEADS, QUERIES, 4)
    p = g.add("Transpose", g.add("Softmax", g.scores(), axis=-1), perm=[0, 1, 3, 2])
    g.add("MatMul", p, g.v, into="y")


def _probabilities_on_the_right(g: Spelling) -> None:
    g.v = g.normal(BATCH, HEADS, 4, QUERIES)
    g.add("MatMul", g.v, g.add("Softmax", g.scores(), axis=-1), into="y")


def _some_of_the_keys(g: Spelling) -> None:
    p = g.add("Softmax", g.scores(), axis=-1)
    begin, end, axis = (g.constant([i], np.int64) for i in (0, 4, 3))
    values = g.add("Slice", g.v, begin, end, g.constant([2], np.int64))
    g.add("MatMul", g.add("Slice", p, begin, end, axis), values, into="y")


def _softmax_of_other_rows(g: Spelling) -> None:
    """Half a row each, though the products and the bias are of whole ones."""
    g.k, g.v = g.normal(BATCH, HEADS, 6, SIZE), g.normal(BATCH, HEADS, 6, 4)
    halves = g.add("Add", g.scores(), g.normal(QUERIES, 6))
    halves = g.add("Reshape", halves, g.constant((BATCH, HEADS, 2 * QUERIES, 3), np.int64))
    p = g.add("Softmax", halves, axis=-1)
    g.add("MatMul", g.add("Reshape", p, g.constant((BATCH, HEADS, QUERIES, 6), np.int64)), g.v, into="y")


def _many_steps(g: Spelling) -> None:
    """More than functions may call themselves."""
    scores, bias = g.scores(), g.normal(QUERIES, KEYS)
    for _ in range(1200):
        scores = g.add("Add", scores, bias)
    g.mix(scores)


def _added_to_itself(g: Spelling) -> None:
    """So often that there are more ways to the beginning than time."""
    scores = g.input(g.rng.normal(0, 2.0**-60, SCORES).astype(g.dtype))
    for _ in range(60):
        scores = g.add("Add", scores, scores)
    g.mix(scores)


def _integers(g: Spelling) -> None:
    q, k = (g.input(g.rng.integers(-9, 9, shape, np.int8)) for shape in ((3, SIZE), (SIZE, KEYS)))
    g.v = g.normal(KEYS, 4)
    g.mix(g.add("Cast", g.add("MatMulInteger", q, k), to=onnx.TensorProto.FLOAT))


def _no_product(g: Spelling) -> None:
    g.mix(g.add("Mul", g.normal(*SCORES), g.constant(0.5)))


def _finite_in_two_masks(g: Spelling) -> None:
    """A finite score over a bias: where both hide a key, their sum would be less than where one does."""
    g.mix(g.hide(g.add("Add", g.scores(), g.normal(QUERIES, KEYS)), LOWEST))


@pytest.mark.usefixtures("_two_at_once")
@pytest.mark.parametrize(
    "spell",
    [
        _read_twice, _scores_given, _probabilities_given, _other_axis, _logarithms, _scaled_after_a_bias,
        _scaled_by_an_input, _a_bias_that_widens, _little_hidden, _other_guard, _changed_probabilities,
        _turned_probabilities, _probabilities_on_the_right, _some_of_the_keys, _softmax_of_other_rows,
        _many_steps, _added_to_itself, _integers, _no_product, _finite_in_two_masks,
        pytest.param(_hidden(-1e4), id="finite, not known while planning"),
        pytest.param(_causal(-1e4, biased=True), id="finite and biased"),
    ],
)  # fmt: skip
def test_others_are_run_as_written(taken: list[AttentionMatch], spell: Callable[[Spelling], None]) -> None:
    g = Spelling()
    spell(g)
    _run(g)
    assert not taken


def test_nothing_is_taken_where_nothing_is_won(taken: list[AttentionMatch]) -> None:
    """On a CPU driver, with scores that caches hold, the plan is that of the nodes, each dispatch by its node's name."""
    g = Spelling()
    _biased((QUERIES, KEYS))(g)
    with InferenceSession(g.model(), fallback="error") as session:
        assert not taken
        assert sum(island.dispatches for island in session.report().islands) == 3
