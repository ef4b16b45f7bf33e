"""Cases of movement, indexing and reduction."""

from __future__ import annotations

import numpy as np

from tests.aten.values import Case, Const, Sym, wave, whole

A = wave(2, 3, 4)
IMAGE = wave(2, 8, 3, 5)

CASES = [
    Case("aten.view_copy.default", (A, [6, 4])),
    Case("aten.view_copy.default", (A, [2, -1]), label="inferred"),
    Case("aten.view_copy.default", (A, [Sym(4), 6]), label="symbolic"),
    Case("aten.view_copy.default", (wave(0, 3), [3, 0]), label="empty"),
    Case("aten.permute.default", (A, [2, 0, 1])),
    Case("aten.permute_copy.default", (A, [0, -1, 1])),
    Case("aten.t_copy.default", (wave(3, 4),)),
    Case("aten.t_copy.default", (wave(3),), label="vector"),
    Case("aten.expand_copy.default", (wave(3, 1), [2, -1, 4], False)),
    Case("aten.expand_copy.default", (wave(3, 1), [3, Sym(4)], False), label="symbolic"),
    Case("aten.repeat.default", (wave(2, 3), [2, 1, 3])),
    Case("aten.repeat.default", (whole(2, 3), [1, 2]), label="int"),
    Case("aten.squeeze_copy.dims", (wave(2, 1, 3, 1), [1, -1])),
    Case("aten.squeeze_copy.dims", (wave(2, 1, 3), [0, 1]), label="one stays"),
    Case("aten.unsqueeze_copy.default", (A, -1)),
    Case("aten.unsqueeze_copy.default", (A, 1), label="inside"),
    Case("aten.cat.default", ([wave(2, 3), wave(2, 2, k=1)], 1)),
    Case("aten.cat.default", ([A, Const(wave(2, 3, 1, k=1)), A], -1), label="three"),
    Case("aten.cat.default", ([wave(0), A, A], 0), label="an empty one"),
    Case("aten.split_with_sizes_copy.default", (wave(2, 6), [1, 2, 3], 1)),
    Case("aten.slice_copy.Tensor", (A, 2, 1, 9223372036854775807, 2)),
    Case("aten.slice_copy.Tensor", (A, 1, -2, -1, 1), label="negative"),
    Case("aten.slice_copy.Tensor", (A, 0, None, None, 1), label="open"),
    Case("aten.slice_copy.Tensor", (wave(9, 2), 0, Sym(2), Sym(6), 1), label="symbolic"),
    Case("aten.select_copy.int", (A, 1, 2)),
    Case("aten.select_copy.int", (A, -1, -1), label="last"),
    Case("aten.select_copy.int", (A, 0, Sym(1)), label="symbolic"),
    Case("aten.flip.default", (A, [0, 2])),
    Case("aten.constant_pad_nd.default", (A, [1, 2, 0, 3], 0.5)),
    Case("aten.constant_pad_nd.default", (A, [-1, 2], 0), label="cut"),
    Case("aten.constant_pad_nd.default", (whole(2, 3), [1, 1], 7), label="int"),
    Case("aten.pixel_shuffle.default", (IMAGE, 2)),
    Case("aten.pixel_shuffle.default", (wave(4, 2, 3), 2), label="one image"),
    Case("aten.unfold_copy.default", (wave(2, 7, 3), 1, 3, 2)),
    # by index
    Case("aten.embedding.default", (Const(wave(7, 4)), whole(2, 3, low=0, high=7), -1, False, False)),
    Case("aten.index_select.default", (A, 1, whole(5, low=0, high=3))),
    Case("aten.gather.default", (A, 2, whole(2, 3, 5, low=0, high=4), False)),
    Case("aten.gather.default", (A, 1, whole(1, 2, 3, low=0, high=3), False), label="smaller index"),
    Case("aten.index.Tensor", (A, [None, whole(4, low=-3, high=3)])),
    Case("aten.index.Tensor", (wave(9), [whole(2, 2, low=0, high=9)]), label="vector"),
    Case("aten.index.Tensor", (A, [whole(3, low=0, high=2), whole(2, 1, low=0, high=3)]), label="two"),
    Case("aten.index.Tensor", (A, [None, whole(3, low=0, high=3), whole(3, low=0, high=4, k=1)]), label="last two"),
    # reductions
    *(Case(f"aten.{op}", (A, [2], True, None)) for op in ("mean.dim", "sum.dim_IntList")),
    *(Case(f"aten.{op}", (A, [0, -1], False, None), label="two") for op in ("mean.dim", "sum.dim_IntList")),
    Case("aten.sum.dim_IntList", (A, None, False, None), label="all"),
    Case("aten.mean.dim", (IMAGE, [2, 3], True, None), label="pool"),
    *(Case(f"aten.{op}.default", (A, [1], False)) for op in ("amax", "amin")),
    *(Case(f"aten.{op}.default", (A, [], False), label="all") for op in ("amax", "amin")),
    *(Case(f"aten.{op}.default", (A, -1, True)) for op in ("argmax", "argmin")),
    *(Case(f"aten.{op}.default", (A, None, False), label="all") for op in ("argmax", "argmin")),
    Case("aten.argmax.default", (np.array([[1, 3, 3], [2, 2, 0]], np.float32), 1, False), label="ties"),
    Case("aten._softmax.default", (A, -1, False)),
    Case("aten._softmax.default", (A, 1, False), label="inside"),
    Case("aten._log_softmax.default", (A, 2, False)),
]
