"""A recorded case: a model of one node, its inputs, and the expected outputs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vkep import dtypes
from vkep.graph.weights import pack, unpack

#: absolute and relative tolerance of values that a test gives none for, as ONNX Runtime compares its CPU provider's
_TOLERANCES = {"float32": (1e-5, 1e-4), "float64": (1e-5, 1e-5), "float16": (0.0025, 0.001), "bfloat16": (0.02, 0.01)}
#: domains whose operators have versions of their own; the operator set of ai.onnx beside them
_BESIDE = 21
#: operators whose values are draws of a generator, which no other generator can repeat: shape and type are compared
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")


@dataclass(frozen=True)
class Case:
    """``name`` is the file, the test, and the number of the run within the test."""

    name: str
    record: dict[str, Any]

    @property
    def operator(self) -> str:
        domain = self.record["domain"]
        return f"{domain}.{self.record['op']}" if domain not in ("", "ai.onnx") else str(self.record["op"])

    @property
    def must_fail(self) -> bool:
        return bool(self.record["fails"])

    @property
    def why_not(self) -> str:
        """Why the case cannot be a model of one node over tensors; empty where it can."""
        return str(self.record["why_not"])

    @property
    def digest(self) -> str:
        fields = {k: v for k, v in self.record.items() if k != "data"}
        return hashlib.sha256(repr(sorted(fields.items())).encode() + self.record["data"]).hexdigest()[:32]

    @property
    def text(self) -> str:
        """Its inputs' types and shapes, and its attributes, for a reader."""
        parts = []
        for value in self.record["inputs"]:
            if value["kind"] == "absent":
                parts.append("-")
            else:
                shape = ",".join(map(str, value["dims"]))
                weight = " weight" if value["initializer"] else ""
                parts.append(f"{onnx.TensorProto.DataType.Name(value['type']).lower()}[{shape}]{weight}")
        attributes = []
        for a in self.record["attributes"]:
            value = next(v for k, v in a.items() if k != "name")
            kind = next(k for k in a if k != "name")
            if kind in ("float", "floats"):
                value = np.array(value, np.uint32).view(np.float32).tolist()
            attributes.append(f"{a['name']}={value}"[:80])
        return f"opset {self.record['opset']} ({', '.join(parts)}) {' '.join(attributes)}".strip()

    def model(self) -> onnx.ModelProto:
        """The node alone, with the test's declarations of its inputs and outputs. Raises `ValueError` where ONNX has no
        such attribute value."""
        record = self.record
        node = helper.make_node(
            record["op"],
            ["" if v["kind"] == "absent" else f"in{k}" for k, v in enumerate(record["inputs"])],
            ["" if v["kind"] == "absent" else f"out{k}" for k, v in enumerate(record["outputs"])],
            name="node",
            domain=record["domain"],
        )
        node.attribute.extend(_attribute(a) for a in record["attributes"])
        inputs, weights = [], []
        for k, value in enumerate(record["inputs"]):
            if value["kind"] == "absent":
                continue
            if value["initializer"]:
                weights.append(_tensor(f"in{k}", self._array(value), value["type"]))
            else:
                inputs.append(helper.make_tensor_value_info(f"in{k}", value["type"], _declared(value)))
        outputs = [
            helper.make_tensor_value_info(f"out{k}", v["type"], _declared(v))
            for k, v in enumerate(record["outputs"])
            if v["kind"] != "absent"
        ]
        opset = record["opset"] if record["opset"] >= 0 else onnx.defs.onnx_opset_version()
        imports = [helper.make_opsetid(record["domain"], opset)]
        if record["domain"] not in ("", "ai.onnx"):
            imports.append(helper.make_opsetid("", _BESIDE))
        version = helper.find_min_ir_version_for(
            [helper.make_opsetid("", max(i.version for i in imports if i.domain in ("", "ai.onnx")))], True
        )
        graph = helper.make_graph([node], "case", inputs, outputs, weights)
        return helper.make_model(graph, opset_imports=imports, ir_version=max(version, 8))

    def feeds(self) -> dict[str, np.ndarray]:
        return {
            f"in{k}": self._array(v)
            for k, v in enumerate(self.record["inputs"])
            if v["kind"] != "absent" and not v["initializer"]
        }

    def expected(self) -> dict[str, np.ndarray]:
        return {f"out{k}": self._array(v) for k, v in enumerate(self.record["outputs"]) if v["kind"] != "absent"}

    def difference(self, got: dict[str, Any], expected: dict[str, np.ndarray] | None = None) -> str:
        """The difference between the outputs and those that the test expects (or ``expected``); empty where they
        agree."""
        wanted = self.expected() if expected is None else expected
        for name, want in wanted.items():
            entry = self.record["outputs"][int(name.removeprefix("out"))]
            text = _difference(np.asarray(got[name]), want, entry, self.record["op"] in _RANDOM)
            if text:
                return f"output {name.removeprefix('out')}: {text}"
        return ""

    def _array(self, value: dict[str, Any]) -> np.ndarray:
        shape = tuple(value["dims"])
        if value["type"] == onnx.TensorProto.STRING:
            texts = [s.encode("latin-1").decode("utf-8", "replace") for s in value["strings"]]
            return np.array(texts, dtype=object).reshape(shape)
        dtype = dtypes.from_onnx(value["type"])
        if dtype is None:
            raise ValueError(f"an element type that vkep's table lacks: {value['type']}")
        data = np.frombuffer(self.record["data"], np.uint8, value["bytes"], value["offset"])
        if dtype.sub_byte_bits:
            return unpack(data, dtype, shape)
        return data.view(dtype.numpy).reshape(shape)


def _declared(value: dict[str, Any]) -> list[int | str] | None:
    """The shape that the test's model declares."""
    if not value["shaped"] or value["symbolic"] == -2:
        return None
    return [f"symbolic{i}" if i == value["symbolic"] else d for i, d in enumerate(value["dims"])]


def _tensor(name: str, array: np.ndarray, kind: int) -> onnx.TensorProto:
    dtype = dtypes.from_onnx(kind)
    if dtype is None or not dtype.sub_byte_bits:
        return numpy_helper.from_array(array, name)
    return helper.make_tensor(name, kind, array.shape, pack(array, dtype).tobytes(), raw=True)


def _attribute(entry: dict[str, Any]) -> onnx.AttributeProto:
    kind, value = next((k, v) for k, v in entry.items() if k != "name")
    proto = onnx.AttributeProto(name=entry["name"])
    if kind == "int":
        proto.type, proto.i = onnx.AttributeProto.INT, value
    elif kind == "float":
        proto.type, proto.f = onnx.AttributeProto.FLOAT, float(_floats([value])[0])
    elif kind == "string":
        proto.type, proto.s = onnx.AttributeProto.STRING, value.encode("latin-1")
    elif kind == "ints":
        proto.type = onnx.AttributeProto.INTS
        proto.ints.extend(value)
    elif kind == "floats":
        proto.type = onnx.AttributeProto.FLOATS
        proto.floats.extend(_floats(value))
    elif kind == "strings":
        proto.type = onnx.AttributeProto.STRINGS
        proto.strings.extend(v.encode("latin-1") for v in value)
    else:
        proto.type = onnx.AttributeProto.TENSOR
        proto.t.data_type = value["type"]
        proto.t.dims.extend(value["dims"])
        proto.t.float_data.extend(_floats(value["floats"]))
        proto.t.double_data.extend(np.array(value["doubles"], np.uint64).view(np.float64))
        proto.t.string_data.extend(v.encode("latin-1") for v in value["strings"])
        longs = {onnx.TensorProto.INT64: proto.t.int64_data, onnx.TensorProto.UINT64: proto.t.uint64_data}
        longs.get(value["type"], proto.t.int32_data).extend(value["ints"])
    return proto


def _floats(bits: list[int]) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


def _difference(got: np.ndarray, want: np.ndarray, entry: dict[str, Any], random: bool) -> str:
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    if want.dtype != object and got.dtype != want.dtype:
        return f"{got.dtype}, expected {want.dtype}"
    if random:
        return ""
    if entry["sort"]:
        got, want = np.sort(got, axis=None), np.sort(want, axis=None)
    if want.dtype == object:
        return "" if [str(v) for v in got.flat] == [str(v) for v in want.flat] else "other strings"
    rel, absolute = _tolerance(entry, want.dtype)
    if absolute is None:
        wrong = got != want
    else:
        g, w = got.astype(np.float64), want.astype(np.float64)
        with np.errstate(all="ignore"):
            near = np.abs(g - w) <= absolute + rel * np.abs(w)
        largest = np.isinf(g) & (w == float(np.finfo(np.float32).max))
        wrong = ~np.where(np.isnan(w), np.isnan(g), np.where(np.isinf(w), g == w, near | largest))
    if not np.any(wrong):
        return ""
    where = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.ndim else ()
    return f"{got[where]} at {list(where)}, expected {want[where]}; {int(wrong.sum())} of {want.size} differ"


def _tolerance(entry: dict[str, Any], dtype: np.dtype) -> tuple[float, float | None]:
    rel, absolute = (float(v) for v in _floats([entry["rel"], entry["abs"]]))
    if dtype == np.int8:
        return 0.0, absolute if absolute >= 1 else None
    if dtype.name in _TOLERANCES:
        default = _TOLERANCES[dtype.name]
        return rel or default[1], absolute or default[0]
    if dtype.name.startswith("float"):  # 8-bit floats: equal bits, or NaN in both
        return rel, absolute
    return 0.0, None
