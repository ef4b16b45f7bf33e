"""The state of a session: its model, delegates and planned executables.

Importing this brings numpy, onnx and most of vkep: `vkep.session.session` does so while the driver opens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpu_shared.context import SharedGpuContext
from gpu_shared.errors import ClosedError
from vkep import dtypes
from vkep.device.delegate import VulkanDelegate
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError, InvalidModelError
from vkep.graph import load_model
from vkep.graph.load import ModelSource
from vkep.session.executor import own_array, own_tensor
from vkep.session.inputs import check_inputs, no_dict, wrong_names
from vkep.session.options import SessionOptions, spirv_folder
from vkep.session.planned_graph import Use
from vkep.session.planner import Planner
from vkep.session.saved import made_by
from vkep.session.vgf_executor import session_policy, vgf_delegate
from vkep.shaders.library import ShaderLibrary

Array = np.ndarray[Any, Any]
Feed = Array | DeviceTensor


class SessionState:
    """The model, device objects and plans of a session, in an object that its finaliser can hold."""

    def __init__(self, source: ModelSource, options: SessionOptions, context: Callable[[], SharedGpuContext]) -> None:
        """``context`` is called after the work that needs no device. Raises as `InferenceSession`, leaving nothing open."""
        self.model = load_model(source, base_dir=options.base_dir)
        self.inputs = {v.name: v for v in self.model.graph.inputs}
        self.outputs = [v.name for v in self.model.graph.outputs]
        arena = options.arena_config()
        library = ShaderLibrary(cache_dir=spirv_folder(options))
        if options.save_plans and self.model.file_identity:
            made_by()  # kept: the key of the saved plan asks for it
        tuned = options.tuned
        self.delegate = VulkanDelegate(context(), library, arena, sync_mode=options.sync_mode, tuned=tuned)
        self.closed = False
        policy = session_policy(options, self.delegate.context)
        self.graphs = vgf_delegate(self.delegate, options.sync_mode) if policy.graphs else None
        self.planner = Planner(self.delegate, options, self.model, policy, self.graphs)
        check = functools.partial(check_inputs, self.inputs)
        self.graph = self.planner.model_graph(self.model, self.outputs, check)

    def close(self) -> None:
        """Close everything, once the runs of other threads have ended; idempotent. A forked child gives nothing back."""
        if not self.closed:
            self.closed = True
            if self.delegate.forked:  # the device objects belong to the parent process
                return
            try:
                self.graph.close()
            finally:
                if self.graphs is not None:
                    self.graphs.close()
                self.delegate.close()

    def check_open(self) -> None:
        """Raises `ClosedError`, `ForkedProcessError`."""
        if self.closed:
            raise ClosedError(f"session of {self.model.source}")
        self.delegate.context  # noqa: B018  # in a forked child it raises, before any lock is tried

    def check_tensor(self, tensor: DeviceTensor, what: str) -> None:
        """See `InferenceSession.check_tensor`."""
        if not isinstance(tensor, DeviceTensor):
            raise TypeError(f"{what}: expected a DeviceTensor, got {type(tensor).__name__}")
        if tensor.closed:
            raise InvalidInputError(f"{what}: the device tensor is closed")
        if tensor.context_key is not self.delegate.context:
            raise InvalidInputError(
                f"{what}: the device tensor lies on another context; make it with this session's device_tensor(), "
                "or give both sessions the same token and group"
            )

    # ---- planning

    def inputs_of(self, feeds: Mapping[str, Feed]) -> dict[str, Any]:
        """A run's inputs in the model's order. Raises as `InferenceSession.run`."""
        self.check_open()
        if not isinstance(feeds, (dict, Mapping)):  # dict first: Mapping takes longer to ask
            raise no_dict("feeds", feeds, "arrays")
        values: dict[str, Any] = {}
        for name, info in self.inputs.items():
            value: Any = feeds.get(name)
            if value is None:
                raise wrong_names(self.inputs, feeds)
            if isinstance(value, DeviceTensor):
                self.check_tensor(value, f"input {name!r}")
            elif not isinstance(value, np.ndarray) and info.elem_type:
                value = np.asarray(value)  # a list or a scalar
            values[name] = value
        if len(feeds) != len(values):
            raise wrong_names(self.inputs, feeds)
        return values

    def plan_static(self) -> None:
        """Plan for the only signature there is, where no shape is dynamic. Raises `InvalidModelError` where a node breaks its
        operator's specification.
        """
        try:
            self.graph.plan_static(self.inputs.values())
        except InvalidInputError as error:
            raise InvalidModelError(f"{self.model.source}: {error}") from None

    def plan_shapes(self, shapes: Mapping[str, Sequence[int]]) -> Use:
        """The executable for input shapes, in use. Raises `InvalidInputError` where a dynamic input is not named."""
        if not isinstance(shapes, Mapping):
            raise no_dict("shapes", shapes, "shapes")
        feeds = {}
        for name, info in self.inputs.items():
            shape = shapes.get(name, info.shape if info.is_static else None)
            if shape is None:
                raise InvalidInputError(f"plan: no shape for the dynamic input {name!r}")
            dtype = dtypes.from_onnx(info.elem_type)
            feeds[name] = np.zeros(tuple(int(d) for d in shape), dtype.numpy if dtype else np.float32)  # type: ignore[arg-type]
        return self.graph.use(self.inputs_of(feeds))

    # ---- results

    def targets(
        self, inputs: Mapping[str, Feed], outputs: Mapping[str, DeviceTensor | str]
    ) -> dict[str, DeviceTensor | None]:
        """The outputs that are to lie on the device. Two names never share memory that a run writes."""
        targets: dict[str, DeviceTensor | None] = {}
        taken = {id(t): f"input {n!r}" for n, t in inputs.items() if isinstance(t, DeviceTensor)}
        for name, target in outputs.items():
            if isinstance(target, DeviceTensor):
                self.check_tensor(target, f"output {name!r}")
                other = taken.setdefault(id(target), f"output {name!r}")
                if other != f"output {name!r}":
                    raise InvalidInputError(f"output {name!r}: its device tensor is also bound to {other}")
                targets[name] = target
            elif target == "gpu":
                targets[name] = None
        return targets

    def result(self, value: Any, name: str) -> Any:
        """A value of a run as the caller's own array."""
        return own_array(value, name in self.inputs)

    def bound_result(self, value: Any, name: str, target: DeviceTensor | str) -> Any:
        """A result at the binding's target. Values that no island wrote there (constants, inputs, a CPU node's) are copied."""
        bound = target if isinstance(target, DeviceTensor) else None
        if target == "cpu" or (bound is None and not isinstance(value, (np.ndarray, DeviceTensor))):
            return self.result(value, name)
        return own_tensor(self.delegate, name, value, bound, name in self.inputs)
