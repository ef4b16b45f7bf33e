"""Cases of arithmetic, activations, comparisons, casts and constants by shape."""

from __future__ import annotations

import numpy as np

from tests.aten.values import Case, Const, Dtype, Sym, positive, truth, wave, whole

A, B = wave(2, 3, 4), wave(2, 3, 4, k=1)
ROW, INTS, MORE = wave(4, k=2), whole(2, 3, 4), whole(2, 3, 4, low=1, high=6)
ENDS = np.array([-np.inf, -1, 0, 1, np.inf, np.nan], np.float32)
UNARY = ("abs", "cos", "exp", "hardswish", "neg", "relu", "sigmoid", "sin", "tanh", "round")
NOTHING = (None, None, None, None)  # dtype, layout, device, pin_memory

CASES = [
    *(Case(f"aten.{name}.default", (A,)) for name in UNARY),
    Case("aten.round.default", (np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32),), label="ties"),
    Case("aten.neg.default", (INTS,), label="int"),
    Case("aten.abs.default", (INTS,), label="int"),
    Case("aten.sqrt.default", (positive(2, 5),)),
    Case("aten.rsqrt.default", (positive(2, 5),)),
    Case("aten.log10.default", (positive(2, 5),)),
    Case("aten.gelu.default", (A, "none")),
    Case("aten.gelu.default", (A, "tanh"), label="tanh"),
    Case("aten.hardshrink.default", (A, 0.5)),
    Case("aten.leaky_relu.default", (A, 0.1)),
    Case("aten.hardtanh.default", (A, -1, 1)),
    Case("aten.hardtanh.default", (A, 0.0, 1.5), label="bounds"),
    Case("aten.clamp.default", (A, -0.5, 0.75)),
    Case("aten.clamp.default", (A, None, 0.75), label="above"),
    Case("aten.clamp.default", (INTS, -2, None), label="int"),
    # a bound that is missing is none: infinities stay
    Case(
        "aten.clamp.default",
        (ENDS, None, 0.75),
        label="infinite below",
        expected=lambda x, _, high: np.minimum(x, high),
    ),
    Case(
        "aten.clamp.default", (ENDS, -0.5, None), label="infinite above", expected=lambda x, low, _: np.maximum(x, low)
    ),
    # two operands
    *(Case(f"aten.{op}.Tensor", (A, B, 1)) for op in ("add", "sub")),
    Case("aten.add.Tensor", (A, ROW, 0.5), label="alpha and broadcast"),
    Case("aten.sub.Tensor", (A, Const(ROW), 2), label="constant"),
    Case("aten.add.Tensor", (INTS, MORE, 3), label="int"),
    Case("aten.add.Tensor", (INTS, B, 1), label="int and float"),
    Case("aten.mul.Tensor", (A, B)),
    Case("aten.mul.Tensor", (wave(3, 1, 4), wave(2, 1)), label="broadcast"),
    Case("aten.mul.Tensor", (INTS, MORE), label="int"),
    Case("aten.mul.Tensor", (wave(0, 4), ROW), label="empty"),
    Case("aten.minimum.default", (A, B)),
    Case("aten.minimum.default", (INTS, MORE), label="int"),
    Case("aten.div.Tensor", (A, positive(2, 3, 4, k=1))),
    Case("aten.div.Tensor", (INTS, MORE), label="int"),
    *(
        Case("aten.div.Tensor_mode", (x, y, mode), label=f"{mode} {x.dtype}")
        for mode in ("floor", "trunc")
        for x, y in ((A, positive(2, 3, 4, k=1) - 2), (INTS, np.where(MORE > 3, MORE, -MORE)))
    ),
    Case("aten.div.Tensor_mode", (A, positive(2, 3, 4, k=1), None), label="none"),
    Case("aten.pow.Tensor_Tensor", (positive(2, 5), wave(2, 5))),
    Case("aten.pow.Tensor_Tensor", (A, Const(np.array(2, np.float32))), label="square"),
    *(Case("aten.pow.Tensor_Scalar", (positive(2, 5), e), label=str(e)) for e in (2, 0.5, 3, -1, 1.7, -0.5)),
    # comparison and logic
    *(Case(f"aten.{op}.Tensor", (INTS, MORE)) for op in ("eq", "lt", "le", "gt", "ge")),
    Case("aten.lt.Tensor", (A, Const(ROW)), label="broadcast"),
    Case("aten.ge.Tensor", (INTS, A), label="int and float"),
    *(Case(f"aten.{op}.Scalar", (INTS, 1)) for op in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(Case(f"aten.{op}.Scalar", (A, 0), label="float") for op in ("eq", "ne", "lt", "le", "gt", "ge")),
    Case("aten.gt.Scalar", (INTS, 0.5), label="int and a fraction"),
    *(Case(f"aten.{op}", (truth(2, 6), truth(2, 6, k=1))) for op in ("logical_and.default", "logical_or.default")),
    *(Case(f"aten.{op}", (truth(2, 6), truth(2, 6, k=1))) for op in ("bitwise_and.Tensor", "bitwise_or.Tensor")),
    Case("aten.bitwise_and.Tensor", (INTS, MORE), label="int"),
    Case("aten.bitwise_or.Tensor", (INTS, MORE), label="int"),
    Case("aten.logical_and.default", (A.round(), INTS), label="numbers"),
    Case("aten.logical_not.default", (truth(2, 6),)),
    Case("aten.bitwise_not.default", (truth(2, 6),)),
    Case("aten.bitwise_not.default", (INTS,), label="int"),
    Case("aten.where.self", (truth(2, 3, 4), A, B)),
    Case("aten.where.self", (truth(3, 1), A, Const(np.array(-7, np.float32))), label="broadcast"),
    # copies and casts
    Case("aten.clone.default", (A, None)),
    Case("aten.alias_copy.default", (A,)),
    Case("aten.copy.default", (A, ROW, False)),
    Case("aten._to_copy.default", (A, Dtype("int32"), None, None, None, False, None)),
    Case("aten._to_copy.default", (INTS, Dtype("float32"), None, None, None, False, None), label="to float"),
    Case("aten._to_copy.default", (truth(5), Dtype("float32"), None, None, None, False, None), label="bool"),
    Case("dim_order_ops._to_dim_order_copy.default", (INTS, Dtype("float32"), None, None, None, False, [0, 1, 2])),
    Case("dim_order_ops._clone_dim_order.default", (A, False, [0, 1, 2])),
    # constants by shape
    Case("aten.full.default", ([2, 3], 1.5, *NOTHING)),
    Case("aten.full.default", ([], 3, *NOTHING), label="scalar"),
    Case("aten.full_like.default", (A, 1.5, *NOTHING, None)),
    Case("aten.zeros.default", ([2, 3], *NOTHING)),
    Case("aten.ones.default", ([4], *NOTHING)),
    Case("aten.zeros_like.default", (A, *NOTHING, None)),
    Case("aten.ones_like.default", (INTS, *NOTHING, None)),
    Case("aten.scalar_tensor.default", (2.5, *NOTHING)),
    Case("aten.arange.start_step", (0, 10, 3, *NOTHING)),
    Case("aten.arange.start_step", (0.5, 3.0, 0.5, *NOTHING), label="float"),
    Case("aten.arange.start_step", (2, Sym(7), 1, *NOTHING), label="symbolic end"),
]
