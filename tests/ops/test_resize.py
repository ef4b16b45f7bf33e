"""Images sampled at points and in boxes, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cases import check, model_of, on_vulkan
from tests.ops.microsoft import MS, RNG, normal
from vkep.errors import InvalidInputError

pytestmark = pytest.mark.usefixtures("vulkan")


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_grid_sample(mode: str, padding_mode: str) -> None:
    inputs = {"x": normal(1, 2, 5, 6), "grid": RNG.uniform(-1.3, 1.3, (1, 4, 3, 2)).astype(np.float32)}
    inputs["grid"].flat[:4] = np.nan, np.inf, 1e20, -3
    check("GridSample", inputs, atol=1e-4, mode=mode, padding_mode=padding_mode, **MS)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 1), (1, 5), (6, 1)])
def test_crop_and_resize(mode: str, size: tuple[int, int]) -> None:
    boxes = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [0.8, 0.9, 0.3, 0.1], [-0.5, 0.2, 1.4, 0.6]], np.float32)
    inputs = {
        "x": normal(2, 3, 6, 7), "rois": boxes, "of": np.array([0, 1, 1, 0], np.int32), "size": np.array(size, np.int32),
    }  # fmt: skip
    check("CropAndResize", inputs, constants=["size"], mode=mode, extrapolation_value=2.5, atol=1e-4, **MS)


@pytest.mark.gpu
def test_crop_of_no_image() -> None:
    inputs = {
        "x": normal(2, 3, 6, 7), "rois": np.zeros((1, 4), np.float32), "of": np.array([2], np.int32),
        "size": np.array([2, 2], np.int32),
    }  # fmt: skip
    with pytest.raises(InvalidInputError, match=r"a region's batch index is outside \[0, 1\]"):
        on_vulkan(model_of("CropAndResize", inputs, constants=["size"], domain="com.microsoft"), inputs)
