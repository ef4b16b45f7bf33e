"""A device's best rates, measured on it: bytes per second of a copy, arithmetic operations per second in registers."""

from __future__ import annotations

import datetime
import json
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from gpu_shared.capabilities import DeviceCapabilities
from vkep.cache import read_sealed, write_sealed
from vkep.device.measure.kernel_timer import KernelTimer
from vkep.device.per_device import device_file
from vkep.dtypes import DTYPES
from vkep.kernels.kernel import KernelCall
from vkep.kernels.matmul.cooperative_tiles import UNITS, matrix_shape
from vkep.kernels.pointwise import PointwiseOperand, pointwise
from vkep.kernels.rate import arithmetic, cooperative_arithmetic
from vkep.plan.records import Dispatch, Plan

logger = logging.getLogger("vkep.device")

#: elements of the copy: larger than any cache, and at most an eighth of the device's memory
_COPY_ELEMENTS = {"discrete": 1 << 26, "virtual": 1 << 26, "cpu": 1 << 23}
_COPY_ELEMENTS_ELSE = 1 << 24
_FIRST_STEPS = 256
#: an arithmetic kernel runs at least this long
_KERNEL_MS = 5.0
_ROUNDS = 3


@dataclass(frozen=True)
class DeviceLimits:
    """The limits of one device: bytes per nanosecond (read plus written) of a copy by shader, and operations per
    nanosecond (a multiply-add is two) in float32, in float16 with float32 sums, and in int8 with int32 sums (on cooperative
    matrices where the device has them, else the same as the type before). ``measured``: when, as ISO 8601 with the time zone."""

    device: str
    copy_rate: float
    float32_flops: float
    float16_flops: float
    int8_ops: float
    measured: str = ""

    @property
    def age_s(self) -> float:
        """Seconds since they were measured; infinite where that is not known."""
        if not self.measured:
            return math.inf
        return (_now() - datetime.datetime.fromisoformat(self.measured)).total_seconds()

    def or_higher(self, other: DeviceLimits) -> DeviceLimits:
        """These limits, with each rate of the other's that is higher."""
        rates = ("copy_rate", "float32_flops", "float16_flops", "int8_ops")
        return replace(self, **{name: max(getattr(self, name), getattr(other, name)) for name in rates})

    def nanoseconds(self, flops: int, nbytes: int, of: str = "float32") -> float:
        """The least possible time in nanoseconds for an amount of work: that of its arithmetic ``of`` float32, float16 or int8,
        or its traffic, whichever is longer."""
        rate = {"float32": self.float32_flops, "float16": self.float16_flops, "int8": self.int8_ops}[of]
        return max(flops / rate, nbytes / self.copy_rate)

    def of_dispatch(self, plan: Plan, dispatch: Dispatch) -> float:
        """The least possible nanoseconds of one dispatch, by the operations and bytes that its plan counts."""
        return self.nanoseconds(dispatch.flops, dispatch.bytes, multiplies(plan, dispatch))

    def of_plans(self, plans: Iterable[Plan]) -> float:
        """The sum of the least possible nanoseconds of all their dispatches."""
        return sum(self.of_dispatch(plan, dispatch) for plan in plans for dispatch in plan.dispatches)

    def __str__(self) -> str:
        return (
            f"{self.device}: copy {self.copy_rate:.4g} GB/s, float32 {self.float32_flops:.4g} GFLOP/s, "
            f"float16 {self.float16_flops:.4g} GFLOP/s, int8 {self.int8_ops:.4g} G/s"
            + (f", measured {self.measured}" if self.measured else "")
        )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def multiplies(plan: Plan, dispatch: Dispatch) -> str:
    """What a dispatch multiplies, by its shader's storage type: float32, float16 or int8."""
    glsl = dict(plan.pipelines[dispatch.pipeline].shader.defines).get("T")
    return {"float16_t": "float16", "int8_t": "int8"}.get(glsl or "", "float32")


def measure_limits(timer: KernelTimer) -> DeviceLimits:
    """Measure the device of ``timer``; this takes some seconds. Raises the shader library's errors, `GpuError`."""
    y = timer.operand(nbytes=64)
    float32 = _rate(timer, lambda steps: arithmetic(steps, timer.caps, y))
    float16, int8 = (
        0.0 if shape is None else _rate(timer, partial(cooperative_arithmetic, shape, timer.caps, y))
        for shape in (matrix_shape(timer.caps, dtype) for dtype in UNITS)
    )
    float16 = max(float32, float16)
    timer.release(y)
    copied = _copy_rate(timer)
    now = _now().isoformat(timespec="seconds")
    return DeviceLimits(timer.caps.name, copied, float32, float16, max(float16, int8), now)


def _rate(timer: KernelTimer, call: Callable[[int], KernelCall]) -> float:
    """Operations per nanosecond: the best of several rounds of a kernel that runs long enough."""
    first = max(min(timer.samples([call(_FIRST_STEPS)], repeats=1)), 1e-4)
    steps = min(max(_FIRST_STEPS, math.ceil(_FIRST_STEPS * _KERNEL_MS / first)), 1 << 20)
    made = call(steps)
    return max(made.flops / (min(timer.samples([made], repeats=1)) * 1e6) for _ in range(_ROUNDS))


class Pace:
    """How fast a device is at the moment: other programs and its clocks change that while a model is measured."""

    def __init__(self, caps: DeviceCapabilities, limits: DeviceLimits) -> None:
        """Raises the shader library's errors, `GpuError`."""
        self._timer = KernelTimer(caps.uuid or None)
        self._y = self._timer.operand(nbytes=64)
        ideal = limits.float32_flops * _KERNEL_MS * 1e6
        steps = ideal / arithmetic(1, caps, self._y).flops
        self._call = arithmetic(max(1, min(math.ceil(steps), 1 << 20)), caps, self._y)

    def rate(self) -> float:
        """Float32 operations per nanosecond, the median of some runs of a kernel that takes `_KERNEL_MS` at best."""
        return self._call.flops / (self._timer.milliseconds([self._call], repeats=1) * 1e6)

    def close(self) -> None:
        """Free the kernel's resources."""
        self._timer.release(self._y)
        self._timer.close()


def _copy_rate(timer: KernelTimer) -> float:
    caps, kind = timer.caps, DTYPES["float32"]
    elements = _COPY_ELEMENTS.get(caps.device_type, _COPY_ELEMENTS_ELSE)
    if caps.device_local_bytes:
        elements = min(elements, max(1 << 20, caps.device_local_bytes // 8 // (2 * kind.itemsize)))
    x, y = (timer.operand(nbytes=elements * kind.itemsize) for _ in range(2))
    to, source = (PointwiseOperand(t, kind, (1,), 0) for t in (y, x))
    calls = pointwise([elements], to, [source], "float compute(float x0) { return x0; }", (), caps)
    best = min(min(timer.samples(calls, repeats=1)) for _ in range(_ROUNDS))
    timer.release(x, y)
    return 2 * elements * kind.itemsize / (best * 1e6)


def device_limits(caps: DeviceCapabilities, *, max_age_s: float = math.inf) -> DeviceLimits:
    """The limits of a device, from the cache folder where they were measured in the last ``max_age_s`` seconds. Else they
    are measured, and a rate that was higher before is kept: other programs only lower it. Raises as `measure_limits`.
    """
    path = device_file(caps, "limits", ".sealed")
    known = _read(path)
    if known is not None and 0 <= known.age_s <= max_age_s:
        return known
    timer = KernelTimer(caps.uuid or None)
    try:
        found = measure_limits(timer)
    finally:
        timer.close()
    if known is not None:
        found = found.or_higher(known)
    try:
        write_sealed(path, json.dumps(asdict(found)).encode())
    except OSError as error:
        logger.warning("the measured limits cannot be kept in %s: %s", path, str(error))
    return found


def _read(path: Path) -> DeviceLimits | None:
    data = read_sealed(path, 1 << 16)
    try:
        return None if data is None else DeviceLimits(**json.loads(bytes(data)))
    except (ValueError, TypeError) as error:
        logger.warning("the measured limits in %s cannot be read (%s): measuring again", path, str(error))
        return None
