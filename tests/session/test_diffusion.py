"""The networks of an image generator by sessions alone: images are those of ONNX Runtime, whole on the device, by few plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkep
from tools.ort_cpu import cpu_session
from vkep.models.diffusion import LATENT, SCALE, TOKENS, write_diffusion

pytestmark = pytest.mark.gpu

Array = np.ndarray[Any, Any]
Run = Callable[[str, Mapping[str, Array]], list[Array]]
#: heights and widths of latents
SIZES = [(8, 8), (8, 12), (12, 8), (16, 16), (10, 18), (24, 8), (4, 4), (20, 20), (6, 16), (14, 22)]


def image(run: Run, height: int, width: int) -> Array:
    """Three steps of denoising with guidance, from an image and back to one."""
    ids = np.random.default_rng(0).integers(0, 513, (2, TOKENS))
    texts = run("text_encoder", {"input_ids": ids})[0]
    start = np.random.default_rng(1).uniform(-1, 1, (1, 3, SCALE * height, SCALE * width)).astype(np.float32)
    latents = run("vae_encoder", {"sample": start})[0][:, :LATENT]
    for step in (801, 401, 1):
        feeds = {"sample": np.concatenate([latents] * 2), "timestep": np.array(step), "encoder_hidden_states": texts}
        plain, prompted = run("unet", feeds)[0]
        latents = latents - 0.3 * (plain + 4 * (prompted - plain))
    return run("vae_decoder", {"latent_sample": latents})[0]


def test_images_of_ten_sizes(tmp_path: Path) -> None:
    write_diffusion(tmp_path)
    paths = {path.parent.name: path for path in tmp_path.glob("*/model.onnx")}
    theirs = {name: cpu_session(path) for name, path in paths.items()}
    ours = {name: vkep.InferenceSession(path, fallback="error") for name, path in paths.items()}
    for size in SIZES:
        expected = image(lambda name, feeds: theirs[name].run(None, feeds), *size)
        found = image(lambda name, feeds: ours[name].run(None, feeds), *size)
        assert found.shape == (1, 3, *(SCALE * side for side in size))
        np.testing.assert_allclose(found, expected, atol=1e-4)
    for name, session in ours.items():
        # of the first size, of sizes whose pixels kernels read in fours, and of others
        assert session._parts.graph.plan_count <= 3, name
        session.close()
