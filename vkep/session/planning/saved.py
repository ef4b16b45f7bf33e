"""Plans on disk: the results of planning a model file for one device and one input signature, for the next process.

Only programs are saved that run wholly on Vulkan, by vkep's own operators: the plans, and the weights that planning
packed or folded. Weights that a kernel reads unchanged stay in the model's file. The key contains everything that a
plan depends on, so that any change (the file, vkep, the device, its driver, its tuning, the options) leads to another
key.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx

from gpu_shared.capabilities import DeviceCapabilities
from vkep.cache import CacheFolder, cache_folder, digest_of_files, drop_damaged
from vkep.graph.model import Model, Node
from vkep.graph.weights import ArrayWeight, ExternalWeight, Weight
from vkep.ir.program import IslandStep, Over, Placement, Program, ValueSpec
from vkep.kernels.tuning import Trial
from vkep.ops.registry import find
from vkep.placement.policy import Policy
from vkep.plan import encoded
from vkep.shaders.source import shader_digest
from vkep.sizes import is_size

if TYPE_CHECKING:
    from vkep.ir.infer import Known

logger = logging.getLogger("vkep.session")

_MAGIC = b"VKEPPLN4"
#: maximum bytes of all saved plans, and of one
TOTAL_LIMIT, LARGEST = 4 << 30, 2 << 30
#: dispatches, or bytes of constants, below which planning again is as fast as loading
_LEAST_DISPATCHES, _LEAST_BYTES = 16, 1 << 20


class SavedPlans(CacheFolder):
    """Programs by `plan_key`; in vkep's cache folder, ``plans/``."""

    what, suffix, prune_every = "a plan", ".vkepplan", 1

    def __init__(self, folder: Path | None = None, limit: int = TOTAL_LIMIT) -> None:
        super().__init__(cache_folder("plans") if folder is None else folder, limit)

    def program(self, key: str, model: Model, outputs: Sequence[str]) -> Program | None:
        """The program; None where there is none, or where it is damaged and dropped. Its weights are views of the bytes
        that were read."""
        data = self.load(key)
        if data is None:
            return None
        try:
            program = _decode(data, model, outputs)
        except encoded.DAMAGED:
            drop_damaged(self.path(key))
            return None
        logger.info("the plan of %s is read from %s", model.source, self.path(key))
        return program

    def keep(self, key: str, program: Program, model: Model) -> None:
        """Save a program, if it qualifies (see the module's docstring)."""
        if not _is_kept(program, model.graph.nodes):
            return
        header, weights = _encode(program, model)
        # the packed weights of a plan with sizes are the same as the first one's
        most = LARGEST if program.conditions is None else LARGEST // 4
        if sum(weight.nbytes for weight in weights.values()) <= most:
            self.store(key, encoded.chunks(_MAGIC, header, weights))


def plan_key(
    model: Model,
    known: Mapping[str, Known],
    outputs: Sequence[str],
    device: DeviceCapabilities,
    policy: Policy,
    over: Over = (),
) -> str | None:
    """The key of everything that the plan of ``model`` for the inputs in ``known`` depends on; None where there is
    none: the model did not come from a file, an input is not a tensor, data graphs are used, whose converter and
    driver may later accept what they refuse today, or planning also answers which choices it asks for."""
    if not model.file_identity or policy.graphs or isinstance(policy.tuned, Trial):
        return None
    files = {weight.identity for weight in model.graph.weights.values() if isinstance(weight, ExternalWeight)}
    signature = []
    for info in model.graph.inputs:
        spec = known[info.name]
        if not isinstance(spec, ValueSpec):
            return None
        dims: list[Any] = [*spec.shape, *spec.capacity]
        numbers = [str(d.terms) if is_size(d) else d for d in dims]
        signature.append((info.name, spec.dtype.name, len(spec.shape), numbers))
    text = json.dumps(
        (
            made_by(),
            model.file_identity,
            sorted(files),
            signature,
            over,
            list(outputs),
            device.to_dict(),
            [(problem, [int(size) for size in choice]) for problem, choice in sorted(policy.tuned.items())],
            (policy.prefer, policy.min_partition_size, policy.check_data),
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def made_by() -> list[str]:
    """vkep's own files, and the packages whose folding and schemas a plan depends on."""
    code = digest_of_files(Path(__file__).parents[2], (".py", ".pyc"))
    return [code, shader_digest(), np.__version__, onnx.__version__, ml_dtypes.__version__]


# ---- programs as bytes


def _is_kept(program: Program, nodes: Sequence[Node]) -> bool:
    steps = program.steps
    if program.constants or program.numbers or program.lists:
        return False
    if not steps or not all(isinstance(step, IslandStep) for step in steps):
        return False
    plans = [step.plan for step in steps if isinstance(step, IslandStep)]
    if not all(encoded.is_own(key.shader.source) for plan in plans for key in plan.pipelines):
        return False
    for placement in program.placements:
        node = placement.node
        definition = find(node)
        ours = definition is None or definition.function.__module__.partition(".")[0] == "vkep"
        # the file of a body, or of a part of a large plan
        if not ours or node.index >= len(nodes) or nodes[node.index] is not node:
            return False
    constants = sum(ref.nbytes for plan in plans for ref in plan.constants)
    return constants >= _LEAST_BYTES or sum(len(plan.dispatches) for plan in plans) >= _LEAST_DISPATCHES


def _encode(program: Program, model: Model) -> tuple[dict[str, Any], dict[str, Weight]]:
    names = {id(weight): name for name, weight in model.graph.weights.items()}
    weights: dict[str, Weight] = {}
    steps = []
    for step in program.steps:
        assert isinstance(step, IslandStep)
        named = {key: names[id(weight)] for key, weight in step.weights.items() if id(weight) in names}
        weights |= {key: weight for key, weight in step.weights.items() if key not in named}
        indices = [node.index for node in step.nodes]
        sizes = encoded.sizes_fields(step.sizes)
        steps.append((encoded.plan_fields(step.plan), list(step.weights), named, indices, sizes, step.over))
    placements = [(p.node.index, p.where, p.reason, p.island, dict(p.declined)) for p in program.placements]
    conditions = encoded.sizes_fields(program.conditions)
    return {"steps": steps, "placements": placements, "outputs": program.outputs, "conditions": conditions}, weights


def _decode(data: memoryview, model: Model, outputs: Sequence[str]) -> Program:
    header, arrays = encoded.read(_MAGIC, data)
    if header["outputs"] != list(outputs):
        raise ValueError(f"a plan of {header['outputs']}, expected {list(outputs)}")
    nodes, weights = model.graph.nodes, model.graph.weights
    steps = []
    for plan, keys, named, indices, sizes, over in header["steps"]:
        used = {k: weights[named[k]] if k in named else ArrayWeight(k, arrays[k]) for k in keys}
        own = tuple(nodes[i] for i in indices)
        steps.append(
            IslandStep(
                encoded.read_plan(plan),
                used,
                own,
                encoded.read_sizes(sizes),
                tuple([(str(output), str(source)) for output, source in over]),
            )
        )
    placements = [
        Placement(nodes[index], where, reason, island, declined)
        for index, where, reason, island, declined in header["placements"]
    ]
    conditions = header["conditions"]
    holds = None if conditions is None else encoded.read_formulas(conditions)
    return Program(tuple(steps), {}, tuple(placements), tuple(header["outputs"]), holds)
