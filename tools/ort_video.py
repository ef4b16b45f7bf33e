"""The models of `vkep.video_objects` on ONNX Runtime's CPU provider, with memories in lists: to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tools.ort_cpu import cpu_session
from vkep.video_objects import PARTS, Prompt

Array = np.ndarray[Any, Any]


class CpuVideo:
    """As `vkep.video_objects.VideoObjects`."""

    def __init__(self, folder: Path, memories: int = 7, pointers: int = 16, **_: Any) -> None:
        self.sessions = {name: cpu_session(folder / f"{name}.onnx") for name in PARTS}
        self._reach = {"memory": memories, "pointer": pointers}
        self.reset()

    def reset(self) -> None:
        """Begin another video."""
        self._number, self._step = 0, 1
        self._seen: dict[Any, list[dict[str, Any]]] = {}  # by objects, what was computed of each frame

    def frame(self, pixels: Array, prompts: Mapping[Any, Prompt] | None = None) -> dict[Any, Array]:
        """The masks of the next frame; after `turn` not those of objects with a prompt there."""
        image = self._run("image_encoder", {"pixel_values": pixels})
        given = dict(prompts or {})
        masks = {}
        for name in dict.fromkeys([*self._seen, *given]):
            seen, prompt = self._seen.setdefault(name, []), given.get(name)
            if any(one["number"] == self._number and one["prompted"] for one in seen):
                continue
            seen[:] = [one for one in seen if one["number"] != self._number]
            features = image["alone"] if prompt else self._conditioned(image["features"], seen)
            asked: dict[str, Array] = {"points": np.zeros((1, 1, 2), np.float32), "labels": np.full((1, 1), -1)}
            if prompt and prompt.mask is None:
                labels = list(prompt.labels) or [1] * len(prompt.points)
                asked = {"points": np.array([prompt.points], np.float32), "labels": np.array([labels], np.int64)}
            decoder = "mask_decoder" if asked["points"].shape[1] == 1 else "mask_decoder_points"
            if prompt and prompt.mask is not None:
                shown = (np.asarray(prompt.mask) > 0).astype(np.float32)[None, None]
                made = self._run("mask_reader", {**image, "shown": shown})
            else:
                made = self._run(decoder, {**image, "features": features, **asked})
            kept = self._run("memory_encoder", {**image, **made, "prompted": np.array(prompt is not None)})
            seen.append({**made, **kept, "number": self._number, "prompted": prompt is not None})
            masks[name] = made["mask"]
        self._number += self._step
        return masks

    def turn(self, frame: int) -> None:
        """Go the other way from a frame."""
        self._number, self._step = frame, -self._step

    def _conditioned(self, features: Array, seen: list[dict[str, Any]]) -> Array:
        feeds: dict[str, Array] = {"features": features}
        for kind, all_of in (("memory", "memories"), ("pointer", "pointers")):
            ages = [(self._number - one["number"]) * self._step for one in seen]
            timeless = kind == "memory"
            read = [
                k
                for k, one in enumerate(seen)
                if 0 < ages[k] < self._reach[kind] or (one["prompted"] and (timeless or ages[k] >= 0))
            ]
            feeds[all_of] = np.concatenate([one[kind] for one in seen])
            feeds[f"{kind}_rows"] = np.array(read, np.int64)
            feeds[f"{kind}_ages"] = np.array(
                [0 if timeless and seen[k]["prompted"] else ages[k] for k in read], np.int64
            )
        return self._run("memory_attention", feeds)["conditioned"]

    def _run(self, name: str, feeds: Mapping[str, Any]) -> dict[str, Array]:
        inputs, outputs = PARTS[name]
        return dict(zip(outputs, self.sessions[name].run(list(outputs), {n: feeds[n] for n in inputs}), strict=True))
