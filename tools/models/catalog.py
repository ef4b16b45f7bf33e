"""The models by name, and how one is built, run for its reference and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tools.models import bert, convnets, gpt, micro
from tools.models.reference import evaluate
from vkep.models.builder import Array, Dim, GraphBuilder, levels

SEQUENCE = 128
MASK_FROM = 100  # the last tokens of the reference input are padding


@dataclass(frozen=True)
class Options:
    """Options for building a model.

    Attributes:
        batch: batch size of the shapes (of the reference input, where dimensions are symbolic).
        dynamic: symbolic batch, sequence and past dimensions instead of fixed ones.
        float16: floats stored as float16.
        external_data: weights in a file of their own, `<name>.weights`.
    """

    batch: int = 1
    dynamic: bool = False
    float16: bool = False
    external_data: bool = False

    def dim(self, name: str, size: int) -> Dim:
        """`size`, or the symbol `name` when dimensions are to be dynamic."""
        return name if self.dynamic else size


Build = Callable[[GraphBuilder, Options], None]


@dataclass(frozen=True)
class Spec:
    """A model of the catalog; `has_batch` and `can_be_dynamic` are the options that it supports."""

    build: Build
    has_batch: bool = False
    can_be_dynamic: bool = False


@cache
def _statistics(name: str) -> convnets.Statistics:
    return convnets.calibrated(name, CONVNETS[name])


CONVNETS: dict[str, convnets.Architecture] = {
    "mobilenetv2": convnets.mobilenetv2,
    "resnet18": convnets.resnet((2, 2, 2, 2), bottleneck=False),
    "resnet50": convnets.resnet((3, 4, 6, 3), bottleneck=True),
}


def _convnet(name: str, graph: GraphBuilder, options: Options) -> None:
    convnets.build_convnet(graph, CONVNETS[name], _statistics(name), options.dim("batch", options.batch))


def _bert(graph: GraphBuilder, options: Options) -> None:
    bert.build_bert(graph, options.dim("batch", options.batch), options.dim("sequence", SEQUENCE))


def _bert_encoder(graph: GraphBuilder, options: Options) -> None:
    bert.build_bert_encoder(graph, options.dim("batch", options.batch), options.dim("sequence", SEQUENCE))


def _gpt_step(graph: GraphBuilder, options: Options) -> None:
    gpt.build_gpt_step(graph, options.dim("past", gpt.GPT.past))


def _fixed(build: Callable[[GraphBuilder], None]) -> Spec:
    return Spec(lambda graph, options: build(graph))


BENCHMARKS: dict[str, Spec] = {
    "matmul1024": _fixed(micro.build_matmul(1024)),
    "conv3x3": _fixed(micro.build_conv(64, 64, 56, 3)),
    **{name: Spec(partial(_convnet, name), has_batch=True, can_be_dynamic=True) for name in CONVNETS},
    "bert": Spec(_bert, has_batch=True, can_be_dynamic=True),
    "bert_enc": Spec(_bert_encoder, has_batch=True, can_be_dynamic=True),
    "elem16m": _fixed(micro.build_elementwise(4096, 4096)),
    "gpt2step": Spec(_gpt_step, can_be_dynamic=True),
}
MICRO: dict[str, Spec] = {name: _fixed(build) for name, build in micro.OPS.items()}
CATALOG: dict[str, Spec] = {**BENCHMARKS, **MICRO}


def build_model(name: str, options: Options = Options()) -> onnx.ModelProto:
    """Build a model of the catalog, checked by onnx.

    Raises:
        ValueError: for a name that the catalog does not have, or an option that the model does not know.
    """
    return _build(name, options, rounded=False)


def _build(name: str, options: Options, rounded: bool) -> onnx.ModelProto:
    spec = CATALOG.get(name)
    if spec is None:
        raise ValueError(f"no model named {name!r}; there are: {', '.join(CATALOG)}")
    if options.batch < 1:
        raise ValueError(f"batch must be at least 1, got {options.batch}")
    if options.batch != 1 and not spec.has_batch:
        raise ValueError(f"{name} has no batch dimension, got batch={options.batch}")
    if options.dynamic and not spec.can_be_dynamic:
        raise ValueError(f"{name} has no dynamic dimensions")
    graph = GraphBuilder(name, float16=options.float16 and not rounded, rounded=rounded)
    spec.build(graph, options)
    return graph.model()


def reference_inputs(name: str, model: onnx.ModelProto, options: Options = Options()) -> dict[str, Array]:
    """Seeded inputs of the reference run, by name, with symbolic dimensions at their usual sizes."""
    sizes = {"batch": options.batch, "sequence": SEQUENCE, "past": gpt.GPT.past}
    graph = GraphBuilder(name)
    inputs: dict[str, Array] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = tuple(dim.dim_value or sizes[dim.dim_param] for dim in tensor.shape.dim)
        random = graph.random(f"input {value.name}")
        if value.name == "mask":
            inputs["mask"] = np.ones(shape, np.int64)
            inputs["mask"][..., MASK_FROM:] = 0
        elif value.name == "pos":
            inputs["pos"] = np.full(shape, gpt.GPT.past, np.int64)
        elif value.name == "ids":
            inputs["ids"] = random.integers(0, bert.BERT.vocabulary, shape)
        else:
            scale = 0.3 if value.name in ("pk", "pv") else 1.0
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            inputs[value.name] = (levels(random, shape) * np.float32(scale)).astype(dtype)
    return inputs


def reference_outputs(
    name: str,
    model: onnx.ModelProto,
    inputs: dict[str, Array],
    options: Options = Options(),
) -> dict[str, Array]:
    """Outputs of the reference run, by name. A float16 model's are computed in float32 from the same rounded weights,
    and returned as float32: they are the model's exact results, not those of one engine's float16."""
    if not options.float16:
        return evaluate(model, inputs)
    twin = _build(name, options, rounded=True)
    return evaluate(
        twin, {key: value.astype(np.float32) if value.dtype == np.float16 else value for key, value in inputs.items()}
    )


def write_model(name: str, folder: Path, options: Options = Options()) -> Path:
    """Write `<name>.onnx` and `<name>.npz` (in_*, out_*) into `folder`, which is made if missing.

    Returns:
        The path of the .onnx file.

    Raises:
        ValueError: as `build_model`.
    """
    model = build_model(name, options)
    inputs = reference_inputs(name, model, options)
    outputs = reference_outputs(name, model, inputs, options)
    folder.mkdir(parents=True, exist_ok=True)
    path, data = folder / f"{name}.onnx", f"{name}.weights"
    (folder / data).unlink(missing_ok=True)  # onnx appends to it
    if options.external_data:
        onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=1024)
    else:
        onnx.save(model, path)
    arrays = {f"in_{key}": value for key, value in inputs.items()}
    arrays |= {f"out_{key}": value for key, value in outputs.items()}
    np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)
    return path
