"""Draw a producer of each kind with a destination of its result, and compare vkep with ONNX Runtime's CPU provider.

    python -m tools.fuzz.compositions --cases 300 --seed 1 [--only "3x3 convolution"] [--into "concat"] [--case 17]

Passes choose where a kernel stores its result: in a part of a Concat, in a stack, in an output, in the memory of an input. What
they may choose depends on the kernel, on the axis and on what is computed on the way (its epilogue).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tools.ort_cpu import cpu_session

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Shape = tuple[int, ...]
#: the greatest difference from the reference, relative to the largest value
NEAR = {"float32": 2e-5, "float16": 4e-3}


@dataclass
class Graph:
    """A model of values of one shape, [n, c, h, w], which producers make and a destination joins."""

    rng: Rng
    dtype: str
    shape: Shape
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    over: dict[str, str] = field(default_factory=dict)  #: outputs in the memory of inputs
    text: list[str] = field(default_factory=list)  #: of its parts

    def _name(self, stem: str) -> str:
        return f"{stem}{len(self.nodes) + len(self.weights) + len(self.inputs)}"

    def _drawn(self, shape: Sequence[int], scale: float) -> Array:
        return (self.rng.standard_normal(shape) * scale).astype(self.dtype)

    def input(self, shape: Sequence[int]) -> str:
        """An input of values near 1."""
        name = self._name("x")
        self.inputs[name] = self._drawn(shape, 1.0)
        return name

    def weight(self, shape: Sequence[int], scale: float = 1.0) -> str:
        """A weight of floats."""
        return self.constant(self._drawn(shape, scale))

    def constant(self, value: Any) -> str:
        """A weight of these values."""
        name = self._name("w")
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        """A node; the name of its first output."""
        name = self._name("v")
        names = [name, *(f"{name}_{k}" for k in range(1, outputs))]
        self.nodes.append(helper.make_node(op, list(inputs), names, domain=domain, **attributes))
        return name

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """The value in another shape."""
        return self.node("Reshape", value, self.constant(np.array(shape, np.int64)))

    def model(self) -> onnx.ModelProto:
        """The model, with its outputs' shapes left open."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        graph = helper.make_graph(
            self.nodes,
            "composition",
            [helper.make_tensor_value_info(name, kind, value.shape) for name, value in self.inputs.items()],
            [helper.make_tensor_value_info(name, kind, None) for name in self.outputs],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


# ---- producers: a value of the graph's shape


def _conv(
    g: Graph, window: Sequence[int], spatial: Sequence[int], groups: int = 1, stride: int = 1, rank: int = 2
) -> str:
    n, c = g.shape[:2]
    channels = c if groups > 1 else int(g.rng.choice([3, 8, 16, 32]))
    x = g.input((n, channels, *(s * stride for s in spatial)))
    taps = int(np.prod(window)) * channels // groups
    w = g.weight((c, channels // groups, *window), taps**-0.5)
    pads = [k // 2 for k in window] * 2
    bias = [g.weight((c,))] if g.rng.random() < 0.5 else []
    return g.node("Conv", x, w, *bias, pads=pads, group=groups, strides=[stride] * len(window))


def _conv_of(size: int, **options: Any) -> Callable[[Graph], str]:
    return lambda g: _conv(g, (size, size), g.shape[2:], **options)


def _depthwise(g: Graph) -> str:
    return _conv(g, (3, 3), g.shape[2:], groups=g.shape[1])


def _conv_1d(g: Graph) -> str:
    return g.reshape(_conv(g, (3,), (g.shape[2] * g.shape[3],)), g.shape)


def _conv_3d(g: Graph) -> str:
    _, _, h, w = g.shape
    return g.reshape(_conv(g, (1, 3, 3), (2, h // 2, w)), g.shape)


def _conv_transpose(g: Graph) -> str:
    n, c, h, w = g.shape
    x, k = g.input((n, 8, h // 2, w // 2)), g.weight((8, c, 2, 2), 0.3)
    return g.node("ConvTranspose", x, k, g.weight((c,)), strides=[2, 2])


def _pool(op: str) -> Callable[[Graph], str]:
    def producer(g: Graph) -> str:
        n, c, h, w = g.shape
        return g.node(op, g.input((n, c, 2 * h, 2 * w)), kernel_shape=[2, 2], strides=[2, 2])

    return producer


def _product(g: Graph) -> str:
    n, c, h, w = g.shape
    k = int(g.rng.choice([3, 16, 40]))
    return g.node("MatMul", g.input((n, c, h, k)), g.weight((k, w), k**-0.5))


def _product_of_batches(g: Graph) -> str:
    n, c, h, w = g.shape
    k = int(g.rng.choice([5, 16]))
    a = g.input((n, c, h, k)) if g.rng.random() < 0.5 else g.node("Transpose", g.input((n, h, c, k)), perm=[0, 2, 1, 3])
    return g.node("MatMul", a, g.input((n, c, k, w)))


def _gemm(g: Graph) -> str:
    n, c, h, w = g.shape
    x, weight = g.input((n * c, 24)), g.weight((h * w, 24), 0.2)
    return g.reshape(g.node("Gemm", x, weight, g.weight((h * w,)), transB=1), g.shape)


def _nbits(g: Graph) -> str:
    n, c, h, w = g.shape
    codes = g.constant(g.rng.integers(0, 256, (h * w, 2, 16), np.uint8))
    scales = g.weight((h * w * 2,), 0.02)
    x = g.input((n, c, 64))
    y = g.node("MatMulNBits", x, codes, scales, domain="com.microsoft", K=64, N=h * w, bits=4, block_size=32)
    return g.reshape(y, g.shape)


def _layer_norm(g: Graph) -> str:
    w = g.shape[3]
    return g.node("LayerNormalization", g.input(g.shape), g.weight((w,)), g.weight((w,)), axis=-1)


def _channel_norm(op: str) -> Callable[[Graph], str]:
    def producer(g: Graph) -> str:
        c = g.shape[1]
        more = [] if op == "InstanceNormalization" else [g.weight((c,)), g.constant(np.ones(c, g.dtype))]
        return g.node(op, g.input(g.shape), g.weight((c,)), g.weight((c,)), *more)

    return producer


def _softmax(g: Graph) -> str:
    return g.node("Softmax", g.input(g.shape), axis=int(g.rng.integers(4)))


def _reduce(g: Graph) -> str:
    axis = int(g.rng.integers(5))
    shape = list(g.shape)
    shape.insert(axis, 6)
    op = str(g.rng.choice(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"]))
    return g.node(op, g.input(shape), g.constant(np.array([axis])), keepdims=0)


def _resize(g: Graph) -> str:
    n, c, h, w = g.shape
    scales = g.constant(np.array([1, 1, 2, 2], np.float32))
    return g.node("Resize", g.input((n, c, h // 2, w // 2)), "", scales, mode=str(g.rng.choice(["nearest", "linear"])))


def _gather(g: Graph) -> str:
    axis = int(g.rng.integers(4))
    shape = list(g.shape)
    shape[axis] = 5
    indices = g.constant(g.rng.integers(0, 5, g.shape[axis]))
    return g.node("Gather", g.input(shape), indices, axis=axis)


def _attention(g: Graph) -> str:
    n, c, h, w = g.shape
    q, k, v = g.input((n, c, h, 8)), g.input((n, c, 8, 7)), g.input((n, c, 7, w))
    return g.node("MatMul", g.node("Softmax", g.node("MatMul", q, k), axis=-1), v)


def _cumsum(g: Graph) -> str:
    return g.node("CumSum", g.input(g.shape), g.constant(np.array(int(g.rng.integers(4)))))


def _pad(g: Graph) -> str:
    n, c, h, w = g.shape
    mode = str(g.rng.choice(["constant", "edge", *(["reflect"] if min(h, w) > 2 else [])]))
    return g.node("Pad", g.input((n, c, h - 1, w - 1)), g.constant(np.array([0, 0, 1, 0, 0, 0, 0, 1])), mode=mode)


def _recurrent(g: Graph) -> str:
    n, c, h, w = g.shape
    x, weights, again = g.input((n * c, h, 5)), g.weight((1, 3 * w, 5), 0.3), g.weight((1, 3 * w, w), 0.3)
    y = g.node("GRU", x, weights, again, hidden_size=w, layout=0)
    return g.reshape(y, g.shape)


def _elements(g: Graph) -> str:
    return g.node("Tanh", g.input(g.shape))


def _turned(g: Graph) -> str:
    n, c, h, w = g.shape
    return g.node("Transpose", g.input((n, w, c, h)), perm=[0, 2, 3, 1])


PRODUCERS: dict[str, Callable[[Graph], str]] = {
    "1x1 convolution": _conv_of(1),
    "3x3 convolution": _conv_of(3),
    "grouped convolution": _conv_of(3, groups=2),
    "strided convolution": _conv_of(3, stride=2),
    "depthwise convolution": _depthwise,
    "convolution of one dimension": _conv_1d,
    "convolution of three dimensions": _conv_3d,
    "transposed convolution": _conv_transpose,
    "max pool": _pool("MaxPool"),
    "average pool": _pool("AveragePool"),
    "product with weights": _product,
    "product of batches": _product_of_batches,
    "gemm": _gemm,
    "product of packed weights": _nbits,
    "layer norm": _layer_norm,
    "instance norm": _channel_norm("InstanceNormalization"),
    "batch norm": _channel_norm("BatchNormalization"),
    "softmax": _softmax,
    "reduction": _reduce,
    "resize": _resize,
    "gather": _gather,
    "attention": _attention,
    "cumulative sum": _cumsum,
    "pad": _pad,
    "recurrent layer": _recurrent,
    "elements": _elements,
    "transpose": _turned,
}


def _followed(g: Graph, value: str) -> str:
    """The value, or what expressions make of it: an epilogue."""
    n, c, h, w = g.shape
    kind = g.rng.integers(7)
    if kind == 0:
        return g.node("Relu", value)
    if kind == 1:
        return g.node("Mul", value, g.node("Sigmoid", value))
    if kind == 2:
        vectors = [(c, 1, 1), (w,), (h, 1), (n, 1, 1, 1), (1,), (c, h, 1)]
        return g.node("Add", value, g.weight(vectors[g.rng.integers(len(vectors))]))
    if kind == 3:
        return g.node("Add", value, g.input(g.shape))
    if kind == 4:
        return g.node("Relu", g.node("Add", g.node("Mul", value, g.weight((c, 1, 1))), g.input(g.shape)))
    return value


# ---- destinations of the parts


def _concat(g: Graph, parts: list[str]) -> None:
    g.outputs.append(g.node("Concat", *parts, axis=int(g.rng.integers(4))))


def _concat_and_more(g: Graph, parts: list[str]) -> None:
    joined = g.node("Concat", *parts, axis=int(g.rng.integers(4)))
    g.outputs.append(g.node("Softmax", joined, axis=int(g.rng.integers(4))))


def _concat_of_concats(g: Graph, parts: list[str]) -> None:
    axis, again = g.rng.integers(4, size=2)
    joined = g.node("Concat", *parts, axis=int(axis))
    other = list(g.shape)
    other[axis] *= len(parts)
    g.outputs.append(g.node("Concat", joined, g.input(other), axis=int(again)))


def _concat_of_planes(g: Graph, parts: list[str]) -> None:
    n, c, h, w = g.shape
    flat = [g.reshape(part, (n, c, h * w)) for part in parts]
    g.outputs.append(g.node("Concat", *flat, axis=int(g.rng.integers(3))))


def _concat_of_turned(g: Graph, parts: list[str]) -> None:
    perm = [int(axis) for axis in g.rng.permutation(4)]
    turned = [g.node("Transpose", part, perm=perm) for part in parts]
    g.outputs.append(g.node("Concat", *turned, axis=int(g.rng.integers(4))))


def _concat_then_turned(g: Graph, parts: list[str]) -> None:
    joined = g.node("Concat", *parts, axis=int(g.rng.integers(4)))
    g.outputs.append(g.node("Transpose", joined, perm=[int(axis) for axis in g.rng.permutation(4)]))


def _stack(g: Graph, parts: list[str]) -> None:
    axis = int(g.rng.integers(5))
    rows = [g.node("Unsqueeze", part, g.constant(np.array([axis]))) for part in parts]
    g.outputs.append(g.node("Concat", *rows, axis=axis))


def _pads(g: Graph, parts: list[str]) -> None:
    mode = str(g.rng.choice(["constant", "edge"]))
    for part in parts:
        pads = g.constant(g.rng.integers(0, 3, 8))
        g.outputs.append(g.node("Pad", part, pads, mode=mode))


def _read_twice(g: Graph, parts: list[str]) -> None:
    g.outputs += [g.node("Concat", *parts, axis=int(g.rng.integers(4))), parts[0]]


def _read_and_joined(g: Graph, parts: list[str]) -> None:
    g.outputs.append(g.node("Concat", *parts, axis=int(g.rng.integers(4))))
    g.outputs.append(g.node("ReduceMean", parts[0], g.constant(np.array([3]))))


def _slices(g: Graph, parts: list[str]) -> None:
    axis = int(g.rng.integers(4))
    sizes = g.constant(np.array([1, g.shape[axis] - 1])) if g.shape[axis] > 1 else g.constant(np.array([1]))
    halves = []
    for part in parts:
        first = g.node("Split", part, sizes, outputs=2 if g.shape[axis] > 1 else 1, axis=axis)
        halves += [f"{first}_1", first] if g.shape[axis] > 1 else [first]
    g.outputs.append(g.node("Concat", *halves, axis=axis))


def _scattered(g: Graph, parts: list[str]) -> None:
    n, c, h, w = g.shape
    rows = g.constant(g.rng.permutation(n + 2)[:n].reshape(n, 1))
    g.outputs.append(g.node("ScatterND", g.input((n + 2, c, h, w)), rows, parts[0]))
    g.outputs += parts[1:]


def _over_an_input(g: Graph, parts: list[str]) -> None:
    """The output keeps a half of the input, in its place or moved, and another output may read the input."""
    axis = int(g.rng.integers(4))
    whole = list(g.shape)
    whole[axis] *= 2
    past = g.input(whole)
    first = int(g.rng.choice([0, g.shape[axis]]))
    ends = [g.constant(np.array([value])) for value in (first, first + g.shape[axis], axis)]
    kept = g.node("Slice", past, *ends)
    g.outputs.append(g.node("Concat", kept, parts[0], axis=axis))
    g.over[g.outputs[0]] = past
    g.outputs += parts[1:]
    if g.rng.random() < 0.5:
        g.outputs.append(g.node("Softmax", past, axis=axis))


DESTINATIONS: dict[str, Callable[[Graph, list[str]], None]] = {
    "concat": _concat,
    "concat and more": _concat_and_more,
    "concat of concats": _concat_of_concats,
    "concat of planes": _concat_of_planes,
    "concat of turned": _concat_of_turned,
    "concat then turned": _concat_then_turned,
    "stack": _stack,
    "pads": _pads,
    "read twice": _read_twice,
    "read and joined": _read_and_joined,
    "slices": _slices,
    "scattered": _scattered,
    "over an input": _over_an_input,
}


def draw(seed: int, index: int, only: Sequence[str] = (), into: Sequence[str] = ()) -> Graph:
    """Case ``index`` of a seed: the first producer and the destination in turns, so that all pairs come."""
    rng = np.random.default_rng([seed, index])
    producers, destinations = list(only or PRODUCERS), list(into or DESTINATIONS)
    names = [producers[index % len(producers)], str(rng.choice(list(PRODUCERS)))]
    place = destinations[(index + index // len(producers)) % len(destinations)]
    shape = (
        int(rng.integers(1, 3)),
        int(rng.choice([2, 8, 16, 24])),
        int(rng.choice([2, 8, 12])),
        int(rng.choice([2, 8, 16])),
    )
    g = Graph(rng, str(rng.choice(list(NEAR))), shape)
    parts = [_followed(g, PRODUCERS[name](g)) for name in names]
    if rng.random() < 0.3:
        parts.insert(0, g.input(shape))
    DESTINATIONS[place](g, parts)
    g.outputs = [_named(g, name) for name in g.outputs]
    g.text = [*names, place, g.dtype, str(list(shape))]
    return g


def _named(g: Graph, value: str) -> str:
    """An output of its own for a value, which may be an input."""
    return g.node("Identity", value) if value in g.inputs else value


def difference(g: Graph, context: Any) -> str:
    """How vkep's results differ from those of ONNX Runtime's CPU provider; "" where they are near."""
    from vkep import InferenceSession

    model = g.model()
    expected = cpu_session(model, optimized=False).run(None, g.inputs)
    with InferenceSession(model, context=context, fallback="error", save_plans=False) as session:
        if not g.over:
            results = session.run(None, g.inputs)
        else:
            binding = session.io_binding()
            tensors = {name: session.device_tensor(g.inputs[name]) for name in g.over.values()}
            for name, value in g.inputs.items():
                binding.bind_input(name, tensors[name]) if name in tensors else binding.bind_cpu_input(name, value)
            for name in g.outputs:
                binding.bind_output(name, tensors[g.over[name]] if name in g.over else None)
            session.run_with_iobinding(binding)
            results = binding.copy_outputs_to_cpu()
    for name, got, want in zip(g.outputs, results, expected, strict=True):
        if got.shape != want.shape:
            return f"{name}: shape {list(got.shape)}, expected {list(want.shape)}"
        off = np.abs(got.astype(np.float64) - want.astype(np.float64))
        if not off.max(initial=0) <= NEAR[g.dtype] * max(1, np.abs(want.astype(np.float64)).max(initial=0)):
            return f"{name}: up to {off.max():.3g} off, of values up to {np.abs(want).max():.3g}"
    return ""


def main() -> int:
    """Compare, and print the cases that differ."""
    from gpu_shared import SharedGpuContext

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], choices=list(PRODUCERS))
    parser.add_argument("--into", nargs="*", default=[], choices=list(DESTINATIONS))
    parser.add_argument("--case", type=int)
    args = parser.parse_args()
    context = SharedGpuContext.create({"gpu_shared_context_token": "compositions"})
    found: Counter[str] = Counter()
    for index in range(args.cases) if args.case is None else [args.case]:
        g = draw(args.seed, index, args.only, args.into)
        try:
            why = difference(g, context)
        except Exception as error:  # a refusal is a finding as well
            why = f"{type(error).__name__}: {error}"[:500]
        found["differs" if why else "equal"] += 1
        if why or args.case is not None:
            print(f"{index}: {why or 'equal'}\n    {', '.join(g.text)}", flush=True)
    print(dict(found))
    return int(bool(found["differs"]))


if __name__ == "__main__":
    sys.exit(main())
