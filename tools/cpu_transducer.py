"""Greedy search of a streaming transducer with ONNX Runtime's CPU provider, one sound at a time: what `vkep.transducer` is
compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tools.ort_cpu import cpu_session
from vkep.models.transducer import CHUNK, CONTEXT, STEP

Array = np.ndarray[Any, Any]


class CpuTransducer:
    """A folder of `vkep.models.transducer`."""

    def __init__(self, folder: Path) -> None:
        self._sessions = {part: cpu_session(folder / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")}

    def _run(self, part: str, feeds: dict[str, Array]) -> dict[str, Array]:
        session = self._sessions[part]
        return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))

    def tokens(self, features: Array, ignored: int) -> list[int]:
        """Of features [frames, 80], of which whole chunks are read."""
        inputs = self._sessions["encoder"].get_inputs()
        kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
        states = {
            i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape], kinds[i.type]) for i in inputs[1:]
        }
        said = [-1] * (CONTEXT - 1) + [0]
        for at in range(0, len(features) - CHUNK + 1, STEP):
            made = self._run("encoder", {"x": features[None, at : at + CHUNK], **states})
            states = {name: made[f"new_{name}"] for name in states}
            for frame in range(made["encoder_out"].shape[1]):
                [encoded] = self._run("decoder", {"y": np.array([said[-CONTEXT:]])}).values()
                feeds = {"encoder_out": made["encoder_out"][:, frame], "decoder_out": encoded}
                token = int(self._run("joiner", feeds)["logit"].argmax())
                if token not in (0, ignored):
                    said.append(token)
        return said[CONTEXT:]
