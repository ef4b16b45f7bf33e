"""The part of `SessionOptions` for programs written for ONNX Runtime: its attributes, and the names of providers."""

from __future__ import annotations

import difflib
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

logger = logging.getLogger("vkep.session")

VULKAN, CPU = "VulkanExecutionProvider", "CPUExecutionProvider"
#: a session entry with which `vkep.ort.programs` leaves the session's providers unchanged
NOT_REPLACED = "vkep.keep_providers"
_PREFIX = "ep.vulkanexecutionprovider."
#: keyword arguments of ``onnxruntime.InferenceSession`` about its own optimizer, configuration and repeated runs
WITHOUT_EFFECT = ("enable_fallback", "disabled_optimizers", "read_config_from_model")
_THEIR_PREFIX = "onnxruntime_profile_"  #: onnxruntime's default of ``profile_file_prefix``


class GraphOptimizationLevel(IntEnum):
    """Accepted without an effect: vkep always fuses what it can."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionOrder(IntEnum):
    """Accepted without an effect: a plan's order is chosen for its memory."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class ExecutionMode(IntEnum):
    """Accepted without an effect: independent dispatches always overlap."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class OrtSessionOptions:
    """Attributes of ``onnxruntime.SessionOptions`` without an effect here. Messages go through the standard library's
    logging; set their level there."""

    free_dimensions: Mapping[str, int]
    profile_file_prefix: str
    initializers: Mapping[str, Any]
    external_files: Mapping[str, bytes]

    graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode = ExecutionMode.ORT_SEQUENTIAL
    execution_order = ExecutionOrder.DEFAULT
    intra_op_num_threads = 0
    inter_op_num_threads = 0
    enable_cpu_mem_arena = True
    enable_mem_pattern = True
    enable_mem_reuse = True
    use_deterministic_compute = False
    use_per_session_threads = True
    log_severity_level = -1
    log_verbosity_level = 0
    logid = ""
    optimized_model_filepath = ""

    if not TYPE_CHECKING:  # type checkers see the attributes that there are

        def __setattr__(self, name: str, value: Any) -> None:
            if not name.startswith("_") and not hasattr(type(self), name) and name not in _fields(self):
                known = [*_fields(self), *(n for n in vars(OrtSessionOptions) if not n.startswith("_"))]
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise AttributeError(f"SessionOptions has no {name!r}{hint}")
            if name == "optimized_model_filepath" and value:
                raise NotImplementedError(
                    "optimized_model_filepath: vkep writes no model; `vkep explain` shows what it runs"
                )
            object.__setattr__(self, name, value)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Set a symbolic dimension's size (``free_dimensions``)."""
        self.free_dimensions = {**self.free_dimensions, name: size}

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Set the size of the axes with a denotation (``free_dimensions``)."""
        self.add_free_dimension_override_by_name(denotation, size)

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """`add_initializer` for each name. Raises ``ValueError`` where there are not as many values."""
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(
        self, file_names: Sequence[str], buffers: Sequence[bytes], lengths: Sequence[int]
    ) -> None:
        """Give the content of external data files (``external_files``): the first ``lengths[k]`` bytes of ``buffers[k]``. Raises
        ``ValueError`` where there are not as many of each, or a buffer is shorter."""
        for name, buffer, length in zip(file_names, buffers, lengths, strict=True):
            if len(buffer) < length:
                raise ValueError(f"{name!r}: length is {length}, and the buffer has {len(buffer)} bytes")
            self.external_files = {**self.external_files, name: bytes(buffer[:length])}

    def add_provider(self, name: str, options: Mapping[str, Any]) -> None:
        """Set the options of ``VulkanExecutionProvider``; another provider leads to a warning. Raises as ``providers=``."""
        for option, value in provider_overrides([(name, options)]).items():
            setattr(self, option, value)
        object.__setattr__(self, "_providers", [*self.__dict__.get("_providers", ()), name])

    def add_provider_for_devices(self, devices: Sequence[Any], options: Mapping[str, Any]) -> None:
        """`add_provider` for the first of ``devices``, which `get_ep_devices` lists. Raises ``ValueError`` for none."""
        if not devices:
            raise ValueError("add_provider_for_devices: no devices; get_ep_devices() lists them")
        self.add_provider(devices[0].ep_name, {**devices[0].ep_options, **options})

    def has_providers(self) -> bool:
        """Whether `add_provider` or `add_provider_for_devices` was called."""
        return bool(self.__dict__.get("_providers"))

    def set_provider_selection_policy(self, policy: int) -> None:
        """Accepted without an effect: ``device`` or `add_provider_for_devices` chooses a device; by default it is the first
        usable one in the order discrete, integrated, virtual, CPU."""

    def add_initializer(self, name: str, value: Any) -> None:
        """Replace an initializer (``initializers``) by an array, or an ``OrtValue`` of vkep's or ONNX Runtime's."""
        self.initializers = {**self.initializers, name: value.numpy() if hasattr(value, "numpy") else value}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set an option by ``ep.vulkanexecutionprovider.<option>``; other entries are kept without an effect. Raises
        ``ValueError`` for an unknown option, ``NotImplementedError`` for a request to compile a model."""
        if key.startswith("ep.context_"):
            raise NotImplementedError(f"session entry {key!r}: compiled models are made by ONNX Runtime with vkep.ort")
        if key.startswith(_PREFIX):
            for name, option in session_overrides({key.removeprefix(_PREFIX): value}).items():
                setattr(self, name, option)
        entries = self.__dict__.setdefault("_entries", {})
        entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """An entry's value. Raises ``RuntimeError``, as ONNX Runtime does, where there is none."""
        entries: Mapping[str, str] = self.__dict__.get("_entries", {})
        if key not in entries:
            raise RuntimeError(f"SessionOptions does not have configuration with key: {key}; it has {list(entries)}")
        return entries[key]

    def register_custom_ops_library(self, path: str) -> None:
        """Raises ``NotImplementedError``: custom operators are Python functions in vkep."""
        raise NotImplementedError(
            f"register_custom_ops_library({path!r}): such a library has kernels for ONNX Runtime's memory; "
            "docs/adding-an-operator.md says how vkep takes an operator of your own"
        )


def is_onnxruntimes(options: object, attribute: str) -> bool:
    """Whether an object is of that class of onnxruntime's own options that has the attribute."""
    return type(options).__module__.startswith("onnxruntime.") and hasattr(options, attribute)


_Options = TypeVar("_Options", bound=OrtSessionOptions)


def of_onnxruntime(theirs: Any, ours: _Options) -> _Options:
    """``ours`` with the attributes and the provider's entries of an ``onnxruntime.SessionOptions``. Free dimensions,
    replaced initializers, libraries and providers cannot be read there. Raises as setting them in ``ours``."""
    plain = (
        name for name, value in vars(OrtSessionOptions).items() if not name.startswith("_") and not callable(value)
    )
    for name in (*plain, "enable_profiling"):
        kind = type(getattr(ours, name))
        if hasattr(theirs, name):  # else it is newer than theirs
            value = getattr(theirs, name)
            setattr(ours, name, kind(int(value) if issubclass(kind, int) else value))
    if theirs.profile_file_prefix != _THEIR_PREFIX:
        ours.profile_file_prefix = theirs.profile_file_prefix
    from vkep.arena.config import ArenaConfig  # imports the arena, which is not needed until the device is open

    entries = [_PREFIX + name for name in (*PROVIDER_OPTIONS, *_ONLY_THERE, *ArenaConfig().to_options())]
    for key in (*entries, "ep.context_enable"):
        text = None
        with suppress(RuntimeError):  # not set
            text = theirs.get_session_config_entry(key)
        if text is not None and (key in entries or text == "1"):
            ours.add_session_config_entry(key, text)
    if theirs.has_providers():
        logger.warning(
            "the providers of an onnxruntime.SessionOptions cannot be read: pass them to the session, or use vkep.SessionOptions"
        )
    return ours


def _fields(options: object) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(type(options), "__dataclass_fields__", {})
    return fields


# ---- providers


def provider_overrides(providers: object, provider_options: object = None) -> dict[str, Any]:
    """``providers=`` of a session as overrides of `SessionOptions`. Warns of a provider other than vkep's.

    Raises ``TypeError`` and ``ValueError`` for arguments that ONNX Runtime would not accept.
    """
    if providers is None:
        if provider_options:
            raise ValueError("provider_options without providers")
        return {}
    pairs = _pairs(providers, provider_options)
    others = [name for name, _ in pairs if name not in (VULKAN, CPU)]
    if others or not any(name == VULKAN for name, _ in pairs):
        warnings.warn(
            f"providers are {[name for name, _ in pairs]}; this is vkep, whose providers are {[VULKAN, CPU]}: the model runs on "
            f"{VULKAN}" + (f", and the options of {', '.join(others)} are left out" if others else ""),
            UserWarning,
            stacklevel=3,
        )
    options: dict[str, Any] = {}
    for name, given in pairs:
        if name == VULKAN:
            options |= session_overrides({key: _text(value) for key, value in given.items()})
    return options


def _pairs(providers: object, provider_options: object) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise TypeError(f"providers is {providers!r}, expected a list of names, or of (name, options)")
    pairs: list[tuple[str, Mapping[str, Any]]] = []
    for entry in providers:
        name, options = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, {})
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise TypeError(f"providers has {entry!r}, expected a name, or (name, options)")
        pairs.append((name, options))
    if provider_options is not None:
        if not isinstance(provider_options, Sequence) or len(provider_options) != len(pairs):
            raise ValueError(
                f"provider_options is {provider_options!r}, expected a dict for each of {len(pairs)} providers"
            )
        pairs = [(name, {**own, **(more or {})}) for (name, own), more in zip(pairs, provider_options, strict=True)]
    return pairs


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


#: options of a session that provider options may set, and how their texts are parsed
_TRUTH = {"1": True, "true": True, "0": False, "false": False}
PROVIDER_OPTIONS: dict[str, Any] = {
    "device": lambda text: int(text) if text.isdecimal() else text,
    "token": str,
    "group_id": int,
    "context_mode": str,
    "sync_mode": str,
    "prefer": str,
    "min_partition_size": int,
    "fallback": str,
    "plan_cache_size": int,
    "concurrency": int,
    "check_data": lambda text: _TRUTH[text.strip().lower()],
}
#: options of the provider in ONNX Runtime that a plain session does not need
_ONLY_THERE = ("io", "kernels", "prefer_nhwc", "enable_graph_capture")


def session_overrides(options: Mapping[str, str]) -> dict[str, Any]:
    """Provider options as overrides of `SessionOptions`. Raises ``ValueError`` for one that is unknown or does not
    parse."""
    from vkep.session.ort_interface.foreign_options import translated

    made: dict[str, Any] = {}
    for name, text in translated(options).items():
        if name.startswith("arena."):
            made.setdefault("arena", {})[name] = text
        elif name in PROVIDER_OPTIONS:
            made[name] = _read(name, PROVIDER_OPTIONS[name], text)
        elif name in _ONLY_THERE:
            logger.info("option %s=%s is for ONNX Runtime's sessions: left out", name, text)
        else:
            known = [*PROVIDER_OPTIONS, *_ONLY_THERE]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"unknown option {name!r} of {VULKAN}{hint}; known: {', '.join(known)} and arena.*")
    return made


def _read(name: str, read: Any, text: str) -> Any:
    try:
        return read(text)
    except (ValueError, KeyError):
        expected = "a whole number" if read is int else "1 or 0"
        raise ValueError(f"option {name!r} is {text!r}, expected {expected}") from None
