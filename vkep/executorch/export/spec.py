"""The compile spec of the unified partitioner: the RFC's fields, defaults and meaning. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_shared.compile_spec import (
    DEFAULT_GROUP_ID,
    DEFAULT_MIN_PARTITION_SIZE,
    DEFAULT_TOKEN,
    SharedGpuCompileSpec,
    make_shared_gpu_compile_specs,
    parse_shared_gpu_compile_spec,
)


@dataclass(frozen=True)
class UnifiedGpuCompileSpec:
    """How a program is divided between the delegates, and which GPU context they share at run time.

    ``vgf`` is the ``VgfCompileSpec``; ``vulkan_compile_options`` are those of ``VulkanPartitioner``. The ``shared_*``
    fields, ``min_partition_size`` and ``prefer`` are written to every delegate as ``gpu_shared_*`` compile specs
    (`gpu_shared.compile_spec` documents each value), ``extra_shared_compile_specs`` (objects with ``key`` and
    ``value``, or pairs) after them.

    Raises ``TypeError`` and ``ValueError`` at construction for a value that is not allowed, naming its key.
    """

    vgf: Any
    vulkan_compile_options: dict[str, Any] | None = None
    shared_context_token: str = DEFAULT_TOKEN
    shared_context_mode: str = "lookup_or_create"
    shared_sync_mode: str = "timeline"
    shared_group_id: int = DEFAULT_GROUP_ID
    min_partition_size: int = DEFAULT_MIN_PARTITION_SIZE
    prefer: str = "auto"
    extra_shared_compile_specs: tuple[Any, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if not hasattr(self.vgf, "tosa_spec"):
            raise TypeError(
                f"vgf is {self.vgf!r}, expected a VgfCompileSpec (executorch.backends.arm.vgf), which names the TOSA "
                "profile to lower to"
            )
        if self.vulkan_compile_options is not None and not isinstance(self.vulkan_compile_options, dict):
            raise TypeError(
                f"vulkan_compile_options is {self.vulkan_compile_options!r}, expected a dict of VulkanPartitioner's options"
            )
        self.shared()

    def shared(self) -> SharedGpuCompileSpec:
        """The shared compile specs as the runtime will read them."""
        return parse_shared_gpu_compile_spec(self._pairs())

    def shared_compile_specs(self) -> list[Any]:
        """The shared compile specs as executorch's ``CompileSpec`` objects; needs executorch."""
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        return [CompileSpec(key, value) for key, value in self._pairs()]

    def _pairs(self) -> list[tuple[str, bytes]]:
        made: Sequence[Any] = make_shared_gpu_compile_specs(
            token=self.shared_context_token,
            mode=self.shared_context_mode,
            sync_mode=self.shared_sync_mode,
            group_id=self.shared_group_id,
            min_partition_size=self.min_partition_size,
            prefer=self.prefer,
        )
        return [_pair(item) for item in (*made, *self.extra_shared_compile_specs)]


def _pair(item: Any) -> tuple[str, bytes]:
    if isinstance(item, (tuple, list)) and len(item) == 2:
        key, value = item
    else:
        key, value = getattr(item, "key", None), getattr(item, "value", None)
    if not isinstance(key, str) or not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"extra_shared_compile_specs has {item!r}, expected a CompileSpec or a (str, bytes) pair")
    return key, bytes(value)
