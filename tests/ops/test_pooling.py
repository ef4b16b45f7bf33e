"""Pooling with channels last, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import check
from tests.ops.microsoft import MS, codes

pytestmark = pytest.mark.usefixtures("vulkan")


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("spatial", [(9,), (8, 9), (5, 4, 6)])
def test_nhwc_max_pool(spatial: tuple[int, ...], dtype: Any) -> None:
    rank = len(spatial)
    attributes: dict[str, Any] = {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * 2 * rank}
    check("NhwcMaxPool", {"x": codes(dtype, 2, *spatial, 5)}, **attributes, **MS)
