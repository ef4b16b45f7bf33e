"""Export SAM 2 of transformers as the six models that `vkep.video_objects` runs: a program to copy and to change.

    python examples/export_sam2.py facebook/sam2.1-hiera-tiny sam2    # needs torch, torchvision and transformers 4.57 or later
    python examples/follow_objects.py sam2 video.mp4 640 360

What is between the parts (which memories a frame reads, where they are kept) is `vkep.video_objects.VideoObjects`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vkep.video_objects import PARTS

Tensor = Any
#: the longest number of earlier frames, and of points, in the example that is traced
ROWS, POINTS = 3, 3


class ImageEncoder(nn.Module):
    """Features of a frame in three sizes, and the smallest without memories."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        fine, medium, features = self.model.vision_encoder(pixels).fpn_hidden_states[:3]
        alone = features + self.model.no_memory_embedding.reshape(1, -1, 1, 1)
        return self.model.mask_decoder.conv_s0(fine), self.model.mask_decoder.conv_s1(medium), features, alone


class MemoryAttention(nn.Module):
    """Features that have read the memories of earlier frames, and pointers to the object."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, size = model, model.backbone_feature_sizes[-1]
        with torch.no_grad():
            places = model.get_image_features(torch.zeros(1, 3, model.image_size, model.image_size))[1][-1]
            of_memories = model.memory_encoder.position_encoding((1, model.mem_dim, *size), "cpu", torch.float32)
        self.register_buffer("places", places)
        self.register_buffer("memory_places", of_memories.flatten(2).transpose(1, 2))

    def forward(
        self,
        features: Tensor,
        memories: Tensor,
        memory_rows: Tensor,
        memory_ages: Tensor,
        pointers: Tensor,
        pointer_rows: Tensor,
        pointer_ages: Tensor,
    ) -> Tensor:
        model, wide, thin = self.model, self.model.hidden_dim, self.model.mem_dim
        ages = model.memory_temporal_positional_encoding[
            :, 0
        ]  # of 1, 2 ... frames ago, the last of a frame with a prompt
        ages = torch.cat([ages[-1:], ages[:-1]])[memory_ages]
        read = memories[memory_rows].reshape(-1, 1, thin)
        known = pointers[pointer_rows].reshape(-1, 1, thin)
        times = self._times(pointer_ages)[:, None].expand(-1, wide // thin, -1).reshape(-1, 1, thin)
        made = model.memory_attention(
            current_vision_features=features.flatten(2).permute(2, 0, 1),
            current_vision_position_embeddings=self.places,
            memory=torch.cat([read, known]),
            memory_posision_embeddings=torch.cat([(self.memory_places + ages).reshape(-1, 1, thin), times]),
            num_object_pointer_tokens=known.shape[0],
        )
        return made.reshape(1, -1, wide).transpose(1, 2).reshape(1, wide, *model.backbone_feature_sizes[-1])

    def _times(self, ages: Tensor) -> Tensor:
        """The places of pointers in time [count, thin]."""
        from transformers.models.sam2_video.modeling_sam2_video import get_1d_sine_pe

        model = self.model
        if not model.config.enable_temporal_pos_encoding_for_object_pointers:
            return torch.zeros(1, model.mem_dim).expand(ages.shape[0], -1)
        apart = ages.to(torch.float32) / (model.config.max_object_pointers_in_encoder - 1)
        return model.temporal_positional_encoding_projection_layer(get_1d_sine_pe(apart, dim=model.hidden_dim))


class MaskDecoder(nn.Module):
    """The mask of an object. ``several``: of three masks, which one point may mean, the one that fits best."""

    def __init__(self, model: Any, several: bool) -> None:
        super().__init__()
        self.model, self.several = model, several

    def forward(
        self, features: Tensor, fine: Tensor, medium: Tensor, points: Tensor, labels: Tensor
    ) -> tuple[Tensor, ...]:
        made = self.model._single_frame_forward(
            input_points=points[None],
            input_labels=labels[None],
            image_embeddings=[fine, medium, features],
            multimask_output=self.several,
        )
        large = made.high_res_masks.reshape(1, 1, self.model.image_size, self.model.image_size)
        mask = made.pred_masks.reshape(1, 1, *fine.shape[2:])
        return mask, large, made.object_pointer.reshape(1, -1), made.object_score_logits.reshape(1, 1)


class MaskReader(nn.Module):
    """What the mask decoder makes of an object whose mask is shown."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        whole = torch.eye(model.image_size)[None, None]
        size = (model.image_size // 4, model.image_size)
        smaller = torch.nn.functional.interpolate(whole, size=size, mode="bilinear", antialias=True)[0, 0]
        self.register_buffer("smaller", smaller)  # the exporter has no operator for it

    def forward(self, features: Tensor, shown: Tensor) -> tuple[Tensor, ...]:
        model, (wide, high, width) = self.model, features.shape[1:]
        # only the mask, which is not used, reads finer features
        fine, medium = (features.new_zeros(1, wide // k, k // 2 * high, k // 2 * width) for k in (8, 4))
        large = shown * 20 - 10
        mask = self.smaller @ large @ self.smaller.transpose(0, 1)
        made = model._single_frame_forward(
            input_masks=model.mask_downsample(shown), image_embeddings=[fine, medium, features]
        )
        there = shown.amax((2, 3))
        pointer = there * made.object_pointer.reshape(1, -1) + (1 - there) * model.no_object_pointer
        return mask, large, pointer, there * 20 - 10


class MemoryEncoder(nn.Module):
    """The memory of an object in a frame. Its numbers have 8 bits, as the model was trained with bfloat16."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor, large: Tensor, score: Tensor, prompted: Tensor) -> Tensor:
        model, config = self.model, self.model.config
        mask = torch.where(prompted, (large > 0).to(large.dtype), large.sigmoid())
        mask = mask * config.sigmoid_scale_for_mem_enc + config.sigmoid_bias_for_mem_enc
        made = model.memory_encoder(features, mask)[0]
        if model.occlusion_spatial_embedding_parameter is not None:
            made = made + (score <= 0).to(made.dtype) * model.occlusion_spatial_embedding_parameter[..., None, None]
        return made.flatten(2).transpose(1, 2).to(torch.bfloat16).to(torch.float32)


def export(model: Any, folder: Path) -> None:
    """Write the parts of a ``Sam2VideoModel`` in float32, and how images are read."""
    model, wide, edge = model.eval().float(), model.hidden_dim, model.image_size
    high, width = model.backbone_feature_sizes[-1]
    features, fine = torch.rand(1, wide, high, width), torch.rand(1, wide // 8, 4 * high, 4 * width)
    medium, large = torch.rand(1, wide // 4, 2 * high, 2 * width), torch.rand(1, 1, edge, edge)
    rows, thin = torch.arange(ROWS), model.mem_dim
    banks = torch.rand(ROWS, high * width, thin), torch.rand(ROWS, wide)
    points, labels = torch.rand(1, POINTS, 2) * edge, torch.ones(1, POINTS, dtype=torch.int64)
    # whether a mask is the best of three: where there is no point, one, and more
    none, one, more = (
        model._use_multimask(n > 0, {"point_labels": torch.ones(1, 1, n)} if n else None) for n in range(3)
    )
    if none != one:
        raise SystemExit("the model decodes masks of one point and of none in different ways, which is not supported")
    parts: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "image_encoder": (ImageEncoder(model), (torch.rand(1, 3, edge, edge),)),
        "memory_attention": (MemoryAttention(model), (features, banks[0], rows, rows, banks[1], rows, rows)),
        "mask_decoder": (MaskDecoder(model, one), (features, fine, medium, points, labels)),
        "mask_decoder_points": (MaskDecoder(model, more), (features, fine, medium, points, labels)),
        "memory_encoder": (MemoryEncoder(model), (features, large, torch.rand(1, 1), torch.tensor(True))),
        "mask_reader": (MaskReader(model), (features, (large > 0.5).float())),
    }
    opened = {"memories": "rows", "pointers": "rows", "memory_rows": "memories", "memory_ages": "memories"}
    opened |= {"pointer_rows": "pointers", "pointer_ages": "pointers"}
    folder.mkdir(parents=True, exist_ok=True)
    for name, (module, given) in parts.items():
        inputs, outputs = PARTS[name]
        axes = {key: {0: size} for key, size in opened.items()} | {key: {1: "points"} for key in ("points", "labels")}
        with torch.no_grad():
            torch.onnx.export(
                module.eval(),
                given,
                str(folder / f"{name}.onnx"),
                dynamo=False,
                opset_version=17,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes={key: value for key, value in axes.items() if key in inputs},
            )
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": edge, "width": edge},
        "resample": 2,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=1))


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit("usage: python examples/export_sam2.py MODEL FOLDER")
    from transformers import Sam2VideoModel

    export(Sam2VideoModel.from_pretrained(sys.argv[1], attn_implementation="eager"), Path(sys.argv[2]))
    print(f"{sys.argv[2]} has {', '.join(PARTS)}")


if __name__ == "__main__":
    main()
