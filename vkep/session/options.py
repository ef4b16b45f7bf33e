"""The options of a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypedDict

from gpu_shared.compile_spec import SharedGpuCompileSpec, make_shared_gpu_compile_specs, parse_shared_gpu_compile_spec
from vkep.own_files import own_folder
from vkep.placement.policy import PREFERENCES
from vkep.session.ort_interface.options import OrtSessionOptions, is_onnxruntimes, of_onnxruntime

if TYPE_CHECKING:
    import numpy as np

    from vkep.arena.config import ArenaConfig

#: ``progress(phase, done, total, what)``: phases "shaders" (pipelines) and "weights" (bytes)
Progress = Callable[[str, int, int, str], None]
_FALLBACKS = ("cpu", "error")
_UNKNOWN_ATTRIBUTES = ("warn", "error")
_MOST_OVERLAP = 1024  #: runs, each of which takes memory and may take a thread
#: types by option, and how an error names them
_KINDS: dict[str, tuple[Any, str]] = {
    "arena": (Mapping, "a dict of settings"),
    "cache_dir": ((str, os.PathLike, NoneType), "a path or None"),
    "save_plans": (bool, "True or False"),
    "run_ahead": (bool, "True or False"),
    "check_data": (bool, "True or False"),
    "tuned": ((Mapping, NoneType), "a dict from problems to tilings, or None"),
    "base_dir": ((str, os.PathLike, NoneType), "a path or None"),
    "validation": ((bool, NoneType), "True, False or None"),
    "initializers": (Mapping, "a dict from names to arrays"),
    "external_files": (Mapping, "a dict from locations to bytes"),
    "progress": ((Callable, NoneType), "a function or None"),
    "enable_profiling": (bool, "True or False"),
    "profile_file_prefix": (str, "a path's beginning"),
    "free_dimensions": (Mapping, "a dict from names to sizes"),
}


@dataclass
class SessionOptions(OrtSessionOptions):
    """Options of an `InferenceSession`.

    device: index, UUID or part of the name of a device; None: ``VKEP_DEVICE`` or the best available one. token,
    group_id, context_mode, sync_mode: which shared context the session uses, and how (see
        `gpu_shared.compile_spec`). By default all sessions of a process on one device share its context;
        ``context_mode="disabled"`` gives the session a context of its own.
    prefer: which delegate is offered a node first: "auto", "vgf_first" or "vulkan_first" (`vkep.placement.policy`).
        The VGF delegate takes part where the context runs data graphs. A context that this session creates does so where
        the driver has them; "vgf_first" and "vulkan_first" ask for the emulation layers elsewhere.
    min_partition_size: nodes of smaller partitions go to the other delegate, and to the CPU last. arena: settings of
        the device arena (`vkep.arena.config.ArenaConfig`; those of the first session on a context apply), by name or as
        ``arena.<name>``.
    fallback: "cpu" runs nodes that Vulkan declines on the CPU, and the report names them; "error" refuses such a model.
        cache_dir: folder for compiled shaders and plans instead of the user's cache folder. save_plans: save the plans
        of a model file to disk, so that the next process need not plan (`vkep.session.planning.saved`). plan_cache_size: how
        many plans are kept: this many for one signature each, and as many for many sizes (dynamic shapes). concurrency:
        runs of one session that may hold memory at the same time. run_ahead: a run whose outputs are all bound to device
        tensors does not wait for the one before where ``concurrency`` allows another; it takes temporary memory of its
        own. tuned: tilings of problems instead of those that
        ``vkep tune`` measured on the device (`vkep.device.tuning`); with ``{}`` the kernels' own estimates decide.
    base_dir: folder of the external data, for a model given as bytes. validation: enable Vulkan's validation layers
    when this session creates the context. check_data: raise `InvalidInputError` where an index, a length or an integer
    divisor in a run's data is outside what the
        operator's specification allows. False: an index is clamped, and other results are undefined.
    initializers: arrays to use in place of the model's initializers, by name; their external data are not read.
    external_files: content of external data files by the location that the model gives, in place of files.
    unknown_attributes: "warn": attributes that no engine knows are ignored with a warning where ONNX Runtime does so
        (`vkep.graph.unchecked`); "error": such a model is refused. On other operators they are an error always.
    max_nodes: maximum number of nodes of a model after its functions are inlined; a small file may expand to any number.
    max_run_bytes: maximum device memory of each part of a run: its weights, temporary buffers, inputs and outputs together.
        More raise `OutOfDeviceMemoryError` before memory is allocated. None: the size of all memory heaps of the device.
    max_memory: maximum device memory (bytes) of all sessions on the context together, while this one is open; the smallest of all
        sessions' applies. Where an allocation would exceed it, sessions that do not run give their temporary memory back, then
        their weights, and upload these again for their next run. What one run needs has to fit: else `OutOfDeviceMemoryError` or
        `ArenaOutOfMemory` says how much that is. Weights of sessions that were opened without a limit stay. None: no limit.
    progress: called while shaders are compiled and weights uploaded.
    enable_profiling, profile_file_prefix: see `InferenceSession.end_profiling`.
    free_dimensions: sizes of the model's symbolic dimensions, by name or denotation (such as DATA_BATCH); with all of
        them the model is planned when it is opened.

    Attributes of ``onnxruntime.SessionOptions`` without an effect here (threads, optimization level ...) may be set and
    are kept; one that neither has raises ``AttributeError``.
    """

    device: int | str | None = None
    token: str | None = None
    group_id: int = 0
    context_mode: str = "lookup_or_create"
    sync_mode: str = "timeline"
    prefer: str = "auto"
    min_partition_size: int = 1
    arena: Mapping[str, Any] = field(default_factory=dict)
    fallback: str = "cpu"
    cache_dir: str | os.PathLike[str] | None = None
    save_plans: bool = True
    plan_cache_size: int = 16
    concurrency: int = 2
    run_ahead: bool = False
    tuned: Mapping[str, tuple[int, ...]] | None = None
    base_dir: str | os.PathLike[str] | None = None
    validation: bool | None = None
    check_data: bool = True
    initializers: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    external_files: Mapping[str, bytes] = field(default_factory=dict)
    unknown_attributes: str = "warn"
    max_nodes: int = 250_000
    max_run_bytes: int | None = None
    max_memory: int | None = None
    progress: Progress | None = None
    enable_profiling: bool = False
    profile_file_prefix: str = "vkep_profile"
    free_dimensions: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.fallback not in _FALLBACKS:
            raise ValueError(f"fallback is {self.fallback!r}, expected one of {_FALLBACKS}")
        if self.prefer not in PREFERENCES:
            raise ValueError(f"prefer is {self.prefer!r}, expected one of {PREFERENCES}")
        if self.unknown_attributes not in _UNKNOWN_ATTRIBUTES:
            raise ValueError(
                f"unknown_attributes is {self.unknown_attributes!r}, expected one of {_UNKNOWN_ATTRIBUTES}"
            )
        for name in ("plan_cache_size", "concurrency", "min_partition_size", "max_nodes"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, expected an integer of at least 1")
        if self.concurrency > _MOST_OVERLAP:
            raise ValueError(f"concurrency is {self.concurrency}, expected at most {_MOST_OVERLAP}")
        for name in ("max_run_bytes", "max_memory"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} is {value!r}, expected an integer of at least 1, or None")
        for name, (kinds, expected) in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds):
                raise TypeError(f"{name} is {value!r}, expected {expected}")
        if self.cache_dir == "":
            raise ValueError("cache_dir is empty, expected the path of a folder, or None for the user's cache folder")
        for problem, tiling in (self.tuned or {}).items():
            if not isinstance(tiling, tuple) or not all(isinstance(size, int) for size in tiling):
                raise TypeError(f"tuned[{problem!r}] is {tiling!r}, expected a tuple of integers")
        for symbol, size in self.free_dimensions.items():
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"free_dimensions[{symbol!r}] is {size!r}, expected a size of 0 or more")

    @property
    def wants_graphs(self) -> bool:
        """Whether a context created for this session should use the emulation layers for data graphs where the driver
        has none."""
        return self.prefer != "auto"

    def compile_spec(self) -> SharedGpuCompileSpec:
        """The shared-context part, parsed. Raises `ValueError` or `TypeError` for a bad token, mode or group."""
        token = self.token
        if token is None:
            token = "default" if self.device is None else f"device:{self.device}"
            if self.wants_graphs:  # a separate context: layers are enabled when a context is created
                token += ":vgf"
        return parse_shared_gpu_compile_spec(
            make_shared_gpu_compile_specs(
                token=token,
                mode=self.context_mode,
                sync_mode=self.sync_mode,
                group_id=self.group_id,
                min_partition_size=self.min_partition_size,
                prefer=self.prefer,
            )
        )

    def arena_config(self) -> ArenaConfig | None:
        """The arena's configuration; None where no option is given. Raises as `ArenaConfig.from_options`."""
        from vkep.arena.config import ArenaConfig  # imports the arena, which is not needed until the device is open

        return ArenaConfig.from_options(self.arena, strict=True) if self.arena else None


class SessionFields(TypedDict, total=False):
    """The fields of `SessionOptions`, as keyword arguments."""

    device: int | str | None
    token: str | None
    group_id: int
    context_mode: str
    sync_mode: str
    prefer: str
    min_partition_size: int
    arena: Mapping[str, Any]
    fallback: str
    cache_dir: str | os.PathLike[str] | None
    save_plans: bool
    plan_cache_size: int
    concurrency: int
    run_ahead: bool
    tuned: Mapping[str, tuple[int, ...]] | None
    base_dir: str | os.PathLike[str] | None
    validation: bool | None
    check_data: bool
    initializers: Mapping[str, np.ndarray[Any, Any]]
    external_files: Mapping[str, bytes]
    unknown_attributes: str
    max_nodes: int
    max_run_bytes: int | None
    max_memory: int | None
    progress: Progress | None
    enable_profiling: bool
    profile_file_prefix: str
    free_dimensions: Mapping[str, int]


class SessionKeywords(SessionFields, total=False):
    """Keyword arguments of `InferenceSession`: `SessionFields`, and those of onnxruntime's class that have no effect."""

    enable_fallback: int
    disabled_optimizers: Collection[str] | None
    read_config_from_model: int


def merged_options(options: Any, overrides: Mapping[str, object]) -> SessionOptions:
    """A session's options: ``options`` (vkep's, onnxruntime's or None) with ``overrides``. Raises `TypeError` for an
    unknown name, and as `SessionOptions`."""
    if is_onnxruntimes(options, "execution_mode"):
        options = of_onnxruntime(options, SessionOptions())
    if options is not None and not isinstance(options, SessionOptions):
        raise TypeError(
            f"sess_options is of {type(options)}, expected vkep.SessionOptions or onnxruntime.SessionOptions"
        )
    options = options or SessionOptions()
    known = SessionOptions.__dataclass_fields__
    for name in overrides:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise TypeError(f"unknown option {name!r} of InferenceSession{hint}; known: context, {', '.join(known)}")
    fields: dict[str, Any] = {name: overrides.get(name, getattr(options, name)) for name in known}
    merged = SessionOptions(**fields)
    vars(merged).update({name: value for name, value in vars(options).items() if name not in known})
    return merged


def spirv_folder(options: SessionOptions) -> Path | None:
    """The folder of compiled shaders; None: the user's cache folder."""
    return None if options.cache_dir is None else own_folder(Path(options.cache_dir), "spirv")


def plans_folder(options: SessionOptions) -> Path | None:
    """The folder of plans; None: the user's cache folder."""
    return None if options.cache_dir is None else own_folder(Path(options.cache_dir), "plans")
