"""Which models have independent rows (`vkep.placement.rows`), and that none with a proof differs when rows are joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.nightly import nightly
from tools.backend_suite.cases import load_cases
from tools.models.catalog import Options, build_model
from tools.row_proofs import arrays_of, main, opened
from vkep.errors import VkepError
from vkep.graph import load_model
from vkep.placement.row_rules import RULES
from vkep.placement.rows import RowProof, independent, prove

CAPS = DeviceCapabilities.for_tests()
Feeds = Mapping[str, np.ndarray[Any, Any]]


def model(text: str, **weights: Any) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items())
    return proto


def proof(proto: onnx.ModelProto) -> RowProof:
    return independent(load_model(proto.SerializeToString()), CAPS)


K = "k = Constant <value = int64 {0}> ()"
MIXING = {
    "attention over one text": (
        "g (float[n,4] x) => (float[n,4] y) { t = Transpose (x) s = MatMul (x, t) p = Softmax (s) y = MatMul (p, x) }",
        "MatMul",
    ),
    "a filter": ("g (float[n,4] x, bool[n] c) => (float[n,4] y) { y = Compress <axis = 0> (x, c) }", "Compress"),
    "a sum over rows": (f"g (float[n,4] x) => (float[n,4] y) {{ {K} y = CumSum (x, k) }}", "CumSum"),
    "a mean of rows": ("g (float[n,4] x) => (float[m,4] y) { y = ReduceMean (x) }", "ReduceMean"),
    "the first row for all": (
        f"g (float[n,4] x) => (float[n,4] y) {{ {K} f = Gather (x, k) y = Add (x, f) }}",
        "Gather",
    ),
    "the number of rows": (
        f"g (float[n,4] x) => (float[n,4] y) {{ s = Shape (x) f = Cast <to = 1> (s) {K} c = Gather (f, k) y = Mul (x, c) }}",
        "number of rows",
    ),
    "a function of the number of rows": (
        "g (float[n,4] x) => (float[n,4] y) { s = Shape <end = 1> (x) f = Cast <to = 1> (s) r = Sqrt (f) y = Div (x, r) }",
        "number of rows",
    ),
    "a column by the number of rows": (
        "g (float[n,64] x) => (float[n,1] y) { s = Shape <end = 1> (x) o = Constant <value = int64[1] {1}> () e = Add (s, o) "
        "y = Slice (x, s, e, o) }",
        "number of rows",
    ),
    "the place of a row": (
        f"g (float[n,4] x) => (float[n,4] y) {{ s = Shape (x) {K} c = Gather (s, k) o = Constant <value = int64 {{1}}> () "
        "r = Range (k, c, o) f = Cast <to = 1> (r) a = Constant <value = int64[1] {1}> () u = Unsqueeze (f, a) y = Add (x, u) }",
        "Range",
    ),
    "the other order": (
        "g (float[n,4] x) => (float[n,4] y) { s = Constant <value = int64[1] {-1}> () "
        "e = Constant <value = int64[1] {-9999}> () a = Constant <value = int64[1] {0}> () y = Slice (x, s, e, a, s) }",
        "Slice",
    ),
    "rows of other sizes": (
        "g (float[n,4] x) => (float[m,2] y) { s = Constant <value = int64[2] {-1, 2}> () y = Reshape (x, s) }",
        "output 'y'",
    ),
    "a quarter of the rows": (
        "g (float[n,4] x) => (float[m,16] y) { s = Constant <value = int64[2] {-1, 16}> () y = Reshape (x, s) }",
        "Reshape",
    ),
    "one scale for all rows": (
        "g (float[n,4] x) => (uint8[n,4] y) { y, s, z = DynamicQuantizeLinear (x) }",
        "DynamicQuantizeLinear",
    ),
    "positions in the whole input": (
        "g (float[n,1,4,4] x) => (float[n,1,2,2] y, int64[n,1,2,2] i) "
        "{ y, i = MaxPool <kernel_shape = [2,2], strides = [2,2]> (x) }",
        "MaxPool",
    ),
    "a branch by the number of rows": (
        f"g (float[n,4] x) => (float[n,4] y) {{ s = Shape (x) {K} c = Gather (s, k) l = Constant <value = int64 {{5}}> () "
        "b = Less (c, l) y = If (b) <then_branch = t () => (float[n,4] u) { u = Relu (x) }, "
        "else_branch = e () => (float[n,4] u) { u = Neg (x) }> }",
        "number of rows",
    ),
    "an operator without a rule": ("g (float[n,4,4] x) => (float[n] y) { y = Det (x) }", "Det"),
    "rows on two axes": ("g (float[n,n] x) => (float[n,n] y) { y = Relu (x) }", "axis 1"),
    "random numbers": (
        "g (float[n,4] x) => (float[n,4] y) { r = RandomNormalLike (x) y = Add (x, r) }",
        "RandomNormalLike",
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_models_that_mix_rows_are_not_proved(name: str) -> None:
    text, why = MIXING[name]
    assert why in proof(model(text)).reason


APART = {
    "elementwise": "g (float[n,s] x) => (float[n,s] y) { y = Mul (x, x) }",
    "the sequence first, all tokens in one matrix": (
        "g (float[n,s,8] x) => (float[n,s,8] y) { a = Transpose <perm = [1,0,2]> (x) k = Constant <value = int64[2] {-1, 8}> () "
        "b = Reshape (a, k) c = Softmax (b) h = Shape (a) d = Reshape (c, h) y = Transpose <perm = [1,0,2]> (d) }"
    ),
    "heads in the batch": (
        "g (float[n,s,8] x) => (float[n,s,8] y) { k = Constant <value = int64[4] {0, 0, 2, 4}> () a = Reshape (x, k) "
        "b = Transpose <perm = [0,2,1,3]> (a) h = Shape (b) m = Constant <value = int64[3] {-1, 6, 4}> () "
        "t = Transpose <perm = [0,1,3,2]> (b) w = MatMul (b, t) p = Softmax (w) o = MatMul (p, b) "
        "r = Transpose <perm = [0,2,1,3]> (o) f = Shape (x) y = Reshape (r, f) }"
    ),
    "a class token": (
        "g (float[n,s,4] x) => (float[n,4] y) <float[1,1,4] c = {1, 2, 3, 4}> { h = Shape <start = 0, end = 1> (x) "
        "o = Constant <value = int64[2] {1, 4}> () t = Concat <axis = 0> (h, o) e = Expand (c, t) j = Concat <axis = 1> (e, x) "
        f"{K} y = Gather <axis = 1> (j, k) }}"
    ),
    "an LSTM whose state is made of sizes": (
        "g (float[n,s,3] x) => (float[n,s,4] y) { a = Transpose <perm = [1,0,2]> (x) h = Shape <start = 0, end = 1> (x) "
        "i = Constant <value = int64[1] {1}> () f = Constant <value = int64[1] {4}> () z = Concat <axis = 0> (i, h, f) "
        "o = ConstantOfShape (z) b, c, d = LSTM <hidden_size = 4> (a, w, r, , , o, o) q = Squeeze (b, i) "
        "y = Transpose <perm = [1,0,2]> (q) }"
    ),
}


@pytest.mark.parametrize("name", APART)
def test_models_with_independent_rows_are_proved(name: str) -> None:
    draw = np.random.default_rng(1)
    weights = {
        "w": draw.standard_normal((1, 16, 3), np.float32),
        "r": draw.standard_normal((1, 16, 4), np.float32),
    }
    proto = model(APART[name], **(weights if "LSTM" in APART[name] else {}))
    assert proof(proto).reason == ""


def test_the_last_state_alone_of_a_recurrent_layer_is_proved() -> None:
    text = (
        "g (float[n,s,3] x) => (float[n,4] y) { t = Transpose <perm = [1,0,2]> (x) b, c = GRU <hidden_size = 4> (t, w, r) "
        "y = Squeeze (c, k) }"
    )
    proto = model(text, w=np.ones((1, 12, 3), np.float32), r=np.ones((1, 12, 4), np.float32), k=np.array([0]))
    proto.graph.node[1].output[0] = ""
    assert proof(proto).reason == ""


@pytest.mark.parametrize("name", ["mobilenetv2", "resnet18", "bert", "bert_enc"])
def test_models_of_the_catalog_are_proved(name: str) -> None:
    assert proof(build_model(name, Options(dynamic=True))).reason == ""


def test_a_proof_covers_the_sizes_that_decide_as_its_own() -> None:
    text = (
        "g (float[n,s] x) => (float[n,s] y) { h = Shape <start = 1> (x) l = Constant <value = int64[1] {20}> () "
        "b = Less (h, l) y = If (b) <then_branch = t () => (float[n,s] u) { u = Relu (x) }, "
        f"else_branch = e () => (float[n,s] u) {{ {K} u = CumSum (x, k) }}> }}"
    )
    loaded = load_model(model(text).SerializeToString())
    short = prove(loaded, CAPS, {"x": (1, 12)})
    assert short.reason == "" and short.covers(loaded, {"x": (3, 15)}, 32)
    assert not short.covers(loaded, {"x": (3, 25)}, 32)
    assert "CumSum" in prove(loaded, CAPS, {"x": (1, 25)}).reason


# ---- soundness: what is proved does not differ when rows are joined


def runs(proto: onnx.ModelProto, *feeds: Feeds) -> list[list[Any]] | None:
    """The results for each of several feeds; None where ONNX Runtime does not run the model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [session.run(None, dict(one)) for one in feeds]
    except Exception:
        return None


def check_joined(proto: onnx.ModelProto, feeds: Feeds, draw: np.random.Generator, what: str) -> bool:
    """Compare the results of two requests with those of both in one run. Returns whether they could be run."""
    order = draw.permutation(len(next(iter(feeds.values()))))
    other = {name: array[order] for name, array in feeds.items()}
    results = runs(proto, feeds, other, {name: np.concatenate([feeds[name], other[name]]) for name in feeds})
    if results is None:
        return False
    for first, second, joined in zip(*results, strict=True):
        apart = np.concatenate([first, second])
        close = apart.shape == joined.shape and (
            np.allclose(apart, joined, 1e-3, 1e-4, equal_nan=True) if apart.dtype != object else (apart == joined).all()
        )
        assert close, f"{what}: rows differ when they are joined"
    return True


def operator_cases() -> Iterator[tuple[str, onnx.ModelProto, Feeds]]:
    """ONNX's cases of single operators, with each set of inputs that may have rows. By default some cases of each operator."""
    seen = Counter[str]()
    for name, case in load_cases().items():
        if case.kind != "node" or case.is_random:
            continue
        proto = case.model()
        types = {node.op_type for node in proto.graph.node}
        seen.update(types)
        if not nightly() and min(seen[op] for op in types) > 3:
            continue
        feeds = arrays_of(case, proto)
        for opened_proto, rows in opened(proto, feeds) if feeds is not None else ():
            yield name, opened_proto, rows


def test_no_proved_operator_differs_when_rows_are_joined() -> None:
    draw = np.random.default_rng(51)
    proved, compared, operators = 0, 0, set[str]()
    for name, proto, feeds in operator_cases():
        try:
            found = proof(proto)
        except (VkepError, ValueError):
            continue
        if not found.reason:
            proved += 1
            if check_joined(proto, feeds, draw, name):
                compared += 1
                operators |= {node.op_type for node in proto.graph.node}
    assert proved > (500 if nightly() else 200) and compared > 0.8 * proved
    assert len(operators & {name for _, name in RULES}) > 100


#: operators of other domains, and recurrent ones
FURTHER = {
    "LSTM": "g (float[n,5,3] x) => (y) { a = Transpose <perm = [1,0,2]> (x) b, y0 = LSTM <hidden_size = 4> (a, w, r) "
    "y = Transpose <perm = [2,0,1,3]> (b) }",
    "GRU": "g (float[n,5,3] x) => (y) { a = Transpose <perm = [1,0,2]> (x) b, y0 = GRU <hidden_size = 4> (a, w, r) "
    "y = Transpose <perm = [2,0,1,3]> (b) }",
    "FusedMatMul": "g (float[n,5,3] x) => (y) { y = com.microsoft.FusedMatMul <alpha = 2.0> (x, m) }",
    "SkipLayerNormalization": "g (float[n,5,3] x) => (y) { y = com.microsoft.SkipLayerNormalization (x, x, v) }",
    "BiasGelu": "g (float[n,5,3] x) => (y) { y = com.microsoft.BiasGelu (x, v) }",
    "FastGelu": "g (float[n,5,3] x) => (y) { y = com.microsoft.FastGelu (x, v) }",
    "QuickGelu": "g (float[n,5,3] x) => (y) { y = com.microsoft.QuickGelu (x) }",
    "MultiHeadAttention": "g (float[n,5,3] x) => (y) { q = MatMul (x, m) "
    "y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, q, q) }",
    "DequantizeLinear": "g (float[n,5,3] x) => (y) { q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }",
    "Tile": "g (float[n,5,3] x) => (y) { k = Constant <value = int64[3] {1, 2, 1}> () y = Tile (x, k) }",
    "Erf": "g (float[n,5,3] x) => (y) { y = Erf (x) }",
}


@pytest.mark.parametrize("name", FURTHER)
def test_further_operators_do_not_differ_when_rows_are_joined(name: str) -> None:
    draw = np.random.default_rng(7)
    shapes = {"w": (1, 16, 3), "r": (1, 16, 4), "m": (3, 4), "v": (3,)}
    if name == "GRU":
        shapes |= {"w": (1, 12, 3), "r": (1, 12, 4)}
    weights = {n: draw.standard_normal(shape, np.float32) for n, shape in shapes.items()}
    weights |= {"s": np.float32(0.1), "z": np.uint8(128)}  # type: ignore[dict-item]
    text = FURTHER[name].replace("(y)", "(float[n,a,b] y)").replace("y0", "last")
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]> {text}')
    used = {n for node in proto.graph.node for n in node.input}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items() if n in used
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert proof(proto).reason == ""
    assert check_joined(proto, {"x": draw.standard_normal((3, 5, 3), np.float32)}, draw, name)


class Drawn:
    """A graph of drawn operators: ``dims`` are the sizes of its last value, each with whether the number of rows is a factor."""

    def __init__(self, draw: np.random.Generator) -> None:
        self.draw, self.nodes, self.weights = draw, list[onnx.NodeProto](), dict[str, np.ndarray[Any, Any]]()
        self.dims: list[tuple[int, bool]] = [(1, True), (4, False), (6, False)]
        self.last = "x"

    def add(self, op: str, *inputs: Any, **attributes: Any) -> None:
        names = [self.last]
        for value in inputs:
            names.append(value if isinstance(value, str) else f"w{len(self.weights)}")
            if not isinstance(value, str):
                self.weights[names[-1]] = np.asarray(value)
        self.last = f"v{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, names, [self.last], **attributes))

    def reshape(self, dims: Sequence[tuple[int, bool]]) -> None:
        self.dims = list(dims)
        self.add("Reshape", np.array([-1 if rows else size for size, rows in dims]))

    def step(self) -> None:
        rank, axis = len(self.dims), int(self.draw.integers(len(self.dims)))
        size, rows = self.dims[axis]
        kind = self.draw.choice(["turn", "merge", "divide", "along", "gather", "add", "reduce", "join", "product"])
        if kind == "turn":
            order = self.draw.permutation(rank).tolist()
            self.dims = [self.dims[a] for a in order]
            self.add("Transpose", perm=order)
        elif kind == "merge" and axis + 1 < rank:
            more, others = self.dims[axis + 1]
            self.reshape([*self.dims[:axis], (size * more, rows or others), *self.dims[axis + 2 :]])
        elif kind == "divide" and size % 2 == 0 and rank < 5:
            halves = [(2, False), (size // 2, rows)]
            self.reshape(
                [*self.dims[:axis], *(halves if self.draw.random() < 0.5 else halves[::-1]), *self.dims[axis + 1 :]]
            )
        elif kind == "along":
            if self.draw.random() < 0.5:
                self.add("Softmax", axis=axis)
            else:
                self.add("CumSum", np.int64(axis))
        elif kind == "gather" and not rows:
            self.add("Gather", self.draw.integers(size, size=2), axis=axis)
            self.dims[axis] = (2, False)
        elif kind == "add":
            sizes = [1 if r else s if self.draw.random() < 0.7 else 1 for s, r in self.dims]
            self.add("Add", self.draw.standard_normal(sizes, np.float32))
        elif kind == "reduce" and rank > 2:
            self.add("ReduceMean", np.array([axis]), keepdims=0)
            del self.dims[axis]
        elif kind == "join" and size < 9:
            self.add("Concat", self.last, axis=axis)
            self.dims[axis] = (2 * size, rows)
        elif kind == "product" and rank > 1:
            order = [*range(rank - 2), rank - 1, rank - 2]
            value = self.last
            self.add("Transpose", perm=order)
            self.add("MatMul", value)
            self.dims = [*self.dims[:-2], self.dims[-1], self.dims[-1]]

    def model(self) -> onnx.ModelProto:
        info = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            self.nodes,
            "drawn",
            [info("x", 1, ["n", 4, 6])],
            [info(self.last, 1, None)],
            [onnx.numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def test_no_proved_graph_differs_when_rows_are_joined() -> None:
    proved = refused = 0
    for seed in range(400):
        drawn = Drawn(np.random.default_rng(seed))
        for _ in range(int(drawn.draw.integers(2, 9))):
            drawn.step()
        if sum(rows for _, rows in drawn.dims) == 1 and drawn.dims[0] != (1, True):  # move the rows to the front again
            axis = [rows for _, rows in drawn.dims].index(True)
            order = [axis, *(a for a in range(len(drawn.dims)) if a != axis)]
            drawn.add("Transpose", perm=order)
        proto = drawn.model()
        if not drawn.nodes or proof(proto).reason:
            refused += 1
            continue
        proved += 1
        x = drawn.draw.standard_normal((3, 4, 6), np.float32)
        assert check_joined(proto, {"x": x}, drawn.draw, f"seed {seed}")
    assert proved > 100 and refused > 100


@pytest.mark.gpu
def test_proved_models_do_not_differ_on_a_device(vulkan: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sources", "vkep model", "torch's operators", "--pairs", "30", "--seconds", "20"]) == 0
    rows = {
        cells[1].strip(): cells for line in capsys.readouterr().out.splitlines() if len(cells := line.split("|")) > 7
    }
    assert int(rows["vkep model"][2]) == 2 and int(rows["torch's operators"][2]) > 20
    assert int(rows["vkep model"][6]) >= 50
