"""A small Qwen2.5-VL or Qwen3-VL of transformers with random weights: its decoder by onnxruntime-genai's builder, which adds no
features of images to later layers (Qwen3-VL's "deepstack"), the rest by torch.

The encoder of images is exported for one grid of patches.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tests.generation.built import build
from vkep.models.language import BEGIN, END

Tensor = Any
VOCABULARY, IMAGE, FIRST, LAST = 264, 259, 261, 262


def _model(kind: str) -> Any:
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]},
        "initializer_range": 0.3,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "patch_size": 8,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 32,
        "fullatt_block_indexes": [1],
    }
    marks = {
        "image_token_id": IMAGE,
        "video_token_id": 260,
        "vision_start_token_id": FIRST,
        "vision_end_token_id": LAST,
    }
    torch.manual_seed(0)
    if kind == "qwen3_vl":
        rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True}
        text |= {"head_dim": 16, "rope_scaling": rope}
        vision |= {"deepstack_visual_indexes": [], "num_position_embeddings": 64}
        found = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **marks)
        return transformers.Qwen3VLForConditionalGeneration(found).eval()
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **marks)
    return transformers.Qwen2_5_VLForConditionalGeneration(config).eval()


class _Vision(nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any, grid: Tensor) -> None:
        super().__init__()
        self.model, self.grid = model, grid

    def forward(self, pixels: Tensor) -> Tensor:
        found = self.model.model.get_image_features(pixels, self.grid)
        found = getattr(found, "pooler_output", found)
        return found[0] if isinstance(found, (tuple, list)) else found


def exported(folder: Path, grid: Tensor, kind: str) -> Any:
    """The model of ``kind`` qwen2_5_vl or qwen3_vl, whose files are written for images of ``grid`` int64 [1, 3]."""
    model = _model(kind)
    pixels = torch.rand(int(grid.prod()), 2 * 3 * 8 * 8)
    built = build(folder, model, _Vision(model, grid), pixels, IMAGE, {"image_token_id": IMAGE})
    reads = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 8,
        "merge_size": 2,
        "temporal_patch_size": 2,
    }
    reads |= {
        "min_pixels": 32 * 32,
        "max_pixels": 64 * 64,
        "image_mean": [0.48, 0.46, 0.41],
        "image_std": [0.27, 0.26, 0.28],
    }
    (built / "preprocessor_config.json").write_text(json.dumps(reads))
    return model
