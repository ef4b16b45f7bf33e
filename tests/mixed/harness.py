"""The RFC's example, and what the tests of mixed models ask of a session."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from vkep import InferenceSession

_spec = importlib.util.spec_from_file_location(
    "mixed_delegates", Path(__file__).parents[2] / "examples" / "mixed_delegates.py"
)
assert _spec is not None and _spec.loader is not None
example = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(example)

X = np.linspace(-0.8, 0.8, 192, dtype=np.float32).reshape(example.SHAPE)
VGF_SPLIT = ["vgf"] * 3 + ["vulkan"] + ["vgf"] * 6
PREFERENCES = ("auto", "vgf_first", "vulkan_first")


def places(session: InferenceSession) -> list[str]:
    return [n.where for n in session.report().nodes]
