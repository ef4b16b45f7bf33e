"""Language models: text from folders that onnxruntime-genai's builder and optimum write."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vkep.generation.generator import Generator
from vkep.generation.sampling import Sampling

if TYPE_CHECKING:
    from vkep.generation.batch import Answer, Batch, Event

__all__ = ["Answer", "Batch", "Event", "Generator", "Sampling"]


def __getattr__(name: str) -> Any:
    """The names that import numpy and onnx, which a `Generator` does while the driver opens."""
    if name not in ("Answer", "Batch", "Event"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("vkep.generation.batch"), name)
    globals()[name] = value
    return value
