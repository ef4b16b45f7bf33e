"""Decodes the data that a program holds for each delegate's backend: its numbers of inputs and outputs, and the
features that vkep lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vkep.aten import unsupported_operators
from vkep.errors import InvalidModelError, InvalidPteError
from vkep.pte.method import Delegate
from vkep.pte.vk_graph import VkGraph, decode_vk_graph
from vkep.vgf import InvalidVgfError, Vgf, decode
from vkep.vgf.layout import has_gaps, unsupported

VULKAN, VGF = "VulkanBackend", "VgfBackend"
#: the backends whose delegates vkep runs
BACKENDS = (VULKAN, VGF)


@dataclass(frozen=True)
class VulkanBlob:
    """A Vulkan delegate's data: a graph of ExecuTorch's Vulkan backend."""

    graph: VkGraph

    @property
    def arity(self) -> tuple[int, int]:
        """Numbers of inputs and outputs."""
        return len(self.graph.input_ids), len(self.graph.output_ids)

    @property
    def operators(self) -> list[str]:
        """The names of the graph's operators, in order."""
        return [call.name for call in self.graph.chain]

    def missing(self, named_data: Mapping[str, memoryview]) -> list[str]:
        """A line for each operator that vkep does not run in the delegate, and for each constant that is in no file.

        Raises `InvalidPteError` for constants that are shorter than the graph requires.
        """
        reasons: dict[str, str] = {}
        for name, reason in unsupported_operators(self.graph):
            reasons.setdefault(name, reason)
        lines = [f"operator {name}: {reason}" for name, reason in reasons.items()]
        for index, constant in enumerate(self.graph.constants):
            if constant.named_key and constant.named_key not in named_data:
                lines.append(f"constant {constant.named_key!r} is in none of the data files given (.ptd)")
            else:
                self.graph.constant(index, named_data)
        return lines


@dataclass(frozen=True)
class VgfBlob:
    """A VGF delegate's data: a VGF file."""

    vgf: Vgf

    @property
    def arity(self) -> tuple[int, int]:
        """Numbers of inputs and outputs."""
        return len(self.vgf.inputs), len(self.vgf.outputs)

    @property
    def operators(self) -> list[str]:
        """Kind and name of each segment, in order."""
        return [f"{segment.kind} segment {segment.name}" for segment in self.vgf.segments]

    def missing(self, named_data: Mapping[str, memoryview]) -> list[str]:
        """A line for each feature of the file that vkep does not run, or that needs values which a program does not
        hold."""
        gaps = [
            f"{slot.name!r} has gaps between its elements, the program's tensor none"
            for slot in (*self.vgf.inputs, *self.vgf.outputs)
            if has_gaps(self.vgf.resources[slot.resource])
        ]
        return unsupported(self.vgf) + gaps


Blob = VulkanBlob | VgfBlob


def decode_blob(delegate: Delegate, where: str) -> Blob:
    """Decode a delegate's data. Raises `InvalidPteError` with the place where the bytes do not have the backend's
    format."""
    try:
        if delegate.backend == VULKAN:
            return VulkanBlob(decode_vk_graph(delegate.data))
        return VgfBlob(decode(bytes(delegate.data)))
    except InvalidPteError as error:
        raise InvalidPteError(f"{where}: {error}") from error
    except (InvalidModelError, InvalidVgfError) as error:
        raise InvalidPteError(f"{where}: {error}") from error


def decode_blobs(delegates: tuple[Delegate, ...], where: str) -> list[Blob]:
    """The decoded data of a method's delegates, all of backends that vkep has. Raises as `decode_blob`."""
    blobs: list[Blob] = []
    for number, delegate in enumerate(delegates):
        blobs.append(decode_blob(delegate, f"{where}, delegate {number} ({delegate.backend})"))
    return blobs


def merged(first: Mapping[str, memoryview], *others: Mapping[str, memoryview]) -> dict[str, memoryview]:
    """Named data of a program and of its data files; the program's own come first."""
    result: dict[str, memoryview] = {}
    for mapping in (*reversed(others), first):
        result.update(mapping)
    return result
