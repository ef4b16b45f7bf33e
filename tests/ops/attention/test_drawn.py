"""Attention operators with inputs and attributes drawn from tables, against onnxruntime, onnx's evaluator and numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.nightly import alternately
from tests.ops.cases import shared_context
from tools.fuzz.attention import OPERATORS, caches_in_place, draw, verdict
from vkep.kernels.attention import split as attention_split
from vkep.kernels.attention import stream as attention_stream
from vkep.passes import norms

#: enough that GroupQueryAttention's cases have each input and attribute
CASES = dict.fromkeys(OPERATORS, 6) | {"GroupQueryAttention": 20}


DRAWN = [(name, index) for name, count in CASES.items() for index in range(count)]
#: of others, products take the few queries of a token, and the kernels of few queries have tests of their own
GROUPED = [drawn for drawn in DRAWN if "Group" in drawn[0]]


@pytest.mark.parametrize(
    ("drawn", "way"),
    [
        *alternately(GROUPED, ["as here", "of few queries"]),
        *((drawn, "as here") for drawn in DRAWN if drawn not in GROUPED),
    ],
)
def test_a_drawn_call(drawn: tuple[str, int], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, index = drawn
    case = draw(2, index, [name])
    if way == "of few queries":  # as on a GPU, for a token's attention
        for module in (attention_split, attention_stream, norms):
            monkeypatch.setattr(module, "is_cpu", lambda caps: False)
    result, why = verdict(case, shared_context())
    assert result in ("equal", "accepted"), f"{result}: {why} in {case.text}"


def test_the_draws_have_everything() -> None:
    cases = [draw(2, index, ["GroupQueryAttention"]) for index in range(CASES["GroupQueryAttention"])]
    inputs = {name for case in cases for name, value in case.inputs.items() if value is not None}
    attributes: set[Any] = {name for case in cases for name in case.attributes}
    assert inputs == set(cases[0].inputs)
    assert attributes >= {"k_quant_type", "kv_cache_bit_width", "local_window_size", "softcap", "smooth_softmax"}
    assert attributes >= {"causal", "qk_output", "rotary_interleaved", "scale", "do_rotary"}


def test_some_draws_bind_their_caches_in_place() -> None:
    """Where the present has the past's shape; a cache that grows is another tensor."""
    over = {"present_key": "past_key", "present_value": "past_value"}
    for name in ("GroupQueryAttention", "windowed GroupQueryAttention", "DecoderMaskedMultiHeadAttention"):
        cases = [draw(2, index, [name]) for index in range(CASES[name])]
        held = [case for case in cases if case.inputs["past_key"] is not None]
        assert {case.in_place for case in held} == {True, False}, name
        case = next(case for case in held if case.in_place)
        pasts = [case.inputs.get(over.get(n, "")) for n in case.outputs]
        same = [np.zeros((1, 1, 1), np.float32) if past is None else past for past in pasts]
        assert caches_in_place(case, same) == over
        assert caches_in_place(replace(case, in_place=False), same) == {}
        assert caches_in_place(case, [np.concatenate([t, t], 2) for t in same]) == {}
