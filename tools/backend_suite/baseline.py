"""The baseline: the cases that run wholly on Vulkan, and must not stop doing so."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import onnx

from tools.backend_suite.outcome import VULKAN, Outcome

_FOLDER = Path(__file__).resolve().parents[2] / "tests" / "onnx_backend"
PATH = _FOLDER / "baseline.json"
#: baseline file by runner; without a file, the only condition is that no case fails
PATHS = {"vkep": PATH, "ort": _FOLDER / "baseline_ort.json"}


def to_json(outcome: Outcome) -> str:
    return json.dumps(dataclasses.asdict(outcome))


def write(outcomes: Iterable[Outcome], path: Path = PATH) -> None:
    """Write the names of the cases that ran wholly on Vulkan."""
    names = sorted(o.name for o in outcomes if o.state == VULKAN)
    content = {"onnx": onnx.__version__, "wholly_on_vulkan": names}
    path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path = PATH) -> list[str]:
    """The names in the baseline."""
    names: list[str] = json.loads(path.read_text())["wholly_on_vulkan"]
    return names


def regressions(outcomes: Iterable[Outcome], path: Path = PATH) -> list[str]:
    """A line for each case of the baseline that was run and no longer runs wholly on Vulkan."""
    expected = set(read(path))
    return [
        f"{o.name}: {o.state}: {'; '.join(o.reasons)}" for o in outcomes if o.name in expected and o.state != VULKAN
    ]
