"""What transformers' image processors make of some images, for tests where they are not installed.

    python -m tests.generation.images_of_transformers    # writes data/images.json; transformers 4 and pillow, no torch

Each case has the settings that the processor saves, and of each image the shape of its pixels and a few of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("data") / "images.json"
SIZES = ((40, 50), (70, 33), (64, 64), (31, 200), (120, 119))
#: numbers of an image's pixels that are kept
SAMPLES = 24
_SQUARE = {"height": 64, "width": 64}
_TILES = {"size": {"longest_edge": 192}, "max_image_size": {"longest_edge": 48}}
#: by name: the class's module and name, and its settings
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "clip": ("clip", "CLIP", {"size": {"shortest_edge": 64}, "crop_size": _SQUARE}),
    "cut": ("clip", "CLIP", {"size": {"shortest_edge": 40}, "crop_size": {"height": 56, "width": 48}}),
    "siglip": ("siglip", "Siglip", {"size": {"height": 64, "width": 48}}),
    "gemma3": ("gemma3", "Gemma3", {"size": _SQUARE}),
    "llava": ("llava", "Llava", {"do_pad": True, "size": {"shortest_edge": 64}, "crop_size": _SQUARE}),
    "vit": ("vit", "ViT", {"size": _SQUARE}),
    "idefics3": ("idefics3", "Idefics3", _TILES),
    "qwen2_vl": ("qwen2_vl", "Qwen2VL", {"size": {"shortest_edge": 4096, "longest_edge": 8192}, "patch_size": 8}),
    "whole": ("idefics3", "Idefics3", {**_TILES, "do_image_splitting": False}),
    "smolvlm": ("smolvlm", "SmolVLM", {**_TILES, "size": {"longest_edge": 200}}),
}


def images() -> list[np.ndarray[Any, Any]]:
    """Smooth images uint8 [height, width, 3] of `SIZES`, without Pillow."""
    made = []
    for height, width in SIZES:
        y, x, c = np.ogrid[:height, :width, :3]
        made.append((127 + 60 * np.sin(x / 5.0 + c) + 60 * np.cos(y / 7.0 + 2 * c)).astype(np.uint8))
    return made


def samples(values: np.ndarray[Any, Any]) -> list[float]:
    """Some numbers from all of an array."""
    flat = values.reshape(-1)
    return [round(float(flat[k * (flat.size - 1) // (SAMPLES - 1)]), 5) for k in range(SAMPLES)]


def main() -> None:
    import importlib

    found = {}
    for name, (module, kind, settings) in CASES.items():
        stem = f"transformers.models.{module}.image_processing_{module}"
        processor = getattr(importlib.import_module(stem), f"{kind}ImageProcessor")(**settings)
        rows = []
        for image in images():
            more = {"return_row_col_info": True} if "max_image_size" in settings else {}
            patches = "patch_size" in settings
            made = processor(image, return_tensors="np", **more)
            values = np.asarray(made["pixel_values"])
            values = values[0] if values.ndim == 5 else values
            grid = [int(made[key][0][0]) if more else 0 for key in ("rows", "cols")]
            grid = [int(n) for n in made["image_grid_thw"][0][1:]] if patches else grid
            rows.append({"shape": values.shape, "grid": grid, "samples": samples(values)})
        saved = {key: value for key, value in processor.to_dict().items() if value is not None}
        found[name] = {"settings": saved, "images": rows}
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
