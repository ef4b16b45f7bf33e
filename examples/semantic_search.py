"""Find the texts that are nearest to a question, by the embeddings of an encoder.

    vkep model sentences                          # a small encoder with random weights
    python examples/semantic_search.py sentences "how do I cook rice?"

A real model: ``optimum-cli export onnx --model sentence-transformers/all-MiniLM-L6-v2 --task feature-extraction sentences``.
Needs the package tokenizers (``pip install vkep[generate]``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import vkep

TEXTS = (
    "Rice is cooked in twice as much water as rice.",
    "The train to the coast leaves at noon.",
    "A bicycle chain is oiled once a month.",
    "Bread is baked for forty minutes.",
)


def embed(session: vkep.InferenceSession, tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """Unit vectors float32 [texts, size]: the mean over each text's tokens."""
    tokenizer.enable_padding()
    coded = tokenizer.encode_batch(texts)
    feeds = {
        "input_ids": np.array([c.ids for c in coded]),
        "attention_mask": np.array([c.attention_mask for c in coded]),
        "token_type_ids": np.array([c.type_ids for c in coded]),
    }
    wanted = [i.name for i in session.get_inputs()]
    hidden = session.run(["last_hidden_state"], {name: feeds[name] for name in wanted})[0]
    mask = feeds["attention_mask"][..., None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python examples/semantic_search.py FOLDER [QUESTION]")
    folder = Path(sys.argv[1])
    question = sys.argv[2] if len(sys.argv) > 2 else "How much water does rice need?"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with vkep.InferenceSession(folder / "model.onnx") as session:
        known = embed(session, tokenizer, list(TEXTS))
        (asked,) = embed(session, tokenizer, [question])
    for near, text in sorted(zip(known @ asked, TEXTS, strict=True), reverse=True):
        print(f"{near:.3f} {text}")


if __name__ == "__main__":
    main()
