"""The models that are taken through the forms: parts of networks, the catalog, files, and networks of torch by both exporters."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tools.half_precision.networks import NETWORKS, prepare
from tools.models.catalog import BENCHMARKS, build_model, reference_inputs
from tools.models.fusions import FUSIONS
from tools.user_forms.forms import Feeds

Source = Callable[[], tuple[onnx.ModelProto, Feeds]]
EXPORTERS = ("TorchScript", "dynamo")
#: the size of a dimension without one, in inputs that are drawn
OPEN = 2


def source(name: str) -> Source:
    """What makes a model and its inputs: a name of `tools.models.fusions` or of the catalog, a network of
    `tools.half_precision.networks` and an exporter (``resnet18/dynamo``), or a path of an ONNX file. Raises ``ValueError`` for
    another name."""
    if name in FUSIONS:
        return lambda: (FUSIONS[name].model(), FUSIONS[name].feeds())
    if name in BENCHMARKS:
        return lambda: _of_catalog(name)
    network, _, exporter = name.rpartition("/")
    if network in NETWORKS and exporter in EXPORTERS:
        return lambda: _exported(network, exporter)
    if (path := Path(name)).suffix == ".onnx" and path.is_file():
        return lambda: _of_file(path)
    raise ValueError(
        f"{name!r} is no model of tools.models and no .onnx file, and no network of tools.half_precision with "
        f"{' or '.join(f'/{e}' for e in EXPORTERS)}"
    )


def _of_catalog(name: str) -> tuple[onnx.ModelProto, Feeds]:
    model = build_model(name)
    return model, reference_inputs(name, model)


def _of_file(path: Path) -> tuple[onnx.ModelProto, Feeds]:
    """With the inputs of a file .npz beside it (``in_`` and the name), or drawn ones."""
    model, stored = onnx.load(path), path.with_suffix(".npz")
    if stored.is_file():
        with np.load(stored) as arrays:
            return model, {key[3:]: arrays[key] for key in arrays if key.startswith("in_")}
    rng, feeds = np.random.default_rng(0), {}
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in weights:
            tensor = value.type.tensor_type
            shape = [dim.dim_value or OPEN for dim in tensor.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
            feeds[value.name] = drawn.astype(dtype)
    return model, feeds


def _exported(network: str, exporter: str) -> tuple[onnx.ModelProto, Feeds]:
    import torch

    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        module, x = prepare(network)
        if exporter == "dynamo":
            model = torch.onnx.export(module, (x,), dynamo=True, verbose=False).model_proto
        else:
            buffer = io.BytesIO()
            torch.onnx.export(module, (x,), buffer, dynamo=False, opset_version=17)
            model = onnx.load_from_string(buffer.getvalue())
    return model, {model.graph.input[0].name: x.numpy()}
