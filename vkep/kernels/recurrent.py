"""All steps of a recurrent layer in one dispatch, for states that one workgroup can carry."""

from __future__ import annotations

from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import (
    ceil_power_of_two,
    element_count,
    element_type,
    floor_power_of_two,
    grid,
    is_cpu,
)

#: gates of each kind of cell
CELLS = {"RNN": 1, "GRU": 3, "GRU_LINEAR": 3, "LSTM": 4}
_SAMPLE = " ".join(f"float act_{name}(float x) {{ return x; }}" for name in "fgh")
RECURRENT = Kernel(
    "recurrent.comp",
    operands=(
        *(Operand(n) for n in ("gates", "weights", "bias", "peepholes", "lengths", "h0", "c0")),
        *(Operand(n, writes=True) for n in ("y", "h1", "c1")),
    ),
    params=(
        *((n, "uint") for n in ("steps", "batches", "backwards", "y_step", "y_batch", "y_unit")),
        ("clip", "float"),
    ),
    spec={
        "HIDDEN": 1,
        "SPLIT": 1,
        "HAS_BIAS": 0,
        "HAS_PEEPHOLES": 0,
        "HAS_LENGTHS": 0,
        "HAS_H0": 0,
        "HAS_C0": 0,
        "INPUT_FORGET": 0,
    },
    variants=tuple({f"CELL_{cell}": "1", "ACTIVATIONS": _SAMPLE, "T": "float"} for cell in CELLS),
)
#: multiplications of a step beyond which a step of its own, spread over the device, is the faster way: on a CPU driver of
#: all sequences, on a GPU of the one that a workgroup carries
_CPU_STEP, _GPU_STEP = 1 << 17, 1 << 18


def fits(cell: str, batches: int, hidden: int, caps: DeviceCapabilities) -> bool:
    """Whether carrying the state in a workgroup is the way: a step must be short, and the state fit shared memory."""
    step = CELLS[cell] * hidden * hidden
    if _shared_bytes(cell, hidden, 1) > caps.max_shared_memory_bytes:
        return False
    return batches * step <= _CPU_STEP if is_cpu(caps) else step <= _GPU_STEP


def _split(cell: str, hidden: int, caps: DeviceCapabilities) -> int:
    """Lanes that share a hidden unit: a GPU needs many loads in flight, a CPU driver gains nothing."""
    split, most = 1, min(1024, floor_power_of_two(caps.max_workgroup_invocations))
    while (
        not is_cpu(caps)
        and split < 8
        and 2 * split * ceil_power_of_two(hidden) <= most
        and _shared_bytes(cell, hidden, 2 * split) <= caps.max_shared_memory_bytes
    ):
        split *= 2
    return split


def _shared_bytes(cell: str, hidden: int, split: int) -> int:
    return 4 * (4 * hidden + (split * CELLS[cell] * hidden if split > 1 else 1))


def recurrent(
    cell: str,
    steps: int,
    batches: int,
    hidden: int,
    dtype: str,
    caps: DeviceCapabilities,
    operands: dict[str, Any],
    activations: str,
    y_strides: tuple[int, int, int],
    *,
    backwards: bool = False,
    input_forget: bool = False,
    clip: float = float("inf"),
) -> list[KernelCall]:
    """Run a layer of ``cell`` (a key of `CELLS`) over ``gates`` [steps, batches, gates * hidden], ONNX's gate order.

    ``operands`` by the kernel's names, None where absent: ``weights`` [hidden, gates, hidden] (from, gate, to), ``bias``
    [hidden] (GRU_LINEAR: inside of the reset), ``peepholes`` [3 * hidden], ``lengths`` [batches] int32, ``h0`` and ``c0``
    [batches, hidden], ``y`` with ``y_strides`` (step, batch, unit), ``h1`` and ``c1`` [batches, hidden]. ``activations``
    is GLSL that defines ``act_f``, ``act_g`` and ``act_h``. State is float32. Raises `ValueError` for an element type
    that is not float32 or float16.
    """
    if dtype not in ("float32", "float16"):
        raise ValueError(f"recurrent: element type is {dtype}, expected float32 or float16")
    element_count("recurrent gates", steps, batches, CELLS[cell] * hidden)
    split = _split(cell, hidden, caps)
    most = floor_power_of_two(caps.max_workgroup_invocations)
    local = min(most, split * max(ceil_power_of_two(hidden), min(caps.subgroup_size, most)))
    present = {name: int(operands[name] is not None) for name in ("bias", "peepholes", "lengths", "h0", "c0")}
    return [
        RECURRENT.call(
            grid=grid(batches),
            operands=operands,
            params={
                "steps": steps,
                "batches": batches,
                "backwards": int(backwards),
                "y_step": y_strides[0],
                "y_batch": y_strides[1],
                "y_unit": y_strides[2],
                "clip": clip,
            },
            spec={
                "HIDDEN": hidden,
                "SPLIT": split,
                "INPUT_FORGET": int(input_forget),
                **{f"HAS_{name.upper()}": flag for name, flag in present.items()},
            },
            defines={f"CELL_{cell}": "1", "ACTIVATIONS": activations, "T": element_type(dtype).glsl},
            local_size=(local,),
            flops=2 * steps * batches * CELLS[cell] * hidden * hidden,
        )
    ]
