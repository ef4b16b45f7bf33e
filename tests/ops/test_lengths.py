"""Lengths and groups in a run's data: what ONNX Runtime refuses of them, vkep refuses, and it takes what that takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from tests.ops.cases import Array, model_of
from tools.ort_cpu import cpu_session
from vkep import InferenceSession, InvalidInputError, InvalidModelError

MICROSOFT = "com.microsoft"
Case = tuple[str, tuple[Array | None, ...], int, list[Array], list[Array], dict[str, Any], str]


def f(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def i(*values: Any, dtype: str = "int32") -> Array:
    return np.array(values, dtype)


TOKEN = (f(2, 1, 16), f(2, 1, 16), f(2, 1, 16), f(2, 2, 8, 8), f(2, 2, 8, 8), i(3, 5), i(6))
TOKENS = (f(1, 3, 16), f(1, 3, 16), f(1, 3, 16), f(1, 2, 8, 8), f(1, 2, 8, 8), i(5), i(6))
PROMPT = (f(2, 4, 16), f(2, 4, 16), f(2, 4, 16), None, None, i(3, 3), i(4))
GROUPED = {"domain": MICROSOFT, "num_heads": 2, "kv_num_heads": 2}


def recurrent(gates: int) -> tuple[Array | None, ...]:
    return (f(4, 2, 3), f(1, gates * 5, 3), f(1, gates * 5, 5), None, i(1, 4))


#: onnxruntime before 1.31 lets some of these values pass
CHECKS_ALL = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 31)
#: operator, inputs, the one that may be wrong, other right values of it, wrong ones, attributes, the message
CASES: list[Case] = [
    ("GroupQueryAttention", TOKEN, 5, [i(0, 5), i(4, 3)], [i(8, 3), i(-1, 3)], GROUPED, r"seqlens_k is outside \[0, 5\]"),
    ("GroupQueryAttention", TOKEN, 6, [i(7)], [i(0), i(-1)], GROUPED, "total_sequence_length is (0|-1), expected 1 or more"),
    ("GroupQueryAttention", TOKEN, 6, [], [i(21)], GROUPED, "total_sequence_length is 21, expected at most 8 keys"),
    ("GroupQueryAttention", TOKENS, 5, [i(2), i(4)], [i(1)], GROUPED, "seqlens_k is too small for 3 new tokens"),
    ("GroupQueryAttention", PROMPT, 6, [], [i(0), i(-1)], GROUPED, "total_sequence_length is"),
    ("GroupQueryAttention", PROMPT, 5, [], [i(4, 3), i(3, -1)], GROUPED, r"seqlens_k is outside \[0, 3\]"),
    ("LSTM", recurrent(4), 4, [i(0, 4)], [i(1, 5), i(-1, 2)], {"hidden_size": 5}, r"sequence_lens is outside \[0, 4\]"),
    ("GRU", recurrent(3), 4, [i(0, 4)], [i(1, 5), i(-1, 2)], {"hidden_size": 5}, r"sequence_lens is outside \[0, 4\]"),
    ("RNN", recurrent(1), 4, [i(0, 4)], [i(1, 5), i(-1, 2)], {"hidden_size": 5}, r"sequence_lens is outside \[0, 4\]"),
    ("Attention", (f(2, 2, 2, 4), f(2, 2, 4, 4), f(2, 2, 4, 4), None, None, None, i(2, 4, dtype="int64")), 6,
     [i(0, 4, dtype="int64")], [i(5, 4, dtype="int64"), i(1, -1, dtype="int64")], {"opset": 24},
     r"nonpad_kv_seqlen is outside \[0, 4\]"),
    ("Attention", (f(2, 4, 8), f(8, 24), f(24), i(2, 4)), 3, [i(0, 5)], [i(-1, 4)], {"domain": MICROSOFT, "num_heads": 2},
     "mask_index is outside"),
    ("MultiHeadAttention", (f(2, 4, 8), f(2, 4, 8), f(2, 4, 8), None, i(2, 4)), 4, [i(0, 5), i(-1, 4)], [],
     {"domain": MICROSOFT, "num_heads": 2}, ""),
    ("MatMulNBits", (f(2, 32), np.full((8, 2, 8), 0x39, np.uint8), f(8, 2), None, i(*(0, 1) * 16)), 4, [i(*(1, 1) * 16)],
     [i(*(0, 2) * 16), i(*(0, -1) * 16)], {"domain": MICROSOFT, "K": 32, "N": 8, "bits": 4, "block_size": 16},
     r"(g_idx is outside \[0, 1\]|an index is outside)"),
]  # fmt: skip


def outputs_of(op: str) -> list[str]:
    return ["y", "present_key", "present_value"] if op == "GroupQueryAttention" else ["y"]


@pytest.mark.parametrize(("op", "inputs", "which", "right", "wrong", "attributes", "told"), CASES)
def test_values_are_refused_as_onnxruntime_refuses_them(
    op: str,
    inputs: tuple[Array | None, ...],
    which: int,
    right: list[Array],
    wrong: list[Array],
    attributes: dict[str, Any],
    told: str,
) -> None:
    given = {f"i{k}": value for k, value in enumerate(inputs)}
    model = model_of(op, given, outputs=outputs_of(op), **attributes)
    peer = cpu_session(model)
    feeds = {name: value for name, value in given.items() if value is not None}
    # where every key is masked, scores are rounded beside the filter of -10000, whose neighbours are 2**-10 away
    tolerance = 2e-3 if op in ("Attention", "MultiHeadAttention") and "domain" in attributes else 1e-4
    with InferenceSession(model, fallback="error") as session:
        for values in (feeds[f"i{which}"], *right, feeds[f"i{which}"]):
            asked = feeds | {f"i{which}": values}
            expected, got = peer.run(None, asked)[0], session.run(None, asked)[0]
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=tolerance)
            for bad in wrong:
                asked = feeds | {f"i{which}": bad}
                with pytest.raises(InvalidInputError, match=f"{op}.*{told}"):
                    session.run(None, asked)
                if CHECKS_ALL:
                    with pytest.raises(Exception, match=op):
                        peer.run(None, asked)


@pytest.mark.parametrize(("op", "inputs", "which", "right", "wrong", "attributes", "told"), [CASES[4], CASES[-1]])
def test_constants_are_refused_when_the_model_is_read(
    op: str,
    inputs: tuple[Array | None, ...],
    which: int,
    right: list[Array],
    wrong: list[Array],
    attributes: dict[str, Any],
    told: str,
) -> None:
    for bad in wrong:
        given = {f"i{k}": bad if k == which else value for k, value in enumerate(inputs)}
        model = model_of(op, given, outputs=outputs_of(op), constants=[f"i{which}"], **attributes)
        with pytest.raises(InvalidModelError, match=told):
            InferenceSession(model, fallback="error")


def test_layers_that_share_lengths_are_checked_at_once() -> None:
    """One small dispatch for all of them; without the checks none, and lengths are taken as they are."""
    nodes = []
    for k in range(3):
        nodes.append(helper.make_node("RNN", [f"x{k}", "w", "r", "", "n"], [f"y{k}"], f"layer{k}", hidden_size=3))
        nodes.append(helper.make_node("Squeeze", [f"y{k}", "one"], [f"x{k + 1}"]))
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "layers",
            [helper.make_tensor_value_info("x0", 1, [4, 2, 3]), helper.make_tensor_value_info("n", 6, [2])],
            [helper.make_tensor_value_info("x3", 1, [4, 2, 3])],
            [helper.make_tensor("one", 7, [1], [1]), *(helper.make_tensor(n, 1, [1, 3, 3], f(9)) for n in "wr")],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    counts = []
    for check_data in (True, False):
        with InferenceSession(model, check_data=check_data, fallback="error") as session:
            feeds = {"x0": f(4, 2, 3), "n": i(2, 4)}
            session.run(None, feeds)
            if check_data:
                with pytest.raises(InvalidInputError, match="RNN 'layer0': sequence_lens"):
                    session.run(None, feeds | {"n": i(2, 5)})
            else:
                session.run(None, feeds | {"n": i(2, 5)})
            counts.append(len(session.islands()[0].plan.dispatches))
    assert counts[0] == counts[1] + 1
