"""The programs that are kept as data, with inputs and what eager torch made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DATA = Path(__file__).parent / "data"
GIVEN, SPECIAL = DATA / "given", DATA / "special"
#: programs without a delegate of the VGF backend
NO_GRAPHS = ("none", "vk", "cnn_none", "cnn_vk")


@dataclass(frozen=True)
class Call:
    method: str
    inputs: list[Any]
    outputs: list[Any]


def given(name: str) -> Call:
    """The inputs and the expected outputs of a program that was handed to the project."""
    x, y = ("cnnmp_in", "cnnmp_exp") if name.startswith("cnn") else ("input0", "expected0")
    return Call("forward", [np.load(GIVEN / f"{x}.npy")], [np.load(GIVEN / f"{y}.npy")])


def calls(name: str) -> Iterator[Call]:
    """The calls of a special program, in order; numbers as Python's."""
    arrays = np.load(SPECIAL / f"{name}.npz")
    number = 0
    while f"call{number}_method" in arrays:
        both = []
        for kind in ("input", "output"):
            found: list[Any] = []
            while f"call{number}_{kind}{len(found)}" in arrays:
                found.append(_restored(arrays[f"call{number}_{kind}{len(found)}"]))
            both.append(found)
        method = str(arrays[f"call{number}_method"])
        numbers = [v.item() if v.ndim == 0 and v.dtype != np.float32 else v for v in both[0]]
        yield Call(method, numbers, both[1])
        number += 1


def _restored(array: Any) -> Any:
    """bfloat16 is kept as plain bytes."""
    return array.view(ml_dtypes.bfloat16) if array.dtype.kind == "V" else array
