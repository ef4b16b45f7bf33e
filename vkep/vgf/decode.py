"""Decodes VGF files with ``vgfpy``: every index and size is checked, so that later code can trust the records."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from vkep.vgf.records import BindingSlot, Constant, InvalidVgfError, Module, Resource, Segment, Vgf

MAGIC = b"VGF1"
_VERSION_AT = 8  # three bytes
_CATEGORIES = {"Input": "input", "Output": "output", "Intermediate": "intermediate", "Constant": "constant"}
_KINDS = {"Graph": "graph", "Compute": "compute"}


def _vgfpy() -> Any:
    try:
        return importlib.import_module("vgfpy")
    except ImportError as error:
        raise InvalidVgfError(
            f"reading VGF files needs the package ai-ml-sdk-vgf-library (vkep's extra 'vgf'): {error}"
        ) from error


def find_vgf(data: bytes) -> list[bytes]:
    """The VGF files inside ``data``: itself, or those that another container (ExecuTorch's .pte) contains whole."""
    found, at = [], data.find(MAGIC)
    while at >= 0:
        end = _extent(data, at)
        if end is not None:
            found.append(data[at:end])
            at = data.find(MAGIC, end)
        else:
            at = data.find(MAGIC, at + 1)
    return found


def _extent(data: bytes, at: int) -> int | None:
    """The end of the file that starts at ``at``, None where no whole file does."""
    header = data[at : at + 128]
    if len(header) < 128:
        return None
    sections = [(_u64(header, 16 + 16 * i), _u64(header, 24 + 16 * i)) for i in range(4)]
    end = at + max([128, *(offset + size for offset, size in sections)])
    return end if end <= len(data) else None


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def decode(data: bytes) -> Vgf:
    """Read a VGF file.

    Raises `InvalidVgfError` for a wrong magic, a version that ``vgfpy`` does not read, sections outside the file, and
    indexes out of range.
    """
    vgfpy = _vgfpy()
    if len(data) < vgfpy.HeaderSize() or data[:4] != MAGIC:
        raise InvalidVgfError(
            f"{len(data)} bytes starting with {data[:4]!r} are no VGF file (a header of {vgfpy.HeaderSize()} bytes "
            f"starting with {MAGIC!r})"
        )
    version = (data[_VERSION_AT], data[_VERSION_AT + 1], data[_VERSION_AT + 2])
    known = (vgfpy.HEADER_MAJOR_VERSION_VALUE, vgfpy.HEADER_MINOR_VERSION_VALUE)
    if version[0] != known[0] or version[1] > known[1]:
        raise InvalidVgfError(
            f"VGF version {'.'.join(map(str, version))}; the installed vgfpy reads up to {known[0]}.{known[1]}: "
            "install a newer ai-ml-sdk-vgf-library, or convert the model with an older converter"
        )
    if _extent(data, 0) is None:
        raise InvalidVgfError(f"sections that lie outside the file of {len(data)} bytes: is it truncated?")
    header = _made(
        "the header", lambda: vgfpy.CreateHeaderDecoder(data[: vgfpy.HeaderSize()], vgfpy.HeaderSize(), len(data))
    )
    if not header.IsValid() or not header.CheckVersion():
        raise InvalidVgfError(f"VGF version {'.'.join(map(str, version))}, which the installed vgfpy does not read")

    def section(what: str, name: str, decoder: str) -> Any:
        """A part of the file, by its name in the functions of the header and the module."""
        offset, size = getattr(header, f"Get{name}Offset")(), getattr(header, f"Get{name}Size")()
        if offset + size > len(data):
            raise InvalidVgfError(f"{what}: {size} bytes at {offset} are outside the file of {len(data)} (truncated?)")
        return _made(what, lambda: getattr(vgfpy, f"Create{decoder}Decoder")(data[offset : offset + size], size))

    modules = section("the module table", "ModuleTable", "ModuleTable")
    resources = section("the resource table", "ModelResourceTable", "ModelResourceTable")
    sequence = section("the model sequence", "ModelSequenceTable", "ModelSequenceTable")
    constants = section("the constants", "Constants", "Constant")
    try:
        result = _tables(version, modules, resources, sequence, constants, _Copies(len(data)))
    except InvalidVgfError:
        raise
    except Exception as error:  # texts that are not UTF-8, counts beyond the tables: any exception for damaged bytes
        raise InvalidVgfError(f"a damaged VGF file: {error}") from error
    _check(result)
    return result


class _Copies:
    """Copies parts of a file, all together at most as many bytes as the file has: entries of a damaged file may name one part
    any number of times."""

    def __init__(self, size: int) -> None:
        self._size = self._left = size

    def __call__(self, part: Any) -> bytes:
        view = memoryview(part).cast("B")
        self._left -= view.nbytes
        if self._left < 0:
            raise InvalidVgfError(f"its code and constants overlap: they are more than the file's {self._size} bytes")
        return bytes(view)


def _tables(
    version: tuple[int, int, int], modules: Any, resources: Any, sequence: Any, constants: Any, copy: _Copies
) -> Vgf:
    return Vgf(
        version=version,
        resources=tuple(_resource(resources, i) for i in range(resources.size())),
        modules=tuple(_module(modules, i, copy) for i in range(modules.size())),
        constants=tuple(_constant(constants, i, copy) for i in range(constants.size())),
        segments=tuple(_segment(sequence, i) for i in range(sequence.modelSequenceTableSize())),
        inputs=_slots(
            sequence,
            sequence.getModelSequenceInputBindingSlotsHandle(),
            sequence.getModelSequenceInputNamesHandle(),
        ),
        outputs=_slots(
            sequence,
            sequence.getModelSequenceOutputBindingSlotsHandle(),
            sequence.getModelSequenceOutputNamesHandle(),
        ),
    )


def _made(what: str, create: Callable[[], Any]) -> Any:
    try:
        made = create()
    except Exception as error:  # any exception of the binding for bytes that it cannot read
        raise InvalidVgfError(f"{what} cannot be read: {error}") from error
    if made is None:
        raise InvalidVgfError(f"{what} cannot be read: its bytes are not what the format says")
    return made


def _resource(table: Any, index: int) -> Resource:
    shape, stride = table.getTensorShape(index), table.getTensorStride(index)
    return Resource(
        category=_CATEGORIES[table.getCategory(index).name],
        descriptor_type=table.getDescriptorType(index),
        format=table.getVkFormat(index),
        shape=tuple(int(d) for d in shape) if shape is not None else (),
        stride=tuple(int(d) for d in stride) if stride is not None else (),
        alias_group=table.getAliasGroupId(index),
    )


def _module(table: Any, index: int, copy: _Copies) -> Module:
    code = table.getSPIRVModuleCode(index) if table.hasSPIRVCode(index) else None
    language, source = "SPIR-V", None
    if table.isGLSL(index):
        language, source = "GLSL", table.getGLSLModuleCode(index) if table.hasGLSLCode(index) else None
    elif table.isHLSL(index):
        language, source = "HLSL", table.getHLSLModuleCode(index) if table.hasHLSLCode(index) else None
    return Module(
        name=table.getModuleName(index),
        kind=_KINDS[table.getModuleType(index).name],
        entry_point=table.getModuleEntryPoint(index),
        spirv=copy(code) if code is not None else None,
        language=language,
        source=source,
    )


def _constant(table: Any, index: int, copy: _Copies) -> Constant:
    data = table.getConstant(index)
    return Constant(
        resource=table.getConstantMrtIndex(index),
        data=copy(data) if data is not None else b"",
        sparse_dimension=table.getConstantSparsityDimension(index) if table.isSparseConstant(index) else -1,
    )


def _slots(table: Any, handle: Any, names: Any = None) -> tuple[BindingSlot, ...]:
    count = table.getNamesSize(names) if names is not None else 0
    return tuple(
        BindingSlot(
            table.getBindingSlotBinding(handle, i),
            table.getBindingSlotMrtIndex(handle, i),
            table.getName(names, i) if i < count else "",
        )
        for i in range(table.getBindingsSize(handle))
    )


def _segment(table: Any, index: int) -> Segment:
    sets = {}
    for k in range(table.getSegmentDescriptorSetInfosSize(index)):
        number = table.getSegmentDescriptorSetIndex(index, k)
        sets[number] = _slots(table, table.getDescriptorBindingSlotsHandle(index, k))
    ranges = table.getSegmentPushConstRange(index)
    shape = table.getSegmentDispatchShape(index)
    bindings = [(b.graphConstantId, b.constantIndex) for b in table.getSegmentConstantBindings(index)]
    if not bindings:  # files before 0.5: the number is the position
        legacy = table.getSegmentConstantIndexes(index)
        bindings = [(i, int(c)) for i, c in enumerate(legacy)] if legacy is not None else []
    return Segment(
        name=table.getSegmentName(index),
        kind=_KINDS[table.getSegmentType(index).name],
        module=table.getSegmentModuleIndex(index),
        sets=sets,
        inputs=_slots(table, table.getSegmentInputBindingSlotsHandle(index)),
        outputs=_slots(table, table.getSegmentOutputBindingSlotsHandle(index)),
        constants=tuple(bindings),
        push_constants=tuple(
            (
                table.getPushConstRangeStageFlags(ranges, k),
                table.getPushConstRangeOffset(ranges, k),
                table.getPushConstRangeSize(ranges, k),
            )
            for k in range(table.getPushConstRangesSize(ranges))
        ),
        dispatch=(int(shape[0]), int(shape[1]), int(shape[2])) if shape is not None else (0, 0, 0),
    )


def _check(vgf: Vgf) -> None:
    def inside(what: str, index: int, table: tuple[Any, ...], name: str) -> None:
        if not 0 <= index < len(table):
            raise InvalidVgfError(f"{what} names {name} {index}; the file has {len(table)}")

    for what, slots in (("the model's input", vgf.inputs), ("the model's output", vgf.outputs)):
        for slot in slots:
            inside(f"{what} {slot.name!r}", slot.resource, vgf.resources, "resource")
    for index, constant in enumerate(vgf.constants):
        inside(f"constant {index}", constant.resource, vgf.resources, "resource")
        resource = vgf.resources[constant.resource]
        if not -1 <= constant.sparse_dimension < max(len(resource.shape), 1):
            raise InvalidVgfError(
                f"constant {index} is sparse along axis {constant.sparse_dimension} of {resource.shape}"
            )
        if len(constant.data) != resource.nbytes:
            raise InvalidVgfError(
                f"constant {index} has {len(constant.data)} bytes; resource {constant.resource} "
                f"({resource.dtype} {list(resource.shape)}) takes {resource.nbytes}"
            )
    for segment in vgf.segments:
        where = f"segment {segment.name!r}"
        inside(where, segment.module, vgf.modules, "module")
        if vgf.modules[segment.module].kind != segment.kind:
            raise InvalidVgfError(f"{where} is {segment.kind}, its module {vgf.modules[segment.module].kind}")
        for slots in (*segment.sets.values(), segment.inputs, segment.outputs):
            for slot in slots:
                inside(f"{where} binding {slot.binding}", slot.resource, vgf.resources, "resource")
        for _, constant_index in segment.constants:
            inside(where, constant_index, vgf.constants, "constant")
