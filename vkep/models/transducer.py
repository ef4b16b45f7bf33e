"""A small streaming transducer with random weights, in the files of icefall's streaming Zipformer (arXiv:2310.11230), which
sherpa-onnx reads: the same names, shapes and metadata of states, fewer and smaller layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from vkep.models.builder import GraphBuilder

#: frames of a chunk, by which the next one begins later, and of the encoder's result for a chunk
CHUNK, STEP, MADE = 45, 32, 16
BANDS, CHANNELS, ACROSS = 80, 128, 19
LAYERS, SIZE, HEADS, QUERY, VALUE, LEFT, KERNEL = 2, 64, 4, 16, 12, 32, 15
CONTEXT, JOINED, VOCABULARY = 2, 48, 40
#: what the joiner adds to the logit of no token
_BLANK = 0.6


def write_transducer(folder: Path) -> None:
    """Write encoder.onnx, decoder.onnx, joiner.onnx and tokens.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = {
        "num_encoder_layers": 1,
        "encoder_dims": SIZE,
        "query_head_dims": QUERY,
        "value_head_dims": VALUE,
        "num_heads": HEADS,
        "cnn_module_kernels": KERNEL,
        "left_context_len": LEFT,
    }
    of_encoder = {"model_type": "zipformer2", "version": "1", "model_author": "vkep", "comment": "random weights"}
    of_encoder |= {"T": str(CHUNK), "decode_chunk_len": str(STEP)}
    of_encoder |= {name: ",".join([str(value)] * LAYERS) for name, value in layers.items()}
    of_decoder = {"context_size": str(CONTEXT), "vocab_size": str(VOCABULARY)}
    _write(_encoder(), folder / "encoder.onnx", of_encoder)
    _write(_decoder(), folder / "decoder.onnx", of_decoder)
    _write(_joiner(), folder / "joiner.onnx", {"joiner_dim": str(JOINED)})
    letters = [("\u2581" if k % 3 == 0 else "") + chr(97 + k % 26) * (1 + k // 26) for k in range(VOCABULARY - 2)]
    names = ["<blk>", *letters, "<unk>"]
    (folder / "tokens.txt").write_text("".join(f"{name} {k}\n" for k, name in enumerate(names)), encoding="utf-8")


def _write(model: onnx.ModelProto, path: Path, metadata: Mapping[str, str]) -> None:
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)


def _encoder() -> onnx.ModelProto:
    graph = GraphBuilder("encoder")
    x = graph.input("x", ["N", CHUNK, BANDS])
    states: list[tuple[str, list[int | str]]] = []
    for layer in range(LAYERS):
        states += [
            (f"cached_key_{layer}", [LEFT, "N", HEADS * QUERY]),
            (f"cached_nonlin_attn_{layer}", [1, "N", LEFT, 3 * SIZE // 4]),
            (f"cached_val1_{layer}", [LEFT, "N", HEADS * VALUE]),
            (f"cached_val2_{layer}", [LEFT, "N", HEADS * VALUE]),
            (f"cached_conv1_{layer}", ["N", SIZE, KERNEL // 2]),
            (f"cached_conv2_{layer}", ["N", SIZE, KERNEL // 2]),
        ]
    states.append(("embed_states", ["N", CHANNELS, 3, ACROSS]))
    for name, shape in states:
        graph.input(name, shape)
    seen = graph.input("processed_lens", ["N"], TensorProto.INT64)
    kept: dict[str, str] = {}
    x = _embedded(graph, x, kept)
    ages = graph.constant("ages", [*range(LEFT, 0, -1), *[0] * MADE])
    hidden = graph.add("Less", graph.add("Unsqueeze", seen, graph.constant("axis_1", [1])), ages)
    masked = graph.add("Where", hidden, graph.constant("minus", -1e4), graph.constant("none", 0.0))
    mask = graph.add("Unsqueeze", masked, graph.constant("axes_12", [1, 2]))
    for layer in range(LAYERS):
        x = _layer(graph, x, layer, mask, kept)
    graph.output(
        graph.linear(graph.layer_norm(x, "norm", SIZE, 1e-5), "joined", SIZE, JOINED),
        "encoder_out",
        ["N", MADE, JOINED],
    )
    for name, shape in states:
        graph.output(kept[name], f"new_{name}", shape)
    read = graph.add("Add", seen, graph.constant("frames", MADE))
    graph.output(read, "new_processed_lens", ["N"], TensorProto.INT64)
    return graph.model()


def _embedded(graph: GraphBuilder, x: str, kept: dict[str, str]) -> str:
    """Frames [N, 16, size] of features: half as many, with three on either side of each."""
    x = graph.add("Unsqueeze", x, graph.constant("channel", [1]))
    weight = graph.constant("embed.weight", graph.weight("embed.weight", (CHANNELS, 1, 9, 5), 45**-0.5))
    x = graph.add("Relu", graph.add("Conv", x, weight, kernel_shape=[9, 5], strides=[2, 4]))
    both = graph.add("Concat", "embed_states", x, axis=2)
    kept["embed_states"] = _part(graph, both, 2, MADE, MADE + 3)
    weight = graph.constant("beside.weight", graph.weight("beside.weight", (CHANNELS, 1, 7, 1), 7**-0.5))
    x = graph.add("Conv", both, weight, kernel_shape=[7, 1], group=CHANNELS)
    x = graph.add(
        "Reshape", graph.add("Transpose", x, perm=[0, 2, 1, 3]), graph.constant("flat", [0, 0, CHANNELS * ACROSS])
    )
    return graph.linear(x, "embedded", CHANNELS * ACROSS, SIZE)


def _part(graph: GraphBuilder, x: str, axis: int, begin: int, end: int) -> str:
    return graph.add("Slice", x, *(graph.constant(f"at_{value}", [value]) for value in (begin, end, axis)))


def _layer(graph: GraphBuilder, x: str, layer: int, mask: str, kept: dict[str, str]) -> str:
    def linear(name: str, wide: int, out: int, value: str) -> str:
        return graph.linear(value, f"{layer}.{name}", wide, out)

    def after_left(value: str, name: str) -> str:
        """[LEFT + 16, N, width] of [N, 16, width]."""
        both = graph.add("Concat", f"{name}_{layer}", graph.add("Transpose", value, perm=[1, 0, 2]), axis=0)
        kept[f"{name}_{layer}"] = _part(graph, both, 0, MADE, MADE + LEFT)
        return both

    def heads(value: str, size: int, perm: list[int]) -> str:
        return graph.add(
            "Transpose", graph.add("Reshape", value, graph.constant(f"heads_{size}", [0, 0, HEADS, size])), perm=perm
        )

    normed = graph.layer_norm(x, f"{layer}.norm", SIZE, 1e-5)
    query = heads(linear("query", SIZE, HEADS * QUERY, normed), QUERY, [0, 2, 1, 3])
    key = heads(after_left(linear("key", SIZE, HEADS * QUERY, normed), "cached_key"), QUERY, [1, 2, 3, 0])
    scores = graph.add("Mul", graph.add("MatMul", query, key), graph.constant("scale", QUERY**-0.5))
    weights = graph.add("Softmax", graph.add("Add", scores, mask), axis=-1)
    first = _part(graph, weights, 1, 0, 1)  # of one head
    wide = 3 * SIZE // 4
    gated = graph.add("Mul", linear("gated", SIZE, wide, normed), graph.add("Tanh", linear("gate", SIZE, wide, normed)))
    past = graph.add(
        "Concat", f"cached_nonlin_attn_{layer}", graph.add("Unsqueeze", gated, graph.constant("front", [0])), axis=2
    )
    kept[f"cached_nonlin_attn_{layer}"] = _part(graph, past, 2, MADE, MADE + LEFT)
    mixed = graph.add(
        "MatMul",
        graph.add("Squeeze", first, graph.constant("axis_1", [1])),
        graph.add("Squeeze", past, graph.constant("front", [0])),
    )
    x = graph.add("Add", x, linear("ungated", wide, SIZE, mixed))
    for part in ("1", "2"):
        value = heads(
            after_left(linear(f"value{part}", SIZE, HEADS * VALUE, x), f"cached_val{part}"), VALUE, [1, 2, 0, 3]
        )
        mixed = graph.add("Transpose", graph.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        mixed = graph.add("Reshape", mixed, graph.constant("joined_heads", [0, 0, HEADS * VALUE]))
        x = graph.add("Add", x, linear(f"mixed{part}", HEADS * VALUE, SIZE, mixed))
        channels = graph.add("Transpose", linear(f"conv{part}", SIZE, SIZE, x), perm=[0, 2, 1])
        both = graph.add("Concat", f"cached_conv{part}_{layer}", channels, axis=2)
        kept[f"cached_conv{part}_{layer}"] = _part(graph, both, 2, MADE, MADE + KERNEL // 2)
        name = f"{layer}.causal{part}.weight"
        weight = graph.constant(name, graph.weight(name, (SIZE, 1, KERNEL // 2 + 1), KERNEL**-0.5))
        made = graph.add("Conv", both, weight, kernel_shape=[KERNEL // 2 + 1], group=SIZE)
        x = graph.add("Add", x, graph.add("Transpose", graph.add("Tanh", made), perm=[0, 2, 1]))
    return x


def _decoder() -> onnx.ModelProto:
    graph = GraphBuilder("decoder")
    y = graph.input("y", ["N", CONTEXT], TensorProto.INT64)
    zero = graph.constant("zero", 0)
    table = graph.constant("table", graph.weight("table", (VOCABULARY, SIZE), 1.0))
    x = graph.add("Gather", table, graph.add("Max", y, zero))
    real = graph.add("Cast", graph.add("GreaterOrEqual", y, zero), to=TensorProto.FLOAT)  # -1 stands before a sound
    x = graph.add("Mul", x, graph.add("Unsqueeze", real, graph.constant("last", [2])))
    weight = graph.constant("context.weight", graph.weight("context.weight", (SIZE, 1, CONTEXT), CONTEXT**-0.5))
    x = graph.add("Conv", graph.add("Transpose", x, perm=[0, 2, 1]), weight, kernel_shape=[CONTEXT], group=SIZE)
    x = graph.add("Relu", graph.add("Squeeze", x, graph.constant("last", [2])))
    graph.output(graph.linear(x, "decoded", SIZE, JOINED), "decoder_out", ["N", JOINED])
    return graph.model()


def _joiner() -> onnx.ModelProto:
    graph = GraphBuilder("joiner")
    encoded, said = (graph.input(name, ["N", JOINED]) for name in ("encoder_out", "decoder_out"))
    logits = graph.linear(graph.add("Tanh", graph.add("Add", encoded, said)), "logits", JOINED, VOCABULARY)
    blank = graph.constant("blank", _BLANK * (np.arange(VOCABULARY) == 0).astype(np.float32))
    graph.output(graph.add("Add", logits, blank), "logit", ["N", VOCABULARY])
    return graph.model()
