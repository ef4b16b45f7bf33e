"""Ask a language model about images; the answer appears as it is generated.

    vkep model images                                    # a small model with random weights: its answers are noise
    python examples/chat_image.py images "What is this?" photo.jpg
    python examples/chat_image.py images                 # about an image that this program draws

A real model is a folder in the form of transformers.js, such as ``HuggingFaceTB/SmolVLM-256M-Instruct`` or
``onnx-community/gemma-3-4b-it-ONNX`` on the Hugging Face hub.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from vkep.generation import Generator


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python examples/chat_image.py FOLDER [QUESTION] [IMAGE ...]")
    question = sys.argv[2] if sys.argv[2:] else "What is this?"
    y, x, color = np.ogrid[:240, :320, :3]
    circle = np.where((x - 160) ** 2 + (y - 120) ** 2 < 80**2, 255 - 100 * color, 30).astype(np.uint8)
    images: list[Any] = [*sys.argv[3:]] or [circle]
    parts = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": question}]
    with Generator(sys.argv[1]) as generator:
        answer = ""
        for piece in generator.stream_chat([{"role": "user", "content": parts}], max_tokens=64):
            print(piece, end="", flush=True)
            answer += piece
        print(f"\n({len(answer)} characters)")


if __name__ == "__main__":
    main()
