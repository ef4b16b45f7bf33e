"""What the inputs and outputs of one run are bound to: memory on the device, by address, or arrays on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.device.tensor import DeviceTensor

if TYPE_CHECKING:
    from vkep.device.arguments import RunNumbers
    from vkep.device.faults import RunCheck

Array = np.ndarray[Any, Any]


class Bound:
    """The memory of one run of a plan, as `vkep.device.runner.PlanRunner.run` takes it.

    Made from values by `of`; or from addresses alone, whose owner orders the uses of the memory and keeps it valid until the
    run ends. Where all of it is on the device, several runs may have it, also at once.
    """

    __slots__ = ("addresses", "checks", "down", "inputs", "numbers", "outputs", "reads", "to_host", "up", "writes")

    def __init__(self, addresses: list[int], numbers: RunNumbers | None = None) -> None:
        """``addresses`` of the inputs, then of the outputs, in the order of the plan's ports. ``numbers``: of the run's
        sizes, for a plan with sizes (`vkep.device.runner.PlanRunner.numbers`)."""
        self.numbers = numbers
        self.addresses = addresses  #: the recording fills in those of memory that the host copies
        self.inputs: Sequence[Array | DeviceTensor] = ()
        self.outputs: Sequence[Array | DeviceTensor | None] = ()
        self.up: list[int] = []  #: places among the inputs that the host has
        self.down: list[int] = []  #: places among the outputs that the host gets
        self.reads: list[DeviceTensor] = []
        self.writes: list[DeviceTensor] = []
        self.to_host = False  #: whether one of them is in the host's memory
        self.checks: list[RunCheck] = []  #: after the submit: which decide whether outputs on the device are valid

    @classmethod
    def of(
        cls,
        inputs: Sequence[Array | DeviceTensor],
        outputs: Sequence[Array | DeviceTensor | None],
        numbers: RunNumbers | None = None,
    ) -> Bound:
        """``inputs`` in port order, of the ports' dtypes and shapes. An output given as a device tensor or an array is
        written there; one given as None becomes a new array."""
        bound = cls([], numbers)
        bound.inputs, bound.outputs = inputs, outputs
        addresses = bound.addresses
        for side, host, tensors in ((inputs, bound.up, bound.reads), (outputs, bound.down, bound.writes)):
            for k, value in enumerate(side):
                if isinstance(value, DeviceTensor):
                    addresses.append(value.address)
                    tensors.append(value)
                else:
                    addresses.append(0)
                    host.append(k)
        bound.to_host = any(tensor.in_host_memory for tensor in bound.writes)
        return bound
