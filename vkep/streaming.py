"""Models that read a signal chunk by chunk: their states stay on the device between runs.

from vkep.streaming import StreamingSession

with StreamingSession("silero_vad.onnx", constants={"sr": 16000}) as session:
    for chunk in chunks:  # float32 [1, 576]
        (speech,) = session.run(None, {"input": chunk})
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from gpu_shared.steady import closing
from gpu_shared.uncopied import Uncopied
from vkep import dtypes
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError, InvalidModelError
from vkep.graph.load import ModelSource
from vkep.graph.model import Model, ValueInfo
from vkep.graph.weights import ArrayWeight
from vkep.session import InferenceSession, IOBinding
from vkep.session.session import options_of
from vkep.session.session_state import read_model, with_sizes

if TYPE_CHECKING:
    from vkep.session.session_state import Feed

__all__ = ["StreamState", "StreamingSession", "pairs_by_name"]

Array = np.ndarray[Any, Any]

#: names that exporters give the state ``name`` after a run: silero-vad's and icefall's, then those of other recognizers
_FOLLOWING: Sequence[Callable[[str], str]] = (
    lambda name: f"{name}N",
    lambda name: f"{name}n",
    lambda name: f"new_{name}",
    lambda name: f"next_{name}",
    lambda name: f"{name}_next",
    lambda name: f"{name}_out",
    lambda name: f"{name.removesuffix('_in')}_out",
    lambda name: f"out_{name}",
    lambda name: f"r_{name}",
    lambda name: f"{name}_new",
)


class StreamState(Uncopied):
    """The states of all streams at one moment, on the device: `StreamingSession.copy` makes it, `StreamingSession.restore` reads
    it. ``tensors`` has them by the names of the model's inputs; `DeviceTensor.numpy` gives one as an array."""

    _instead = "make another one by StreamingSession.copy()"

    def __init__(self, tensors: Mapping[str, DeviceTensor]) -> None:
        self.tensors = dict(tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def close(self) -> None:
        """Free the memory; idempotent."""
        for tensor in self.tensors.values():
            tensor.close()

    def __enter__(self) -> StreamState:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class StreamingSession(Uncopied):
    """A model whose ``states`` (pairs of an output and the input that takes its value in the next run) stay on the device.

    Args:
        model: as `vkep.InferenceSession` takes it.
        states: the input of each output that is a state's next value; None: `pairs_by_name`.
        streams: the number of streams that a run continues together. Every open dimension of a state has this size, and
            the first of them counts the streams.
        initial: first values of states by their inputs' names, as arrays that numpy broadcasts to the state's shape; of
            others the first value is 0. An array also gives the shape of a state with open dimensions of other sizes.
        constants: values of inputs that are the same in all runs, such as silero-vad's sampling rate: a branch that
            depends on them is chosen when the model is planned.
        options: of `vkep.InferenceSession`.

    A run writes each state over its last value. For one thread; close it, or use ``with``.

    Raises `InvalidModelError` for pairs that the model does not have, `InvalidInputError` for arrays that do not fit, and as
    `vkep.InferenceSession`.
    """

    _instead = "open the model again, and copy the states with copy() and StreamState.tensors"

    def __init__(
        self,
        model: ModelSource,
        states: Mapping[str, str] | None = None,
        *,
        streams: int = 1,
        initial: Mapping[str, Array] | None = None,
        constants: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if streams < 1:
            raise InvalidInputError(f"streams is {streams}, expected 1 or more")
        self.streams = streams
        context = options.pop("context", None)
        settings = options_of(**options)
        loaded = _with_constants(read_model(model, settings), constants or {})
        #: the input of each output that is a state's next value
        self.states = dict(pairs_by_name(loaded) if states is None else states)
        inputs = {v.name: v for v in loaded.graph.inputs}
        _check_pairs(self.states, inputs, [v.name for v in loaded.graph.outputs], str(loaded.source))
        first = {name: _first(inputs[name], streams, (initial or {}).get(name)) for name in self.states.values()}
        unknown = [name for name in initial or {} if name not in first]
        if unknown:
            raise InvalidInputError(f"initial: {unknown[0]!r} is no state; the states are {list(first)}")
        self._axes = {name: _axis(inputs[name], first[name], streams) for name in first}
        sizes = [(inputs[name].shape or ())[k] for name, k in self._axes.items() if k is not None]
        counts = [size for size in sizes if isinstance(size, str) and size]
        loaded = with_sizes(loaded, dict.fromkeys(counts, streams))  # so that a run with fewer streams is refused
        self._outputs = [v.name for v in loaded.graph.outputs if v.name not in self.states]
        self._inputs = [name for name in inputs if name not in first]
        self._bindings: dict[tuple[tuple[str, ...], str], IOBinding] = {}
        settings = replace(settings, initializers={}, free_dimensions={}, external_files={})  # the model has them
        self.session = InferenceSession(loaded, settings, context=context)  #: the session that runs the model
        try:
            self._state = StreamState({})
            self._first = StreamState({})
            for name, value in first.items():
                self._state.tensors[name] = self.session.device_tensor(value)
                self._first.tensors[name] = self.session.device_tensor(value)
        except BaseException:
            self.close()
            raise

    # ---- runs

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Feed],
        *,
        device: Literal["cpu", "gpu"] = "cpu",
        streams: Sequence[int] | None = None,
    ) -> list[Any]:
        """Run the model on the next chunk of each stream; results of ``output_names`` (None: all outputs but the states) in
        order: arrays, or with ``device="gpu"`` new device tensors, for which the host does not wait.

        ``input_feed``: the other inputs, as for `vkep.InferenceSession.run`, with an entry for each stream along their
        batch axis.
        ``streams``: only these continue (None: all); others keep their states, and their results have no meaning.
        Raises as that. After an error that data caused the states hold no value: `reset` or `restore` those of all
        streams.
        """
        others = sorted(set(range(self.streams)) - set(range(self.streams) if streams is None else streams))
        if others:
            with self.copy() as before:
                results = self.run(output_names, input_feed, device=device)
                self.restore(before, others)
            return results
        names = tuple(self._outputs if output_names is None else output_names)
        binding = self._bindings.get((names, device))
        if binding is None:
            binding = self._bindings[names, device] = self._binding(names, device)
        for name, value in input_feed.items():
            if name in self._state.tensors:
                raise InvalidInputError(
                    f"input {name!r} is a state, which the session keeps; restore() replaces its value"
                )
            if isinstance(value, DeviceTensor):
                binding.bind_input(name, value)
            else:
                binding.bind_cpu_input(name, value)  # type: ignore[arg-type]  # a run converts what is no array
        if len(input_feed) < len(self._inputs):
            raise InvalidInputError(f"feeds are {list(input_feed)}, expected {self._inputs}")
        self.session.run_with_iobinding(binding)
        made = dict(zip(binding.outputs, binding.get_outputs(), strict=True))
        return [made[name] for name in names]

    def _binding(self, names: Sequence[str], device: Literal["cpu", "gpu"]) -> IOBinding:
        binding = self.session.io_binding()
        for name in names:
            if name in self.states:
                raise InvalidInputError(f"output {name!r} is a state's next value; copy() gives the states")
            binding.bind_output(name, device=device)
        for output, name in self.states.items():
            binding.bind_input(name, self._state.tensors[name])
            binding.bind_output(output, self._state.tensors[name])
        return binding

    # ---- states

    def reset(self, streams: Sequence[int] | None = None) -> None:
        """Give the states of these streams (None: all) their first values."""
        self.restore(self._first, streams)

    def copy(self) -> StreamState:
        """The states of all streams, copied on the device. Raises `ArenaOutOfMemory`."""
        made = StreamState({})
        try:
            for name, tensor in self._state.tensors.items():
                made.tensors[name] = self.session.empty_device_tensor(tensor.shape, str(tensor.dtype))
            self._move(self._copies_all, self._state, made)
        except BaseException:
            made.close()
            raise
        return made

    def restore(
        self, state: StreamState, streams: Sequence[int] | None = None, of: Sequence[int] | None = None
    ) -> None:
        """Replace the states of these streams (None: all) by those of a copy of this session's: of the same streams, or of the
        streams ``of`` in the copy, in the same order.

        Raises `InvalidInputError` for numbers of streams that do not exist or differ in count, and for a state of
        another session.
        """
        if state.tensors.keys() != self._state.tensors.keys():
            raise InvalidInputError(f"state: it has {list(state.tensors)}, and the session {list(self._state.tensors)}")
        into = range(self.streams) if streams is None else streams
        source = into if of is None else of
        wrong = [k for k in (*into, *source) if not 0 <= k < self.streams]
        if wrong or len(source) != len(into):
            raise InvalidInputError(
                f"streams {list(into)} of {list(source)}: expected as many of both, each from 0 to {self.streams - 1}"
            )
        if len(into) == self.streams == 1 or streams is of is None:
            self._move(self._copies_all, state, self._state)
            return
        index, chosen = np.arange(self.streams), np.zeros(self.streams, np.bool_)
        index[list(into)], chosen[list(into)] = source, True
        self._move(self._copies_some, state, self._state, {"index": index, "chosen": chosen})

    def _move(
        self,
        session: InferenceSession,
        source: StreamState,
        target: StreamState,
        feeds: Mapping[str, Array] | None = None,
    ) -> None:
        binding = session.io_binding()
        for name, value in (feeds or {}).items():
            binding.bind_cpu_input(name, value)
        for k, name in enumerate(self._state.tensors):
            binding.bind_input(f"source_{k}", source.tensors[name])
            if feeds:
                binding.bind_input(f"target_{k}", target.tensors[name])
            binding.bind_output(f"result_{k}", target.tensors[name])
        session.run_with_iobinding(binding)

    @functools.cached_property
    def _copies_all(self) -> InferenceSession:
        """The session that copies all states of one `StreamState` to another."""
        return InferenceSession(_copy_model(self._state.tensors.values()), context=self.session.lease)

    @functools.cached_property
    def _copies_some(self) -> InferenceSession:
        """The session that copies the states of some streams. Raises `InvalidInputError` if a state has no axis of them."""
        fixed = [name for name, axis in self._axes.items() if axis is None]
        if fixed:
            raise InvalidInputError(
                f"state {fixed[0]!r} has no open dimension: the states of single streams are unknown"
            )
        model = _copy_model(self._state.tensors.values(), [axis or 0 for axis in self._axes.values()], self.streams)
        return InferenceSession(model, context=self.session.lease)

    # ---- closing

    @closing
    def close(self) -> None:
        """Close the session and its states; idempotent."""
        self._bindings.clear()
        for state in ("_state", "_first"):
            if state in vars(self):
                vars(self)[state].close()
        for name in ("_copies_all", "_copies_some"):
            if name in vars(self):
                vars(self)[name].close()
        self.session.close()

    def __enter__(self) -> StreamingSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def pairs_by_name(model: Model) -> dict[str, str]:
    """The input of each output that is named as the input's next value, by the naming schemes of exporters: ``stateN`` for
    ``state``, ``new_cached_key_0`` for ``cached_key_0``, ``cache_out`` for ``cache`` or ``cache_in``. Raises
    `InvalidModelError` where there is none."""
    outputs = {v.name: v for v in model.graph.outputs}
    found: dict[str, str] = {}
    for value in model.graph.inputs:
        names = (following(value.name) for following in _FOLLOWING)
        output = next((n for n in names if n != value.name and n in outputs and n not in found), None)
        if output is not None and _alike(outputs[output], value):
            found[output] = value.name
    if not found:
        raise InvalidModelError(
            f"{model.source}: no output is named as the next value of an input; states={{output: input}} gives the pairs. "
            f"Outputs: {list(outputs)}, inputs: {[v.name for v in model.graph.inputs]}"
        )
    return found


def _alike(output: ValueInfo, value: ValueInfo) -> bool:
    """Whether an output may have the type and shape of an input, by what the model declares."""
    sizes = zip(output.shape or (), value.shape or (), strict=False)
    ranks = {len(v.shape) for v in (output, value) if v.shape is not None}
    same = all(a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int))
    return output.elem_type == value.elem_type and len(ranks) < 2 and same


def _check_pairs(
    pairs: Mapping[str, str], inputs: Mapping[str, ValueInfo], outputs: Sequence[str], source: str
) -> None:
    wrong = [n for n in pairs if n not in outputs] + [n for n in pairs.values() if n not in inputs]
    if wrong or len(set(pairs.values())) < len(pairs):
        raise InvalidModelError(
            f"{source}: states are {dict(pairs)}, expected pairs of the outputs {list(outputs)} and the inputs {list(inputs)}, "
            "each input once"
        )


def _with_constants(model: Model, constants: Mapping[str, Any]) -> Model:
    """The model with values in place of inputs."""
    if not constants:
        return model
    inputs = {v.name: v for v in model.graph.inputs}
    weights = dict(model.graph.weights)
    for name, value in constants.items():
        dtype = dtypes.from_onnx(inputs[name].elem_type) if name in inputs else None
        if dtype is None:
            raise InvalidInputError(f"constants: {name!r} is no input of numbers; the inputs are {list(inputs)}")
        array, shape = np.asarray(value, dtype.numpy), inputs[name].shape
        if shape is not None and array.size == 1:
            array = array.reshape((1,) * len(shape))
        if shape is not None and not (
            len(shape) == array.ndim
            and all(not isinstance(d, int) or d == n for d, n in zip(shape, array.shape, strict=True))
        ):
            raise InvalidInputError(f"constants: {name!r} has shape {list(array.shape)}, expected {list(shape)}")
        weights[name] = ArrayWeight(name, array)
    graph = replace(model.graph, inputs=tuple(v for n, v in inputs.items() if n not in constants), weights=weights)
    return replace(model, graph=graph, file_identity="")  # the file's plans do not apply to it


def _first(info: ValueInfo, streams: int, given: Array | None) -> Array:
    """A state's first value. Raises `InvalidInputError` where its shape is unknown, or an array does not fit."""
    dtype = dtypes.from_onnx(info.elem_type)
    if dtype is None or info.shape is None:
        raise InvalidInputError(f"state {info.name!r}: the model gives no shape for it, or it is no tensor of numbers")
    sizes = [d if isinstance(d, int) else streams for d in info.shape]
    if given is None:
        return np.zeros(sizes, dtype.numpy)
    array = np.asarray(given, dtype.numpy)
    if array.ndim == len(sizes):  # other open dimensions than that of the streams
        opened = [k for k, d in enumerate(info.shape) if not isinstance(d, int)]
        sizes = [array.shape[k] if k in opened[1:] else d for k, d in enumerate(sizes)]
    try:
        return np.ascontiguousarray(np.broadcast_to(array, sizes))
    except ValueError:
        raise InvalidInputError(f"initial: {info.name!r} has shape {array.shape}, expected {tuple(sizes)}") from None


def _axis(info: ValueInfo, value: Array, streams: int) -> int | None:
    """The axis of a state that counts the streams; None: it has none."""
    assert info.shape is not None
    return next((k for k, d in enumerate(info.shape) if not isinstance(d, int) and value.shape[k] == streams), None)


def _copy_model(tensors: Iterable[DeviceTensor], axes: Sequence[int] = (), streams: int = 0) -> onnx.ModelProto:
    """A model whose ``result_k`` is ``source_k``; with ``axes`` only for the ``chosen`` [streams], of the entries ``index``
    [streams] along them, and ``target_k`` for the others."""
    nodes, inputs, outputs, weights = [], [], [], []
    if axes:
        kinds = {"chosen": TensorProto.BOOL, "index": TensorProto.INT64}
        inputs += [helper.make_tensor_value_info(name, kind, [streams]) for name, kind in kinds.items()]
    for k, tensor in enumerate(tensors):
        kind = tensor.dtype.onnx
        inputs.append(helper.make_tensor_value_info(f"source_{k}", kind, tensor.shape))
        outputs.append(helper.make_tensor_value_info(f"result_{k}", kind, tensor.shape))
        if not axes:
            nodes.append(helper.make_node("Identity", [f"source_{k}"], [f"result_{k}"]))
            continue
        inputs.append(helper.make_tensor_value_info(f"target_{k}", kind, tensor.shape))
        shape = [streams if axis == axes[k] else 1 for axis in range(len(tensor.shape))]
        weights.append(helper.make_tensor(f"shape_{k}", TensorProto.INT64, [len(shape)], shape))
        nodes += [
            helper.make_node("Gather", [f"source_{k}", "index"], [f"taken_{k}"], axis=axes[k]),
            helper.make_node("Reshape", ["chosen", f"shape_{k}"], [f"mask_{k}"]),
            helper.make_node("Where", [f"mask_{k}", f"taken_{k}", f"target_{k}"], [f"result_{k}"]),
        ]
    graph = helper.make_graph(nodes, "copy", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
