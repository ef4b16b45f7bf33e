"""Digests of the plans of the model catalog, for three imaginary devices: they show whether a change of the code
changes a plan.

python -m tools.plan_digests            # says which plans differ from those kept
python -m tools.plan_digests --write    # keeps today's; the commit says what changed and why
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu_shared.capabilities import REQUIRED_FEATURES, CooperativeMatrixShape, DeviceCapabilities
from tools.models.catalog import CATALOG, CONVNETS, Options, Spec, build_model
from vkep import dtypes
from vkep.graph import load_model
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, Program, ValueSpec
from vkep.placement.partition import lower

KEPT = Path(__file__).resolve().parent.parent / "tests" / "lowering" / "data" / "plan_digests.json"

DEVICES: Mapping[str, DeviceCapabilities] = {
    "cpu": DeviceCapabilities.for_tests(),
    "gpu with cooperative matrices": DeviceCapabilities.for_tests(
        name="imagined GPU",
        device_type="discrete",
        subgroup_size=32,
        min_subgroup_size=32,
        max_subgroup_size=32,
        max_workgroup_count=(2**31 - 1, 65535, 65535),
        max_shared_memory_bytes=49152,
        max_push_constants_size=256,
        compute_units=132,
        host_visible_device_local=False,
        features=DeviceCapabilities.for_tests().features | {"cooperative_matrix"},
        cooperative_matrix_shapes=tuple(
            CooperativeMatrixShape(16, n, 16, "float16", "float16", c, c)
            for n in (8, 16)
            for c in ("float16", "float32")
        ),
    ),
    "small gpu": DeviceCapabilities.generic(device_type="integrated", features=REQUIRED_FEATURES),
}
#: models whose weights take longest to hash, and whose layers another model of the catalog has
_LEFT_OUT = frozenset({"resnet50", "bert"})


def cases() -> Iterator[tuple[str, str, Options]]:
    """Name, model and options of every case."""
    for name, spec in CATALOG.items():
        if name not in _LEFT_OUT:
            for options in _options(spec):
                yield f"{name}{' float16' if options.float16 else ''}", name, options


def _options(spec: Spec) -> Iterator[Options]:
    yield Options()
    yield Options(float16=True)


def digests(model: str, options: Options) -> dict[str, str]:
    """By device, a digest of the model's program."""
    loaded = load_model(build_model(model, options).SerializeToString())
    known: dict[str, Known] = dict(loaded.graph.weights)
    for info in loaded.graph.inputs:
        dtype = dtypes.from_onnx(info.elem_type)
        assert dtype is not None and info.static_shape is not None
        known[info.name] = ValueSpec(dtype, info.static_shape)
    outputs = [v.name for v in loaded.graph.outputs]
    return {
        device: digest(lower(loaded.graph.nodes, known, outputs, loaded.opsets, caps), weights=model not in CONVNETS)
        for device, caps in DEVICES.items()
    }


def digest(program: Program, weights: bool = True) -> str:
    """Of a program's plans, whole, and of where every node runs. Without ``weights`` their content is left out, but not which
    of them are equal: weights that are computed from a run of ONNX Runtime are other ones on other processors."""
    told = hashlib.sha256()
    numbers: dict[str, str] = {}  # by a weight's key
    for placement in program.placements:
        told.update(f"{placement.node.title} {placement.where}\n".encode())
    for step in program.steps:
        told.update(type(step).__name__.encode())
        if isinstance(step, IslandStep):
            text = repr(step.plan)
            for constant in () if weights else step.plan.constants:
                text = text.replace(constant.key, numbers.setdefault(constant.key, f"weight {len(numbers)}"))
            told.update(text.encode())
    return told.hexdigest()[:16]


def kept() -> dict[str, dict[str, str]]:
    """The digests that were kept, by case and device."""
    loaded: dict[str, dict[str, str]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return loaded


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep today's digests")
    made = {case: digests(model, options) for case, model, options in cases()}
    if parser.parse_args().write:
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    before = kept()
    differ = [
        (case, device) for case in made for device in DEVICES if made[case][device] != before.get(case, {}).get(device)
    ]
    for case, device in differ:
        print(f"another plan: {case} on {device}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
