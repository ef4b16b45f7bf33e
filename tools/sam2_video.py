"""A small SAM 2 of transformers with random weights, and its masks of a video."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers as tf

Array = np.ndarray[Any, Any]
#: edge of a frame, and channels of features and of memories
EDGE, WIDE = 64, 128


def small_model(present: float = 1.0, **changed: Any) -> Any:
    """The model; memories have 64 channels, as the model fixes it. ``present``: of the score that an object is there."""
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
        fpn_hidden_size=WIDE,
    )
    torch.manual_seed(0)
    config = tf.Sam2VideoConfig(
        vision_config=vision.to_dict(),
        prompt_encoder_config={"hidden_size": WIDE, "image_size": EDGE, "mask_input_channels": 4},
        mask_decoder_config={"hidden_size": WIDE, "mlp_dim": 64, "num_attention_heads": 4, "iou_head_hidden_dim": 32},
        image_size=EDGE,
        memory_attention_hidden_size=WIDE,
        memory_attention_num_layers=2,
        memory_attention_feed_forward_hidden_size=64,
        memory_attention_rope_feat_sizes=[EDGE // 16, EDGE // 16],
        memory_encoder_hidden_size=WIDE,
        memory_encoder_output_channels=64,
        mask_downsampler_embed_dim=WIDE,
        memory_fuser_embed_dim=WIDE,
        memory_fuser_intermediate_dim=64,
        **changed,
    )
    model = tf.Sam2VideoModel(config).eval()
    with torch.no_grad():  # those that begin as zeros
        for name, value in model.named_parameters():
            if not value.any() or "temporal" in name or "no_" in name or "occlusion" in name:
                value.normal_(0, 0.5)
            elif value.ndim > 1 and not name.startswith("vision_encoder"):
                value.mul_(3)
        # objects come and go
        model.mask_decoder.pred_obj_score_head.proj_out.bias.fill_(present)
    model.set_attn_implementation("eager")
    return model


def masks_of(model: Any, frames: list[Array], prompts: dict[int, dict[int, tuple[Any, Any]]]) -> list[list[Array]]:
    """The masks of each frame's objects as transformers computes them, frame by frame. ``prompts``: by frames, points and labels
    by objects."""
    torch.set_num_threads(1)  # small matrices: more threads wait for each other
    session = tf.models.sam2_video.modeling_sam2_video.Sam2VideoInferenceSession(dtype=torch.float32)
    found = []
    for number, frame in enumerate(frames):
        pixels = torch.tensor(frame)
        for name, (points, labels) in prompts.get(number, {}).items():
            at = session.obj_id_to_idx(name)
            given = (
                torch.tensor(points, dtype=torch.float32)[None, None],
                torch.tensor(labels, dtype=torch.int32)[None, None],
            )
            session.add_point_inputs(at, number, {"point_coords": given[0], "point_labels": given[1]})
            session.obj_with_new_inputs.append(name)
        with torch.no_grad():
            made = model(session, frame=pixels, frame_idx=number)
        found.append([mask.numpy() for mask in made.pred_masks])
    return found
