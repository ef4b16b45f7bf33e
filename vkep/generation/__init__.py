"""Language models: text from folders that onnxruntime-genai's builder and optimum write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_shared.lazy import lazy
from vkep.generation.generator import Generator
from vkep.generation.sampling import Sampling

if TYPE_CHECKING:
    from vkep.generation.batch import Answer, Batch, Event
    from vkep.generation.regions import Region, TaskAnswer
    from vkep.generation.speech import Segment
    from vkep.generation.transcribe import Transcript

__all__ = ["Answer", "Batch", "Event", "Generator", "Region", "Sampling", "Segment", "TaskAnswer", "Transcript"]

# names that import numpy and onnx, which a `Generator` does while the driver opens
__getattr__ = lazy(
    __name__,
    {
        "vkep.generation.batch": "Answer Batch Event",
        "vkep.generation.regions": "Region TaskAnswer",
        "vkep.generation.speech": "Segment",
        "vkep.generation.transcribe": "Transcript",
    },
)
