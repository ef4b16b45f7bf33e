"""The RFC's example, and what the tests of mixed models ask of a session."""

from __future__ import annotations

import numpy as np

from examples import mixed_delegates as example
from vkep import InferenceSession

X = np.linspace(-0.8, 0.8, 192, dtype=np.float32).reshape(example.SHAPE)
VGF_SPLIT = ["vgf"] * 3 + ["vulkan"] + ["vgf"] * 6
PREFERENCES = ("auto", "vgf_first", "vulkan_first")


def places(session: InferenceSession) -> list[str]:
    return [n.where for n in session.report().nodes]
