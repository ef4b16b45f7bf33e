"""Runs declined nodes on the CPU: with onnxruntime where it is installed, else onnx's reference evaluator."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gpu_shared.errors import OutOfHostMemoryError
from vkep.device.tensor import on_host
from vkep.errors import InvalidInputError, UnsupportedModelError, VkepError
from vkep.files import MEMORY_BYTES
from vkep.ir.program import CpuStep, HostValue, ListValue
from vkep.placement.elements import ELEMENTS
from vkep.session.execution.sequences import gathered
from vkep.session.inputs import Map
from vkep.session.ort_interface.options import NOT_REPLACED

logger = logging.getLogger("vkep.cpu")

#: runs the group: inputs by name to outputs in order
Evaluate = Callable[[Mapping[str, Any]], Sequence[Any]]
MakeEvaluator = Callable[[onnx.ModelProto, list[str]], Evaluate]
#: texts in onnxruntime's errors where the sizes of a node's inputs do not fit, and where its attributes do not
_SHAPES, _ATTRIBUTES = "ShapeInferenceError", "Exception during initialization"
#: texts, with the latter, where the machine lacks something
_MACHINE = "Failed to construct locale"
#: in place of an input that is not known yet: one element, no number
_UNKNOWN = np.full((), np.nan)


class CpuRunner:
    """A group of nodes on the CPU.

    The evaluator is chosen at the first run, when the inputs' types are known: onnxruntime, or onnx's reference where
    that is not installed or does not know the nodes (a newer opset or type). ``engine`` is its name.

    Raises `UnsupportedModelError` for nodes that no evaluator knows.
    """

    def __init__(self, step: CpuStep, opsets: Mapping[str, int]) -> None:
        self.step = step
        self._opsets = opsets
        self._run: Evaluate | None = None
        self._engines: dict[str, MakeEvaluator] = {"onnx.reference": _reference}
        if importlib.util.find_spec("onnxruntime"):
            self._engines = {"onnxruntime": _onnxruntime, **self._engines}
        self.engine = next(iter(self._engines))
        unknown = [
            f"{node.title}: {reason}"
            for node, reason in zip(step.nodes, step.reasons, strict=True)
            if node.schema is None and not (self.engine == "onnxruntime" and node.domain == "com.microsoft")
        ]
        if unknown:
            raise UnsupportedModelError(
                "these nodes run neither on Vulkan nor on the CPU:\n  "
                + "\n  ".join(unknown)
                + "\nDeclare a Vulkan operator for them (vkep.ops.operator; commands import its module with --import), "
                "or change the model."
            )

    def run(self, values: dict[str, Any], targets: Mapping[str, Any]) -> None:
        """Run on the inputs in ``values``; outputs are added there as arrays.

        Raises `InvalidInputError` with the evaluator's message where a node refuses its inputs, and for a result of more
        elements than the machine has bytes of memory; `OutOfHostMemoryError` for a view whose copy needs more than that;
        `VkepError` where no evaluator knows the nodes.
        """
        feeds = {name: self._contiguous(name, value) for name, value in self._feeds(values).items()}
        self._check_elements(feeds)
        evaluate = self._run or self._chosen(feeds)
        try:
            results = evaluate(feeds)
        except ImportError as error:  # operators for which onnx's reference needs other packages
            raise VkepError(f"on the CPU ({self.engine}), {self._nodes()}: {error}") from error
        except Exception as error:  # any exception of the evaluator, with its origin
            raise self._refused(error) from error
        self._run = evaluate
        values.update(zip(self.step.outputs, results, strict=True))

    def _feeds(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The step's inputs in host memory, and each sequence as a list of its elements, which are fed alone only where a node
        reads them alone."""
        step = self.step
        if not step.lists:
            return {name: on_host(values[name]) for name in step.inputs}

        def tensor(name: str) -> Any:
            weight = step.constants.get(name)
            return on_host(values[name]) if weight is None else weight.array()

        read = {name for node in step.nodes for name in node.reads}
        feeds = {name: on_host(values[name]) for name in step.inputs if name in read}
        return feeds | {name: gathered(value, tensor) for name, value in step.lists.items()}

    def _contiguous(self, name: str, value: Any) -> Any:
        """An array as evaluators take it. A broadcast view may have any number of elements in few bytes."""
        if not isinstance(value, np.ndarray) or value.flags.c_contiguous:
            return value
        try:
            if value.nbytes <= MEMORY_BYTES:
                return np.ascontiguousarray(value)
        except MemoryError:
            pass
        raise OutOfHostMemoryError(
            f"copying {name!r}, {value.dtype} {list(value.shape)}, for {self._nodes()} on the CPU",
            hint=f"a contiguous copy needs {value.nbytes} bytes, and this machine has {MEMORY_BYTES} bytes of memory; use a "
            "smaller input",
        )

    def _check_elements(self, feeds: Mapping[str, Any]) -> None:
        """Count the elements of results that numbers among the inputs decide: onnxruntime's kernels may end the process for
        such sizes. Data that this group computes counts as one element."""
        for node in self.step.nodes:
            count = None if node.domain else ELEMENTS.get(node.op_type)
            if count is None:
                continue
            constants = self.step.constants
            given = [constants[name].array() if name in constants else feeds.get(name, _UNKNOWN) for name in node.reads]
            try:
                elements = count(*given)
            except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):  # the evaluator reports it
                continue
            if elements > MEMORY_BYTES:
                raise InvalidInputError(
                    f"on the CPU, {node.title}: its result would have {elements} elements, and this machine has "
                    f"{MEMORY_BYTES} bytes of memory"
                )

    def close(self) -> None:
        """Does nothing: nothing is on a device."""

    def _chosen(self, feeds: Mapping[str, Any]) -> Evaluate:
        """The first evaluator that knows the nodes. An evaluator that refuses only these shapes, or attributes, is the
        last one tried."""
        failures = []
        for engine, make in self._engines.items():
            self.engine = engine
            try:
                return make(self._model(feeds), list(self.step.outputs))
            except Exception as error:
                if _ATTRIBUTES in str(error) and _MACHINE not in str(error):
                    raise self._refused(error) from error
                if _SHAPES in str(error):  # of unknown sizes: try with these
                    sized = functools.partial(self._with_sizes, make)
                    try:
                        sized(feeds)
                    except Exception as refused:
                        if _SHAPES in str(refused):
                            raise self._refused(refused) from refused
                    else:
                        return lambda values: sized(values)(values)
                failures.append(f"{engine}: {str(error).strip()}")
                logger.info("%s does not know %s: %s", engine, self._nodes(), str(error))
        raise VkepError(f"on the CPU, {self._nodes()}:\n  " + "\n  ".join(failures))

    def _with_sizes(self, make: MakeEvaluator, feeds: Mapping[str, Any]) -> Evaluate:
        """An evaluator of the nodes for inputs of these sizes only."""
        return make(self._model(feeds, sizes=True), list(self.step.outputs))

    def _refused(self, error: Exception) -> InvalidInputError:
        return InvalidInputError(f"on the CPU ({self.engine}), {self._nodes()}: {str(error).strip()}")

    def _nodes(self) -> str:
        return ", ".join(n.title for n in self.step.nodes)

    def _model(self, feeds: Mapping[str, Any], sizes: bool = False) -> onnx.ModelProto:
        inputs = [
            onnx.ValueInfoProto(name=name, type=_type_of(value, sizes, self.step.lists.get(name)))
            for name, value in feeds.items()
        ]
        graph = helper.make_graph(
            [node.proto for node in self.step.nodes],
            "cpu",
            inputs,
            [onnx.ValueInfoProto(name=name) for name in self.step.outputs],
            [numpy_helper.from_array(np.asarray(w.array()), name) for name, w in self.step.constants.items()],
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]
        # the lowest version that the opsets need: an evaluator may be older than the model's IR version, whose features
        # these nodes do not use
        ir_version = max(helper.find_min_ir_version_for(opsets, ignore_unknown=True), 8)
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def _onnxruntime(model: onnx.ModelProto, outputs: list[str]) -> Evaluate:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(NOT_REPLACED, "1")
    options.log_severity_level = 4  # its error is raised, and may lead to the next evaluator
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    opaque = [
        v.type
        for v in (*session.get_inputs(), *session.get_outputs())
        if any(kind in v.type for kind in ("bfloat16", "float8", "float4", "int4", "int2"))
    ]
    if opaque:  # onnxruntime returns these as plain bytes
        raise TypeError(f"onnxruntime has no numpy form for {opaque[0]}")
    return lambda values: session.run(outputs, dict(values))


def _reference(model: onnx.ModelProto, outputs: list[str]) -> Evaluate:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    return lambda values: list(evaluator.run(outputs, dict(values)))


def _type_of(value: Any, sizes: bool, known: HostValue | None = None) -> onnx.TypeProto:
    if isinstance(value, np.ndarray):
        return helper.make_tensor_type_proto(_elem_type(value), value.shape if sizes else [None] * value.ndim)
    if isinstance(value, (list, tuple)):
        elem_type = known.elem_type if isinstance(known, ListValue) and known.elem_type else onnx.TensorProto.FLOAT
        if value and isinstance(value[0], np.ndarray):
            elem_type = _elem_type(value[0])
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(elem_type, None))
    if isinstance(value, Map):
        return helper.make_map_type_proto(value.key_type, helper.make_tensor_type_proto(value.value_type, []))
    raise TypeError(f"no ONNX type for a value of type {type(value).__name__}")


def _elem_type(array: np.ndarray) -> int:
    if array.dtype.kind in "OUS" or array.dtype.type is np.void:
        return onnx.TensorProto.STRING
    return helper.np_dtype_to_tensor_dtype(array.dtype)
