"""Times what diffusers does on the host for a step of an image: guidance, the scheduler's step, and the calls between.

    python -m tools.bench.image_steps          # needs optimum-onnx and diffusers

In the network's place is a function that returns noise it has. What is left depends on the number of latents alone. Printed are
medians of steps, of one thread, for Stable Diffusion's latents; a copy of the latents to a device and of the noise back is not
among it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from vkep.models.diffusion import write_diffusion

#: heights and widths of images, and steps of each
SIDES, STEPS = (512, 1024, 2048), 50
SCHEDULERS = ("DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler")


def milliseconds(pipeline: Any, side: int) -> float:
    """The host's part of a step of an image with guidance."""
    import torch

    ends: list[float] = []
    noise = torch.randn(2, 4, side // 8, side // 8)

    def ended(*_: Any) -> dict[str, Any]:
        ends.append(time.perf_counter())
        return {}

    own, pipeline.unet.forward = pipeline.unet.forward, lambda *_, **more: (noise,)
    settings = {"height": side, "width": side, "num_inference_steps": STEPS, "output_type": "latent"}
    try:
        pipeline("a red boat", callback_on_step_end=ended, **settings)
    finally:
        pipeline.unet.forward = own
    return statistics.median(1e3 * (b - a) for a, b in pairwise(ends))


def main() -> int:
    """Print the table."""
    import diffusers
    import torch
    from optimum.onnxruntime import ORTStableDiffusionPipeline

    diffusers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_diffusion(Path(folder))
        pipeline = ORTStableDiffusionPipeline.from_pretrained(folder)
        pipeline.set_progress_bar_config(disable=True)
        print(f"| scheduler | {' | '.join(f'{side} by {side}' for side in SIDES)} |\n|---|{'---:|' * len(SIDES)}")
        for name in SCHEDULERS:
            pipeline.scheduler = getattr(diffusers, name).from_config(pipeline.scheduler.config)
            print(f"| {name} | {' | '.join(f'{milliseconds(pipeline, side):.2f} ms' for side in SIDES)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
