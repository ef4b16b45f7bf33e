"""A small SAM 2 of transformers with random weights, and its masks of a video."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers as tf

from tools.bench.sizes.video import sam2

Array = np.ndarray[Any, Any]
WIDE = 128  #: channels of features


def small_model(present: float = 1.0, **changed: Any) -> Any:
    """The model; memories have 64 channels, as the model fixes it. ``present``: of the score that an object is there."""
    torch.manual_seed(0)
    model = sam2(WIDE, **changed).eval()
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


def masks_of(
    model: Any, frames: list[Array], prompts: dict[int, dict[int, Any]], back_from: int | None = None
) -> list[list[Array]]:
    """The masks of each frame's objects as transformers computes them, frame by frame. ``prompts``: by frames, points and labels
    by objects, or their masks. ``back_from``: a frame from which the frames are read again backwards, after the last one."""
    torch.set_num_threads(1)  # small matrices: more threads wait for each other
    device = model.device
    session = tf.models.sam2_video.modeling_sam2_video.Sam2VideoInferenceSession(
        dtype=torch.float32, inference_device=device, inference_state_device=device, video_storage_device=device
    )
    found = []
    order = [(number, False) for number in range(len(frames))]
    order += [(number, True) for number in range(back_from, -1, -1)] if back_from is not None else []
    for number, backwards in order:
        pixels = torch.tensor(frames[number], device=device)
        for name, shown in prompts.get(number, {}).items() if not backwards else ():
            at = session.obj_id_to_idx(name)
            session.obj_with_new_inputs.append(name)
            if isinstance(shown, np.ndarray):
                session.add_mask_inputs(at, number, torch.tensor(shown, dtype=torch.float32)[None, None])
                continue
            points, labels = shown
            given = (
                torch.tensor(points, dtype=torch.float32)[None, None],
                torch.tensor(labels, dtype=torch.int32)[None, None],
            )
            session.add_point_inputs(at, number, {"point_coords": given[0], "point_labels": given[1]})
        with torch.no_grad():
            made = model(session, frame=pixels, frame_idx=number, reverse=backwards)
        found.append([mask.cpu().numpy() for mask in made.pred_masks])
    return found
