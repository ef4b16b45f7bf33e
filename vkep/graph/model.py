"""The model: nodes in topological order, typed values, and weights that are read on use."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

from vkep.graph.weights import Weight

#: A dimension: a size, a symbol's name, or None where the model has neither.
Dim = int | str | None
#: The domain of the operators that `vkep.generation` adds to models.
GENERATION = "vkep.generation"


@dataclass(frozen=True)
class ValueInfo:
    """A graph input or output. ``shape`` is None where the model gives no rank."""

    name: str
    elem_type: int  #: ``TensorProto.DataType``; 0 for anything but a tensor
    shape: tuple[Dim, ...] | None
    #: the type of a sequence, map or optional
    other: onnx.TypeProto | None = field(default=None, compare=False, repr=False)
    #: what each axis means, such as DATA_BATCH; empty where the model does not say
    denotations: tuple[str, ...] = ()
    sparse: bool = False  #: declared as a sparse tensor; the graph has a dense one

    @property
    def is_tensor(self) -> bool:
        """False for a sequence, map or optional."""
        return self.other is None

    @property
    def is_optional(self) -> bool:
        """Whether None is a valid value."""
        return self.other is not None and self.other.HasField("optional_type")

    @property
    def is_static(self) -> bool:
        """Whether the rank and all sizes are known."""
        return self.static_shape is not None

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape where the rank and all sizes are known, else None."""
        sizes = tuple([d for d in self.shape or () if isinstance(d, int)])
        return sizes if sizes == self.shape else None


@dataclass(frozen=True)
class Node:
    """One ONNX node. ``inputs`` and ``outputs`` name values; "" marks an absent optional one."""

    index: int  #: position in the topological order of its graph
    name: str  #: as in the model, or ``<op_type>_<index>`` where the model gives none
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: onnx.NodeProto = field(repr=False, compare=False)
    schema: onnx.defs.OpSchema | None = field(default=None, repr=False, compare=False)  #: None: not a known operator
    opset: int = 0  #: the version of its domain that the model imports (0: none)

    captures: tuple[str, ...] = ()  #: values of the outer graph that its bodies (If, Loop, Scan) read
    bodies: Mapping[str, Graph] = field(default_factory=dict, repr=False, compare=False)  #: by attribute name
    #: cached by planning, for the next plan with this node
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @functools.cached_property
    def reads(self) -> tuple[str, ...]:
        """Every value that the node needs, captured ones included."""
        return (*(n for n in self.inputs if n), *self.captures)

    @functools.cached_property
    def constraints(self) -> tuple[str, ...]:
        """The type constraint of each formal input of the operator's definition; the last one's may be variadic."""
        return tuple(formal.type_str for formal in self.schema.inputs) if self.schema else ()

    @functools.cached_property
    def since_version(self) -> int:
        """The version of the operator's definition that the model's opset selects; the opset, where there is no schema."""
        return self.schema.since_version if self.schema else self.opset

    @property
    def title(self) -> str:
        """Operator (with its domain) and name, for messages."""
        domain = f"{self.domain}." if self.domain else ""
        return f"{domain}{self.op_type} {self.name!r}"


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order with their inputs, outputs and weights."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[ValueInfo, ...]  #: without initializers that old models also list as inputs
    outputs: tuple[ValueInfo, ...]
    weights: Mapping[str, Weight]
    overridable: tuple[ValueInfo, ...] = ()  #: inputs that have a weight of their name, which a run may replace


@dataclass(frozen=True)
class ModelMetadata:
    """The model's metadata; the names are those of ``onnxruntime.ModelMetadata``."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A graph, the versions of its operators, and its source."""

    graph: Graph
    opsets: Mapping[str, int]  #: domain ("" is ai.onnx) to version
    ir_version: int
    source: str  #: where it came from, for messages
    metadata: ModelMetadata = field(default_factory=ModelMetadata)
    file_identity: str = (
        ""  #: identity of the file that it was read from (`weights.file_identity`); empty for other sources
    )
