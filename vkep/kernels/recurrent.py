"""All steps of a recurrent layer in one dispatch, for states that fit one workgroup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_power_of_two, element_type, floor_power_of_two, grid, is_cpu
from vkep.kernels.problem import Need, NoReference, Problem
from vkep.kernels.select import Candidate, Emission, implement

#: number of gates of each kind of cell
CELLS = {"RNN": 1, "GRU": 3, "GRU_LINEAR": 3, "LSTM": 4}
_OPTIONAL = ("bias", "peepholes", "lengths", "h0", "c0")
_SAMPLE = " ".join(f"float act_{name}(float x) {{ return x; }}" for name in "fgh")


def _reach(call: KernelCall) -> Mapping[str, int]:
    element, steps, batches, hidden = call.size_of("T"), call["steps"], call["batches"], call["HIDDEN"]
    [cell] = (name for name in CELLS if f"CELL_{name}" in dict(call.variant.defines))
    gates, last = CELLS[cell] * hidden, (steps - 1, batches - 1, hidden - 1)
    y = 1 + sum(at * call[step] for at, step in zip(last, ("y_step", "y_batch", "y_unit"), strict=True))
    state = batches * hidden
    elements = {
        "gates": steps * batches * gates,
        "weights": hidden * gates,
        "bias": hidden,
        "peepholes": 3 * hidden,
        "y": y,
    }
    elements |= dict.fromkeys(("h0", "c0", "h1", "c1"), state)
    return {name: count * element for name, count in elements.items()} | {"lengths": 4 * batches}


RECURRENT = Kernel(
    "recurrent.comp",
    operands=(
        *(Operand(n) for n in ("gates", "weights", *_OPTIONAL)),
        *(Operand(n, writes=True) for n in ("y", "h1", "c1")),
    ),
    params=(
        *((n, "uint") for n in ("steps", "batches", "backwards", "y_step", "y_batch", "y_unit")),
        ("clip", "float"),
    ),
    spec={"HIDDEN": 1, "SPLIT": 1, **{f"HAS_{name.upper()}": 0 for name in _OPTIONAL}, "INPUT_FORGET": 0},
    variants=tuple({f"CELL_{cell}": "1", "ACTIVATIONS": _SAMPLE, "T": "float"} for cell in CELLS),
    reach=_reach,
)
#: multiplications of a step beyond which separate dispatches, spread over the device, are faster: on a CPU driver
#: counted for all sequences, on a GPU for the one of a workgroup
_CPU_STEP, _GPU_STEP = 1 << 17, 1 << 18


@dataclass(frozen=True)
class RecurrentProblem(Problem):
    """A layer of ``cell`` (a key of `CELLS`) over ``gates`` [steps, batches, gates * hidden], in ONNX's order of gates.

    ``weights`` are [hidden (from), gates * hidden (to)]. ``optional`` names the optional operands that are present:
    ``bias`` [hidden] (GRU_LINEAR: inside of the reset), ``peepholes`` [3 * hidden], ``lengths`` int32 [batches], ``h0``
    and ``c0`` [batches, hidden]. Results: ``y`` with ``y_strides`` (step, batch, unit; elements), ``h1`` and for an
    LSTM ``c1`` [batches, hidden]. ``activations`` is GLSL that defines ``act_f``, ``act_g`` and ``act_h``. State is
    float32.
    """

    cell: str
    steps: int
    batches: int
    hidden: int
    dtype: str
    activations: str
    y_strides: tuple[int, int, int]
    optional: frozenset[str] = frozenset()
    backwards: bool = False
    input_forget: bool = False
    clip: float = float("inf")

    def needs(self) -> tuple[Need, ...]:
        gates, state = CELLS[self.cell] * self.hidden, (self.batches, self.hidden)
        shapes = {
            "bias": (self.hidden,),
            "peepholes": (3 * self.hidden,),
            "lengths": (self.batches,),
            "h0": state,
            "c0": state,
        }
        return (
            Need("gates", self.dtype, (self.steps, self.batches, gates)),
            Need("weights", self.dtype, (self.hidden, gates)),
            *(
                Need(name, "int32" if name == "lengths" else self.dtype, shapes[name])
                for name in _OPTIONAL
                if name in self.optional
            ),
        )

    def makes(self) -> tuple[Need, ...]:
        states = ("h1", "c1") if self.cell == "LSTM" else ("h1",)
        return (
            Need("y", self.dtype, (self.steps, self.batches, self.hidden), strides=self.y_strides),
            *(Need(name, self.dtype, (self.batches, self.hidden)) for name in states),
        )

    @property
    def flops(self) -> int:
        return 2 * self.steps * self.batches * CELLS[self.cell] * self.hidden * self.hidden

    def restrided(self, name: str, strides: tuple[int, ...]) -> RecurrentProblem | None:
        step, batch, unit = strides
        return replace(self, y_strides=(step, batch, unit)) if name == "y" else None

    def reference(self, gates: np.ndarray, weights: np.ndarray, **operands: np.ndarray) -> tuple[np.ndarray, ...]:
        raise NoReference(f"activations of a recurrent layer: {self.activations}")


def _takes(problem: RecurrentProblem, caps: DeviceCapabilities) -> str:
    if problem.dtype not in ("float32", "float16"):
        return f"element type is {problem.dtype}, expected float32 or float16"
    if _shared_bytes(problem, 1) > caps.max_shared_memory_bytes:
        return f"a state of {problem.hidden} units does not fit shared memory"
    return ""


def carries(problem: RecurrentProblem, caps: DeviceCapabilities) -> bool:
    """Whether one workgroup should keep the state: it must fit, and a step must be short."""
    step = CELLS[problem.cell] * problem.hidden * problem.hidden
    short = problem.batches * step <= _CPU_STEP if is_cpu(caps) else step <= _GPU_STEP
    return short and not _takes(problem, caps)


def _split(problem: RecurrentProblem, caps: DeviceCapabilities) -> int:
    """Lanes that share a hidden unit: a GPU needs many loads in flight, a CPU driver gains nothing."""
    split, most = 1, min(1024, floor_power_of_two(caps.max_workgroup_invocations))
    while (
        not is_cpu(caps)
        and split < 8
        and 2 * split * ceil_power_of_two(problem.hidden) <= most
        and _shared_bytes(problem, 2 * split) <= caps.max_shared_memory_bytes
    ):
        split *= 2
    return split


def _shared_bytes(problem: RecurrentProblem, split: int) -> int:
    return 4 * problem.hidden * 4 + 4 * (split * CELLS[problem.cell] * problem.hidden if split > 1 else 1)


def _recurrent(problem: RecurrentProblem, e: Emission) -> KernelCall:
    split = _split(problem, e.caps)
    most = floor_power_of_two(e.caps.max_workgroup_invocations)
    local = min(most, split * max(ceil_power_of_two(problem.hidden), min(e.caps.subgroup_size, most)))
    return RECURRENT.call(
        grid=grid(problem.batches),
        operands={operand.name: e.get(operand.name) for operand in RECURRENT.operands},
        params={
            "steps": problem.steps,
            "batches": problem.batches,
            "backwards": int(problem.backwards),
            **dict(zip(("y_step", "y_batch", "y_unit"), problem.y_strides, strict=True)),
            "clip": problem.clip,
        },
        spec={
            "HIDDEN": problem.hidden,
            "SPLIT": split,
            "INPUT_FORGET": int(problem.input_forget),
            **{f"HAS_{name.upper()}": int(name in problem.optional) for name in _OPTIONAL},
        },
        defines={
            f"CELL_{problem.cell}": "1",
            "ACTIVATIONS": problem.activations,
            "T": element_type(problem.dtype).glsl,
        },
        local_size=(local,),
    )


implement(RecurrentProblem, Candidate("recurrent", _recurrent, when=_takes))
