"""The models of ``vkep model``, by name. Each is small, has seeded random weights, and is written in less than a second."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from vkep.models.bert import BertShape, bert_features
from vkep.models.builder import Array, GraphBuilder
from vkep.models.detector import detector
from vkep.models.diffusion import write_diffusion
from vkep.models.language import PAD, write_language, write_tokenizer
from vkep.models.sources import write_sources
from vkep.models.streams import recognizer, voice_activity
from vkep.models.transducer import write_transducer
from vkep.models.video_objects import write_video_objects
from vkep.models.vision_language import write_florence, write_vision_language
from vkep.models.voice import voice

PROGRAM = Path(__file__).with_name("program.pte")
IMAGE, CLASSES = 32, 10
BERT = BertShape(vocabulary=320, hidden=64, layers=2, heads=4, intermediate=128)
LABELS = ("negative", "neutral", "positive")


@dataclass(frozen=True)
class Starter:
    """One model: ``what`` it is in a line, the name of its file or folder, and the function that writes it there."""

    what: str
    path: str
    write: Callable[[Path], object]


def cnn() -> onnx.ModelProto:
    """Input `image` float32 [batch, 3, 32, 32], output `scores` [batch, 10]: residual blocks with batch normalization
    (arXiv:1512.03385)."""
    graph = GraphBuilder("cnn")
    x, channels = graph.input("image", ["batch", 3, IMAGE, IMAGE]), 3

    def conv(x: str, name: str, c_in: int, c_out: int, stride: int) -> str:
        weight = graph.weight(f"{name}.weight", (c_out, c_in, 3, 3), (2 / (9 * c_in)) ** 0.5)
        kernel = graph.constant(f"{name}.weight", weight)
        x = graph.add("Conv", x, kernel, kernel_shape=[3, 3], pads=[1] * 4, strides=[stride] * 2)
        parts: Mapping[str, Array] = {
            "scale": 1 + graph.weight(f"{name}.scale", (c_out,), 0.1),
            "offset": graph.weight(f"{name}.offset", (c_out,), 0.1),
            "mean": np.zeros(c_out, np.float32),
            "variance": np.ones(c_out, np.float32),
        }
        return graph.add("BatchNormalization", x, *(graph.constant(f"{name}.{k}", v) for k, v in parts.items()))

    for block, wide in enumerate((16, 32, 64)):
        x = graph.add("Relu", conv(x, f"{block}.down", channels, wide, 1 if block == 0 else 2))
        inside = graph.add("Relu", conv(x, f"{block}.first", wide, wide, 1))
        x = graph.add("Relu", graph.add("Add", x, conv(inside, f"{block}.second", wide, wide, 1)))
        channels = wide
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x), axis=1)
    weight = graph.constant("head.weight", graph.weight("head.weight", (CLASSES, channels), channels**-0.5))
    bias = graph.constant("head.bias", graph.weight("head.bias", (CLASSES,), 0.02))
    graph.output(graph.add("Gemm", x, weight, bias, transB=1), "scores", ["batch", CLASSES])
    return graph.model()


def bert(classes: int = 0) -> onnx.ModelProto:
    """Inputs `input_ids` and `attention_mask` int64 [batch, sequence] (up to 128 tokens of 320), output
    `last_hidden_state` [batch, sequence, 64]; with ``classes``, `logits` [batch, classes] of the mean token."""
    graph = GraphBuilder("bert")
    ids, mask = (
        graph.input(name, ["batch", "sequence"], TensorProto.INT64) for name in ("input_ids", "attention_mask")
    )
    x = bert_features(graph, ids, mask, "batch", "sequence", BERT)
    if not classes:
        graph.output(x, "last_hidden_state", ["batch", "sequence", BERT.hidden])
        return graph.model()
    mean = graph.add("ReduceMean", x, graph.constant("tokens_axis", [1]), keepdims=0)
    graph.output(graph.linear(mean, "classifier", BERT.hidden, classes), "logits", ["batch", classes])
    return graph.model()


def mixed() -> onnx.ModelProto:
    """Input `image` float32 [1, 3, 32, 32], output `y` [1, 8, 32, 32]: two convolutions, which TOSA has, around a
    GatherElements, which runs on Vulkan: three regions of two delegates with ``prefer="vgf_first"``."""
    graph = GraphBuilder("mixed")
    x = graph.input("image", [1, 3, IMAGE, IMAGE])

    def conv(x: str, name: str, c_in: int, c_out: int) -> str:
        weight = graph.weight(f"{name}.weight", (c_out, c_in, 3, 3), (2 / (9 * c_in)) ** 0.5)
        bias = graph.constant(f"{name}.bias", graph.weight(f"{name}.bias", (c_out,), 0.1))
        kernel = graph.constant(f"{name}.weight", weight)
        return graph.add("Relu", graph.add("Conv", x, kernel, bias, kernel_shape=[3, 3], pads=[1] * 4))

    x = conv(x, "first", 3, 8)
    columns = np.broadcast_to(np.arange(IMAGE)[::-1], (1, 8, IMAGE, IMAGE))
    x = graph.add("GatherElements", x, graph.constant("columns", columns), axis=3)
    graph.output(conv(x, "second", 8, 8), "y", [1, 8, IMAGE, IMAGE])
    return graph.model()


def _write_bert(folder: Path, made: onnx.ModelProto, **settings: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(made, folder / "model.onnx")
    config = {
        "model_type": "bert",
        "hidden_size": BERT.hidden,
        "num_hidden_layers": BERT.layers,
        "num_attention_heads": BERT.heads,
        "intermediate_size": BERT.intermediate,
        "max_position_embeddings": BERT.positions,
        "vocab_size": BERT.vocabulary,
        "pad_token_id": PAD,
        **settings,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    write_tokenizer(folder, model_max_length=BERT.positions)


def _write_classifier(folder: Path) -> None:
    _write_bert(
        folder,
        bert(len(LABELS)),
        architectures=["BertForSequenceClassification"],
        id2label=dict(enumerate(LABELS)),
        label2id={label: i for i, label in enumerate(LABELS)},
    )


def _file(build: Callable[[], onnx.ModelProto]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        onnx.save(build(), path)

    return write


STARTERS: Mapping[str, Starter] = {
    "cnn": Starter("a convolutional network: image [batch, 3, 32, 32] to scores [batch, 10]", "cnn.onnx", _file(cnn)),
    "bert": Starter(
        "a BERT encoder: input_ids, attention_mask [batch, sequence] to last_hidden_state", "bert.onnx", _file(bert)
    ),
    "classifier": Starter(
        "a folder that optimum opens: BERT with three classes, config.json, tokenizer.json",
        "classifier",
        _write_classifier,
    ),
    "decoder": Starter(
        "a folder with a language model and a tokenizer of bytes, as onnxruntime-genai's builder writes it",
        "decoder",
        write_language,
    ),
    "images": Starter(
        "a folder with a language model that reads images, in the form of transformers.js",
        "images",
        write_vision_language,
    ),
    "florence": Starter(
        "a folder in Florence-2's form: answers about an image by tasks, with regions", "florence", write_florence
    ),
    "diffusion": Starter(
        "a folder that generates images: Stable Diffusion's form, as optimum exports it", "diffusion", write_diffusion
    ),
    "sentences": Starter(
        "a folder of an encoder of sentences: BERT and its tokenizer of bytes",
        "sentences",
        lambda folder: _write_bert(folder, bert(), architectures=["BertModel"]),
    ),
    "whisper": Starter(
        "a folder with Whisper's encoder and decoders, as optimum writes them",
        "whisper",
        lambda folder: write_sources(folder, "whisper"),
    ),
    "detector": Starter(
        "a detector in YOLOv8's form: images [batch, 3, 64, 64] to output0 [batch, 12, 80]",
        "detector.onnx",
        _file(detector),
    ),
    "objects": Starter(
        "a folder that follows objects through a video: the parts of SAM 2's form", "objects", write_video_objects
    ),
    "vad": Starter(
        "voice activity in silero-vad's form: input [batch, samples], state and sr to output and stateN",
        "vad.onnx",
        _file(voice_activity),
    ),
    "recognizer": Starter(
        "a streaming recognizer: x [batch, 16, 80] and 30 states to log_probs [batch, 16, 64] and the next states",
        "recognizer.onnx",
        _file(recognizer),
    ),
    "transducer": Starter(
        "a streaming transducer in the files of icefall and sherpa-onnx: encoder, decoder, joiner and tokens.txt",
        "transducer",
        write_transducer,
    ),
    "voice": Starter(
        "a voice in piper's form: input [1, phonemes], input_lengths and scales to output [1, 1, 1, samples]",
        "voice.onnx",
        _file(voice),
    ),
    "mixed": Starter(
        "two TOSA regions around one of Vulkan, for --prefer vgf_first: image [1, 3, 32, 32] to y",
        "mixed.onnx",
        _file(mixed),
    ),
    "program": Starter(
        "an ExecuTorch program of the Vulkan backend, exported by ExecuTorch",
        "program.pte",
        lambda path: path.write_bytes(PROGRAM.read_bytes()),
    ),
}
