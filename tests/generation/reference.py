"""The same models by ONNX Runtime's CPU provider, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.ort_cpu import cpu_session

Array = np.ndarray[Any, Any]


class Reference:
    """A decoder on ONNX Runtime: caches that grow by what it returns."""

    def __init__(self, path: Path, heads: int, size: int) -> None:
        self._session = cpu_session(path)
        kinds: dict[str, Any] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        kinds |= {"tensor(int8)": np.int8, "tensor(uint8)": np.uint8}
        self._empty = {
            i.name: np.zeros((1, heads, 0, i.shape[3] if isinstance(i.shape[3], int) else size), kinds[i.type])
            for i in self._session.get_inputs()
            if i.name.startswith("past")
        }
        self._reads = {i.name for i in self._session.get_inputs()}
        self._outputs = [o.name for o in self._session.get_outputs()]

    def logits(self, prompt: Sequence[int], answer: Sequence[int]) -> Array:
        """Of the prompt's last token and each of the answer's but the last [len(answer), vocabulary]."""
        past, found, done = dict(self._empty), [], 0
        for part in ([*prompt], *([token] for token in answer[:-1])):
            done += len(part)
            feeds = {"input_ids": np.array([part], np.int64), "attention_mask": np.ones((1, done), np.int64)}
            if "position_ids" in self._reads:
                feeds["position_ids"] = np.arange(done - len(part), done)[None]
            results = dict(zip(self._outputs, self._session.run(None, feeds | past), strict=True))
            past = {name: results[name.replace("past_key_values", "present")] for name in past}
            found.append(results["logits"][0, -1].astype(np.float32))
        return np.array(found)

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The most probable tokens."""
        tokens: list[int] = []
        past, done, part = dict(self._empty), 0, list(prompt)
        for _ in range(count):
            done += len(part)
            feeds = {"input_ids": np.array([part], np.int64), "attention_mask": np.ones((1, done), np.int64)}
            results = dict(zip(self._outputs, self._session.run(None, feeds | past), strict=True))
            past = {name: results[name.replace("past_key_values", "present")] for name in past}
            part = [int(results["logits"][0, -1].argmax())]
            tokens += part
        return tokens
