"""Shader variants to SPIR-V: finds the GLSL, compiles each variant once, checks it against its Python declaration."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, overload

from vkep.plan.records import ShaderVariant
from vkep.shaders.cache import PrebuiltSpirv, SpirvCache
from vkep.shaders.compiler import find_compiler
from vkep.shaders.errors import CompilerNotFoundError, InvalidSpirvError, ShaderInterfaceError
from vkep.shaders.interface import DeclaredInterface, differences
from vkep.shaders.source import GlslSource, find_source, glsl_root, read_source
from vkep.shaders.spirv import spec_constant_ids
from vkep.threads import Threads

if TYPE_CHECKING:
    from vkep.shaders.reflect import Reflection

_log = logging.getLogger(__name__)

ARGS_IN_MEMORY = "ARGS_IN_MEMORY"  #: the macro that shaders/args.glsl tests
_WORDS = ShaderVariant("words.comp")


class SourceCompiler(Protocol):
    """The interface of a compiler in the library; `vkep.shaders.compiler.Compiler` implements it."""

    def identity_for(self, source: GlslSource) -> str:
        """Changes with the compiler of the source: part of the cache's keys. Raises `CompilerNotFoundError`."""

    def compile_source(self, source: GlslSource, defines: Mapping[str, str]) -> bytes:
        """SPIR-V of a GLSL file with these defines. Raises `ShaderError`."""


@dataclass(frozen=True)
class CompiledShader:
    """The SPIR-V of one variant and its interface, which is read on first use."""

    variant: ShaderVariant
    arguments_in_memory: bool
    words: bytes  #: the SPIR-V module, little-endian
    key: str  #: digest of source and definitions, independent of the compiler
    origin: str  #: "prebuilt", "cache" (disk) or "compiler"

    @functools.cached_property
    def reflection(self) -> Reflection:
        """The whole interface. Raises `InvalidSpirvError`."""
        from vkep.shaders.reflect import reflect  # creating pipelines of cached modules does not need it

        return reflect(self.words)

    @functools.cached_property
    def spec_ids(self) -> dict[str, int]:
        """The spec constants' ids by name. Raises `InvalidSpirvError`."""
        return spec_constant_ids(self.words)


Request = tuple[ShaderVariant, bool]
Progress = Callable[[int, int, ShaderVariant], None]


class ShaderLibrary:
    """Compiled shaders by variant. Safe to share between threads.

    ``shader_dirs`` are searched for sources and includes before vkep's own GLSL; ``cache_dir`` and ``prebuilt_dir``
    replace the folders of the disk cache and of the prebuilt SPIR-V; ``compiler`` replaces the one that `find_compiler`
    finds when first needed. Source files are read when a variant is first asked for; `forget` makes the library look
    again.
    """

    def __init__(
        self,
        shader_dirs: Sequence[Path | str] | None = None,
        cache_dir: Path | str | None = None,
        compiler: SourceCompiler | None = None,
        *,
        prebuilt_dir: Path | str | None = None,
    ) -> None:
        self.shader_dirs = (*(Path(folder).absolute() for folder in shader_dirs or ()), glsl_root())
        self.cache = SpirvCache(None if cache_dir is None else Path(cache_dir))
        self.prebuilt = PrebuiltSpirv(Path(prebuilt_dir) if prebuilt_dir else Path(__file__).parents[1] / "_spirv")
        self._compiler = compiler
        self._lock = threading.Lock()
        self._compiler_lock = threading.Lock()
        self._shaders: dict[Request, Future[CompiledShader]] = {}

    @property
    def compiler(self) -> SourceCompiler:
        """The GLSL compiler. Raises `CompilerNotFoundError` if this machine has none."""
        with self._compiler_lock:
            if self._compiler is None:
                self._compiler = find_compiler()
            return self._compiler

    def supports(self, extension: str) -> bool:
        """Whether variants that need a GLSL extension are available: the compiler supports it, or there is no compiler
        and all are prebuilt."""
        try:
            ask = getattr(self.compiler, "supports", None)
        except CompilerNotFoundError:
            return True
        return ask is None or bool(ask(extension))

    def source(self, variant: ShaderVariant) -> GlslSource:
        """The variant's GLSL with everything it includes. Raises `ShaderSourceError` if there is none."""
        return read_source(find_source(variant.source, self.shader_dirs), self.shader_dirs)

    def spirv(self, variant: ShaderVariant, arguments_in_memory: bool = False) -> CompiledShader:
        """The variant's SPIR-V: from memory, prebuilt, from the disk cache, or compiled now (once, even for concurrent
        calls).

        ``arguments_in_memory`` compiles it with ARGS_IN_MEMORY: the push constant is then the argument block's address.
        Raises `ShaderSourceError`, `ShaderCompileError`, `InvalidSpirvError` or `CompilerNotFoundError`.
        """
        request = (variant, bool(arguments_in_memory))
        with self._lock:
            future = self._shaders.get(request)
            owner = future is None
            if future is None:
                future = self._shaders[request] = Future()
        if owner:
            try:
                future.set_result(self._build(*request))
            except BaseException as error:
                with self._lock:  # a later call tries again: the source may have been corrected
                    if self._shaders.get(request) is future:
                        del self._shaders[request]
                future.set_exception(error)
        return future.result()

    def fitted(self, shader: CompiledShader, features: frozenset[str]) -> bytes:
        """The module for a device with these features (`gpu_shared.capabilities.FEATURE_NAMES`): unchanged, or
        computing with words where the device lacks its types (`vkep.shaders.words`).

        Raises `InvalidSpirvError` for a module that the device cannot run, and the errors of `spirv`.
        """
        from vkep.shaders import words

        missing = words.lacking(words.capabilities_of(shader.words), features)
        if not missing:
            return shader.words
        functions = self.spirv(_WORDS).words
        digest = hashlib.sha256("\0".join((words.code_digest(), *sorted(missing), "")).encode())
        digest.update(hashlib.sha256(functions).digest() + shader.words)
        key = digest.hexdigest()
        kept = self.cache.load(key)
        if kept is not None:
            return bytes(kept)
        try:
            binary = words.fitted(shader.words, features, functions)
        except InvalidSpirvError as error:
            raise InvalidSpirvError(f"{shader.variant.source}: {error}") from error
        self.cache.store(key, binary)
        return binary

    def compile_many(
        self,
        requests: Iterable[Request],
        jobs: int | None = None,
        progress: Progress | None = None,
    ) -> list[CompiledShader]:
        """`spirv` for many variants in parallel (``jobs`` at a time, by default one per CPU); results in order.

        ``progress(done, total, variant)`` is called from the calling thread as each becomes ready. If some fail, the
        others are still built; then the first failure in order is raised, and the others are logged.
        """
        wanted = list(requests)
        results = self.try_many(wanted, jobs, progress)
        failures = [result for result in results if isinstance(result, Exception)]
        for failure in failures[1:]:
            _log.error("%s", failure)
        if failures:
            raise failures[0]
        return [result for result in results if isinstance(result, CompiledShader)]

    def try_many(
        self,
        requests: Sequence[Request],
        jobs: int | None = None,
        progress: Progress | None = None,
    ) -> list[CompiledShader | Exception]:
        """As `compile_many`, but with the exception in place of each variant that fails. Raises ``ValueError`` for
        ``jobs`` below 1."""
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs is the number of compilers at a time, at least 1; got {jobs}")
        results: dict[Request, CompiledShader | Exception] = {}
        unique = list(dict.fromkeys((variant, bool(in_memory)) for variant, in_memory in requests))
        for request in unique:  # in this thread: threads that only read caches would wait for each other
            cached = self._cached(request)
            if cached is not None:
                results[request] = cached
                if progress is not None:
                    progress(len(results), len(unique), request[0])
        missing = [request for request in unique if request not in results]
        if not missing:
            return [results[variant, bool(in_memory)] for variant, in_memory in requests]
        with Threads(max_workers=jobs or os.cpu_count() or 1, thread_name_prefix="vkep-glsl") as pool:
            futures = {pool.submit(self.spirv, *request): request for request in missing}
            try:
                for done, future in enumerate(as_completed(futures), start=len(results) + 1):
                    request, error = futures[future], future.exception()
                    if error is not None and not isinstance(error, Exception):
                        raise error
                    results[request] = error if error is not None else future.result()
                    if progress is not None:
                        progress(done, len(unique), request[0])
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return [results[variant, bool(in_memory)] for variant, in_memory in requests]

    def check(self, compiled: CompiledShader) -> None:
        """Compare a module with the interface that planning read from its GLSL (`vkep.shaders.interface`), and with the kernel
        contract. Raises `ShaderInterfaceError`, which lists every difference."""
        variant = compiled.variant
        interface = DeclaredInterface(self.source(variant)).of(dict(variant.defines))
        found = differences(interface, compiled.reflection)
        if compiled.reflection.arguments and compiled.reflection.arguments_in_memory != compiled.arguments_in_memory:
            place = {True: "memory", False: "push constants"}
            found.append(
                f"arguments are read from {place[compiled.reflection.arguments_in_memory]}, expected from "
                f'{place[compiled.arguments_in_memory]}: declare them with ARGS_BODY and #include "args.glsl"'
            )
        if found:
            raise ShaderInterfaceError(variant.source, found)

    def forget(self) -> None:
        """Drop the shaders held in memory, so that changed source files are read again."""
        with self._lock:
            self._shaders.clear()

    def _cached(self, request: Request) -> CompiledShader | None:
        """The shader, if it need not be compiled. Errors are left for `spirv` to report."""
        with self._lock:
            held = self._shaders.get(request)
        if held is not None:
            return held.result() if held.done() and held.exception() is None else None
        try:
            compiled = self._build(*request, compile_missing=False)
        except Exception:
            return None
        if compiled is not None:
            made: Future[CompiledShader] = Future()
            made.set_result(compiled)
            with self._lock:
                self._shaders.setdefault(request, made)
        return compiled

    @overload
    def _build(self, variant: ShaderVariant, in_memory: bool) -> CompiledShader: ...
    @overload
    def _build(self, variant: ShaderVariant, in_memory: bool, *, compile_missing: bool) -> CompiledShader | None: ...
    def _build(self, variant: ShaderVariant, in_memory: bool, *, compile_missing: bool = True) -> CompiledShader | None:
        source = self.source(variant)
        defines = dict(variant.defines)
        if in_memory:
            defines[ARGS_IN_MEMORY] = "1"
        key = source.digest(defines)
        binary, origin = self.prebuilt.load(key), "prebuilt"
        if binary is None:
            try:
                compiler = self.compiler
                identity = compiler.identity_for(source)
            except CompilerNotFoundError as error:
                raise CompilerNotFoundError(f"{variant.source} is not prebuilt, and {error}") from error
            full_key = hashlib.sha256(f"{key}\0{identity}".encode()).hexdigest()
            kept = self.cache.load(full_key)
            binary, origin = None if kept is None else bytes(kept), "cache"
            if binary is None:
                if not compile_missing:
                    return None
                _log.debug("compiling %s %s", variant.source, defines)
                binary, origin = compiler.compile_source(source, defines), "compiler"
                self.cache.store(full_key, binary)
        compiled = CompiledShader(variant, in_memory, binary, key, origin)
        compiled.spec_ids  # noqa: B018  # read here, by several threads, as every pipeline asks for them
        return compiled
