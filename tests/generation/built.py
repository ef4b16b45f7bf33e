"""Folders of models of transformers that read images: the decoder by onnxruntime-genai's builder, the rest by torch.

The builder runs as a program of its own, and needs transformers 5.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vkep.models.language import write_tokenizer

Tensor = Any


class _Embedding(nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any, mark: int) -> None:
        super().__init__()
        self.table, self.mark = model.get_input_embeddings(), mark

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        found = self.table(ids)
        return found.masked_scatter((ids == self.mark)[..., None].expand_as(found), features)


def build(
    folder: Path,
    model: Any,
    vision: nn.Module,
    pixels: Tensor | Mapping[str, Tensor],
    mark: int,
    more: Mapping[str, Any],
    images: bool = False,
    **tokens: int,
) -> Path:
    """The folder that is built in ``folder``: ``vision`` reads ``pixels``, one input or several by their names, and returns
    features of images, whose token is ``mark``; ``more`` is of the model in genai_config.json, ``tokens`` of its tokenizer.
    ``images``: features are [images, count, width] where they become embeddings, otherwise [count, width]."""
    source, built = folder / "source", folder / "built"
    model.save_pretrained(source)
    write_tokenizer(source, tokens)
    program = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(built)]
    options = ["-p", "fp32", "-e", "cpu", "-c", str(folder / "cache"), "--extra_options", "exclude_embeds=true"]
    subprocess.run([*program, *options], check=True, capture_output=True, timeout=300)
    given = dict(pixels) if isinstance(pixels, Mapping) else {"pixel_values": pixels}
    axes = ("images", "count") if images else ("count",)
    width = model.get_input_embeddings().weight.shape[1]
    ids, features = torch.tensor([[5, mark, mark, 7]]), torch.rand(*([1] if images else []), 2, width)
    parts: dict[str, tuple[Any, dict[str, Tensor], str, dict[str, dict[int, str]]]] = {
        "vision.onnx": (vision, given, "image_features", {}),
        "embedding.onnx": (
            _Embedding(model, mark),
            {"input_ids": ids, "image_features": features},
            "inputs_embeds",
            {"input_ids": {1: "length"}, "image_features": dict(enumerate(axes)), "inputs_embeds": {1: "length"}},
        ),
    }
    for name, (module, inputs, output, dims) in parts.items():
        with torch.no_grad():
            torch.onnx.export(
                module.eval(),
                tuple(inputs.values()),
                str(built / name),
                dynamo=False,
                opset_version=17,
                input_names=list(inputs),
                output_names=[output],
                dynamic_axes=dims,
            )
    file = built / "genai_config.json"
    config = json.loads(file.read_text())
    same = {n: {n: n} for n in ("pixel_values", "image_features", "input_ids", "inputs_embeds")}
    vision_part = {"filename": "vision.onnx", "inputs": same["pixel_values"], "outputs": same["image_features"]}
    texts = {"inputs": same["input_ids"] | same["image_features"], "outputs": same["inputs_embeds"]}
    config["model"] |= {"vision": vision_part, "embedding": {"filename": "embedding.onnx", **texts}, **more}
    file.write_text(json.dumps(config))
    return built
