"""A small model that speaks, with random weights.

Its inputs and outputs are those of piper's voices. Inside it has what text to speech of Kokoro's form has (StyleTTS 2,
arXiv:2306.07691; iSTFTNet, arXiv:2203.02395): recurrent layers, a duration for each symbol, the loop over sequences that torch's
exporter writes for `repeat_interleave`, noise, and an inverse Fourier transform of short frames as transposed convolutions.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from vkep.models.builder import GraphBuilder

#: of the model: symbols, channels, samples of a frame before and after the transform, and samples for each step of time
SYMBOLS, SIZE, FRAME, HOP = 256, 32, 16, 4
#: samples for each unit of a duration
SAMPLES = 16 * HOP


def voice() -> onnx.ModelProto:
    """Inputs `input` int64 [1, phonemes], `input_lengths` int64 [1] (their number) and `scales` float32 [3]: of noise, of
    durations, and of the durations' noise. Output `output` float32 [1, 1, 1, samples] in [-1, 1]."""
    graph = GraphBuilder("voice")
    ids = graph.input("input", [1, "phonemes"], TensorProto.INT64)
    count = graph.input("input_lengths", [1], TensorProto.INT64)
    scales = graph.input("scales", [3])
    noise, length, uneven = (graph.add("Gather", scales, graph.constant(f"at_{k}", k), axis=0) for k in range(3))
    ends = [graph.constant(name, [value]) for name, value in (("start", 0), ("axis", 1))]
    ids = graph.add("Slice", ids, ends[0], count, ends[1])
    embedding = graph.constant("embedding", graph.weight("embedding", (SYMBOLS, SIZE), 1.0))
    x = graph.add("Transpose", graph.add("Gather", embedding, ids, axis=0), perm=[0, 2, 1])
    x = graph.add("Relu", _convolution(graph, x, "text", SIZE, SIZE, 5))
    steps = _recurrent(graph, graph.add("Transpose", x, perm=[2, 0, 1]))  # [phonemes, 1, channels]
    logs = graph.linear(steps, "durations", SIZE, 1)
    varied = graph.add("Add", logs, graph.add("Mul", graph.add("RandomNormalLike", logs), uneven))
    longer = graph.add("Mul", graph.add("Exp", graph.add("Add", varied, graph.constant("mean", 1.0))), length)
    counts = graph.add("Cast", graph.add("Ceil", longer), to=TensorProto.INT64)
    counts = graph.add("Reshape", counts, graph.constant("flat", [-1]))
    rows = graph.add("Reshape", steps, graph.constant("rows", [-1, SIZE]))
    frames = graph.add("Gather", rows, _repeated(graph, counts), axis=0)
    frames = graph.add("Unsqueeze", graph.add("Transpose", frames, perm=[1, 0]), graph.constant("batch", [0]))
    x = graph.add("Add", frames, graph.add("Mul", graph.add("RandomNormalLike", frames), noise))
    for block in range(2):
        x = graph.add("Relu", _longer(graph, x, f"up{block}", SIZE, SIZE, 8, 4))
        x = graph.add("Add", x, graph.add("Tanh", _convolution(graph, x, f"residual{block}", SIZE, SIZE, 3)))
    sound = graph.add("Tanh", _from_spectrum(graph, x))
    graph.output(graph.add("Unsqueeze", sound, graph.constant("second", [1])), "output", [1, 1, 1, "samples"])
    return graph.model()


def _convolution(graph: GraphBuilder, x: str, name: str, c_in: int, c_out: int, kernel: int) -> str:
    weight = graph.weight(f"{name}.weight", (c_out, c_in, kernel), (kernel * c_in) ** -0.5)
    kernels = graph.constant(f"{name}.weight", weight)
    return graph.add("Conv", x, kernels, kernel_shape=[kernel], pads=[kernel // 2] * 2)


def _longer(graph: GraphBuilder, x: str, name: str, c_in: int, c_out: int, kernel: int, stride: int) -> str:
    """A transposed convolution: ``stride`` times as many steps of time."""
    weight = graph.weight(f"{name}.weight", (c_in, c_out, kernel), (2 * stride / (kernel * c_in)) ** 0.5)
    kernels, pad = graph.constant(f"{name}.weight", weight), (kernel - stride) // 2
    return graph.add("ConvTranspose", x, kernels, kernel_shape=[kernel], strides=[stride], pads=[pad] * 2)


def _recurrent(graph: GraphBuilder, x: str) -> str:
    """A bidirectional LSTM over [phonemes, 1, channels]."""
    half = SIZE // 2

    def weights(name: str, *shape: int) -> str:
        return graph.constant(name, graph.weight(name, shape, shape[-1] ** -0.5))

    parts = [weights("lstm.w", 2, 4 * half, SIZE), weights("lstm.r", 2, 4 * half, half), weights("lstm.b", 2, 8 * half)]
    y = graph.add("LSTM", x, *parts, hidden_size=half, direction="bidirectional")
    y = graph.add("Transpose", y, perm=[0, 2, 1, 3])
    return graph.add("Reshape", y, graph.constant("joined", [0, 0, -1]))


def _repeated(graph: GraphBuilder, counts: str) -> str:
    """The number of each phoneme, as often as its count says, by a Loop over sequences as torch's exporter writes it."""
    shape = graph.add("Shape", counts)
    whole = graph.add("Gather", shape, graph.constant("first", 0), axis=0)
    places = graph.add("Range", graph.constant("zero", 0), whole, graph.constant("one", 1))
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    ones = graph.add("ConstantOfShape", shape, value=one)
    trips = graph.add("Unsqueeze", whole, graph.constant("lead", [0]))
    parts = [graph.add("SplitToSequence", name, ones) for name in (counts, places)]
    single, flat, on = graph.constant("axis", [1]), graph.constant("flat", [-1]), graph.constant("on", np.array(True))
    body = helper.make_graph(
        [
            helper.make_node("SequenceAt", [parts[0], "step"], ["count"]),
            helper.make_node("SequenceAt", [parts[1], "step"], ["place"]),
            helper.make_node("Unsqueeze", ["place", single], ["column"]),
            helper.make_node("Concat", [single, "count"], ["row"], axis=0),
            helper.make_node("Expand", ["column", "row"], ["copies"]),
            helper.make_node("Reshape", ["copies", flat], ["inserted"]),
            helper.make_node("SequenceInsert", ["before", "inserted"], ["after"]),
            helper.make_node("Cast", [on], ["goes_on"], to=TensorProto.BOOL),
        ],
        "repeat",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("before", TensorProto.INT64, None),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("after", TensorProto.INT64, None),
        ],
    )
    empty = graph.add("SequenceEmpty", dtype=TensorProto.INT64)
    made = graph.add("Loop", trips, on, empty, body=body)
    return graph.add("ConcatFromSequence", made, axis=0)


def _from_spectrum(graph: GraphBuilder, x: str) -> str:
    """Sound [1, 1, samples] from magnitudes and phases of frames that overlap: the inverse Fourier transform of each frame, times
    a window, added by a transposed convolution."""
    bins = FRAME // 2 + 1
    x = _convolution(graph, x, "spectrum", SIZE, 2 * bins, 7)
    magnitude, phase = graph.add_many("Split", x, outputs=2, axis=1, num_outputs=2)
    magnitude = graph.add("Exp", magnitude)
    phase = graph.add("Mul", graph.add("Sin", phase), graph.constant("half_turn", float(np.pi)))
    angle = 2 * np.pi * np.outer(np.arange(bins), np.arange(FRAME)) / FRAME
    weight = np.where(np.isin(np.arange(bins), (0, bins - 1)), 1, 2)[:, None] * np.hanning(FRAME + 1)[:-1] / FRAME
    parts = []
    for name, way in (("Cos", np.cos), ("Sin", np.sin)):
        kernels = graph.constant(f"frame_{name}", (weight * way(angle))[:, None].astype(np.float32))
        part = graph.add("Mul", magnitude, graph.add(name, phase))
        pad = (FRAME - HOP) // 2
        parts.append(graph.add("ConvTranspose", part, kernels, kernel_shape=[FRAME], strides=[HOP], pads=[pad, pad]))
    return graph.add("Sub", *parts)
