"""A small Gemma 3 of transformers with random weights, that reads images: its decoder by onnxruntime-genai's builder, which lets
features of an image see those before them alone, the rest by torch.
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
#: the token of a feature, and those around an image; features of an image, as onnxruntime-genai has it
IMAGE, FIRST, LAST, COUNT = 259, 260, 261, 256
EDGE, PATCH = 128, 4


def _model() -> Any:
    text = {
        "vocab_size": 264,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 1024,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": EDGE,
        "patch_size": PATCH,
        "initializer_range": 0.3,
    }
    torch.manual_seed(0)
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=COUNT,
        image_token_index=IMAGE,
        boi_token_index=FIRST,
        eoi_token_index=LAST,
        tie_word_embeddings=False,
    )
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    projector = model.model.multi_modal_projector
    nn.init.normal_(projector.mm_input_projection_weight, std=0.3)
    return model


class _Vision(nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tower, self.projector = model.model.vision_tower, model.model.multi_modal_projector

    def forward(self, pixels: Tensor) -> Tensor:
        return self.projector(self.tower(pixel_values=pixels).last_hidden_state)


def exported(folder: Path) -> Path:
    """The folder that is written."""
    model = _model()
    named = {"<image_soft_token>": IMAGE, "<start_of_image>": FIRST, "<end_of_image>": LAST}
    steps: dict[str, dict[str, Any]] = {
        "DecodeImage": {"color_space": "RGB"},
        "Resize": {"height": EDGE, "width": EDGE, "interpolation": "LINEAR"},
        "Rescale": {"rescale_factor": 1 / 255},
        "Normalize": {"mean": [0.5] * 3, "std": [0.5] * 3},
        "Permute3D": {"dims": [2, 0, 1]},
    }
    built = build(
        folder, model, _Vision(model), torch.rand(1, 3, EDGE, EDGE), IMAGE, {"type": "gemma3"}, images=True, **named
    )
    transforms = [{"operation": {"name": kind.lower(), "type": kind, "attrs": attrs}} for kind, attrs in steps.items()]
    settings = {"processor": {"name": "image_processing", "transforms": transforms}}
    (built / "processor_config.json").write_text(json.dumps(settings))
    return built
