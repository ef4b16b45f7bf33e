"""Pipelines of contexts that tests share: they stay from one session to the next, until a module's tests have ended."""

from __future__ import annotations

from gpu_shared import SharedGpuContext
from gpu_shared.resources import SharedResource
from vkep.device.pipelines import PipelineStore, shared_pipelines
from vkep.shaders.library import ShaderLibrary

_kept: dict[SharedGpuContext, SharedResource[PipelineStore]] = {}


def keep(context: SharedGpuContext) -> None:
    _kept[context] = shared_pipelines(context, ShaderLibrary())


def drop(context: SharedGpuContext) -> None:
    _kept.pop(context).release()


def drop_all_made() -> None:
    """All pipelines go that no session has; later ones are kept again."""
    for context in list(_kept):
        drop(context)
        keep(context)
