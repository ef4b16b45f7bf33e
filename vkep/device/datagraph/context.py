"""What a context needs to run data graphs: the driver's own extensions, or the emulation layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpu_shared import arm_abi
from gpu_shared.context import SharedGpuContext
from gpu_shared.data_graph import check_data_graphs
from gpu_shared.device import Selector
from gpu_shared.errors import ContextIncompatibleError, GpuError
from gpu_shared.instance import list_devices, select_device
from gpu_shared.layers import EMULATION_LAYERS, LayersMissing, emulation_layers
from vkep.own_files import process_folder


@dataclass(frozen=True)
class GraphSupport:
    """Where a device's data graphs come from: ``source`` is "driver", "emulation layers" or "none"; for "none",
    ``reason`` says why."""

    source: str
    reason: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)  #: arguments of `SharedGpuContext.create`


def graph_support(device: Selector = None) -> GraphSupport:
    """Return the arguments of `SharedGpuContext.create` for a context on ``device`` that runs data graphs.

    The driver's extensions are used where the device has them, else the emulation layers. Raises `DriverNotFoundError`,
    `DeviceNotFoundError`.
    """
    chosen = select_device(list_devices(), device).capabilities
    if chosen.extensions.issuperset(arm_abi.EXTENSIONS):
        return GraphSupport("driver")
    try:
        layers = emulation_layers(process_folder() / "layers")  # the loader may load whatever is named in the folder
    except (LayersMissing, OSError) as error:
        return GraphSupport(
            "none", f"{chosen.name} has no {', '.join(arm_abi.EXTENSIONS)}, and the layers that emulate them: {error}"
        )
    return GraphSupport(
        "emulation layers", arguments={"extra_instance_layers": layers.names, "layer_paths": [layers.folder]}
    )


def graph_source(context: SharedGpuContext) -> str:
    """Where the data graphs of ``context`` come from: "driver", "emulation layers", or "" where it has none."""
    if why_no_graphs(context):
        return ""
    return "emulation layers" if set(EMULATION_LAYERS) & set(context.instance.layers) else "driver"


def why_no_graphs(context: SharedGpuContext) -> str:
    """Return why ``context`` cannot run data graphs; empty where it can."""
    try:
        check_data_graphs(context.device)
    except ContextIncompatibleError as error:
        return str(error)
    return ""


def create_graph_context(spec: Any = None, *, device: Selector = None, **options: Any) -> SharedGpuContext:
    """Create a context that runs data graphs. Raises `GpuError` with the reason where neither the driver nor the layers
    can."""
    support = graph_support(device)
    if support.source == "none":
        raise GpuError("creating a context for data graphs", hint=support.reason)
    return SharedGpuContext.create(spec, device=device, **support.arguments, **options)
