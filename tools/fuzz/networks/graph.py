"""A graph that grows node by node, while the values of two runs are computed beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tools.fuzz.networks.meanings import Array, meaning

Choice = TypeVar("Choice")
Draw = Callable[[st.SearchStrategy[Any]], Any]

#: runs of a graph: with symbolic dimensions at other sizes, else with other values
RUNS = 2
#: limit of a value's elements
_MOST = 1 << 13
#: greatest sizes of a type's elements: of any value, and of one that later nodes read
_LARGEST, _LARGE = {"float32": 1e5, "float16": 1e4}, {"float32": 64.0, "float16": 16.0}
#: inputs of a graph
_INPUTS = 4
CHANNELS = (4, 1, 2, 3, 6, 8, 12, 16)
#: channels of networks whose convolutions and products fill matrices, and the numbers that they are multiples of
_WIDE, _VECTOR = (8, 16, 24, 32), 8
SIDES = (4, 1, 2, 3, 5, 7, 8, 9, 13)
#: axes of inputs: the batch, channels (an int is drawn), and sizes by name
_FORMS: dict[str, tuple[str, ...]] = {
    "image": ("batch", "", "height", "width"),
    "sequence": ("batch", "length", ""),
    "signal": ("batch", "", "length"),
    "volume": ("batch", "", "depth", "height", "width"),
    "vector": ("batch", ""),
    "tokens": ("batch", "length"),
}
#: numbers that tokens are below
VOCABULARY = 9


class Unfit(Exception):
    """No value suits a step, or its results would be too large."""


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the graph, with its elements in each run (floats in float64)."""

    name: str
    dtype: str
    runs: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.runs[0].shape

    @property
    def rank(self) -> int:
        return self.runs[0].ndim

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")

    @property
    def largest(self) -> float:
        return max(float(np.abs(run).max(initial=0)) for run in self.runs)

    def is_fixed(self, *axes: int) -> bool:
        """Whether axes (all by default) have one size in all runs."""
        return all(len({run.shape[a] for run in self.runs}) == 1 for a in axes or range(self.rank))

    def least(self, axis: int) -> int:
        """The least size of an axis in a run."""
        return min(run.shape[axis] for run in self.runs)


@dataclass(frozen=True)
class Network:
    """A model, the inputs of its runs, the element types of all its values, and outputs that more runs write to the memory of an
    input."""

    model: onnx.ModelProto
    feeds: tuple[dict[str, Array], ...]
    types: dict[str, str]
    over: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of nodes, without constants."""
        return sum(node.op_type != "Constant" for node in self.model.graph.node)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """What Hypothesis prints of a failure."""
        printer.text(repr(self))

    def __repr__(self) -> str:
        graph = self.model.graph
        sizes = " then ".join(", ".join(f"{n}{list(v.shape)}" for n, v in feeds.items()) for feeds in self.feeds)
        nodes = ", ".join(n.op_type for n in graph.node if n.op_type != "Constant")
        return f"{self.size} nodes ({nodes}) at {sizes}"


class Graph:
    """Draws the graph's parts. ``pool`` has the floats that a step may read, the newest at the end."""

    def __init__(self, draw: Draw, kind: str, symbolic: bool, wide: bool = False) -> None:
        """``wide``: all channels are whole vectors, as those of some other networks are."""
        self.draw, self.kind = draw, kind
        self.opset: int = draw(st.sampled_from([21, 17, 13, 23]))
        self.rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
        self.pool: list[Value] = []
        self.masks: list[Value] = []
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[tuple[Value, list[int | str]]] = []
        self._types: dict[str, str] = {}
        self._forms: dict[str, tuple[Any, ...]] = {}  #: element type, and the shape in each run
        self._names = itertools.count()
        self._sizes = {name: self._size(name) for name in ("batch", "height", "width", "depth", "length")}
        names = [["batch"], ["height", "width", "length"], ["batch", "height", "width", "length"]]
        self._symbols: list[str] = self.one_of(*names) if symbolic else []
        self._constant_nodes = self.flag()
        self._wide = wide or self.flag()

    # ---- draws

    def one_of(self, *options: Choice) -> Choice:
        """One of the options; failures shrink to the first."""
        return options[0] if len(options) == 1 else self.draw(st.sampled_from(options))

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def channels(self, *options: int) -> int:
        """A number of channels of the options; in some networks all are multiples of eight."""
        return self.one_of(*(dict.fromkeys(-(-n // _VECTOR) * _VECTOR for n in options) if self._wide else options))

    def _size(self, name: str) -> tuple[int, int]:
        options = {"batch": (1, 2, 3), "depth": (2, 3, 4), "length": (4, 1, 2, 3, 5, 7, 8, 12, 16)}.get(name, SIDES)
        first = self.one_of(*options)
        return first, self.one_of(*[size for size in options if size != first])

    def pick(self, fits: Callable[[Value], object] = bool, form: str = "") -> Value:
        """A value of the pool, which other nodes may read too; else a new input of a form. Raises `Unfit`."""
        found = [value for value in reversed(self.pool) if fits(value)]
        if found and not (form and self.draw(st.integers(0, 15)) == 15 and len(self._inputs) < _INPUTS):
            return found[min(self.number(0, len(found) - 1), self.number(0, len(found) - 1))]
        if form and len(self._inputs) < _INPUTS:
            value = self.input(form)
            if fits(value):
                return value
        raise Unfit

    # ---- values

    def has_form(self, value: Value, form: str) -> bool:
        """Whether a value has the axes of a form, of which those of channels have one size."""
        names = _FORMS[form]
        return value.rank == len(names) and value.is_fixed(*(axis for axis, name in enumerate(names) if not name))

    def input(self, form: str, dtype: str = "") -> Value:
        """A new input, of the graph's type by default."""
        if len(self._inputs) == _INPUTS:
            raise Unfit
        if form == "tokens":
            dtype = "int64"
        dtype = dtype or (self.one_of("float32", "float16") if self.kind == "mixed" else self.kind)
        dims: list[int | str] = []
        shapes: list[list[int]] = [[] for _ in range(RUNS)]
        sizes = [self._sizes[name] for name in _FORMS[form] if name]
        most = min(_MOST // math.prod(size[k] for size in sizes) for k in range(RUNS))
        channels = min(self.one_of(*(_WIDE if self._wide else CHANNELS)), most)
        for name in _FORMS[form]:
            both = self._sizes[name] if name else (channels, channels)
            is_symbol = name in self._symbols
            dims.append(name if is_symbol else both[0])
            for k, shape in enumerate(shapes):
                shape.append(both[k if is_symbol else 0])
        made = [self._drawn(dtype, shape) for shape in shapes]
        value = self._value(f"x{len(self._inputs)}", dtype, [self._stored(array, dtype) for array in made])
        self._inputs.append((value, dims))
        if value.is_float:
            self.pool.append(value)
        return value

    def _drawn(self, dtype: str, shape: Sequence[int]) -> Array:
        if dtype.startswith("float"):
            return self.rng.standard_normal(shape)
        info = np.iinfo(dtype)
        return self.rng.integers(*((0, VOCABULARY) if dtype == "int64" else (info.min, info.max + 1)), shape)

    def _value(self, name: str, dtype: str, runs: Sequence[Array]) -> Value:
        self._types[name] = dtype
        self._forms[name] = dtype, *(run.shape for run in runs)
        return Value(name, dtype, tuple(runs))

    def _stored(self, array: Array, dtype: str) -> Array:
        kept = np.asarray(array).astype(dtype)
        return kept.astype(np.float64) if kept.dtype.kind == "f" else kept

    def constant(self, array: Any, dtype: str) -> Value:
        """A constant: an initializer, or a node."""
        name = f"c{next(self._names)}"
        kept = self._stored(array, dtype)
        tensor = numpy_helper.from_array(np.ascontiguousarray(kept.astype(dtype)).reshape(kept.shape), name)
        if self._constant_nodes:
            self._nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self._constants[name] = tensor
        return self._value(name, dtype, [kept] * RUNS)

    def ints(self, *numbers: int) -> Value:
        return self.constant(np.array(numbers, np.int64), "int64")

    def weights(self, dtype: str, *shape: int, terms: int = 1) -> Value:
        """Random weights; sums of ``terms`` products with values near 1 are near 1."""
        return self.constant(self.rng.standard_normal(shape) / math.sqrt(terms), dtype)

    def near_one(self, dtype: str, *shape: int) -> Value:
        return self.constant(self.rng.uniform(0.5, 1.5, shape), dtype)

    def add(
        self, op_type: str, *inputs: Value | None, dtype: str = "", limited: bool = True, **attributes: Any
    ) -> Value:
        """The result of a new node, of the type of its first float or of ``dtype``. ``limited``: no large numbers. Raises
        `Unfit`."""
        kind = dtype or next(v.dtype for v in inputs if v and v.is_float)
        return self._add(op_type, inputs, [kind], limited, attributes)[0]

    def split(self, value: Value, sizes: Sequence[int], axis: int) -> list[Value]:
        """The parts of a Split."""
        return self._add("Split", [value, self.ints(*sizes)], [value.dtype] * len(sizes), True, {"axis": axis})

    def top(self, value: Value, count: int, axis: int) -> Value:
        """The values of a TopK."""
        return self._add("TopK", [value, self.ints(count)], [value.dtype, "int64"], True, {"axis": axis})[0]

    def _add(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        dtypes: Sequence[str],
        limited: bool,
        attributes: dict[str, Any],
    ) -> list[Value]:
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        names = [f"v{next(self._names)}" for _ in dtypes]
        node = helper.make_node(op_type, [v.name if v else "" for v in inputs], names, **attributes)
        results = [meaning(node, [v.runs[k] if v else None for v in inputs], self.opset) for k in range(RUNS)]
        made = []
        for i, (name, dtype) in enumerate(zip(names, dtypes, strict=True)):
            value = self._value(name, dtype, [result[i] for result in results])
            if any(not 0 < run.size <= _MOST for run in value.runs):
                raise Unfit
            if value.is_float and limited and not value.largest <= _LARGEST[dtype]:  # or NaN
                raise Unfit
            made.append(value)
        self._nodes.append(node)
        return made

    def publish(self, value: Value) -> Value:
        """Let later steps read a value; one of large or of small numbers is scaled."""
        if value.dtype == "bool":
            self.masks.append(value)
        if not value.is_float:
            return value
        size = value.largest
        if size > _LARGE[value.dtype] or 0 < size < 1e-2:
            factor = 2.0 ** -round(math.log2(size))
            if self._stored(np.array(factor), value.dtype) > 0:
                value = self.add("Mul", value, self.constant(factor, value.dtype))
        self.pool.append(value)
        return value

    def cast(self, value: Value, dtype: str) -> Value:
        if value.dtype == dtype:
            return value
        return self.add("Cast", value, dtype=dtype, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshape(self, value: Value, *items: int | tuple[Value, int]) -> Value:
        """A Reshape to sizes: numbers, -1, and axes of values, which a model with symbolic sizes computes."""
        kept = [item if isinstance(item, int) else item[0].shape[item[1]] for item in items]
        open_ones = [i for i, item in enumerate(items) if not isinstance(item, int) and not item[0].is_fixed(item[1])]
        if len(open_ones) == 1 and -1 not in kept and self.flag():
            kept[open_ones[0]] = -1
            open_ones = []
        if not open_ones:
            return self.add("Reshape", value, self.ints(*kept))
        parts = []
        for i, item in enumerate(items):
            if i in open_ones and not isinstance(item, int):
                parts.append(self.size_of(item[0], item[1]))
            else:
                parts.append(self.ints(kept[i]))
        target = self.add("Concat", *parts, dtype="int64", axis=0) if len(parts) > 1 else parts[0]
        return self.add("Reshape", value, target)

    def size_of(self, value: Value, axis: int) -> Value:
        """The size of an axis as a list of one, in the form that exporters write."""
        size = self.add("Shape", value, dtype="int64")
        if self.flag():
            return self.add("Gather", size, self.ints(axis), dtype="int64", axis=0)
        number = self.add("Gather", size, self.constant(np.array(axis), "int64"), dtype="int64", axis=0)
        return self.add("Unsqueeze", number, self.ints(0), dtype="int64")

    def reduced(self, op_type: str, value: Value, axes: Sequence[int], keepdims: int = 1) -> Value:
        """A reduction, with axes where the opset has them."""
        if self.opset >= 18 or op_type == "ReduceSum":
            return self.add(op_type, value, self.ints(*axes), keepdims=keepdims)
        return self.add(op_type, value, axes=list(axes), keepdims=keepdims)

    # ---- the whole

    def step(self, step: Callable[[Graph], Any]) -> None:
        """Add the nodes of a step; none where it does not fit."""
        sizes = len(self._nodes), len(self._inputs), len(self.pool), len(self.masks)
        try:
            made = step(self)
            for value in made if isinstance(made, (list, tuple)) else [made]:
                self.publish(value)
        except Unfit:
            for items, size in zip((self._nodes, self._inputs, self.pool, self.masks), sizes, strict=True):
                del items[size:]  # type: ignore[attr-defined]

    @property
    def size(self) -> int:
        """The number of nodes, without constants."""
        return sum(node.op_type != "Constant" for node in self._nodes)

    def network(self) -> Network:
        """The model: its outputs are the values that no node reads, and a few others."""
        read = {name for node in self._nodes for name in node.input}
        nodes = [node for node in self._nodes if node.op_type != "Constant" or node.output[0] in read]
        made = [name for node in nodes if node.op_type != "Constant" for name in node.output]
        outputs = [name for name in made if name not in read]
        inner = [name for name in made if name in read]
        if inner:
            outputs += {inner[k % len(inner)]: 0 for k in self.draw(st.lists(st.integers(0, 60), max_size=3))}
        inputs = [(v, dims) for v, dims in self._inputs if v.name in read]
        over: dict[str, str] = {}
        for name in outputs:
            fits = [
                v.name for v, _ in inputs if self._forms[v.name] == self._forms[name] and v.name not in over.values()
            ]
            if fits and self.flag():
                over[name] = fits[0]
        graph = helper.make_graph(
            nodes,
            "network",
            [helper.make_tensor_value_info(v.name, _element(v.dtype), dims) for v, dims in inputs],
            [helper.make_tensor_value_info(name, _element(self._types[name]), None) for name in outputs],
            [tensor for name, tensor in self._constants.items() if name in read],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        feeds = tuple({v.name: v.runs[k].astype(v.dtype) for v, _ in inputs} for k in range(RUNS))
        return Network(model, feeds, dict(self._types), over)


def _element(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
