"""Parts of SAM 2 as they are exported for videos, with small configurations: each is a session of its own, and a program passes
tensors between them. From transformers."""

from __future__ import annotations

from typing import Any

from torch import nn

Tensor = Any
#: edge of the image, and of its features, which are a 16th of it
EDGE, FEATURES = 64, 4
#: channels of features, and of memories
WIDE, MEMORY = 32, 64


def sam2(wide: int = WIDE, **changed: Any) -> Any:
    """The whole model; ``wide``: channels of features."""
    import transformers as tf

    backbone = tf.Sam2HieraDetConfig(
        hidden_size=8,
        image_size=[EDGE, EDGE],
        window_positional_embedding_background_size=[7, 7],
        blocks_per_stage=[1, 2, 3, 2],
        embed_dim_per_stage=[8, 16, 32, 64],
        num_attention_heads_per_stage=[1, 2, 4, 8],
        window_size_per_stage=[8, 4, 4, 2],
        global_attention_blocks=[4],
    )
    vision = tf.Sam2VisionConfig(
        backbone_config=backbone,
        backbone_channel_list=[64, 32, 16, 8],
        backbone_feature_sizes=[[EDGE // k, EDGE // k] for k in (4, 8, 16)],
        fpn_hidden_size=wide,
    )
    config = tf.Sam2VideoConfig(
        vision_config=vision.to_dict(),
        prompt_encoder_config={"hidden_size": wide, "image_size": EDGE, "mask_input_channels": 4},
        mask_decoder_config={"hidden_size": wide, "mlp_dim": 64, "num_attention_heads": 4, "iou_head_hidden_dim": 32},
        image_size=EDGE,
        memory_attention_hidden_size=wide,
        memory_attention_num_layers=2,
        memory_attention_feed_forward_hidden_size=64,
        memory_attention_rope_feat_sizes=[FEATURES, FEATURES],
        memory_encoder_hidden_size=wide,
        memory_encoder_output_channels=MEMORY,
        mask_downsampler_embed_dim=wide,
        memory_fuser_embed_dim=wide,
        memory_fuser_intermediate_dim=64,
        **changed,
    )
    return tf.Sam2VideoModel(config)


def image_features(model: Any, image: Tensor) -> tuple[Tensor, ...]:
    """Of images [batch, 3, 64, 64]: features in three sizes, the largest first."""
    levels = model.vision_encoder(image).fpn_hidden_states
    first, second, last = levels[0], levels[1], levels[2]
    return model.mask_decoder.conv_s0(first), model.mask_decoder.conv_s1(second), last


def masks(
    model: Any, features: Tensor, first: Tensor, second: Tensor, points: Tensor, labels: Tensor
) -> tuple[Tensor, ...]:
    """Masks of points [objects, count, 2] with labels [objects, count], and how well they fit."""
    sparse, dense = model.prompt_encoder(
        input_points=points[None], input_labels=labels[None], input_boxes=None, input_masks=None
    )
    found = model.mask_decoder(
        image_embeddings=features,
        image_positional_embeddings=model.get_image_wide_positional_embeddings(),
        sparse_prompt_embeddings=sparse,
        dense_prompt_embeddings=dense,
        multimask_output=True,
        high_resolution_features=[first, second],
    )
    return tuple(found)


def with_memory(
    model: Any, features: Tensor, places: Tensor, memory: Tensor, memory_places: Tensor, pointers: Tensor
) -> Tensor:
    """Features [pixels, 1, channels] that have read memories [count, 1, channels], of which the pointers to objects
    [pointers, 1, channels] are the last and have no place in the image."""
    import torch

    empty = torch.zeros_like(pointers)
    return model.memory_attention(
        current_vision_features=features,
        memory=torch.cat([memory, pointers]),
        current_vision_position_embeddings=places,
        memory_posision_embeddings=torch.cat([memory_places, empty]),
        num_object_pointer_tokens=pointers.shape[0],
    )


def memories(model: Any, features: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """The memory of objects [objects, 32, 4, 4] by their masks [objects, 1, 64, 64], and its places."""
    return tuple(model.memory_encoder(features, mask.sigmoid() * 20 - 10))


PARTS: dict[str, Any] = {"image": image_features, "masks": masks, "attention": with_memory, "memory": memories}


class Part(nn.Module):  # type: ignore[misc]
    """One of `PARTS`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model, self.part = sam2(), PARTS[name]

    def forward(self, *given: Tensor) -> Any:
        return self.part(self.model, *given)
