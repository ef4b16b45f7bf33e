"""Random small models: elementwise, movement, products, convolutions, reductions, in shapes that fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]


@dataclass
class RandomGraph:
    """Grows a graph from float32 inputs, node by node; every value stays usable by later nodes."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    values: dict[str, Shape] = field(default_factory=dict)
    inputs: dict[str, Shape] = field(default_factory=dict)

    def model(self, size: int) -> onnx.ModelProto:
        for shape in [(2, 4, 6, 6), (4, 6), (1, 4, 1, 1)]:
            name = f"in{len(self.inputs)}"
            self.inputs[name] = self.values[name] = shape
        steps = [self._unary, self._binary, self._binary, self._transpose, self._reshape, self._slice, self._concat,
                 self._split, self._expand, self._reduce, self._matmul, self._conv, self._softmax, self._layer_norm,
                 self._where, self._clip]  # fmt: skip
        while len(self.nodes) < size:
            steps[self.rng.integers(len(steps))]()
        read = {n for node in self.nodes for n in node.input}
        ends = [n for n in self.values if n not in read and n not in self.inputs]
        inner = [n for n in self.values if n in read and n not in self.inputs]
        outputs = ends + ([inner[self.rng.integers(len(inner))]] if inner else [])  # a value both read and given
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in self.inputs.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, self.values[n]) for n in outputs],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model

    def feeds(self) -> dict[str, np.ndarray]:
        return {n: self.rng.standard_normal(s).astype(np.float32) for n, s in self.inputs.items()}

    # ---- the pieces

    def _pick(self, fits: Any = lambda shape: True) -> str | None:
        names = [n for n, s in self.values.items() if fits(s)]
        if not names:
            return None
        recent = names[-4:]  # chains are what fusion is about
        return str(self.rng.choice(recent if self.rng.random() < 0.7 else names))

    def _add(self, op: str, inputs: list[str], *shapes: Shape, **attributes: Any) -> None:
        names = [f"v{len(self.values) + i}" for i in range(len(shapes))]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        self.values.update(zip(names, shapes, strict=True))

    def _constant(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _floats(self, shape: Shape, scale: float = 1.0) -> str:
        return self._constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def _unary(self) -> None:
        op = str(self.rng.choice(["Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Erf", "Identity", "Sin"]))
        x = self._pick()
        assert x is not None
        self._add(op, [x], self.values[x])

    def _binary(self) -> None:
        x = self._pick()
        assert x is not None
        shape = self.values[x]
        if self.rng.random() < 0.4:
            other = tuple(d if self.rng.random() < 0.5 else 1 for d in shape)[int(self.rng.integers(len(shape) + 1)) :]
            y = self._floats(other)
        else:
            y = self._pick(lambda s: _broadcast(s, shape) == shape) or x
        names = [x, y] if self.rng.random() < 0.5 else [y, x]
        self._add(str(self.rng.choice(["Add", "Mul", "Sub", "Max"])), names, shape)

    def _transpose(self) -> None:
        x = self._pick(lambda s: len(s) >= 2)
        if x:
            perm = [int(p) for p in self.rng.permutation(len(self.values[x]))]
            self._add("Transpose", [x], tuple(self.values[x][p] for p in perm), perm=perm)

    def _reshape(self) -> None:
        x = self._pick()
        assert x is not None
        size = int(np.prod(self.values[x]))
        dims: list[int] = []
        while size > 1 and len(dims) < 3:
            divisors = [d for d in range(2, size + 1) if size % d == 0 and d <= 24] or [size]
            dims.append(int(self.rng.choice(divisors)))
            size //= dims[-1]
        shape = (*dims, size)
        self._add("Reshape", [x, self._constant(np.array(shape, np.int64))], shape)

    def _slice(self) -> None:
        x = self._pick(lambda s: any(d > 2 for d in s))
        if x:
            shape = list(self.values[x])
            axis = int(self.rng.choice([i for i, d in enumerate(shape) if d > 2]))
            start, step = (0, 2) if self.rng.random() < 0.4 else (1, 1)
            if self.rng.random() < 0.25:
                start, end, step = shape[axis] - 1, -1000, -1
            else:
                end = shape[axis]
            shape[axis] = len(range(*slice(start, None if step < 0 else end, step).indices(shape[axis])))
            parameters = [self._constant(np.array([v], np.int64)) for v in (start, end, axis, step)]
            self._add("Slice", [x, *parameters], tuple(shape))

    def _concat(self) -> None:
        x = self._pick(lambda s: len(s) >= 1 and np.prod(s) < 400)
        if x:
            shape = self.values[x]
            axis = int(self.rng.integers(len(shape)))
            alike = [n for n, s in self.values.items() if s == shape]
            parts = [x, *(str(n) for n in self.rng.choice(alike, 1 + int(self.rng.integers(2))))]
            out = list(shape)
            out[axis] *= len(parts)
            self._add("Concat", parts, tuple(out), axis=axis)

    def _split(self) -> None:
        x = self._pick(lambda s: any(d >= 2 for d in s))
        if x:
            shape = self.values[x]
            axis = int(self.rng.choice([i for i, d in enumerate(shape) if d >= 2]))
            first = int(self.rng.integers(1, shape[axis]))
            sizes = [first, shape[axis] - first]
            parts = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
            self._add("Split", [x, self._constant(np.array(sizes, np.int64))], *parts, axis=axis)

    def _expand(self) -> None:
        x = self._pick(lambda s: 1 in s and np.prod(s) < 100)
        if x:
            shape = tuple(d if d != 1 else int(self.rng.integers(1, 4)) for d in self.values[x])
            self._add("Expand", [x, self._constant(np.array(shape, np.int64))], shape)

    def _reduce(self) -> None:
        x = self._pick(lambda s: len(s) >= 2)
        if x:
            shape = self.values[x]
            axes = sorted({int(a) for a in self.rng.integers(0, len(shape), 2)})
            keep = int(self.rng.integers(2))
            out = tuple(1 if i in axes else d for i, d in enumerate(shape) if keep or i not in axes)
            op = str(self.rng.choice(["ReduceMean", "ReduceMax", "ReduceSum"]))
            self._add(op, [x, self._constant(np.array(axes, np.int64))], out, keepdims=keep)

    def _matmul(self) -> None:
        x = self._pick(lambda s: len(s) >= 2)
        if x:
            shape, n = self.values[x], int(self.rng.integers(1, 9))
            self._add("MatMul", [x, self._floats((shape[-1], n), shape[-1] ** -0.5)], (*shape[:-1], n))

    def _conv(self) -> None:
        x = self._pick(lambda s: len(s) == 4 and s[2] >= 3 and s[3] >= 3)
        if x:
            n, c, h, w = self.values[x]
            out, kernel = int(self.rng.integers(1, 6)), int(self.rng.choice([1, 3]))
            weight = self._floats((out, c, kernel, kernel), (c * kernel * kernel) ** -0.5)
            pads = [kernel // 2] * 4
            inputs = [x, weight] + ([self._floats((out,))] if self.rng.random() < 0.5 else [])
            self._add("Conv", inputs, (n, out, h, w), kernel_shape=[kernel] * 2, pads=pads)

    def _softmax(self) -> None:
        x = self._pick(lambda s: len(s) >= 1)
        if x:
            self._add("Softmax", [x], self.values[x], axis=int(self.rng.integers(-1, len(self.values[x]))))

    def _layer_norm(self) -> None:
        x = self._pick(lambda s: len(s) >= 2 and s[-1] > 1)
        if x:
            size = (self.values[x][-1],)
            self._add("LayerNormalization", [x, self._floats(size), self._floats(size)], self.values[x], epsilon=1e-2)

    def _where(self) -> None:
        x = self._pick()
        assert x is not None
        shape = self.values[x]
        y = self._pick(lambda s: s == shape) or x
        self._add("Where", [self._constant(self.rng.random(shape) < 0.5), x, y], shape)

    def _clip(self) -> None:
        x = self._pick()
        assert x is not None
        self._add("Clip", [x, self._constant(np.float32(-0.5)), self._constant(np.float32(0.75))], self.values[x])


def _broadcast(a: Shape, b: Shape) -> Shape | None:
    try:
        return tuple(np.broadcast_shapes(a, b))
    except ValueError:
        return None
