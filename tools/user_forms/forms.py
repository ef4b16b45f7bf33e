"""The forms of a model that users make with ONNX Runtime, onnxslim, onnxsim and converters of float16, by name."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Form:
    """``make`` computes the form from a model and inputs for it. ``exact``: its results are those of the model; else ``half``,
    they are in float16, or it is quantized. ``package`` is the one that makes it."""

    name: str
    make: Callable[[onnx.ModelProto, Feeds], onnx.ModelProto]
    exact: bool = True
    half: bool = False
    package: str = "onnxruntime"

    @property
    def is_available(self) -> bool:
        """Whether the package is installed."""
        return importlib.util.find_spec(self.package) is not None


def _written(write: Callable[[Path], object]) -> onnx.ModelProto:
    """The model that ``write`` saves to a path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write(path)
        return onnx.load(path)


def _optimized(level: str, model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    import onnxruntime

    def write(path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 4
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    return _written(write)


def _slim(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    import onnxslim

    made: onnx.ModelProto = onnxslim.slim(copy_of(model))
    return made


def _simplified(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    import onnxsim

    made, equal = onnxsim.simplify(copy_of(model))
    if not equal:
        raise ValueError("onnxsim found that its result differs from the model")
    return made


def _converted(module: str, keep: bool, model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    converter = importlib.import_module(module)
    made: onnx.ModelProto = converter.convert_float_to_float16(copy_of(model), keep_io_types=keep)
    return made


def _dynamic(per_channel: bool, signed: bool, model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    kind = QuantType.QInt8 if signed else QuantType.QUInt8
    return _written(lambda path: quantize_dynamic(copy_of(model), path, per_channel=per_channel, weight_type=kind))


def _static(operators: bool, per_channel: bool, signed: bool, model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Inputs(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [dict(feeds)]

        def get_next(self) -> dict[str, Array] | None:
            return self.left.pop() if self.left else None

    return _written(
        lambda path: quantize_static(
            copy_of(model),
            path,
            Inputs(),
            quant_format=QuantFormat.QOperator if operators else QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    )


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """Most of the tools change the model that they get."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


_quantized = partial(Form, exact=False)
FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("as it is", lambda model, feeds: model),
        *(Form(f"optimized {level}", partial(_optimized, level)) for level in ("BASIC", "EXTENDED", "ALL")),
        Form("onnxslim", _slim, package="onnxslim"),
        Form("onnxsim", _simplified, package="onnxsim"),
        *(
            Form(f"float16{inside} by {by}", partial(_converted, module, keep), exact=False, half=True, package=by)
            for by, module in (
                ("onnxconverter_common", "onnxconverter_common.float16"),
                ("onnxruntime", "onnxruntime.transformers.float16"),
            )
            for keep, inside in ((False, ""), (True, " inside"))
        ),
        _quantized("dynamic int8", partial(_dynamic, False, True)),
        _quantized("dynamic uint8, per channel", partial(_dynamic, True, False)),
        _quantized("QDQ", partial(_static, False, False, True)),
        _quantized("QDQ, uint8, per channel", partial(_static, False, True, False)),
        _quantized("QOperator", partial(_static, True, False, False)),
        _quantized("QOperator, int8, per channel", partial(_static, True, True, True)),
    )
}
