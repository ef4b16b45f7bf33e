"""IO binding: inputs and outputs that stay on the device between runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError

if TYPE_CHECKING:
    from vkep.session.session import InferenceSession


class IOBinding:
    """Names bound to arrays or device tensors, for `InferenceSession.run_with_iobinding`.

    A run whose inputs and outputs are all bound to device tensors moves nothing between host and device, and returns
    without waiting for the GPU.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self.inputs: dict[str, np.ndarray[Any, Any] | DeviceTensor] = {}
        self.outputs: dict[str, DeviceTensor | str] = {}
        self.results: list[np.ndarray[Any, Any] | DeviceTensor] = []

    def bind_cpu_input(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Feed an array, uploaded at each run."""
        self._check(name, [a.name for a in self._session.get_inputs()], "input")
        self.inputs[name] = array

    def bind_input(self, name: str, tensor: DeviceTensor) -> None:
        """Feed a tensor that lies on the session's device."""
        self._check(name, [a.name for a in self._session.get_inputs()], "input")
        self._session.check_tensor(tensor, f"input {name!r}")
        self.inputs[name] = tensor

    def bind_output(self, name: str, tensor: DeviceTensor | None = None, *, device: str = "gpu") -> None:
        """Have an output written to ``tensor``; without one, to a new tensor of each run (``device="gpu"``) or an
        array (``device="cpu"``).
        """
        self._check(name, [a.name for a in self._session.get_outputs()], "output")
        if device not in ("gpu", "cpu"):
            raise ValueError(f"device is {device!r}, expected 'gpu' or 'cpu'")
        if tensor is not None:
            self._session.check_tensor(tensor, f"output {name!r}")
        self.outputs[name] = tensor if tensor is not None else device

    def get_outputs(self) -> list[np.ndarray[Any, Any] | DeviceTensor]:
        """The bound outputs of the last run, in binding order."""
        return self.results

    def copy_outputs_to_cpu(self) -> list[np.ndarray[Any, Any]]:
        """The bound outputs of the last run as arrays."""
        return [r.numpy() if isinstance(r, DeviceTensor) else r for r in self.results]

    def clear(self) -> None:
        """Unbind all inputs and outputs, and drop the last run's results."""
        self.inputs.clear()
        self.outputs.clear()
        self.results = []

    @staticmethod
    def _check(name: str, names: list[str], what: str) -> None:
        if name not in names:
            raise InvalidInputError(f"the model has no {what} named {name!r}; it has {names}")
