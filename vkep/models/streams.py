"""Small models that read a signal chunk by chunk and keep states between chunks, with random weights.

`voice_activity` has the form of silero-vad 5: an If by the sampling rate around convolutions and an LSTM. `recognizer` has that
of the encoders of streaming transducers (Conformer, arXiv:2005.08100; Zipformer, arXiv:2310.11230, as icefall exports them):
cached keys and values, and cached frames before each convolution.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from vkep.models.builder import GraphBuilder

#: of `voice_activity`: samples of a chunk by sampling rate, and the LSTM's size
CHUNKS: Mapping[int, int] = {16000: 512, 8000: 256}
HIDDEN = 64
#: of `recognizer`: frames of a chunk, features of a frame, tokens (0 is blank), and sizes
FRAMES, FEATURES, TOKENS = 16, 80, 64
LAYERS, SIZE, HEADS, LEFT, KERNEL = 7, 64, 4, 32, 8


def voice_activity() -> onnx.ModelProto:
    """Inputs `input` float32 [batch, samples], `state` [2, batch, 64] and the scalar `sr` int64 (16000 or 8000); outputs `output`
    [batch, 1], the probability of speech, and `stateN`, the next `state`."""
    graph = GraphBuilder("voice_activity")
    graph.input("input", ["batch", "samples"])
    graph.input("state", [2, "batch", HIDDEN])
    rate = graph.input("sr", [], TensorProto.INT64)
    wide = graph.add("Equal", rate, graph.constant("rate", 16000))
    branches = [_detector(hz) for hz in CHUNKS]
    names = [graph.unique("probability"), graph.unique("next")]
    node = helper.make_node("If", [wide], names, then_branch=branches[0], else_branch=branches[1])
    graph.nodes.append(node)
    graph.output(names[0], "output", ["batch", 1])
    graph.output(names[1], "stateN", [None, None, None])  # type: ignore[list-item]  # the exporter leaves them open
    return graph.model()


def _detector(hz: int) -> onnx.GraphProto:
    """The branch for one sampling rate."""
    graph = GraphBuilder(f"at_{hz}")
    size = CHUNKS[hz] // 8

    def conv(x: str, name: str, c_in: int, c_out: int, kernel: int, stride: int) -> str:
        weight = graph.weight(f"{name}.weight", (c_out, c_in, kernel), (2 / (kernel * c_in)) ** 0.5)
        pad = 0 if stride == kernel else kernel // 2
        return graph.add(
            "Conv", x, graph.constant(f"{name}.weight", weight), kernel_shape=[kernel], strides=[stride], pads=[pad] * 2
        )

    def weights(name: str, *shape: int) -> str:
        return graph.constant(name, graph.weight(name, shape, shape[-1] ** -0.5))

    x = graph.add("Unsqueeze", "input", graph.constant("channel", [1]))
    x = graph.add("Abs", conv(x, "bands", 1, 32, size, size))
    for block in range(2):
        x = graph.add("Relu", conv(x, f"conv{block}", 32 if block == 0 else HIDDEN, HIDDEN, 3, 2))
    x = graph.add("Transpose", x, perm=[2, 0, 1])
    first = graph.constant("first", [0])
    states = [
        graph.add("Unsqueeze", graph.add("Gather", "state", graph.constant(f"of_{k}", k), axis=0), first)
        for k in (0, 1)
    ]
    _, h, c = graph.add_many(
        *("LSTM", x, weights("lstm.w", 1, 4 * HIDDEN, HIDDEN), weights("lstm.r", 1, 4 * HIDDEN, HIDDEN)),
        *(weights("lstm.b", 1, 8 * HIDDEN), "", *states),
        outputs=3,
        hidden_size=HIDDEN,
    )
    following = graph.add("Concat", h, c, axis=0)
    last = graph.add("Squeeze", h, first)
    head = graph.linear(graph.add("Relu", last), "head", HIDDEN, 1)
    graph.output(graph.add("Sigmoid", head), "probability", ["batch", 1])
    graph.output(following, "next", [2, "batch", HIDDEN])
    return graph.graph()


def recognizer() -> onnx.ModelProto:
    """Input `x` float32 [batch, 16, 80], the features of a chunk, and 30 states; outputs `log_probs` [batch, 16, 64] and each
    state after the chunk, named ``new_`` and the state's name."""
    graph = GraphBuilder("recognizer")
    x = graph.input("x", ["batch", FRAMES, FEATURES])
    seen = graph.input("processed_lens", ["batch"], TensorProto.INT64)
    x = _after_cached(graph, graph.add("Transpose", x, perm=[0, 2, 1]), "embed", FEATURES, SIZE, groups=1)
    x = graph.add("Transpose", graph.add("Relu", x), perm=[0, 2, 1])
    # of the cached keys only the last `processed_lens` are of this stream; all of the chunk's are
    ages = graph.constant("ages", [*range(LEFT, 0, -1), *[0] * FRAMES])
    hidden = graph.add("Less", graph.add("Unsqueeze", seen, graph.constant("axis_1", [1])), ages)
    masked = graph.add("Where", hidden, graph.constant("minus", -1e4), graph.constant("none", 0.0))
    mask = graph.add("Unsqueeze", masked, graph.constant("axes_12", [1, 2]))
    for layer in range(LAYERS):
        x = graph.add("Add", x, _attention(graph, x, f"{layer}", mask))
        for conv in ("conv1", "conv2"):
            x = graph.add("Add", x, _convolution(graph, x, f"{layer}", conv))
        inner = graph.add("Relu", graph.linear(_normal(graph, x, f"{layer}.ff"), f"{layer}.up", SIZE, 2 * SIZE))
        x = graph.add("Add", x, graph.linear(inner, f"{layer}.down", 2 * SIZE, SIZE))
    head = graph.linear(_normal(graph, x, "head"), "head", SIZE, TOKENS)
    graph.output(graph.add("LogSoftmax", head, axis=-1), "log_probs", ["batch", FRAMES, TOKENS])
    read = graph.add("Add", seen, graph.constant("frames", FRAMES))
    graph.output(read, "new_processed_lens", ["batch"], TensorProto.INT64)
    return graph.model()


def _normal(graph: GraphBuilder, x: str, name: str) -> str:
    return graph.layer_norm(x, f"{name}.norm", SIZE, 1e-5)


def _cached(graph: GraphBuilder, x: str, name: str, shape: list[int | str], axis: int, keep: int) -> str:
    """The cached part before ``x``, along an axis; the last ``keep`` of both are the next cache."""
    past = graph.input(name, shape)
    both = graph.add("Concat", past, x, axis=axis)
    ends = [graph.constant(f"{k}", [v]) for k, v in ((f"last_{keep}", -keep), ("end", 1 << 31), (f"axis_{axis}", axis))]
    graph.output(graph.add("Slice", both, *ends), f"new_{name}", shape)
    return both


def _after_cached(graph: GraphBuilder, x: str, name: str, c_in: int, c_out: int, groups: int) -> str:
    """A convolution over the frames of [batch, channels, frames], which sees `KERNEL` - 1 frames before the chunk."""
    weight = graph.weight(f"{name}.weight", (c_out, c_in // groups, KERNEL), (KERNEL * c_in / groups) ** -0.5)
    both = _cached(graph, x, f"cached_{name}", ["batch", c_in, KERNEL - 1], 2, KERNEL - 1)
    return graph.add("Conv", both, graph.constant(f"{name}.weight", weight), kernel_shape=[KERNEL], group=groups)


def _convolution(graph: GraphBuilder, x: str, layer: str, name: str) -> str:
    gated = graph.linear(_normal(graph, x, f"{layer}.{name}"), f"{layer}.{name}.in", SIZE, 2 * SIZE)
    value, gate = graph.add_many("Split", gated, outputs=2, axis=-1, num_outputs=2)
    x = graph.add("Mul", value, graph.add("Sigmoid", gate))
    x = _after_cached(graph, graph.add("Transpose", x, perm=[0, 2, 1]), f"{name}_{layer}", SIZE, SIZE, groups=SIZE)
    x = graph.add("Transpose", graph.add("Mul", x, graph.add("Sigmoid", x)), perm=[0, 2, 1])
    return graph.linear(x, f"{layer}.{name}.out", SIZE, SIZE)


def _attention(graph: GraphBuilder, x: str, layer: str, mask: str) -> str:
    x = _normal(graph, x, f"{layer}.attention")
    parts = {part: graph.linear(x, f"{layer}.{part}", SIZE, SIZE, bias=False) for part in ("query", "key", "val")}
    heads = graph.constant("heads", [0, 0, HEADS, SIZE // HEADS])
    for part in ("key", "val"):
        by_time = graph.add("Transpose", parts[part], perm=[1, 0, 2])
        both = _cached(graph, by_time, f"cached_{part}_{layer}", [LEFT, "batch", SIZE], 0, LEFT)
        parts[part] = graph.add("Transpose", both, perm=[1, 0, 2])
    query, key, value = (
        graph.add("Transpose", graph.add("Reshape", parts[part], heads), perm=perm)
        for part, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("val", [0, 2, 1, 3]))
    )
    scale = graph.constant("scale", (SIZE // HEADS) ** -0.5)
    scores = graph.add("Add", graph.add("Mul", graph.add("MatMul", query, key), scale), mask)
    mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), value)
    joined = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
    joined = graph.add("Reshape", joined, graph.constant("joined", [0, 0, SIZE]))
    return graph.linear(joined, f"{layer}.out", SIZE, SIZE)
