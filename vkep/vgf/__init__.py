"""VGF files: created from TOSA by the ML SDK's converter, and any of them decoded into plain data."""

from vkep.vgf.convert import ConvertError, converter_version, mlir_to_vgf
from vkep.vgf.decode import decode, find_vgf
from vkep.vgf.records import BindingSlot, Constant, InvalidVgfError, Module, Resource, Segment, Vgf

__all__ = [
    "Constant",
    "ConvertError",
    "InvalidVgfError",
    "Module",
    "Resource",
    "Segment",
    "BindingSlot",
    "Vgf",
    "converter_version",
    "decode",
    "find_vgf",
    "mlir_to_vgf",
]
