"""Cases of products, convolutions, pooling, norms and resampling."""

from __future__ import annotations

import numpy as np

from tests.aten.values import Case, Const, positive, wave

IMAGE = wave(1, 4, 7, 6)
PLANES = wave(2, 6, 5, 4)


def const(*shape: int, k: float = 3.0) -> Const:
    return Const(wave(*shape, k=k, scale=0.5))


def rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + eps) * weight


CASES = [
    Case("aten.linear.default", (wave(3, 5), const(4, 5), const(4))),
    Case("aten.linear.default", (wave(2, 3, 5), const(4, 5), None), label="no bias"),
    Case("aten.linear.default", (wave(5), const(4, 5), const(4)), label="vector"),
    Case("aten.mm.default", (wave(3, 5), wave(5, 2, k=1))),
    Case("aten.bmm.default", (wave(2, 3, 5), wave(2, 5, 2, k=1))),
    Case("aten.addmm.default", (const(2), wave(3, 5), const(5, 2), 1, 1)),
    Case("aten.addmm.default", (wave(3, 2), wave(3, 5), wave(5, 2, k=1), 0.5, 2), label="scaled"),
    # convolutions
    *(
        Case("aten.convolution.default", args, label=label)
        for label, args in {
            "": (IMAGE, const(5, 4, 3, 3), const(5), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
            "strided": (IMAGE, const(5, 4, 3, 2), None, [2, 1], [1, 0], [1, 2], False, [0, 0], 1),
            "depthwise": (IMAGE, const(4, 1, 3, 3), const(4), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
            "transposed": (IMAGE, const(4, 3, 3, 3), const(3), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
            "transposed groups": (IMAGE, const(4, 2, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [0, 0], 2),
            "one axis": (wave(1, 4, 9), const(6, 2, 3), const(6), [2], [1], [1], False, [0], 2),
        }.items()
    ),
    Case(
        "et_vk.conv_with_clamp.default",
        (IMAGE, const(5, 4, 3, 3), const(5), [1, 1], [1, 1], [1, 1], False, [0, 0], 1, 0, 0.5),
    ),
    Case(
        "et_vk.conv_with_clamp.default",
        (IMAGE, const(5, 4, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, 0, float("inf")),
        label="relu",
    ),
    # pooling
    Case("aten.avg_pool2d.default", (IMAGE, [3, 2], [2, 2], [1, 0], False, True, None)),
    Case("aten.avg_pool2d.default", (IMAGE, [3, 3], [2, 2], [1, 1], False, False, None), label="without padding"),
    Case("aten.avg_pool2d.default", (IMAGE, [2, 2], [], [0, 0], True, True, None), label="ceil"),
    Case("aten.avg_pool2d.default", (IMAGE, [3, 3], [1, 1], [1, 1], False, True, 5), label="divisor"),
    Case("aten.max_pool2d.default", (IMAGE, [2, 2], [], [0, 0], [1, 1], False)),
    Case("aten.max_pool2d.default", (IMAGE, [3, 3], [2, 2], [1, 1], [1, 1], True), label="ceil"),
    Case("aten.max_pool2d_with_indices.default", (PLANES, [3, 2], [2, 2], [1, 1], [1, 1], False)),
    Case("aten.max_pool2d_with_indices.default", (PLANES, [2, 2], [], [0, 0], [2, 1], False), label="dilated"),
    # norms
    Case(
        "aten._native_batch_norm_legit_no_training.default",
        (PLANES, const(6), const(6, k=1), const(6, k=2), Const(positive(6)), 0.1, 1e-5),
    ),
    Case(
        "aten._native_batch_norm_legit_no_training.default",
        (PLANES, None, None, const(6, k=2), Const(positive(6)), 0.1, 1e-3),
        label="plain",
    ),
    Case("aten.native_group_norm.default", (PLANES, const(6), const(6, k=1), 2, 6, 20, 3, 1e-5)),
    Case("aten.native_group_norm.default", (PLANES, None, None, 2, 6, 20, 2, 1e-5), label="plain"),
    Case("aten.native_layer_norm.default", (wave(2, 3, 8), [8], const(8), const(8, k=1), 1e-5)),
    Case("aten.native_layer_norm.default", (wave(2, 3, 8), [3, 8], None, None, 1e-5), label="plain"),
    Case("et_vk.rms_norm.default", (wave(2, 3, 8), const(8), 1e-6), rms),
    # resampling
    Case("aten.upsample_nearest2d.vec", (PLANES, [10, 6], None)),
    Case("aten.upsample_nearest2d.vec", (PLANES, None, [2.0, 1.5]), label="scales"),
    Case("aten.upsample_bilinear2d.vec", (PLANES, [9, 7], False, None)),
    Case("aten.upsample_bilinear2d.vec", (PLANES, [9, 7], True, None), label="corners"),
    Case("aten.upsample_bilinear2d.vec", (PLANES, None, False, [2.0, 1.6]), label="scales"),
    *(
        Case(
            "aten.grid_sampler_2d.default",
            (PLANES, wave(2, 3, 4, 2, k=1, scale=1.2), mode, padding, corners),
            label=label,
        )
        for label, mode, padding, corners in (
            ("", 0, 1, True),
            ("zeros", 0, 0, False),
            ("nearest", 1, 0, True),
            ("reflection", 0, 2, False),
        )
    ),
    Case("et_vk.grid_priors.default", (PLANES, 8, 0.5)),
]
