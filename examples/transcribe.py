"""Transcribe a sound of any length with Whisper, with times.

    vkep model whisper                            # a small model with random weights: its text is noise
    python examples/transcribe.py whisper [SOUND.wav]

A real model: ``optimum-cli export onnx --model openai/whisper-base whisper``. The file has 16 bits at 16 kHz
(``ffmpeg -i SOUND -ac 1 -ar 16000 SOUND.wav``); without one, a tone of forty seconds is taken.
"""

from __future__ import annotations

import sys

import numpy as np

from vkep.generation import Generator
from vkep.generation.audio import read_wav


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python examples/transcribe.py FOLDER [SOUND.wav]")
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(40 * 16000) / 16000).astype(np.float32)
    sound = read_wav(sys.argv[2]) if len(sys.argv) > 2 else tone
    with Generator(sys.argv[1]) as generator:
        # language=None: the most probable one of the first 30 seconds
        for segment in generator.stream_transcript(sound, language=None, max_tokens=40):
            print(f"{segment.start:7.2f} to {segment.end:7.2f} s: {segment.text!r}")


if __name__ == "__main__":
    main()
