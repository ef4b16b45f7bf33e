"""The kernel registry: single operators of ONNX Runtime's own that run as kernels, not as part of a plan.

These are the copies that ONNX Runtime inserts between providers. Each registration is held against the operator's schema
in ONNX Runtime (`GetOpSchema`): a type-constraint name that the schema does not have, which would make the kernel silently
unfindable, is an error at once (CUDA plugin EP design, sections 3.5.1 and 11.6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vkep import dtypes
from vkep.ort.allocator import copy_tensor
from vkep.ort.boundary import NULL, CStruct, OrtError, entry_point, ffi, lib, status, value
from vkep.ort.options import EP_NAME
from vkep.ort.tensors import describe, shape_of

if TYPE_CHECKING:
    from vkep.ort.api import Ort

_CPU_INPUT, _CPU_OUTPUT = -2, -1  # OrtMemType


@dataclass(frozen=True)
class KernelEntry:
    """One operator: its name, opset, the constraints of its types, and which side is host memory."""

    op_type: str
    since: int
    constraints: tuple[str, ...]
    host_input: bool = False
    host_output: bool = False


ENTRIES = (
    KernelEntry("MemcpyFromHost", 1, ("T",), host_input=True),
    KernelEntry("MemcpyToHost", 1, ("T",), host_output=True),
)


class CopyKernel(CStruct, struct="OrtKernelImpl"):
    """MemcpyFromHost and MemcpyToHost."""

    def __init__(self, ort: Ort) -> None:
        super().__init__()
        self._ort = ort

    @status
    def Compute(self, context: Any) -> None:
        ort = self._ort
        source = describe(ort, ort.get(ort.api.KernelContext_GetInput, "OrtValue const *", context, 0))
        shape = shape_of(source)
        target, dims = ffi.new("VkepTensor *"), ffi.new("int64_t[]", list(shape) or [0])
        ort.check(lib.vkep_output(ort.api, ort.ep_api, context, 0, dims, len(shape), target))
        copy_tensor(source, target)

    @value(None)
    def Release(self) -> None:
        self.release()


class KernelRegistry:
    """An OrtKernelRegistry; `close` releases it. It refers to no factory, because sessions may outlive theirs."""

    def __init__(self, ort: Ort) -> None:
        self._ort = ort
        self.pointer = ort.get(ort.ep_api.CreateKernelRegistry, "OrtKernelRegistry *")
        self._handle = ffi.new_handle(ort)  # what ONNX Runtime hands back to `vkep_create_kernel`
        try:
            for entry in ENTRIES:
                self._add(entry)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.pointer != NULL:
            self._ort.ep_api.ReleaseKernelRegistry(self.pointer)
            self.pointer = NULL

    def _add(self, entry: KernelEntry) -> None:
        ort, ep_api = self._ort, self._ort.ep_api
        check_against_schema(ort, entry)
        builder = ort.get(ep_api.CreateKernelDefBuilder, "OrtKernelDefBuilder *")
        definition = NULL
        try:
            ort.check(ep_api.KernelDefBuilder_SetOperatorType(builder, entry.op_type.encode()))
            ort.check(ep_api.KernelDefBuilder_SetDomain(builder, b""))
            ort.check(ep_api.KernelDefBuilder_SetSinceVersion(builder, entry.since, entry.since))
            ort.check(ep_api.KernelDefBuilder_SetExecutionProvider(builder, EP_NAME.encode()))
            if entry.host_input:
                ort.check(ep_api.KernelDefBuilder_SetInputMemType(builder, 0, _CPU_INPUT))
            if entry.host_output:
                ort.check(ep_api.KernelDefBuilder_SetOutputMemType(builder, 0, _CPU_OUTPUT))
            types = [
                ort.get(ep_api.GetTensorDataType, "OrtDataType const *", d.onnx)
                for d in dtypes.DTYPES.values()
                if not d.sub_byte_bits
            ]
            for name in entry.constraints:
                array = ffi.new("OrtDataType const *[]", types)
                ort.check(ep_api.KernelDefBuilder_AddTypeConstraint(builder, name.encode(), array, len(types)))
            definition = ort.get(ep_api.KernelDefBuilder_Build, "OrtKernelDef *", builder)
            ort.check(ep_api.KernelRegistry_AddKernel(self.pointer, definition, lib.vkep_create_kernel, self._handle))
        finally:
            ep_api.ReleaseKernelDefBuilder(builder)
            if definition != NULL:
                ep_api.ReleaseKernelDef(definition)


@entry_point("vkep_create_kernel")
def _create_kernel(state: Any, info: Any, out: Any) -> None:
    out[0] = CopyKernel(ffi.from_handle(state)).pointer


def check_against_schema(ort: Ort, entry: KernelEntry) -> None:
    """Hold an entry's constraint names against ONNX Runtime's schema. Raises `OrtError`; an operator without a schema
    passes.
    """
    ep_api = ort.ep_api
    schema = ort.get(ep_api.GetOpSchema, "OrtOpSchema *", entry.op_type.encode(), entry.since, b"")
    if schema == NULL:
        return
    try:
        known = set()
        for index in range(ort.get(ep_api.OpSchema_GetTypeConstraintCount, "size_t", schema)):
            constraint = ort.get(ep_api.OpSchema_GetTypeConstraint, "OrtOpSchemaTypeConstraint const *", schema, index)
            known.add(ort.text(ep_api.OpSchemaTypeConstraint_GetTypeParamName, constraint))
    finally:
        ep_api.ReleaseOpSchema(schema)
    wrong = [name for name in entry.constraints if name not in known]
    if wrong:
        raise OrtError(
            f"kernel {entry.op_type}: the schema has no type constraint named {wrong}; it has {sorted(known)}"
        )
