"""Language models: text from folders that onnxruntime-genai's builder and optimum write."""

from vkep.generation.batch import Answer, Batch, Event
from vkep.generation.generator import Generator
from vkep.generation.sampling import Sampling

__all__ = ["Answer", "Batch", "Event", "Generator", "Sampling"]
