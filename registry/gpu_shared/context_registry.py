"""The process-wide registry in which delegates find the context of other delegates."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from gpu_shared.compile_spec import ContextMode, SharedGpuCompileSpec, SyncMode
from gpu_shared.errors import ContextExistsError, ContextNotFoundError, ForkedProcessError
from gpu_shared.once import InFlight
from gpu_shared.steady import steady
from gpu_shared.uncopied import Uncopied

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from gpu_shared.lease import DelegateLease

Key = tuple[str, int]
KeyLike = SharedGpuCompileSpec | Key
CreateFunction = Callable[[], "SharedGpuContext"]


class SharedGpuContextRegistry(Uncopied):
    """Contexts by ``(token, group_id)``, held weakly: delegates hold them strongly, so the end of the last user
    destroys the device.

    A context that is deleted, closed or lost is a stale entry, which is erased when it is found. Thread-safe; no lock
    is held while a context is created, so different keys are created in parallel. A creation that fails leaves nothing:
    the threads that waited for it get the same error, and the next call tries again.
    """

    _instead = "get() returns the one of a process"

    _instance: ClassVar[SharedGpuContextRegistry | None] = None
    _instance_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        """A separate registry, for tests; otherwise use `get`."""
        self._lock = threading.RLock()  # the garbage collector may call a ``__del__`` that unregisters a context
        self._contexts: dict[Key, weakref.ref[SharedGpuContext]] = {}
        self._creating: dict[Key, InFlight[SharedGpuContext]] = {}

    @classmethod
    def get(cls) -> SharedGpuContextRegistry:
        """The process's registry."""
        if cls._instance is None:
            with cls._instance_lock:
                if cls._instance is None:
                    cls._instance = cls()
        return cls._instance

    def lookup(self, spec: KeyLike) -> SharedGpuContext | None:
        """The live context of this key, or None. Raises `ForkedProcessError` when it is a parent process's."""
        with self._lock:
            return self._find(_key(spec))

    def lookup_or_create(self, spec: KeyLike, create_fn: CreateFunction) -> SharedGpuContext:
        """The live context of this key, else the result of ``create_fn``: racing threads create it once and share it.

        A failed creation raises its error in every thread that waited. ``create_fn`` must not request its own key, nor
        one whose creation waits for this one (``RuntimeError``).
        """
        return self._create(_key(spec), create_fn, reuse=True)

    def create(self, spec: KeyLike, create_fn: CreateFunction) -> SharedGpuContext:
        """Create and register a context (mode ``create_only``). Raises `ContextExistsError`, before creating, when the
        key has one."""
        return self._create(_key(spec), create_fn, reuse=False)

    def is_making(self, spec: KeyLike) -> bool:
        """Whether a context is being created under the key now."""
        with self._lock:
            return _key(spec) in self._creating

    def register_context(self, spec: KeyLike | None, context: SharedGpuContext) -> None:
        """Register a context that the application created; None takes the context's own key. The application holds it
        strongly.

        Raises `ContextExistsError` when the key has a live context or one is being created; ``ValueError`` for a
        context that is closed.
        """
        key = context.key if spec is None else _key(spec)
        context = getattr(context, "_context", context)  # of a `ContextOfSpec`
        _check_made(context, key)
        reference = weakref.ref(context)  # no object is made where the lock is held
        with self._lock:
            if self._find(key) is not None or key in self._creating:
                raise ContextExistsError(*key)
            self._contexts[key] = reference

    def unregister_context(self, spec: KeyLike) -> SharedGpuContext:
        """Remove a context: new delegates no longer find it, existing users keep it. Raises `ContextNotFoundError`."""
        key = _key(spec)
        with self._lock:
            context = self._find(key)
            if context is None:
                raise ContextNotFoundError(*key)
            del self._contexts[key]
            return context

    def resolve(
        self,
        spec: SharedGpuCompileSpec,
        create_fn: CreateFunction | None = None,
        *,
        extensions: Iterable[str] = (),
        features: Iterable[str] = (),
        queue_flags: Iterable[str] = (),
    ) -> SharedGpuContext:
        """The context of a delegate's spec, in any mode, with the extensions that the delegate needs.

        ``create_fn`` defaults to `SharedGpuContext.create` with the spec and ``extensions``. ``disabled`` creates a
        private context that other delegates do not find. Leases have the spec's sync mode by default, also on a context
        that was created with another one: then the result is a `ContextOfSpec`, which is equal to the context.

        Raises `ContextNotFoundError` (``lookup_only``), `ContextExistsError` (``create_only``),
        `ContextIncompatibleError` that names what the device of a found context lacks, and the errors of ``create_fn``.
        """
        context = self.find_or_create(
            spec, create_fn, extensions=extensions, features=features, queue_flags=queue_flags
        )
        if getattr(context, "sync_mode", spec.sync_mode) is spec.sync_mode:
            return context
        return ContextOfSpec(context, spec.sync_mode)  # type: ignore[return-value]  # it has all that the context has

    def find_or_create(
        self,
        spec: SharedGpuCompileSpec,
        create_fn: CreateFunction | None = None,
        *,
        extensions: Iterable[str] = (),
        features: Iterable[str] = (),
        queue_flags: Iterable[str] = (),
    ) -> SharedGpuContext:
        """As `resolve`, for callers that name the sync mode of each lease: always the context itself."""
        extensions = tuple(extensions)
        if create_fn is None:
            from gpu_shared.context import SharedGpuContext  # loads cffi: only when a context is created

            def make() -> SharedGpuContext:
                return SharedGpuContext.create(spec, extra_device_extensions=extensions)

            create_fn = make
        if spec.mode is ContextMode.DISABLED:
            context = create_fn()
            _check_made(context, spec.key)
        elif spec.mode is ContextMode.LOOKUP_ONLY:
            found = self.lookup(spec)
            if found is None:
                raise ContextNotFoundError(*spec.key)
            context = found
        elif spec.mode is ContextMode.LOOKUP_OR_CREATE:
            context = self.lookup_or_create(spec, create_fn)
        else:
            context = self.create(spec, create_fn)
        context.require(extensions=extensions, features=features, queue_flags=queue_flags)
        return context

    def keys(self) -> list[Key]:
        """Keys of the live contexts."""
        with self._lock:
            return [key for key in list(self._contexts) if self._find(key) is not None]

    def clear_for_testing(self) -> None:
        """Forget all entries; contexts with strong references live on."""
        with self._lock:
            self._contexts.clear()

    def _find(self, key: Key) -> SharedGpuContext | None:
        """The live context of the key; erases a stale entry. Called with the lock held."""
        reference = self._contexts.get(key)
        if reference is None:
            return None
        context = reference()
        if context is not None and context.forked:
            raise ForkedProcessError(f"context {key[0]}:{key[1]}")
        if context is None or not context.is_valid:
            del self._contexts[key]
            return None
        return context

    @steady
    def _create(self, key: Key, create_fn: CreateFunction, reuse: bool) -> SharedGpuContext:
        making: InFlight[SharedGpuContext] = InFlight(f"the context {key[0]}:{key[1]}")
        while True:
            with self._lock:
                found = self._find(key)
                if found is not None:
                    if reuse:
                        return found
                    raise ContextExistsError(*key)
                others = self._creating.get(key)
                if others is None:
                    self._creating[key] = making
                    break
            try:
                made = others.result()
            except BaseException:
                if reuse or not others.ended:
                    raise
            else:
                if reuse and made.is_valid:
                    return made
            # create_only continues with the present entry; a context that was closed meanwhile is stale
        try:
            context = making.make(create_fn)
            _check_made(context, key)
            reference = weakref.ref(context)
        except BaseException as error:
            with self._lock:
                del self._creating[key]
            making.failed(error)
            raise
        with self._lock:
            self._contexts[key] = reference
            del self._creating[key]
        making.done(context)
        return context

    def _after_fork_in_child(self) -> None:
        # a thread that does not exist in this process may have held the lock
        self._lock = threading.RLock()
        self._creating = {}


class ContextOfSpec(Uncopied):
    """A context for a delegate whose spec has another sync mode: its leases have that mode by default. Everything else is
    the context's own, whose objects refer to it, not to this."""

    _instead = SharedGpuContextRegistry._instead

    def __init__(self, context: SharedGpuContext, sync_mode: SyncMode) -> None:
        self._context, self.sync_mode = context, sync_mode

    def lease(self, name: str, sync_mode: SyncMode | str | None = None, *, copies_only: bool = False) -> DelegateLease:
        """As `SharedGpuContext.lease`."""
        return self._context.lease(name, self.sync_mode if sync_mode is None else sync_mode, copies_only=copies_only)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def __eq__(self, other: object) -> bool:
        return self._context == (other._context if isinstance(other, ContextOfSpec) else other)

    def __hash__(self) -> int:
        return hash(self._context)

    def __enter__(self) -> ContextOfSpec:
        self._context.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._context.close()

    def __repr__(self) -> str:
        return f"{self._context!r} with sync_mode={self.sync_mode.value}"


def _key(spec: KeyLike) -> Key:
    if isinstance(spec, SharedGpuCompileSpec):
        return spec.key
    if isinstance(spec, tuple) and len(spec) == 2:
        return SharedGpuCompileSpec(token=spec[0], group_id=spec[1]).key
    raise TypeError(f"got {spec!r}, expected a SharedGpuCompileSpec or a key (token, group_id)")


def _check_made(context: SharedGpuContext, key: Key) -> None:
    if not hasattr(context, "is_valid"):
        raise TypeError(f"the context for {key[0]}:{key[1]} is {context!r}, expected a SharedGpuContext")
    if not context.is_valid:
        raise ValueError(f"the context for {key[0]}:{key[1]} is closed, lost or another process's")


def _after_fork_in_child() -> None:
    SharedGpuContextRegistry._instance_lock = threading.Lock()
    if SharedGpuContextRegistry._instance is not None:
        SharedGpuContextRegistry._instance._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
