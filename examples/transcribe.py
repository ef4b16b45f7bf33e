"""Transcribe a sound with Whisper, in windows of 30 seconds.

    vkep model whisper                            # a small model with random weights: its text is noise
    python examples/transcribe.py whisper [SOUND.wav]

A real model: ``optimum-cli export onnx --model openai/whisper-base whisper``. The file has one channel of 16 bits at 16 kHz
(``ffmpeg -i SOUND -ac 1 -ar 16000 SOUND.wav``); without one, a tone of two seconds is taken.
"""

from __future__ import annotations

import sys
import wave

import numpy as np

from vkep.generation import Generator

RATE, WINDOW = 16000, 30


def read(path: str) -> np.ndarray:
    """The samples, float32 in [-1, 1]."""
    with wave.open(path) as file:
        form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
        if form != (1, 2, RATE):
            raise SystemExit(f"{path}: channels, bytes and rate are {form}, expected (1, 2, {RATE})")
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python examples/transcribe.py FOLDER [SOUND.wav]")
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / RATE).astype(np.float32)
    sound = read(sys.argv[2]) if len(sys.argv) > 2 else tone
    with Generator(sys.argv[1]) as generator:
        for at in range(0, len(sound), WINDOW * RATE):
            answer = generator.generate(sound[at : at + WINDOW * RATE], max_tokens=200)
            print(f"{at // RATE:5d} s: {answer.text}")


if __name__ == "__main__":
    main()
