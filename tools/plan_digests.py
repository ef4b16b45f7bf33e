"""Digests of plans, for three imaginary devices: they show whether a change of the code changes a plan.

python -m tools.plan_digests                          # says which plans differ from those kept
python -m tools.plan_digests --write                  # keeps today's; the commit says what changed and why
python -m tools.plan_digests --all --spirv --file before.json --write    # before a change: all node cases, and
python -m tools.plan_digests --all --spirv --file before.json            # after it, shaders as SPIR-V instead of GLSL

With --spirv, plans whose shaders differ in GLSL only count as equal. Where spirv-opt is installed, it optimizes the SPIR-V first,
so that intermediate variables do not count.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx

from tools.plan_cases import EVERY, PlanCase, plan_cases
from tools.plan_devices import DEVICES
from vkep.ir.program import IslandStep, Program
from vkep.plan.records import PipelineKey, Plan
from vkep.shaders.library import ShaderLibrary

KEPT = Path(__file__).resolve().parent.parent / "tests" / "lowering" / "data" / "plan_digests.json"
#: stands for a program where a model has none
_NONE = "none"


def digests(case: PlanCase, shader: Callable[[PipelineKey], str] = repr) -> dict[str, str]:
    """By device, a digest of the model's program."""
    programs = {device: case.program(caps) for device, caps in DEVICES.items()}
    return {
        device: _NONE if program is None else digest(program, case.weights, shader)
        for device, program in programs.items()
    }


def digest(program: Program, weights: bool = True, shader: Callable[[PipelineKey], str] = repr) -> str:
    """Of a program's plans, whole, and of where every node runs. Without ``weights`` their content is left out, but not which
    of them are equal: weights that are computed from a run of ONNX Runtime are other ones on other processors.
    """
    hashed = hashlib.sha256()
    numbers: dict[str, str] = {}  # by a weight's key
    for placement in program.placements:
        hashed.update(f"{placement.node.title} {placement.where}\n".encode())
    for step in program.steps:
        hashed.update(type(step).__name__.encode())
        if isinstance(step, IslandStep):
            text = repr([_without_pipelines(step.plan), *map(shader, step.plan.pipelines), step.over, step.sizes])
            for constant in () if weights else step.plan.constants:
                text = text.replace(constant.key, numbers.setdefault(constant.key, f"weight {len(numbers)}"))
            hashed.update(text.encode())
    return hashed.hexdigest()[:16]


def _without_pipelines(plan: Plan) -> Plan:
    return dataclasses.replace(plan, pipelines=())


class SpirvOf:
    """The text of a pipeline, with a digest of its SPIR-V in place of its GLSL."""

    def __init__(self) -> None:
        self._library = ShaderLibrary()
        self._optimizer = shutil.which("spirv-opt")
        self._digest = functools.cache(self._of_code)

    def __call__(self, key: PipelineKey) -> str:
        code = self._library.spirv(key.shader, key.arguments_in_memory).words
        return f"{key.shader.source} {self._digest(code)} {dataclasses.replace(key, shader=None)}"  # type: ignore[arg-type]

    def _of_code(self, code: bytes) -> str:
        if self._optimizer is not None:
            command = [self._optimizer, "-O", "--strip-debug", "--canonicalize-ids", "-", "-o", "-"]
            done = subprocess.run(command, input=code, capture_output=True)
            code = done.stdout if done.returncode == 0 else code
        return hashlib.sha256(code).hexdigest()[:16]


def kept(path: Path = KEPT) -> dict[str, dict[str, str]]:
    """The digests that were kept, by case and device, and the version of onnx, which has the node cases."""
    loaded: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep today's digests")
    parser.add_argument("--file", type=Path, default=KEPT, help="where the digests are kept")
    parser.add_argument("--all", action="store_true", help="all node cases")
    parser.add_argument("--spirv", action="store_true", help="shaders as SPIR-V instead of GLSL")
    arguments = parser.parse_args()
    if arguments.file == KEPT and (arguments.all or arguments.spirv):
        parser.error("--all and --spirv need --file")
    shader = SpirvOf() if arguments.spirv else repr
    found = {case.name: digests(case, shader) for case in plan_cases(1 if arguments.all else EVERY)}
    if arguments.write:
        arguments.file.parent.mkdir(exist_ok=True)
        text = json.dumps({"onnx": {"version": onnx.__version__}, **found}, indent=1, sort_keys=True)
        arguments.file.write_text(text + "\n", encoding="utf-8")
        return 0
    before = kept(arguments.file)
    differ = [
        (case, device)
        for case in found
        for device in DEVICES
        if found[case][device] != before.get(case, {}).get(device)
    ]
    for case, device in differ:
        print(f"another plan: {case} on {device}")
    said = f"{len(differ)} changed" if differ else "unchanged"
    print(f"{len(found)} plans on {len(DEVICES)} devices: {said}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
