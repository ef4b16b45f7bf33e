"""`Program`: an ExecuTorch program (.pte) on a shared Vulkan context, without ExecuTorch or torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_shared.context import SharedGpuContext
from gpu_shared.errors import ClosedError
from gpu_shared.steady import check_wanted, steady
from gpu_shared.uncopied import Uncopied
from vkep.errors import InvalidInputError, UnsupportedProgramError
from vkep.executorch.context_resources import ProgramResources
from vkep.executorch.core import Core
from vkep.executorch.delegate_payloads import BACKENDS, VGF, Blob, decode_blobs, merged
from vkep.executorch.metadata import MethodMeta
from vkep.executorch.method import Method
from vkep.executorch.options import ProgramOptions
from vkep.executorch.portable import KERNELS
from vkep.pte import schema
from vkep.pte.container import PtdFile, PteFile, Source
from vkep.pte.method import DecodedMethod, Delegate, decode_method, delegates_of
from vkep.session.reports.report import MemoryReport


class DecodedProgram:
    """The content of a program's files: checked, its delegates' data decoded, nothing on a device."""

    def __init__(self, source: Source, data: Sequence[Source] = ()) -> None:
        """Raises `InvalidPteError`; `UnsupportedProgramError` naming every backend, operator and type that vkep lacks."""
        self.file = PteFile(source)
        self.data = [PtdFile(one) for one in data]
        self.named_data = merged(self.file.named_data, *(file.named_data for file in self.data))
        keys = {key: file for file in reversed(self.data) for key in file.named_data}
        self.methods: dict[str, DecodedMethod] = {}
        self.blobs: dict[str, list[Blob]] = {}
        missing: list[str] = []
        for name, plan in self.file.methods.items():
            delegates = delegates_of(self.file, plan)
            missing += _not_there(name, plan, delegates)
            if not all(delegate.backend in BACKENDS for delegate in delegates):
                continue
            blobs = decode_blobs(delegates, f"{self.file.name}: method {name!r}")
            for number, (delegate, blob) in enumerate(zip(delegates, blobs, strict=True)):
                missing += [
                    f"{name}: delegate {number} ({delegate.backend}): {line}" for line in blob.missing(self.named_data)
                ]
            try:
                self.methods[name] = decode_method(self.file, name, [b.arity for b in blobs], keys)
                self.methods[name].analysed([None] * len(delegates))
            except UnsupportedProgramError as error:
                missing += error.missing or [str(error)]
            self.blobs[name] = blobs
        if missing:
            lines = "\n  ".join(missing)
            raise UnsupportedProgramError(f"{self.file.name}: vkep cannot run it:\n  {lines}", missing)

    @property
    def has_graphs(self) -> bool:
        """Whether a delegate is a VGF: its context must run data graphs."""
        return any(d.backend == VGF for method in self.methods.values() for d in method.delegates)


def _not_there(name: str, plan: schema.ExecutionPlan, delegates: Sequence[Delegate]) -> list[str]:
    """A line for each backend and operator of a method that vkep does not have."""
    unknown = dict.fromkeys(d.backend for d in delegates if d.backend not in BACKENDS)
    lines = [f"{name}: backend {backend!r}; known: {', '.join(BACKENDS)}" for backend in unknown]
    kernels = dict.fromkeys(o.full_name for o in plan.operators if o.full_name not in KERNELS)
    return lines + [f"{name}: operator {kernel}: no portable kernel" for kernel in kernels]


class Program(Uncopied):
    """A program on a device. Close it (or use ``with``) to free its memory.

    ``load_program`` of ``executorch.runtime`` returns such an object: ``method_names``, ``load_method``, ``metadata``.
    """

    _instead = "load the file again, in each process"

    def __init__(
        self, decoded: DecodedProgram, options: ProgramOptions, context: SharedGpuContext | None = None
    ) -> None:
        self._decoded = decoded
        self.options = options
        self._methods: dict[str, Method] = {}
        self._core = Core(decoded.named_data, ProgramResources(options, context, decoded.has_graphs))
        self._parts = self._core.parts

    @classmethod
    @steady
    def load(
        cls,
        source: Source,
        data: Source | Sequence[Source] = (),
        options: ProgramOptions | None = None,
        *,
        context: SharedGpuContext | None = None,
        **overrides: Any,
    ) -> Program:
        """Read a program and check that vkep can run all of it.

        Args:
            source: path or bytes of a .pte file.
            data: path or bytes of the .ptd files that hold its external constants.
            options: see `ProgramOptions`; keyword arguments override its fields.
            context: a `SharedGpuContext` to use instead of the one that compile specs and options name.

        Raises ``FileNotFoundError``, `InvalidPteError`, and `UnsupportedProgramError` that names every backend, operator
        and tensor type that vkep lacks. Devices are looked for when a method is loaded.
        """
        merged_options = ProgramOptions(**{**(vars(options) if options else {}), **overrides})
        files = list(data) if isinstance(data, Sequence) and not isinstance(data, (str, bytes, bytearray)) else [data]
        return cls(DecodedProgram(source, files), merged_options, context)  # type: ignore[arg-type]

    @property
    def method_names(self) -> set[str]:
        """Names of the methods in the program."""
        return set(self._decoded.methods)

    @steady
    def load_method(self, name: str) -> Method:
        """Load the method on its context, at the first call: delegates are planned and recorded, weights uploaded.

        Raises `InvalidInputError` for an unknown name, and as `Method`.
        """
        with self._parts.lock:
            self._check_open()
            check_wanted()
            method = self._methods.get(name)
            if method is None or method.closed:
                method = Method(self._core, self._method(name), self._decoded.blobs[name], self._parts.resources)
                self._methods[name], self._parts.methods[name] = method, method.parts
            return method

    def metadata(self, method_name: str) -> MethodMeta:
        """The inputs and outputs of a method, without loading it. Raises `InvalidInputError` for an unknown name."""
        return MethodMeta(self._method(method_name))

    def execute(self, inputs: Sequence[Any] = (), method: str = "forward") -> list[Any]:
        """Load the method if needed, and run it: see `Method.execute`."""
        return self.load_method(method).execute(inputs)

    def _method(self, name: str) -> DecodedMethod:
        decoded = self._decoded.methods.get(name)
        if decoded is None:
            raise InvalidInputError(f"{self.source} has no method {name!r}; it has {sorted(self._decoded.methods)}")
        return decoded

    @property
    def source(self) -> str:
        """The file's path, or the text that replaces it in messages."""
        return self._decoded.file.name

    @property
    def has_graphs(self) -> bool:
        """Whether a delegate is a VGF file: the program needs a context that runs data graphs."""
        return self._decoded.has_graphs

    def contexts(self) -> list[SharedGpuContext]:
        """The contexts of the loaded methods."""
        self._check_open()
        return [resources.vulkan.context for resources in self._parts.resources.all()]

    def memory(self) -> list[MemoryReport]:
        """Device memory of each context: the arena, and the weights with the number of plans that use each."""
        self._check_open()
        loaded = [method for method in self._methods.values() if not method.closed]
        return [
            MemoryReport.of(
                resources.vulkan, graph_constant_bytes=sum(m.graph_constant_bytes(resources) for m in loaded)
            )
            for resources in self._parts.resources.all()
        ]

    def close(self) -> None:
        """Wait for the GPU and free everything, its methods too; idempotent."""
        self._core.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._parts.closed

    def _check_open(self) -> None:
        if self._parts.closed:
            raise ClosedError(f"program {self.source}")

    def __enter__(self) -> Program:
        self._check_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
