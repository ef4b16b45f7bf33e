"""The options of a program, and the context that its delegates use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_shared.compile_spec import (
    CONTEXT_MODE,
    CONTEXT_TOKEN,
    GROUP_ID,
    KEYS,
    SYNC_MODE,
    ContextMode,
    parse_shared_gpu_compile_spec,
)
from vkep.errors import InvalidPteError
from vkep.files import MEMORY_BYTES
from vkep.session.options import Progress, SessionOptions


@dataclass
class ProgramOptions:
    """Options of `vkep.executorch.Program`.

    token, group_id, context_mode, sync_mode: which shared context the delegates use, and how. None: what their compile
        specs (``gpu_shared_*``) say. Where neither says anything, the delegates of a program share the context that
        `vkep.InferenceSession` uses by default; ``context_mode="disabled"`` gives the program a context of its own.
    device: index, UUID or part of the name of a device; None: ``VKEP_DEVICE`` or the best there is.
    arena, cache_dir, plan_cache_size, validation, check_data, max_run_bytes, progress: as in `vkep.SessionOptions`.
    max_host_bytes: maximum host memory of a method's arenas together, and of each array that an operator outside delegates
        creates (8 bytes are counted for an element). More raise `VkepError` before memory is allocated. None: the
        machine's memory.
    max_instructions: maximum number of instructions in one run of a method with jumps; more raise `VkepError`.
    fallback: "cpu" runs what vkep's kernels decline of a Vulkan delegate on the CPU, and says so in the report; "error"
        refuses such a program.
    """

    device: int | str | None = None
    token: str | None = None
    group_id: int | None = None
    context_mode: str | None = None
    sync_mode: str | None = None
    arena: Mapping[str, Any] = field(default_factory=dict)
    fallback: str = "cpu"
    cache_dir: str | os.PathLike[str] | None = None
    plan_cache_size: int = 16
    validation: bool | None = None
    check_data: bool = True
    max_run_bytes: int | None = None
    max_host_bytes: int | None = None
    max_instructions: int = 10_000_000
    progress: Progress | None = None

    def __post_init__(self) -> None:
        self._session()  # the values that it allows
        if self.max_host_bytes is not None and (not isinstance(self.max_host_bytes, int) or self.max_host_bytes < 1):
            raise ValueError(f"max_host_bytes is {self.max_host_bytes!r}, expected an integer of at least 1, or None")
        if not isinstance(self.max_instructions, int) or self.max_instructions < 1:
            raise ValueError(f"max_instructions is {self.max_instructions!r}, expected an integer of at least 1")
        parse_shared_gpu_compile_spec(None, self._load_options())

    @property
    def host_bytes(self) -> int:
        """``max_host_bytes``, or the machine's memory."""
        return MEMORY_BYTES if self.max_host_bytes is None else self.max_host_bytes

    def _load_options(self) -> dict[str, Any]:
        given: dict[str, Any] = {CONTEXT_TOKEN: self.token, CONTEXT_MODE: self.context_mode, SYNC_MODE: self.sync_mode}
        given[GROUP_ID] = self.group_id
        return {key: value for key, value in given.items() if value is not None}

    def _session(self, **overrides: Any) -> SessionOptions:
        return SessionOptions(
            **{
                "device": self.device,
                "arena": self.arena,
                "fallback": self.fallback,
                "cache_dir": self.cache_dir,
                "plan_cache_size": self.plan_cache_size,
                "concurrency": 1,  # runs of a method come one after the other
                "validation": self.validation,
                "check_data": self.check_data,
                "max_run_bytes": self.max_run_bytes,
                "progress": self.progress,
                **overrides,
            }
        )

    def session_options(self, compile_specs: Sequence[tuple[str, bytes]], graphs: bool, where: str) -> SessionOptions:
        """Convert compile specs and load options into `SessionOptions`. ``graphs``: a context created for the delegate
        must run data graphs.

        Raises `InvalidPteError` for shared compile specs with values that are not allowed.
        """
        try:
            spec = parse_shared_gpu_compile_spec(compile_specs, self._load_options())
        except (TypeError, ValueError) as error:
            raise InvalidPteError(f"{where}: {error}") from error
        prefer = "vgf_first" if graphs else "auto"
        named = self.token is not None or any(key == CONTEXT_TOKEN for key, _ in compile_specs)
        if not spec.enabled:
            said = self.context_mode is not None or any(key in KEYS for key, _ in compile_specs)
            mode = ContextMode.DISABLED.value if said else ContextMode.LOOKUP_OR_CREATE.value
            return self._session(prefer=prefer, context_mode=mode, sync_mode=spec.sync_mode.value)
        return self._session(
            prefer=prefer,
            token=spec.token if named else None,
            group_id=spec.group_id,
            context_mode=spec.mode.value,
            sync_mode=spec.sync_mode.value,
        )
