"""onnxruntime-genai's answers about an image."""

from __future__ import annotations

import io
import wave
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


def tone(seconds: float, seed: int = 0) -> Array:
    """A sound float32 [count] at 16 kHz, of the numbers that 16 bits have."""
    count = int(16000 * seconds)
    noise = np.random.default_rng(seed).normal(0, 0.05, count)
    sound = np.sin(np.arange(count) / (7 + seed)) * 0.3 + noise
    return (np.round(np.clip(sound, -1, 1) * 32767) / 32768).astype(np.float32)


def wav(sound: Array) -> bytes:
    """A sound's file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16000)
        writer.writeframes((sound * 32768).astype("<i2").tobytes())
    return file.getvalue()


class Genai:
    """The folder in onnxruntime-genai."""

    def __init__(self, folder: Path) -> None:
        self.model = genai.Model(str(folder))
        self.processor = self.model.create_multimodal_processor()

    def inputs(self, prompt: str, image: Array | None, sound: Array | None = None) -> Any:
        """What its processor makes of a prompt with an image, a sound, or both."""
        given = {"images": genai.Images.open_bytes(png(image))} if image is not None else {}
        given |= {"audios": genai.Audios.open_bytes(wav(sound))} if sound is not None else {}
        return self.processor(prompt, **given)

    def greedy(
        self, prompt: str, image: Array | None, count: int, context: int, sound: Array | None = None
    ) -> list[int]:
        """The most probable tokens, up to the model's end. ``context``: of the model."""
        settings = genai.GeneratorParams(self.model)
        settings.set_search_options(max_length=context)
        made = genai.Generator(self.model, settings)
        made.set_inputs(self.inputs(prompt, image, sound))
        found = []
        for _ in range(count):
            made.generate_next_token()
            found.append(int(made.get_next_tokens()[0]))
            if made.is_done():
                break
        return found
