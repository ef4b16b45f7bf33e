"""The graph that chooses the next token on the device, and its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkep.generation.sampling import MOST_LOGPROBS, Sampling
from vkep.graph.model import GENERATION

Array = np.ndarray[Any, Any]

#: outputs with the logarithms of probabilities
LOGPROBS = ("logprob", "top", "top_tokens")
#: token ids that a penalty reads are padded to a multiple of this, so that few shapes occur
_PADDED = 64


def settings_of(sampling: Sampling, chance: float) -> tuple[float, ...]:
    """A row of the settings that the graph reads."""
    s = sampling
    return (s.temperature, float(s.top_k), s.top_p, s.min_p, s.repetition_penalty, chance)


def padded(seen: Sequence[Sequence[int]]) -> Array:
    """Pad token ids that occurred to [batch, count] int64: shorter rows repeat their first one."""
    longest = max(map(len, seen))
    width = -(-longest // _PADDED) * _PADDED
    return np.array([[*row, *[row[0]] * (width - len(row))] for row in seen], np.int64)


@dataclass(frozen=True)
class Choice:
    """The options of the choosing graph that a batch's settings need.

    extended: numbers are added to the logits, and logarithms of probabilities are outputs. timed: answers of a model of speech
    have times (`vkep.generation.speech.bounds`): the token before the first time, and the vocabulary; () without.
    """

    sample: bool
    penalty: bool
    never: tuple[int, ...] = ()
    extended: bool = False
    timed: tuple[int, ...] = ()

    @classmethod
    def of(cls, each: Sequence[Sampling], never: tuple[int, ...] = (), times: tuple[int, ...] = ()) -> Choice:
        """The options that the settings of a batch need together; ``never`` are tokens that are not chosen, ``times`` the model's
        numbers for ``timed``."""
        # few graphs: the first use of one waits for its plan, and with it all answers of the batch
        extended = any(s.biased or s.logprobs is not None for s in each)
        penalty = extended or any(s.repetition_penalty != 1 for s in each)
        timed = times if any(s.timestamps for s in each) else ()
        return cls(penalty or any(s.temperature for s in each), penalty, never, extended, timed)

    @property
    def greedy(self) -> bool:
        """Whether every sequence takes the most probable token, and nothing else is known of it."""
        return self == Choice(False, False)


def every(element: int) -> onnx.ModelProto:
    """Return the graph of the most probable token after each one: ``logits`` [1, count, vocabulary] to ``chosen`` int32 [1,
    count]."""
    nodes = [
        helper.make_node("ArgMax", ["logits"], ["place"], name="place", axis=2, keepdims=0),
        helper.make_node("Cast", ["place"], ["chosen"], name="chosen", to=TensorProto.INT32),
    ]
    inputs = [helper.make_tensor_value_info("logits", element, [1, "count", "vocabulary"])]
    outputs = [helper.make_tensor_value_info("chosen", TensorProto.INT32, [1, "count"])]
    graph = helper.make_graph(nodes, "every", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def chooser(element: int, choice: Choice) -> onnx.ModelProto:
    """Return the graph that chooses from the last logits of each sequence.

    Inputs: ``logits`` [batch, length, vocabulary] of the ONNX type ``element``; unless ``choice`` is greedy ``settings`` float32
    [batch, 6]; with its penalty ``seen`` int64 [batch, count]; where it is extended ``bias`` float32 [biases, vocabulary], and
    which of them each sequence has, ``bias_of`` int64 [batch]; where it is timed ``bounds`` int32 [batch, 4]
    (`vkep.generation.speech.Bounds.numbers`).

    Outputs: ``tokens`` int64 [batch, 1], the next step's input; ``chosen`` int32 [batch], for the host. Where it is extended also
    logarithms of the model's own probabilities (where it is timed, among the tokens that may follow): ``logprob`` float32
    [batch, 1] of the chosen token, ``top`` float32 [batch, k] of the most probable ones, ``top_tokens`` int32 [batch, k]. k is
    `MOST_LOGPROBS`, or the vocabulary where it has fewer.
    """
    inputs = [helper.make_tensor_value_info("logits", element, ["batch", "length", "vocabulary"])]
    weights: dict[str, Array] = {}
    nodes: list[onnx.NodeProto] = []
    if choice.greedy or choice.extended or choice.timed:
        weights = {name: np.array([value], np.int64) for name, value in (("from", -1), ("to", 2**31 - 1), ("axis", 1))}
        nodes.append(helper.make_node("Slice", ["logits", "from", "to", "axis"], ["row"], name="row"))
    if choice.greedy:
        nodes += [
            helper.make_node("ArgMax", ["row"], ["place"], name="place", axis=2, keepdims=0),
            helper.make_node("Identity", ["place"], ["tokens"], name="tokens"),
            helper.make_node("Squeeze", ["place", "axis"], ["flat"], name="flat"),
            helper.make_node("Cast", ["flat"], ["chosen"], name="chosen", to=TensorProto.INT32),
        ]
    else:
        inputs.append(
            helper.make_tensor_value_info("settings", TensorProto.FLOAT, ["batch", len(settings_of(Sampling(), 0.0))])
        )
        if choice.penalty:
            inputs.append(helper.make_tensor_value_info("seen", TensorProto.INT64, ["batch", "count"]))
        if choice.never:
            weights["never"] = np.array(choice.never, np.int64)
        if choice.extended or choice.timed:
            nodes.append(helper.make_node("Cast", ["row"], ["last"], name="last", to=TensorProto.FLOAT))
        if choice.extended:
            inputs += [
                helper.make_tensor_value_info("bias", TensorProto.FLOAT, ["biases", "vocabulary"]),
                helper.make_tensor_value_info("bias_of", TensorProto.INT64, ["batch"]),
            ]
            nodes += [
                helper.make_node("Gather", ["bias", "bias_of"], ["flat_bias"], name="flat_bias"),
                helper.make_node("Unsqueeze", ["flat_bias", "axis"], ["row_bias"], name="row_bias"),
                helper.make_node("Add", ["last", "row_bias"], ["biased"], name="biased"),
            ]
        read = "biased" if choice.extended else "last" if choice.timed else "logits"
        if choice.timed:
            inputs.append(helper.make_tensor_value_info("bounds", TensorProto.INT32, ["batch", 4]))
            nodes += _timed(read, choice, weights)
            read = "timed"
        names = [read, "settings", "seen" if choice.penalty else "", "never" if choice.never else ""]
        nodes.append(helper.make_node("ChooseToken", names, ["tokens", "chosen"], name="choose", domain=GENERATION))
    outputs = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", 1]),
        helper.make_tensor_value_info("chosen", TensorProto.INT32, ["batch"]),
    ]
    if choice.extended:
        weights["k"] = np.array([MOST_LOGPROBS], np.int64)
        nodes += [
            helper.make_node("Squeeze", ["timed" if choice.timed else "last", "axis"], ["flat_last"], name="flat_last"),
            helper.make_node("LogSoftmax", ["flat_last"], ["logs"], name="logs", axis=-1),
            helper.make_node("GatherElements", ["logs", "tokens"], ["logprob"], name="logprob", axis=1),
            helper.make_node("Shape", ["logs"], ["count"], name="count", start=1),
            helper.make_node("Min", ["k", "count"], ["least"], name="least"),
            helper.make_node("TopK", ["logs", "least"], ["top", "places"], name="top"),
            helper.make_node("Cast", ["places"], ["top_tokens"], name="top_tokens", to=TensorProto.INT32),
        ]
        shapes: list[list[str | int]] = [["batch", 1], ["batch", "k"], ["batch", "k"]]
        kinds = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT32)
        outputs += map(helper.make_tensor_value_info, LOGPROBS, kinds, shapes)
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "chooser", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(GENERATION, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _timed(read: str, choice: Choice, weights: dict[str, Array]) -> list[onnx.NodeProto]:
    """Nodes that compute ``timed``: the values ``read`` [batch, 1, vocabulary] of the tokens that may follow by ``bounds``, and
    -1e30 for others. Adds to the ``weights``."""
    before, vocabulary = choice.timed
    ids = np.arange(vocabulary, dtype=np.int32)
    weights |= {
        "ids": ids,
        "may": ~np.isin(ids, [*choice.never, before]),
        "is_text": ids <= before,
        "lowest": np.array(-1e30, np.float32),  # finite: the sum over none is a number
        "zero": np.array(0, np.int32),
        "times": np.array([before + 1], np.int64),
        "begin": np.array([0], np.int64),
        "last_axis": np.array([2], np.int64),
    }
    body = onnx.parser.parse_function("""
        <opset_import: ["" : 18], domain: "vkep.generation">
        timed (read, bounds, ids, may, is_text, lowest, zero, begin, times, to, axis, last_axis) => (timed)
        {
            apart = Unsqueeze(bounds, axis)
            text, first, last, weighed = Split <axis = 2, num_outputs = 4> (apart)
            above = GreaterOrEqual(ids, text)
            text_may = And(above, is_text)
            from_first = GreaterOrEqual(ids, first)
            to_last = LessOrEqual(ids, last)
            between = And(from_first, to_last)
            is_time = Not(is_text)
            time_may = And(between, is_time)
            either = Or(text_may, time_may)
            rules = Greater(weighed, zero)
            free = Not(rules)
            ruled = And(either, may)
            open = Or(ruled, free)
            allowed = Where(open, read, lowest)
            kept = Max(allowed, lowest)
            texts = Slice(kept, begin, times, last_axis)
            stamps = Slice(kept, times, to, last_axis)
            mass = ReduceLogSumExp <keepdims = 1> (stamps, last_axis)
            best = ReduceMax <keepdims = 1> (texts, last_axis)
            more = Greater(mass, best)
            only = And(more, rules)
            dropped = And(only, is_text)
            timed = Where(dropped, lowest, kept)
        }
    """)
    given = (read, *body.input[1:])
    names = dict(zip(body.input, given, strict=True))
    names["timed"] = "timed"
    for node in body.node:
        node.input[:] = [names.get(name, f"timed.{name}") for name in node.input]
        node.output[:] = [names.get(name, f"timed.{name}") for name in node.output]
        node.name = node.output[0]
    return list(body.node)
