"""Generate an image from a text with a diffusion model, through Optimum and diffusers.

    pip install 'vkep[optimum]' 'diffusers>=0.30' pillow
    vkep model diffusion                        # a small model with random weights: its images are noise
    python examples/generate_image.py diffusion "a red boat on a lake" boat.png

A real model: ``optimum-cli export onnx --model stable-diffusion-v1-5/stable-diffusion-v1-5 FOLDER``. Stable
Diffusion XL, 3 and Flux run too.
"""

from __future__ import annotations

import sys
import time
from typing import Any

STEPS = 20


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python examples/generate_image.py FOLDER [PROMPT] [FILE.png]")
    prompt = sys.argv[2] if sys.argv[2:] else "a red boat on a lake"
    path = sys.argv[3] if sys.argv[3:] else "image.png"

    import torch
    from optimum.onnxruntime import ORTDiffusionPipeline

    import vkep.optimum

    vkep.optimum.register()
    pipeline = ORTDiffusionPipeline.from_pretrained(sys.argv[1], provider="VulkanExecutionProvider")
    pipeline.set_progress_bar_config(disable=True)
    pipeline.vae.enable_tiling()  # an image that is larger than the autoencoder's own size is decoded in tiles
    begin = time.perf_counter()

    def ended(_: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        print(f"step {step + 1} of {STEPS}, {time.perf_counter() - begin:.2f} s")
        return {}

    generator = torch.Generator().manual_seed(0)
    (image,) = pipeline(prompt, num_inference_steps=STEPS, generator=generator, callback_on_step_end=ended).images
    image.save(path)
    print(f"{path}: {image.width} by {image.height} pixels")


if __name__ == "__main__":
    main()
