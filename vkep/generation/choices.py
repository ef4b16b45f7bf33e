"""The graph that chooses the next token on the device, and its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from vkep.dtypes import onnx_name
from vkep.generation.sampling import MOST_LOGPROBS, Sampling
from vkep.graph.model import GENERATION

Array = np.ndarray[Any, Any]

#: outputs with the logarithms of probabilities
LOGPROBS = ("logprob", "top", "top_tokens")
#: token ids that a penalty reads are padded to a multiple of this, so that few shapes occur
_PADDED = 64
#: an input that is left out, in onnx's text
_NONE = '""'


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
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        every ({onnx_name(element)}[1, count, vocabulary] logits) => (int32[1, count] chosen)
        {{
            place = ArgMax <axis = 2, keepdims = 0> (logits)
            chosen = Cast <to = {TensorProto.INT32}> (place)
        }}
    """)


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
    inputs = [f"{onnx_name(element)}[batch, length, vocabulary] logits"]
    outputs = ["int64[batch, 1] tokens", "int32[batch] chosen"]
    weights: dict[str, Array] = {}
    nodes = ["row = Slice (logits, from, to, axis)"] if choice.greedy or choice.extended or choice.timed else []
    functions: list[onnx.FunctionProto] = []
    if choice.greedy:
        nodes.append("place = ArgMax <axis = 2, keepdims = 0> (row) tokens = Identity (place)")
        nodes.append(f"flat = Squeeze (place, axis) chosen = Cast <to = {TensorProto.INT32}> (flat)")
    else:
        inputs.append("float[batch, 6] settings")
        if choice.penalty:
            inputs.append("int64[batch, count] seen")
        if choice.never:
            weights["never"] = np.array(choice.never, np.int64)
        if choice.extended or choice.timed:
            nodes.append(f"last = Cast <to = {TensorProto.FLOAT}> (row)")
        if choice.extended:
            inputs += ["float[biases, vocabulary] bias", "int64[batch] bias_of"]
            nodes.append("flat_bias = Gather (bias, bias_of) row_bias = Unsqueeze (flat_bias, axis)")
            nodes.append("biased = Add (last, row_bias)")
        read = "biased" if choice.extended else "last" if choice.timed else "logits"
        if choice.timed:
            inputs.append("int32[batch, 4] bounds")
            functions.append(_timed(choice, weights))
            nodes.append(f"timed = {GENERATION}.timed ({', '.join([read, *functions[0].input[1:]])})")
            read = "timed"
        lists = f"{'seen' if choice.penalty else _NONE}, {'never' if choice.never else _NONE}"
        nodes.append(f"tokens, chosen = {GENERATION}.ChooseToken ({read}, settings, {lists})")
    if choice.extended:
        outputs += ["float[batch, 1] logprob", "float[batch, k] top", "int32[batch, k] top_tokens"]
        nodes.append(f"""
            flat_last = Squeeze ({"timed" if choice.timed else "last"}, axis)
            logs = LogSoftmax <axis = -1> (flat_last)
            logprob = GatherElements <axis = 1> (logs, tokens)
            count = Shape <start = 1> (logs)
            least = Min (most, count)
            top, places = TopK (logs, least)
            top_tokens = Cast <to = {TensorProto.INT32}> (places)
        """)
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18, "{GENERATION}" : 1]>
        chooser ({", ".join(inputs)}) => ({", ".join(outputs)})
        <int64[1] from = {{ -1 }}, int64[1] to = {{ {2**31 - 1} }}, int64[1] axis = {{ 1 }},
         int64[1] most = {{ {MOST_LOGPROBS} }}>
        {{ {" ".join(nodes)} }}
    """)
    for node in model.graph.node:
        node.name = node.output[0]
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    model.functions.extend(functions)
    return model


def _timed(choice: Choice, weights: dict[str, Array]) -> onnx.FunctionProto:
    """A function to the values ``read`` [batch, 1, vocabulary] of the tokens that may follow by ``bounds``, and -1e30 for others.
    Adds what it reads to the ``weights``."""
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
    return onnx.parser.parse_function("""
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
