"""Attributes that several operators share, as records with ONNX's names and defaults, and their use in declared
functions.

The lowerings for Vulkan (`vkep.ops`) and for TOSA (`vkep.tosa.ops`) declare an operator by a function whose signature
is its schema. A keyword-only parameter that is annotated with a record receives all of the record's attributes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkep.errors import InvalidNode
from vkep.graph.windows import Window, resolve_transposed_window, resolve_window

Ints = Sequence[int] | None


@dataclass(frozen=True, kw_only=True)
class ConvAttributes:
    """Attributes of Conv, ConvInteger and QLinearConv."""

    auto_pad: str = "NOTSET"
    dilations: Ints = None
    group: int = 1
    kernel_shape: Ints = None
    pads: Ints = None
    strides: Ints = None

    def window(self, x: Sequence[int], w: Sequence[int]) -> Window:
        """The window over an input of shape ``x`` [n, c, ...] with weights of shape ``w``. Raises `Decline`, `InvalidNode`."""
        return resolve_window(x[2:], self.kernel(w), self.strides, self.pads, self.dilations, self.auto_pad)

    def kernel(self, w: Sequence[int]) -> Sequence[int]:
        """The spatial shape of weights of shape ``w``. Raises `InvalidNode` where ``kernel_shape`` differs, and where pads
        are given twice."""
        if self.pads and self.auto_pad not in ("", "NOTSET"):
            raise InvalidNode(f"auto_pad {self.auto_pad!r} beside pads {list(self.pads)}; expected one of them")
        if self.kernel_shape is not None and tuple(self.kernel_shape) != tuple(w[2:]):
            raise InvalidNode(f"kernel_shape {list(self.kernel_shape)} for weights of shape {list(w)}")
        return w[2:]


@dataclass(frozen=True, kw_only=True)
class ConvTransposeAttributes(ConvAttributes):
    """Attributes of ConvTranspose."""

    output_padding: Ints = None
    output_shape: Ints = None

    def window(self, x: Sequence[int], w: Sequence[int]) -> Window:
        """The window over the result, whose spatial shape is ``out``. Raises `Decline`, `InvalidNode`."""
        extra = self.output_padding, self.output_shape, self.auto_pad
        return resolve_transposed_window(x[2:], self.kernel(w), self.strides, self.pads, self.dilations, *extra)


@dataclass(frozen=True, kw_only=True)
class PoolAttributes:
    """Attributes of AveragePool, MaxPool and LpPool."""

    kernel_shape: Sequence[int]
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    dilations: Ints = None
    pads: Ints = None
    strides: Ints = None

    def window(self, x: Sequence[int]) -> Window:
        """The window over an input of shape ``x`` [n, c, ...]. Raises `Decline`, and `InvalidNode` for what ONNX Runtime
        refuses too: pads as long as the kernel, and images without elements."""
        kernel, pads = self.kernel_shape, self.pads or ()
        if any(pad >= kernel[k % len(kernel)] for k, pad in enumerate(pads)):
            raise InvalidNode(f"pads {list(pads)} of a kernel of {list(kernel)}; each must be smaller than the kernel")
        if not math.prod(x) and x[0]:
            raise InvalidNode(f"an input of shape {list(x)}; of a pool's input only the batch may be 0")
        sizes = kernel, self.strides, self.pads, self.dilations
        return resolve_window(x[2:], *sizes, self.auto_pad, bool(self.ceil_mode), pools=True)


@dataclass(frozen=True, kw_only=True)
class GemmAttributes:
    """Attributes of Gemm."""

    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0
    transB: int = 0


@dataclass(frozen=True, kw_only=True)
class LayerNormAttributes:
    """Attributes of LayerNormalization, RMSNormalization and SimplifiedLayerNormalization."""

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1


@dataclass(frozen=True, kw_only=True)
class BatchNormAttributes:
    """Attributes of BatchNormalization, from version 14 on."""

    epsilon: float = 1e-5
    momentum: float = 0.9
    training_mode: int = 0


@dataclass(frozen=True, kw_only=True)
class ResizeAttributes:
    """Attributes of Resize, from version 11 on."""

    antialias: int = 0
    axes: Ints = None

    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"
    keep_aspect_ratio_policy: str = "stretch"


@dataclass(frozen=True, kw_only=True)
class DequantizeAttributes:
    """Attributes of DequantizeLinear."""

    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0


@dataclass(frozen=True, kw_only=True)
class QuantizeAttributes(DequantizeAttributes):
    """Attributes of QuantizeLinear."""

    precision: int = 0
    saturate: int = 1


@dataclass(frozen=True, kw_only=True)
class RecurrentAttributes:
    """Attributes of LSTM and GRU, and of RNN except for one default."""

    activation_alpha: Sequence[float] | None = None
    activation_beta: Sequence[float] | None = None
    activations: Sequence[str] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0


@dataclass(frozen=True, kw_only=True)
class RnnAttributes(RecurrentAttributes):
    """Attributes of RNN."""

    activations: Sequence[str] | None = ("Tanh", "Tanh")


#: the default of an attribute that a schema requires
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Signature:
    """The operator's inputs and attributes, from a declared function's parameters without the first one, a builder."""

    inputs: tuple[str, ...]
    required: int
    needed: tuple[bool, ...]  #: for each input, whether it is required
    variadic: bool
    attributes: Mapping[str, Any]  #: name to default, or `REQUIRED`
    facts: frozenset[str]  #: parameters that are not attributes, but facts of the node
    record: (
        tuple[str, type[Any], frozenset[str]] | None
    )  #: the parameter that takes a record, and the record's attributes

    @classmethod
    def of(cls, function: Callable[..., Any], facts: Collection[str] = ()) -> Signature:
        """Read a function's signature. ``facts`` are names of keyword parameters for facts of the node."""
        parameters = list(inspect.signature(function).parameters.values())[1:]
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        attributes: dict[str, Any] = {}
        record: tuple[str, type[Any], frozenset[str]] | None = None
        for p in parameters:
            if p.kind is not p.KEYWORD_ONLY or p.name in facts:
                continue
            kind = function.__globals__.get(p.annotation) if isinstance(p.annotation, str) else None
            if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
                attributes[p.name] = p.default
                continue
            fields = {f.name: f.default for f in dataclasses.fields(kind)}
            attributes |= {n: REQUIRED if d is dataclasses.MISSING else d for n, d in fields.items()}
            record = (p.name, kind, frozenset(fields))
        return cls(
            inputs=tuple(p.name for p in positional),
            required=sum(p.default is p.empty for p in positional),
            needed=tuple(p.default is p.empty and "None" not in str(p.annotation) for p in positional),
            variadic=any(p.kind is p.VAR_POSITIONAL for p in parameters),
            attributes=attributes,
            facts=frozenset(p.name for p in parameters if p.name in facts),
            record=record,
        )

    @functools.cached_property
    def required_attributes(self) -> tuple[str, ...]:
        """Names of the attributes without a default."""
        return tuple(name for name, default in self.attributes.items() if default is REQUIRED)

    @functools.cached_property
    def _rounded_defaults(self) -> Mapping[str, float]:
        """Default numbers as an attribute of a model has them: ONNX's floats are float32."""
        return {name: float(np.float32(value)) for name, value in self.attributes.items() if type(value) is float}

    def keywords(self, attributes: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
        """Keyword arguments for the function: a node's attributes, the record with its attributes, and the facts that
        the function takes."""
        given = {**self._rounded_defaults, **attributes}
        if self.record is None and not self.facts:
            return given
        if self.record is not None:
            name, kind, fields = self.record
            given[name] = kind(**{field: given.pop(field) for field in fields & given.keys()})
        given.update({name: facts[name] for name in self.facts})
        return given


def overlap(one: tuple[int, int | None], other: tuple[int, int | None]) -> str:
    """The versions of both ranges (None: no end) in words, with their verb; "" where there are none."""
    low, ends = max(one[0], other[0]), [end for end in (one[1], other[1]) if end is not None]
    high = min(ends, default=None)
    if high is None:
        return f"versions from {low} on are"
    return "" if low > high else f"version {low} is" if low == high else f"versions {low} to {high} are"
