"""Find speech in sounds: several streams in one run, whose states stay on the device between chunks.

    vkep model vad                                # a small model with random weights: its numbers mean nothing
    python examples/voice_activity.py vad.onnx [SOUND.wav ...]

A real model: ``silero_vad.onnx`` of the package silero-vad (5 or 6), whose chunks begin with 64 samples of the one before.
Files have 16 bits at 16 kHz; without any, two tones are taken.
"""

from __future__ import annotations

import sys

import numpy as np

from vkep.generation.audio import read_wav
from vkep.streaming import StreamingSession

RATE, CHUNK = 16000, 512


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python examples/voice_activity.py MODEL.onnx [SOUND.wav ...]")
    times = np.arange(2 * RATE) / RATE
    tones = [np.sin(2 * np.pi * hz * times).astype(np.float32) for hz in (220, 880)]
    sounds = [read_wav(path) for path in sys.argv[2:]] or tones
    before = 64 if "silero" in sys.argv[1] else 0
    count = max(map(len, sounds)) // CHUNK
    padded = np.zeros((len(sounds), before + count * CHUNK), np.float32)
    for row, sound in zip(padded, sounds, strict=True):
        row[before : before + len(sound)] = sound[: count * CHUNK]
    speech = np.empty((count, len(sounds)), np.float32)
    with StreamingSession(sys.argv[1], streams=len(sounds), constants={"sr": RATE}) as session:
        for k in range(count):
            (speech[k],) = session.run(None, {"input": padded[:, k * CHUNK : (k + 1) * CHUNK + before]})[0].T
    for number, row in enumerate(speech.T):
        print(f"sound {number}: {count} chunks of {1000 * CHUNK // RATE} ms, speech in {(row > 0.5).sum()} of them")


if __name__ == "__main__":
    main()
