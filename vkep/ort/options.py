"""Options of the execution provider, from ONNX Runtime's configuration entries."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from gpu_shared.compile_spec import ContextMode, Prefer, SyncMode
from gpu_shared.instance import DEVICE_VARIABLE, list_devices, select_device
from vkep.arena.config import KEY_PREFIX, ArenaConfig, factory_prefix, session_prefix
from vkep.ort.names import EP_NAME
from vkep.session.options import SessionOptions
from vkep.session.ort_interface.foreign_options import translated

SESSION_PREFIX = session_prefix(EP_NAME)
FACTORY_PREFIX = factory_prefix(EP_NAME)


@dataclass(frozen=True)
class EpOptions:
    """The provider options of a session. Values are texts in ONNX Runtime.

    device: index (as `vkep.devices` counts), UUID or part of the name of one of the devices that the session was given.
    token, group_id, context_mode, sync_mode: which shared context, as `vkep.SessionOptions`. Without a token, sessions
        on the default device share its default context with plain vkep sessions, and others one for each device.
    prefer, min_partition_size: as `vkep.SessionOptions`; what both delegates leave, and an island with fewer nodes, stays
        with the next provider. Without a token, a session that asks for VGF shares the context of plain sessions that do.
    fallback: "cpu": nodes that Vulkan declines go to the next provider, and a node that cannot run at a shape which is
        known only in a run is computed on the CPU inside the provider (and logged); "error": both are refused.
    io: "device": the inputs and outputs of an island are in device memory; "host": in host memory. prefer_nhwc: whether
        ONNX Runtime converts nodes to channels last (`vkep.placement.channels_last`). kernels: "compile": nodes on
        Vulkan are fused; "registry": each stays a node of ONNX Runtime, run by a kernel of the registry (a node without
        a kernel is fused individually).
    plan_cache_size, concurrency, check_data, max_run_bytes, max_memory: as `vkep.SessionOptions`.
    enable_graph_capture: accepted and without effect: each run submits recorded commands, and a replay by ONNX Runtime
        would not see which buffers are bound to the run.
    arena: the ``arena.*`` options, as texts.
    """

    device: str | None = None
    token: str | None = None
    group_id: int = 0
    context_mode: str = "lookup_or_create"
    sync_mode: str = "timeline"
    prefer: str = "auto"
    min_partition_size: int = 1
    fallback: str = "cpu"
    io: str = "device"
    kernels: str = "compile"
    prefer_nhwc: bool = False
    plan_cache_size: int = 16
    concurrency: int = 2
    check_data: bool = True
    max_run_bytes: int | None = None
    max_memory: int | None = None
    enable_graph_capture: bool = False
    arena: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_entries(cls, entries: Mapping[str, str], environment: Mapping[str, str] | None = None) -> EpOptions:
        """Read a session's configuration entries (``ep.vulkanexecutionprovider.<option>``, also by CUDA's names) and
        the environment's (``ep_factory.VulkanExecutionProvider.arena.*``), which the session's override. Other
        providers' entries are ignored.

        Raises:
            ValueError: an unknown option, a prefix in another case, or a value that does not parse; the text names the
                option.
        """
        arena = arena_options(environment or {})
        known = {f.name: f for f in fields(cls) if f.name != "arena"}
        values: dict[str, Any] = {}
        given: dict[str, str] = {}
        for key, text in entries.items():
            if key.startswith(SESSION_PREFIX):
                given[key[len(SESSION_PREFIX) :]] = text
            elif key.lower().startswith(SESSION_PREFIX):
                raise ValueError(f"session entry {key!r}: the prefix is written in lower case, {SESSION_PREFIX!r}")
        for name, text in translated(given).items():
            if name.startswith(KEY_PREFIX):
                arena[name] = text
            elif name in known:
                values[name] = _parse(name, text)
            else:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise ValueError(
                    f"unknown option {name!r} of {EP_NAME}{hint}; known: {', '.join(known)} and {KEY_PREFIX}*"
                )
        ArenaConfig.from_options(arena)  # refused here, with the option's name, rather than at the first allocation
        return cls(**values, arena=arena)

    def changed(self, values: Mapping[str, str]) -> EpOptions:
        """A copy with options that may change while a session runs. ONNX Runtime's own (``ep.dynamic.workload_type``) are hints,
        and ignored. Raises `ValueError` for others."""
        values = {key: text for key, text in values.items() if not key.startswith("ep.dynamic.")}
        wrong = [key for key in values if key not in DYNAMIC]
        if wrong:
            raise ValueError(
                f"option {wrong[0]!r} cannot change while a session lives; these can: {', '.join(DYNAMIC)}"
            )
        return replace(self, **{key: _parse(key, text) for key, text in values.items()})


#: the options that `SetDynamicOptions` accepts
DYNAMIC = ("fallback",)


def arena_options(environment: Mapping[str, str]) -> dict[str, str]:
    """The ``arena.*`` options of ONNX Runtime's environment, without the provider's prefix."""
    start = FACTORY_PREFIX + KEY_PREFIX
    return {k[len(FACTORY_PREFIX) :]: v for k, v in environment.items() if k.startswith(start)}


_CHOICES: dict[str, tuple[str, ...]] = {
    "context_mode": tuple(m.value for m in ContextMode),
    "sync_mode": tuple(m.value for m in SyncMode),
    "prefer": tuple(p.value for p in Prefer),
    "fallback": ("cpu", "error"),
    "io": ("device", "host"),
    "kernels": ("compile", "registry"),
}
_LEAST = {
    "group_id": 0,
    "min_partition_size": 1,
    "plan_cache_size": 1,
    "concurrency": 1,
    "max_run_bytes": 1,
    "max_memory": 1,
}
_TRUTH = {"1": True, "true": True, "0": False, "false": False}


def _parse(name: str, text: str) -> Any:
    if name in _CHOICES:
        if text not in _CHOICES[name]:
            raise ValueError(f"option {name!r} is {text!r}, expected one of {', '.join(_CHOICES[name])}")
        return text
    if name in _LEAST:
        if not text.strip().isdecimal() or int(text) < _LEAST[name]:
            raise ValueError(f"option {name!r} is {text!r}, expected a whole number of at least {_LEAST[name]}")
        return int(text)
    if name in ("token", "device"):
        if not text:
            raise ValueError(f"option {name!r} is empty, expected a name")
        return text
    truth = _TRUTH.get(text.strip().lower())
    if truth is None:
        raise ValueError(f"option {name!r} is {text!r}, expected 1 or 0")
    return truth


def as_texts(options: EpOptions) -> dict[str, str]:
    """The options as provider options, without those that are None."""
    made = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "arena"}
    texts = {k: str(int(v)) if isinstance(v, bool) else str(v) for k, v in made.items() if v is not None}
    return texts | dict(options.arena)


def default_uuid() -> str:
    """The UUID of the device of plain vkep sessions. Raises as `select_device`."""
    return _default_uuid(os.environ.get(DEVICE_VARIABLE))


@functools.cache
def _default_uuid(_selector: str | None) -> str:
    """Listing opens a Vulkan instance; each session and each of its fused nodes asks."""
    return select_device(list_devices()).capabilities.uuid


def session_options(device: DeviceCapabilities, options: EpOptions) -> SessionOptions:
    """The options that select a session's context: on the default device the context of plain vkep sessions."""
    token = options.token
    if token is None:
        token = "default" if default_uuid() == device.uuid else f"device:{device.uuid}"
        if options.prefer != "auto":
            token += ":vgf"
    return SessionOptions(
        device=device.uuid,
        token=token,
        group_id=options.group_id,
        context_mode=options.context_mode,
        sync_mode=options.sync_mode,
        prefer=options.prefer,
        min_partition_size=options.min_partition_size,
        arena=dict(options.arena),
        fallback=options.fallback,
        plan_cache_size=options.plan_cache_size,
        concurrency=options.concurrency,
        check_data=options.check_data,
        max_run_bytes=options.max_run_bytes,
        max_memory=options.max_memory,
    )


def assigns_elsewhere(settings: str) -> bool:
    """Whether an entry ``session.layer_assignment_settings`` (``gpu(a,b);cpu(c)``) names a device other than a GPU."""
    return any(not part.strip().lower().startswith("gpu") for part in settings.split(";") if "(" in part)
