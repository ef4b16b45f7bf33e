"""The kernel registry: single operators of ONNX Runtime's own that run as kernels, not as part of a plan.

Always there are the copies that ONNX Runtime inserts between providers; with ``kernels=registry`` vkep's operators too
(`vkep.ort.nodes.operators`). Each registration is held against the operator's schema in ONNX Runtime (`GetOpSchema`): a type
constraint that the schema does not have, or a type that it does not allow, would make the kernel silently unfindable, and
is an error at once (CUDA plugin EP design, sections 3.5.1 and 11.6).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vkep import dtypes
from vkep.ort.boundary import NULL, CStruct, OrtError, entry_point, ffi, lib, releases, status
from vkep.ort.memory.allocator import copy_tensors
from vkep.ort.memory.tensors import describe, shape_of
from vkep.ort.names import EP_NAME

if TYPE_CHECKING:
    from vkep.ort.api import Ort
    from vkep.ort.nodes.checks import RunChecks

logger = logging.getLogger("vkep.ort")
_CPU_INPUT, _CPU_OUTPUT = -2, -1  # OrtMemType
#: creates the kernel of one node, given its OrtKernelInfo
Create = Callable[["KernelEntry", Any], CStruct]


@dataclass(frozen=True)
class KernelEntry:
    """One version of one operator: the element types of each type constraint (a constraint that is left out allows
    any), and the inputs and outputs that must be in host memory."""

    op_type: str
    since: int
    constraints: Mapping[str, tuple[str, ...]] = field(hash=False)
    domain: str = ""
    host_inputs: tuple[int, ...] = ()
    host_outputs: tuple[int, ...] = ()


#: ONNX Runtime's number of each element type
ELEMENT_TYPES = {
    d.name: n for n in range(64) if (d := dtypes.from_onnx(lib.vkep_onnx_type(n))) and d.name != "float8_e8m0fnu"
}
#: the types of ONNX Runtime's schemas of the copies: no element narrower than a byte
WHOLE = tuple(name for name in ELEMENT_TYPES if not dtypes.DTYPES[name].sub_byte_bits)
COPIES = (
    KernelEntry("MemcpyFromHost", 1, {"T": WHOLE}, host_inputs=(0,)),
    KernelEntry("MemcpyToHost", 1, {"T": WHOLE}, host_outputs=(0,)),
)


class CopyKernel(CStruct, struct="OrtKernelImpl"):
    """MemcpyFromHost and MemcpyToHost."""

    def __init__(self, ort: Ort, checks: RunChecks | None, entry: KernelEntry) -> None:
        super().__init__()
        self._ort = ort
        self._checks = checks if entry.host_outputs else None

    @status
    def Compute(self, context: Any) -> None:
        ort = self._ort
        source = describe(ort, ort.get(ort.api.KernelContext_GetInput, "OrtValue const *", context, 0))
        shape = shape_of(source)
        target, dims = ffi.new("VkepTensor *"), ffi.new("int64_t[]", list(shape) or [0])
        ort.check(lib.vkep_output(ort.api, ort.ep_api, context, 0, dims, len(shape), target))
        copy_tensors([(source, target)])
        if self._checks is not None:
            self._checks.pass_to_host()

    @releases
    def Release(self) -> None:
        self.release()


class KernelRegistry:
    """An OrtKernelRegistry; `close` releases it. It refers to no factory, because sessions may outlive theirs.

    Args:
        operators: entries in addition to the copies, and ``create``, which creates their kernels. Versions that ONNX
            Runtime does not know are left out.
        checks: those that what is copied to the host passes.
    """

    def __init__(
        self,
        ort: Ort,
        operators: Iterable[KernelEntry] = (),
        create: Create | None = None,
        checks: RunChecks | None = None,
    ) -> None:
        self._ort = ort
        self.pointer = ort.get(ort.ep_api.CreateKernelRegistry, "OrtKernelRegistry *")
        self._handles: list[Any] = []  # the pointer that ONNX Runtime passes to `vkep_create_kernel`
        self._types: dict[str, Any] = {}
        try:
            for entry in COPIES:
                check_against_schema(ort, entry)
                self._add(entry, lambda entry, info: CopyKernel(ort, checks, entry))
            for entry in operators:
                assert create is not None
                if check_against_schema(ort, entry):
                    self._add(entry, create)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the registry to ONNX Runtime."""
        if self.pointer != NULL:
            self._ort.ep_api.ReleaseKernelRegistry(self.pointer)
            self.pointer = NULL

    def _add(self, entry: KernelEntry, create: Create) -> None:
        ort, ep_api = self._ort, self._ort.ep_api
        builder = ort.get(ep_api.CreateKernelDefBuilder, "OrtKernelDefBuilder *")
        definition = NULL
        try:
            ort.check(ep_api.KernelDefBuilder_SetOperatorType(builder, entry.op_type.encode()))
            ort.check(ep_api.KernelDefBuilder_SetDomain(builder, entry.domain.encode()))
            ort.check(ep_api.KernelDefBuilder_SetSinceVersion(builder, entry.since, entry.since))
            ort.check(ep_api.KernelDefBuilder_SetExecutionProvider(builder, EP_NAME.encode()))
            for index in entry.host_inputs:
                ort.check(ep_api.KernelDefBuilder_SetInputMemType(builder, index, _CPU_INPUT))
            for index in entry.host_outputs:
                ort.check(ep_api.KernelDefBuilder_SetOutputMemType(builder, index, _CPU_OUTPUT))
            for name, kinds in entry.constraints.items():
                types = [self._type(kind) for kind in kinds if kind in ELEMENT_TYPES]
                array = ffi.new("OrtDataType const *[]", types)
                ort.check(ep_api.KernelDefBuilder_AddTypeConstraint(builder, name.encode(), array, len(types)))
            definition = ort.get(ep_api.KernelDefBuilder_Build, "OrtKernelDef *", builder)
            handle = ffi.new_handle((entry, create))
            self._handles.append(handle)
            ort.check(ep_api.KernelRegistry_AddKernel(self.pointer, definition, lib.vkep_create_kernel, handle))
        finally:
            ep_api.ReleaseKernelDefBuilder(builder)
            if definition != NULL:
                ep_api.ReleaseKernelDef(definition)

    def _type(self, kind: str) -> Any:
        if kind not in self._types:
            get = self._ort.ep_api.GetTensorDataType
            self._types[kind] = self._ort.get(get, "OrtDataType const *", ELEMENT_TYPES[kind])
        return self._types[kind]


@entry_point("vkep_create_kernel")
def _create_kernel(state: Any, info: Any, out: Any) -> None:
    entry, create = ffi.from_handle(state)
    out[0] = create(entry, info).pointer


def check_against_schema(ort: Ort, entry: KernelEntry) -> bool:
    """Check an entry against ONNX Runtime's schema of its operator: the names of its constraints and their types.

    Returns:
        Whether ONNX Runtime knows this version of the operator. An operator without a schema there (copies, a user's
        own operators) passes.

    Raises:
        OrtError: a constraint that the schema does not have, or types that it does not allow.
    """
    ep_api = ort.ep_api
    name, domain = entry.op_type.encode(), entry.domain.encode()
    schema = ort.get(ep_api.GetOpSchema, "OrtOpSchema *", name, entry.since, domain)
    if schema == NULL:
        return True
    try:
        if ort.get(ep_api.OpSchema_GetSinceVersion, "int", schema) != entry.since:
            logger.debug("ONNX Runtime %s does not know version %d of %s", ort.version, entry.since, entry.op_type)
            return False
        allowed = _constraints(ort, schema)
    finally:
        ep_api.ReleaseOpSchema(schema)
    wrong = [constraint for constraint in entry.constraints if constraint not in allowed]
    if wrong:
        raise OrtError(
            f"kernel {entry.op_type}: the schema has no type constraint named {wrong}; it has {sorted(allowed)}"
        )
    for constraint, kinds in entry.constraints.items():
        others = [k for k in kinds if f"tensor({dtypes.DTYPES[k].onnx_name})" not in allowed[constraint]]
        if others:
            raise OrtError(
                f"kernel {entry.op_type} (version {entry.since}): the schema's constraint {constraint} does not allow "
                f"{others}; it allows {sorted(allowed[constraint])}"
            )
    return True


def _constraints(ort: Ort, schema: Any) -> dict[str, set[str]]:
    """The types that each constraint of a schema allows."""
    ep_api = ort.ep_api
    found = {}
    for index in range(ort.get(ep_api.OpSchema_GetTypeConstraintCount, "size_t", schema)):
        constraint = ort.get(ep_api.OpSchema_GetTypeConstraint, "OrtOpSchemaTypeConstraint const *", schema, index)
        types, count = ffi.new("char const *const **"), ffi.new("size_t *")
        ort.check(ep_api.OpSchemaTypeConstraint_GetAllowedTypes(constraint, types, count))
        name = ort.text(ep_api.OpSchemaTypeConstraint_GetTypeParamName, constraint)
        found[name] = {ffi.string(types[0][i]).decode() for i in range(count[0])}
    return found
