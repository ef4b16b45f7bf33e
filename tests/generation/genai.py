"""onnxruntime-genai's answers about an image."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as genai  # type: ignore[import-untyped]
from PIL import Image

Array = np.ndarray[Any, Any]


def picture(height: int, width: int) -> Array:
    """A smooth image uint8 [height, width, 3]."""
    y, x, c = np.ogrid[:height, :width, :3]
    return (127 + 60 * np.sin(x / 9.0 + c) + 60 * np.cos(y / 13.0 + 2 * c)).astype(np.uint8)


def png(image: Array) -> bytes:
    """An image's file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


class Genai:
    """The folder in onnxruntime-genai."""

    def __init__(self, folder: Path) -> None:
        self.model = genai.Model(str(folder))
        self.processor = self.model.create_multimodal_processor()

    def inputs(self, prompt: str, image: Array) -> Any:
        """What its processor makes of a prompt with an image."""
        return self.processor(prompt, images=genai.Images.open_bytes(png(image)))

    def greedy(self, prompt: str, image: Array, count: int, context: int) -> list[int]:
        """The most probable tokens, up to the model's end. ``context``: of the model."""
        settings = genai.GeneratorParams(self.model)
        settings.set_search_options(max_length=context)
        made = genai.Generator(self.model, settings)
        made.set_inputs(self.inputs(prompt, image))
        found = []
        for _ in range(count):
            made.generate_next_token()
            found.append(int(made.get_next_tokens()[0]))
            if made.is_done():
                break
        return found
