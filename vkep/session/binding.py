"""IO binding: inputs and outputs that stay on the device between runs."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from gpu_shared.uncopied import Uncopied
from vkep.device.tensor import DeviceTensor, checked_shape
from vkep.errors import InvalidInputError
from vkep.session.ort_interface.devices import on_gpu
from vkep.session.ort_interface.value import OrtValue, element_dtype, value_at

if TYPE_CHECKING:
    from vkep.session.planning.planned_graph import Repeat
    from vkep.session.session import InferenceSession

Array = np.ndarray[Any, Any]


class IOBinding(Uncopied):
    """Names bound to arrays or device tensors, for `InferenceSession.run_with_iobinding`.

    A run whose inputs and outputs are all bound to device tensors copies nothing between host and device, and returns
    without waiting for the GPU. The time to bind one does not depend on the number of bindings.

    `bind_input` and `bind_output` also take a device's name instead of a tensor, with ONNX Runtime's arguments.
    """

    _instead = "make another one by session.io_binding()"

    def __init__(self, session: InferenceSession) -> None:
        self._owner = session  # stays open as long as the binding exists
        self._session = session._parts
        self.inputs: dict[str, Array | DeviceTensor] = {}
        self.outputs: dict[str, DeviceTensor | Array | str] = {}
        self.results: list[Array | DeviceTensor] = []
        self.unchanged = 0  #: runs since something was bound
        self.repeat: Repeat | None = None  #: what runs again with the present bindings
        # outputs bound by ONNX Runtime's arguments: a value, or a device's name
        self._as_values: dict[str, OrtValue | str] = {}

    # ---- inputs

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an array of the input's shape and dtype. It is uploaded at each run. Raises `InvalidInputError` for a
        name that is no input."""
        self._begin_binding(name, self._session.bindable, "input")
        self.inputs[name] = arr_on_cpu

    @overload
    def bind_input(self, name: str, tensor: DeviceTensor | OrtValue) -> None: ...
    @overload
    def bind_input(
        self, name: str, tensor: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None: ...
    @overload
    def bind_input(
        self,
        name: str,
        *,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None: ...
    def bind_input(
        self,
        name: str,
        tensor: DeviceTensor | OrtValue | str | None = None,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
        *,
        device_type: str | None = None,
    ) -> None:
        """Bind a tensor on the session's device; or memory of ``shape`` and ``element_type`` at ``buffer_ptr``, a host
        address (``device_type="cpu"``), or the `OrtValue.data_ptr` of a value for the GPU. Raises `InvalidInputError`
        for a name that is no input or a tensor of another context, ``TypeError``, ``ValueError``."""
        self._begin_binding(name, self._session.bindable, "input")
        what = f"input {name!r}"
        where = tensor if isinstance(tensor, str) else device_type
        if where is not None:
            self.inputs[name] = self._at(where, element_type, shape, buffer_ptr, what)
        elif isinstance(tensor, OrtValue):
            self.inputs[name] = tensor.on(self._session.delegate, what)
        else:
            self._session.check_tensor(tensor, what)  # type: ignore[arg-type]  # it says what it got
            self.inputs[name] = tensor  # type: ignore[assignment]

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an `OrtValue` of the input's shape and type. Raises as `bind_input`."""
        self.bind_input(name, ortvalue)

    # ---- outputs

    @overload
    def bind_output(
        self, name: str, tensor: DeviceTensor | OrtValue | None = None, *, device: Literal["gpu", "cpu"] = "gpu"
    ) -> None: ...
    @overload
    def bind_output(
        self,
        name: str,
        tensor: str,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None: ...
    @overload
    def bind_output(
        self,
        name: str,
        *,
        device_type: str,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None: ...
    def bind_output(
        self,
        name: str,
        tensor: DeviceTensor | OrtValue | str | None = None,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
        *,
        device: str = "gpu",
        device_type: str | None = None,
    ) -> None:
        """Write an output to ``tensor``, whose shape and dtype must be the output's; without one, to a new tensor of
        each run (``device="gpu"``) or an array (``device="cpu"``). With a device's name, as in ONNX Runtime: then
        `get_outputs` returns an `OrtValue`, and ``buffer_ptr`` is as for `bind_input`.

        Raises `InvalidInputError` for a name that is no output or a tensor of another context, ``ValueError`` for an
        unknown device. A run checks shape and dtype.
        """
        self._begin_binding(name, self._session.output_names, "output")
        if device not in ("gpu", "cpu"):
            raise ValueError(f"device is {device!r}, expected 'gpu' or 'cpu'")
        what = f"output {name!r}"
        where = tensor if isinstance(tensor, str) else device_type
        self._as_values.pop(name, None)
        if isinstance(tensor, OrtValue):
            self.outputs[name] = tensor.on(self._session.delegate, what)
            self._as_values[name] = tensor
        elif where is not None and buffer_ptr:
            self.outputs[name] = self._at(where, element_type, shape, buffer_ptr, what)
            self._as_values[name] = where
        elif where is not None:
            self.outputs[name] = "gpu" if on_gpu(where) else "cpu"
            self._as_values[name] = where
        elif tensor is not None:
            assert not isinstance(tensor, str)
            self._session.check_tensor(tensor, what)
            self.outputs[name] = tensor
        else:
            self.outputs[name] = device

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write an output to an `OrtValue` of its shape and type. Raises as `bind_output`."""
        self.bind_output(name, ortvalue)

    # ---- results

    def get_outputs(self) -> list[Any]:
        """The bound outputs of the last run, in binding order: device tensors and arrays; an `OrtValue` for an output that was
        bound by a device's name or an `OrtValue`.
        """
        if not self._as_values:
            return list(self.results)
        return [self._given(name, result) for name, result in zip(self.outputs, self.results, strict=False)]

    def _given(self, name: str, result: Any) -> Any:
        if name not in self._as_values:
            return result
        bound = self._as_values[name]
        # leading elements of a tensor are as many as the run made
        leading = isinstance(result, DeviceTensor) and bool(result.capacity)
        where = bound if isinstance(bound, str) else bound.device_name()
        return OrtValue.of(result, where) if isinstance(bound, str) or leading else bound

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        """The bound outputs of the last run as values, in binding order."""
        return [v if isinstance(v, OrtValue) else OrtValue.of(v) for v in self.get_outputs()]

    def copy_outputs_to_cpu(self) -> list[Array]:
        """The bound outputs of the last run as arrays of their shapes and dtypes, in binding order. Raises as
        `DeviceTensor.numpy`."""
        return [r.numpy() if isinstance(r, DeviceTensor) else r for r in self.results]

    def synchronize_inputs(self) -> None:
        """Does nothing: bound tensors are ordered with the runs that read them."""

    def synchronize_outputs(self) -> None:
        """Wait for the runs that write the bound outputs. Raises `InvalidInputError` where one of them failed."""
        for result in self.results:
            if isinstance(result, DeviceTensor):
                self._session.delegate.lease.wait(result.written_at)
                result.check()

    def clear(self) -> None:
        """Unbind all inputs and outputs, and drop the last run's results."""
        self.clear_binding_inputs()
        self.clear_binding_outputs()

    def clear_binding_inputs(self) -> None:
        """Unbind all inputs."""
        self.change()
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Unbind all outputs, and drop the last run's results."""
        self.change()
        self.outputs.clear()
        self._as_values.clear()
        self.results = []

    # ---- inside

    def change(self) -> None:
        """Another run looks up and checks all that it needs."""
        self.unchanged, self.repeat = 0, None

    def _at(self, where: str, element_type: Any, shape: Any, pointer: int | None, what: str) -> Array | DeviceTensor:
        """The tensor at an address."""
        gpu = on_gpu(where)
        if element_type is None or shape is None or not pointer:
            raise ValueError(f"{what}: element_type, shape and buffer_ptr belong together")
        dtype, sizes = element_dtype(element_type), checked_shape(shape)
        if not gpu:
            size = int(np.prod(sizes, dtype=np.int64)) * dtype.itemsize
            memory = memoryview((ctypes.c_uint8 * size).from_address(pointer))
            return np.frombuffer(memory, dtype.numpy).reshape(sizes)
        value = value_at(pointer, what).on(self._session.delegate, what)
        assert isinstance(value, DeviceTensor)
        if value.dtype is not dtype:
            raise InvalidInputError(f"{what}: {dtype} at the address of an OrtValue of {value.dtype}")
        return value if value.shape == sizes else value.reshaped(sizes)

    def _begin_binding(self, name: str, names: Collection[str], what: str) -> None:
        """Discard what repeats the last run, since a binding changes. Raises `InvalidInputError` for a name that the model does
        not have."""
        self.change()
        if name not in names:
            raise InvalidInputError(f"the model has no {what} named {name!r}; it has {list(names)}")
