"""A small Phi-4-multimodal of transformers with random weights: its decoder, which is a Phi-3, by onnxruntime-genai's builder,
the rest by torch.

The encoder of images is exported for one size of an image, and without LoRA weights: transformers loads those apart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from tests.generation.built import build
from tests.generation.phi_folders import steps
from vkep.models.language import BEGIN, END

Tensor = Any
#: the token of a feature
IMAGE = 259
_TEXT = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "original_max_position_embeddings": 2048,
    "partial_rotary_factor": 0.5,
    "bos_token_id": BEGIN,
    "eos_token_id": END,
    "pad_token_id": END,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}


def _model() -> Any:
    small = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "initializer_range": 0.3}
    vision = {**small, "num_hidden_layers": 3, "image_token_id": IMAGE}
    audio = {**small, "num_blocks": 1, "nemo_conv_channels": 8, "ext_pw_out_channel": 32, "audio_token_id": 260}
    audio |= {"depthwise_separable_out_channel": 32}
    torch.manual_seed(0)
    config = transformers.Phi4MultimodalConfig(**_TEXT, vision_config=vision, audio_config=audio)
    model = transformers.Phi4MultimodalForCausalLM(config).eval()
    embed = model.model.embed_tokens_extend.image_embed
    with torch.no_grad():
        for value in (embed.global_img_feature_extensor, embed.sub_img_feature_extensor):
            value.normal_(0, 0.5)
        for name, value in embed.named_parameters():
            if value.ndim > 1 and "extensor" not in name:
                value.normal_(0, 0.2)
    return model


class _Vision(nn.Module):  # type: ignore[misc]
    """The features of one image, in their order in a prompt."""

    def __init__(self, model: Any, sizes: Tensor, count: int) -> None:
        super().__init__()
        self.embed, self.sizes = model.model.embed_tokens_extend.image_embed, sizes
        self.ids, self.texts = torch.full((1, count), IMAGE), torch.zeros(1, count, 64)

    def forward(self, pixels: Tensor, mask: Tensor) -> Tensor:
        found = self.embed(self.ids, self.texts, pixels, image_sizes=self.sizes, image_attention_mask=mask)
        return found[0]


def exported(folder: Path, pixels: Tensor, sizes: Tensor, mask: Tensor, count: int) -> tuple[Any, Path]:
    """The model, and the folder that is written for images of these ``sizes``, with ``count`` features."""
    model = _model()
    texts = transformers.Phi3ForCausalLM(transformers.Phi3Config(**_TEXT)).eval()
    texts.load_state_dict(model.state_dict(), strict=False)
    vision = _Vision(model, sizes, count)
    given = {"pixel_values": pixels, "image_attention_mask": mask}
    built = build(folder, texts, vision, given, IMAGE, {"type": "phi4mm"})
    file = built / "genai_config.json"
    config = json.loads(file.read_text())
    inputs = {"pixel_values": "pixel_values", "attention_mask": "image_attention_mask"}
    config["model"]["vision"] |= {"config_filename": "steps.json", "inputs": inputs}
    file.write_text(json.dumps(config))
    (built / "steps.json").write_text(json.dumps(steps("phi4mm")))
    return model, built


def greedy(
    model: Any, prompt: list[int], pixels: Tensor, sizes: Tensor, mask: Tensor, count: int, most: int
) -> list[int]:
    """The most probable tokens after a prompt, in which -1 stands for the image."""
    ids = torch.tensor([[t for token in prompt for t in ([IMAGE] * count if token < 0 else [token])]])
    with torch.no_grad():
        made = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            image_pixel_values=pixels,
            image_sizes=sizes,
            image_attention_mask=mask,
            max_new_tokens=most,
            do_sample=False,
        )
    return np.asarray(made[0, ids.shape[1] :]).tolist()
