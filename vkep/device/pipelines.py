"""Pipelines of a context: made once for each key, from a disk cache where the driver has compiled them in an earlier
process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpu_shared.pipeline import ComputePipeline, PipelineCache, PipelineLayout, ShaderModule
from gpu_shared.steady import join_work
from vkep.cache import read_sealed, write_sealed
from vkep.device.per_device import device_file
from vkep.plan.records import PipelineKey
from vkep.shaders.errors import ShaderInterfaceError
from vkep.shaders.interface import ADDRESS_BYTES
from vkep.shaders.library import CompiledShader, ShaderLibrary
from vkep.threads import Threads

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from gpu_shared.device import Device
    from gpu_shared.lease import DelegateLease
    from gpu_shared.resources import SharedResource

logger = logging.getLogger("vkep.device")

#: maximum bytes of a driver's cache that is read
_LARGEST = 1 << 30
#: ``progress(done, total, what)``
Progress = Callable[[int, int, str], None]


class PipelineStore:
    """The pipelines of one device. Thread-safe; ``close`` destroys them, once the GPU has finished with them."""

    def __init__(self, device: Device, library: ShaderLibrary) -> None:
        self._device = device
        self.library = library
        self._lock = threading.Lock()
        self._pipelines: dict[PipelineKey, ComputePipeline] = {}
        self._modules: dict[str, ShaderModule] = {}
        self._layouts: dict[int, PipelineLayout] = {}
        self._path = device_file(device.capabilities, "pipelines", ".sealed")
        self._saved = bytes(read_sealed(self._path, _LARGEST) or b"")  # a driver may trust its content
        self._cache = PipelineCache(device, self._saved)

    def get(self, keys: Sequence[PipelineKey], progress: Progress | None = None) -> list[ComputePipeline]:
        """The pipelines of ``keys``; missing ones are compiled, several at a time.

        Raises the shader library's errors, `ShaderInterfaceError` for a spec constant that the SPIR-V lacks, `GpuError`.
        """
        with self._lock:
            missing = [k for k in dict.fromkeys(keys) if k not in self._pipelines]
            if missing:
                self._make(missing, progress)
            return [self._pipelines[k] for k in keys]

    def held(self, keys: Sequence[PipelineKey]) -> list[ComputePipeline] | None:
        """The pipelines of ``keys`` if all of them exist; None where `get` would compile."""
        found = [self._pipelines.get(k) for k in keys]
        return None if None in found else [p for p in found if p is not None]

    @property
    def driver_cache(self) -> PipelineCache:
        """The driver's cache, for pipelines that other code creates; `save` stores what they added."""
        return self._cache

    def save(self) -> None:
        """Save the driver's cache to disk, if it has grown."""
        with self._lock:
            self._save()

    def _make(self, keys: list[PipelineKey], progress: Progress | None) -> None:
        # Each key counts as two steps: its SPIR-V (the slow one where it is not cached) and its pipeline.
        steps = 2 * len(keys)
        shaders = self.library.compile_many(
            ((k.shader, k.arguments_in_memory) for k in keys),
            progress=None if progress is None else lambda done, _, variant: progress(done, steps, variant.source),
        )
        jobs = [(k, s, self._layout(k), self._module(s)) for k, s in zip(keys, shaders, strict=True)]
        done = len(keys)
        with Threads(os.cpu_count() or 1, initializer=join_work) as pool:
            for key, pipeline in pool.map(self._build, jobs):
                self._pipelines[key] = pipeline
                done += 1
                if progress is not None:
                    progress(done, steps, key.shader.source)
        self._save()

    def _build(
        self, job: tuple[PipelineKey, CompiledShader, PipelineLayout, ShaderModule]
    ) -> tuple[PipelineKey, ComputePipeline]:
        key, shader, layout, module = job
        pipeline = ComputePipeline(
            self._device,
            layout,
            module,
            _spec_ids(key, shader),
            cache=self._cache,
            required_subgroup_size=key.subgroup_size,
            label=key.shader.source,
        )
        return key, pipeline

    def _layout(self, key: PipelineKey) -> PipelineLayout:
        size = ADDRESS_BYTES if key.arguments_in_memory else key.argument_bytes
        if size not in self._layouts:
            self._layouts[size] = PipelineLayout(self._device, size)
        return self._layouts[size]

    def _module(self, shader: CompiledShader) -> ShaderModule:
        name = f"{shader.key}:{shader.arguments_in_memory}"
        if name not in self._modules:
            words = self.library.fitted(shader, self._device.capabilities.features)
            self._modules[name] = ShaderModule(self._device, words, label=shader.variant.source)
        return self._modules[name]

    def _save(self) -> None:
        """Save the driver's cache to disk. Processes that save at the same time may lose each other's additions, never
        a file's integrity."""
        data = self._cache.data()
        if data == self._saved or len(data) <= 64:
            return
        try:
            write_sealed(self._path, data)
            self._saved = data
        except OSError as error:
            logger.warning("the pipeline cache %s cannot be written: %s", self._path, str(error))

    def close(self) -> None:
        """Destroy pipelines, shader modules and layouts, and the driver's cache object."""
        for handles in (self._pipelines, self._modules, self._layouts):
            for handle in handles.values():
                handle.close()
            handles.clear()
        self._cache.close()


def shared_pipelines(user: SharedGpuContext | DelegateLease, library: ShaderLibrary) -> SharedResource[PipelineStore]:
    """Take one user's reference to the pipelines of a context and library."""
    key = ("vkep.pipelines", tuple(str(d) for d in library.shader_dirs), str(library.cache.folder))
    device = user.device
    return user.shared_resource(key, lambda: PipelineStore(device, library))


def _spec_ids(key: PipelineKey, shader: CompiledShader) -> dict[int, int]:
    ids = shader.spec_ids
    missing = [name for name, _ in key.spec if name not in ids]
    if missing:
        raise ShaderInterfaceError(
            key.shader.source, [f"no spec constant {name}; it has {sorted(ids)}" for name in missing]
        )
    return {ids[name]: value for name, value in key.spec}
