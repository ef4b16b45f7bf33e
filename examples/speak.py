"""Speak texts of different lengths: the plans of the first one serve the others.

    vkep model voice                              # a small model with random weights: what it says is noise
    python examples/speak.py voice.onnx [TEXT ...]

A real model: a voice of piper (``en_US-lessac-medium.onnx`` and its ``.onnx.json``), whose phonemes espeak-ng finds. The package
piper-tts does that for any text; here a text is taken as phonemes. The files ``0.wav``, ``1.wav`` and so on are written.
"""

from __future__ import annotations

import json
import sys
import time
import wave
from pathlib import Path

import numpy as np

import vkep

TEXTS = ("həlˈoʊ", "ɡˈʊd mˈɔːɹnɪŋ", "ðə kwˈɪk bɹˈaʊn fˈɑːks dʒˈʌmps")
#: of the noise, the durations, and the durations' noise
SCALES = (0.667, 1.0, 0.8)


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python examples/speak.py MODEL.onnx [TEXT ...]")
    described = Path(f"{sys.argv[1]}.json")
    voice = json.loads(described.read_text(encoding="utf-8")) if described.exists() else {}
    rate, known = voice.get("audio", {}).get("sample_rate", 16000), voice.get("phoneme_id_map")
    with vkep.InferenceSession(sys.argv[1]) as session:
        for number, text in enumerate(sys.argv[2:] or TEXTS):
            if known:  # piper's voices want a pause after each phoneme, and marks of the beginning and the end
                ids = known["^"] + [i for c in text for i in (*known.get(c, []), *known["_"])] + known["$"]
            else:
                ids = list(text.encode())
            feeds = {
                "input": np.array([ids]),
                "input_lengths": np.array([len(ids)]),
                "scales": np.array(SCALES, np.float32),
            }
            vkep.set_seed(7)  # the same noise for the same text in each run of this program
            start = time.perf_counter()
            sound = session.run(None, feeds)[0].reshape(-1)
            spent = time.perf_counter() - start
            with wave.open(f"{number}.wav", "wb") as file:
                file.setparams((1, 2, rate, 0, "NONE", ""))
                file.writeframes((sound.clip(-1, 1) * 32767).astype(np.int16).tobytes())
            print(f"{number}.wav: {len(sound) / rate:.2f} s of {len(ids)} symbols in {1000 * spent:.0f} ms")


if __name__ == "__main__":
    main()
