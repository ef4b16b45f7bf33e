"""All steps of a recurrent layer in one dispatch, for states that fit one workgroup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_power_of_two, element_type, floor_power_of_two, grid, is_cpu
from vkep.kernels.problem import Need, NoReference, Problem
from vkep.kernels.select import Candidate, Emission, implement

#: number of gates of each kind of cell
CELLS = {"RNN": 1, "GRU": 3, "GRU_LINEAR": 3, "LSTM": 4}
_OPTIONAL = ("bias", "peepholes", "lengths", "h0", "c0")
_SAMPLE = " ".join(f"float act_{name}(float x) {{ return x; }}" for name in "fgh")


def _reach(call: KernelCall) -> Mapping[str, int]:
    element, steps, batches, hidden = call.size_of("T"), call["steps"], call["batches"], call["HIDDEN"]
    [cell] = (name for name in CELLS if f"CELL_{name}" in call.defines)
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
    #: as many activations as the cell has, for arrays
    functions: tuple[Callable[[np.ndarray], np.ndarray], ...] = field(default=(), compare=False, repr=False)

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
        if not self.functions:
            raise NoReference(f"activations of a recurrent layer: {self.activations}")

        def f(x: np.ndarray) -> np.ndarray:
            return self.functions[0](np.clip(x, -self.clip, self.clip))

        def g(x: np.ndarray) -> np.ndarray:
            return self.functions[1](np.clip(x, -self.clip, self.clip))

        parts, state = CELLS[self.cell], (self.batches, self.hidden)
        old, cell = (operands.get(name, np.zeros(state)) for name in ("h0", "c0"))
        peep = operands.get("peepholes", np.zeros(3 * self.hidden)).reshape(3, -1)
        lengths = operands.get("lengths", np.full(self.batches, self.steps))[:, None]
        y = np.zeros((self.steps, *state))
        for t in reversed(range(self.steps)) if self.backwards else range(self.steps):
            x, rest = np.split(gates[t], parts, axis=1), np.split(old @ weights, parts, axis=1)
            next_cell = cell
            if self.cell == "RNN":
                new = f(x[0] + rest[0])
            elif self.cell == "LSTM":  # input, output, forget, cell
                take = f(x[0] + rest[0] + peep[0] * cell)
                keep = 1 - take if self.input_forget else f(x[2] + rest[2] + peep[2] * cell)
                next_cell = keep * cell + take * g(x[3] + rest[3])
                new = f(x[1] + rest[1] + peep[1] * next_cell) * self.functions[2](next_cell)  # the cell is not clipped
            else:
                update, reset = f(x[0] + rest[0]), f(x[1] + rest[1])
                inner = reset * (rest[2] + operands.get("bias", 0.0))
                if self.cell == "GRU":
                    inner = (reset * old) @ weights[:, 2 * self.hidden :]
                new = (1 - update) * g(x[2] + inner) + update * old
            alive = t < lengths
            y[t] = np.where(alive, new, 0.0)
            old, cell = np.where(alive, new, old), np.where(alive, next_cell, cell)
        return (y, old, cell) if self.cell == "LSTM" else (y, old)


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
    """Bytes of shared memory: ``hidden`` and ``extra`` of the shader, each 2 * hidden floats, and its ``partial``."""
    return 4 * (2 + 2) * problem.hidden + 4 * (split * CELLS[problem.cell] * problem.hidden if split > 1 else 1)


def _recurrent(problem: RecurrentProblem, e: Emission) -> KernelCall:
    split = _split(problem, e.caps)
    most = floor_power_of_two(e.caps.max_workgroup_invocations)
    local = min(most, split * max(ceil_power_of_two(problem.hidden), min(e.caps.subgroup_size, most)))
    return RECURRENT.call(
        grid=grid(problem.batches),
        operands={name: e.get(name) for name in ("gates", "weights", *_OPTIONAL, "y", "h1", "c1")},
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
