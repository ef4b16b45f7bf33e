"""The VGF delegate in a session: whether it is used, and its islands at run time."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.context import SharedGpuContext
from gpu_shared.errors import DeviceLostError, GpuError, OutOfDeviceMemoryError, OutOfHostMemoryError
from vkep.device.datagraph.context import graph_source, why_no_graphs
from vkep.device.tensor import DeviceTensor, on_host
from vkep.errors import VkepError
from vkep.graph.model import Node
from vkep.ir.program import VgfStep
from vkep.placement.policy import Policy
from vkep.session.execution.submit_batch import Staged
from vkep.session.options import SessionOptions

if TYPE_CHECKING:
    from gpu_shared.compile_spec import SyncMode
    from vkep.device.datagraph.delegate import GraphTensor, VgfDelegate
    from vkep.device.delegate import VulkanDelegate
    from vkep.tosa.lower import TosaPort

logger = logging.getLogger("vkep.session")


class GraphRefused(VkepError):
    """The converter or the driver refuses an island: its nodes go to the other delegate."""

    def __init__(self, nodes: tuple[Node, ...], reason: str) -> None:
        super().__init__(reason)
        self.nodes, self.reason = nodes, reason


def session_policy(options: SessionOptions, context: SharedGpuContext) -> Policy:
    """The policy of a session, with the reason where the VGF delegate is not used."""
    reason = why_no_graphs(context)
    if not reason:
        from vkep.vgf.convert import ConvertError, converter

        try:
            converter()
        except ConvertError as error:
            reason = str(error)
    if reason and options.prefer == "vgf_first":
        logger.warning("prefer='vgf_first', but the VGF delegate takes no part: %s", reason)
    return Policy(
        prefer=options.prefer,
        min_partition_size=options.min_partition_size,
        graphs="" if reason else graph_source(context),
        why_not=reason,
        check_data=options.check_data,
    )


def vgf_delegate(memory: VulkanDelegate, sync_mode: SyncMode | str | None) -> VgfDelegate:
    """The VGF delegate of a session whose policy uses it. Imported here, since most sessions do not need it."""
    from vkep.device.datagraph.delegate import VgfDelegate

    return VgfDelegate(memory, sync_mode=sync_mode)


class VgfExecutor:
    """A data graph of a program: converted, compiled by the driver, and run on the tensors of a buffer set."""

    def __init__(self, step: VgfStep, delegate: VgfDelegate) -> None:
        """Raises `GraphRefused` where the converter or the driver refuses the graph."""
        from vkep.device.datagraph.runner import VgfRunner
        from vkep.device.datagraph.weights import SharedWeights
        from vkep.vgf import ConvertError, InvalidVgfError, decode, mlir_to_vgf

        self.graph, self.nodes = step.graph, step.nodes
        self.inputs = tuple(p.name for p in step.graph.inputs)
        self.outputs = tuple(p.name for p in step.graph.outputs)
        self._memory = delegate.memory
        self.vgf_bytes = self.constant_bytes = 0
        self._weights = SharedWeights(delegate.memory, step.graph.weights)
        self.shared_bytes = self._weights.nbytes
        try:
            data = mlir_to_vgf(step.graph.mlir)
            vgf = decode(data)
            self.vgf_bytes, self.constant_bytes = len(data), sum(len(c.data) for c in vgf.constants)
            self.runner = VgfRunner(delegate, vgf)
        except BaseException as error:
            self._weights.close()
            fatal = isinstance(error, (DeviceLostError, OutOfDeviceMemoryError, OutOfHostMemoryError))
            if fatal or not isinstance(error, (ConvertError, InvalidVgfError, GpuError)):
                raise
            raise GraphRefused(step.nodes, f"its partition was refused: {error}") from error

    def run(self, values: dict[str, Any], targets: Mapping[str, Any]) -> None:
        """Submit the graph without waiting. ``targets`` has the program's shared tensors and the caller's bound
        ones."""
        self.runner.submit(*self._bind(values, targets))

    @property
    def title(self) -> str:
        """The delegate and the operators of its nodes, for profiles."""
        return "vgf: " + ", ".join(node.op_type for node in self.nodes)

    def stage(self, values: dict[str, Any], targets: Mapping[str, Any], locks: ExitStack, held: ExitStack) -> Staged:
        """See `vkep.session.execution.submit_batch.Region`."""
        recorded = locks.enter_context(self.runner.staged(*self._bind(values, targets)))
        return Staged(self.runner.lease, [recorded.commands], recorded.submitted)

    def _bind(self, values: dict[str, Any], targets: Mapping[str, Any]) -> tuple[list[GraphTensor], list[DeviceTensor]]:
        inputs: list[GraphTensor] = [self._input(port, values[port.name], targets) for port in self.graph.inputs]
        outputs = [targets.get(port.name) or self._new(port) for port in self.graph.outputs]
        values.update(zip(self.outputs, outputs, strict=True))
        return [*inputs, *self._weights.tensors], outputs

    def _input(self, port: TosaPort, value: Any, targets: Mapping[str, Any]) -> DeviceTensor:
        if isinstance(value, DeviceTensor) and not value.capacity:
            return value
        tensor = targets.get(port.name) or self._new(port)
        tensor.write(np.asarray(on_host(value)))
        return tensor

    def _new(self, port: TosaPort) -> DeviceTensor:
        return DeviceTensor(self._memory, port.dtype, port.shape)

    def close(self) -> None:
        """Free the pipelines and the shared weights, once the GPU has finished."""
        self.runner.close()
        self._weights.close()
