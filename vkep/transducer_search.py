"""The search of a transducer's tokens as one model for a chunk: in each frame the joiner reads it and what the decoder makes of
the tokens before (arXiv:1211.3711, with one token for a frame)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto

from vkep.errors import InvalidModelError
from vkep.graph.load import load_model
from vkep.graph.model import Graph, Model, ValueInfo
from vkep.graph.weights import ArrayWeight, Weight
from vkep.hotwords import Hotwords

#: the token that adds nothing; it is also the last one before a sound
BLANK = 0
#: the score of a place without a hypothesis
NONE = -1e30
#: what a hypothesis's tokens are told apart by: a polynomial of them modulo 2^64, with this factor (Knuth, TAOCP 3.3.4)
_FACTOR = 6364136223846793005


@dataclass(frozen=True)
class Search:
    """How tokens are chosen. context: tokens that the decoder reads. ignored: tokens that add nothing, as `BLANK`. penalty: is
    subtracted from the logit of `BLANK`. beams: hypotheses that are followed; 1: greedy search. vocabulary: its size, which beams
    need. hotwords: what beams prefer."""

    context: int
    ignored: Sequence[int] = ()
    penalty: float = 0.0
    beams: int = 1
    vocabulary: int = 0
    hotwords: Hotwords | None = None

    @property
    def states(self) -> dict[str, ValueInfo]:
        """What a chunk's search continues, by its inputs."""
        several = ("N",) if self.beams == 1 else ("N", self.beams)
        found = [ValueInfo("context", TensorProto.INT64, (*several, self.context))]
        if self.beams > 1:
            found += [ValueInfo("score", TensorProto.FLOAT, several), ValueInfo("said", TensorProto.INT64, several)]
            found += [ValueInfo("place", TensorProto.INT64, several)] if self.hotwords is not None else []
        return {value.name: value for value in found}

    @property
    def initial(self) -> dict[str, np.ndarray]:
        """The states before a sound, of one stream."""
        found = {"context": np.array([-1] * (self.context - 1) + [BLANK])}
        if self.beams > 1:
            found["score"] = np.where(np.arange(self.beams) == 0, 0, NONE).astype(np.float32)
        return found

    @property
    def results(self) -> Sequence[str]:
        """What is found in each frame."""
        return ("token",) if self.beams == 1 else ("token", "parent")


def search_model(
    joiner: Model, decoder: Model, frames: int, context: int | Search, ignored: Sequence[int] = ()
) -> Model:
    """A model that searches the tokens of a chunk: ``encoder_out`` [N, frames, width] and the last tokens ``context`` int64 [N,
    context] to ``tokens`` int32 [N, frames] (0: none in this frame) and ``new_context``. In each frame the most probable token
    follows the context, unless it is 0 or ``ignored``. ``context`` may be a `Search`.

    With beams the states are those of `Search.states`, and the results ``tokens`` and ``parents`` int32 [N, frames, beams]: the
    hypothesis of the frame before that each one continues, and the token that follows, if any; and ``scores`` float32 [N, beams],
    the logarithms of their probabilities (`NONE`: no hypothesis). Hypotheses of the same tokens become one.

    Raises `InvalidModelError` for models of another form.
    """
    search = context if isinstance(context, Search) else Search(context, ignored)
    ports = [(len(m.graph.inputs), len(m.graph.outputs)) for m in (joiner, decoder)]
    if ports != [(2, 1), (1, 1)] or any(node.bodies for m in (joiner, decoder) for node in m.graph.nodes):
        raise InvalidModelError(
            f"{joiner.source} and {decoder.source} have (inputs, outputs) {ports}, expected [(2, 1), (1, 1)] and no branches"
        )
    parts: list[Graph] = []
    weights: dict[str, Weight] = {}

    def add(graph: Graph, kind: str, at: str, names: Mapping[str, str]) -> list[str]:
        """Add a graph; its inputs have ``names``. Returns the names of its outputs."""
        parts.append(_copied(graph, names, at, kind))
        weights.update(parts[-1].weights)
        return [names.get(o.name) or f"{at}.{o.name}" for o in graph.outputs]

    choice = load_model(_choice(search) if search.beams == 1 else _beams(search)).graph
    if search.hotwords is not None:
        tables = {"columns": search.hotwords.columns, "next": search.hotwords.next, "gains": search.hotwords.gains}
        made = {name: ArrayWeight(name, table.reshape(-1)) for name, table in tables.items()}
        choice = replace(choice, weights={**choice.weights, **made})
    [words], [encoded_as, said_as] = decoder.graph.inputs, joiner.graph.inputs
    last, found = {name: name for name in search.states}, list[str]()
    for frame in range(frames):
        at = f"frame_{frame}"
        begin = load_model(_begin(search, frame)).graph
        encoded, before = add(begin, at, at, {"encoder_out": "encoder_out", "context": last["context"]})
        [said] = add(decoder.graph, "decoder", f"{at}.decoder", {words.name: before})
        [logit] = add(joiner.graph, "joiner", f"{at}.joiner", {encoded_as.name: encoded, said_as.name: said})
        chosen = add(choice, "choice", f"{at}.choice", {"logit": logit, **last})
        found += chosen[: len(search.results)]
        last = dict(zip(search.states, chosen[len(search.results) :], strict=True))
    names = [f"{result}_{frame}" for frame in range(frames) for result in search.results]
    own = {v.name: v.name for v in _outputs(search, frames)}
    end = load_model(_end(search, frames)).graph
    add(end, "end", "end", {**dict(zip(names, found, strict=True)), **{f"last_{s}": n for s, n in last.items()}, **own})
    nodes = tuple(replace(n, index=k) for k, n in enumerate(n for part in parts for n in part.nodes))
    x = joiner.graph.inputs[0]
    inputs = (ValueInfo("encoder_out", x.elem_type, ("N", frames, (x.shape or (None,))[-1])), *search.states.values())
    opsets = {**decoder.opsets, **joiner.opsets}
    graph = Graph("search", nodes, inputs, _outputs(search, frames), weights)
    return Model(graph, opsets, joiner.ir_version, f"the search of {joiner.source}")


def _outputs(search: Search, frames: int) -> tuple[ValueInfo, ...]:
    beams = () if search.beams == 1 else (search.beams,)
    found = [ValueInfo(f"{result}s", TensorProto.INT32, ("N", frames, *beams)) for result in search.results]
    found += [ValueInfo("scores", TensorProto.FLOAT, ("N", *beams))] if beams else []
    return (*found, *(replace(v, name=f"new_{name}") for name, v in search.states.items()))


def _copied(graph: Graph, names: Mapping[str, str], at: str, kind: str) -> Graph:
    """A graph whose values have ``names``, or else ``at`` before their own; weights are those of all graphs of their ``kind``."""

    def named(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(names.get(v) or f"{kind if v in graph.weights else at}.{v}" if v else "" for v in values)

    nodes = [replace(n, name=f"{at}.{n.name}", inputs=named(n.inputs), outputs=named(n.outputs)) for n in graph.nodes]
    return Graph(at, tuple(nodes), (), (), {f"{kind}.{name}": weight for name, weight in graph.weights.items()})


def _parsed(name: str, inputs: str, outputs: str, constants: str, nodes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        {name} ({inputs}) => ({outputs})
        <{constants}>
        {{ {nodes} }}
    """)


def _types(search: Search) -> dict[str, str]:
    """The states' types, as onnx's parser has them."""
    return {
        name: f"{TensorProto.DataType.Name(v.elem_type).lower()}[{', '.join(map(str, v.shape or ()))}]"
        for name, v in search.states.items()
    }


def _begin(search: Search, frame: int) -> onnx.ModelProto:
    """What the joiner reads of a frame, and the decoder of the tokens, for each hypothesis."""
    k, size = search.beams, search.context
    rows = "one = Gather <axis = 1> (encoder_out, number) before = Identity (context)"
    if k > 1:
        rows = (
            "single = Gather <axis = 1> (encoder_out, number) apart = Unsqueeze (single, axis) wide = Expand (apart, times) "
            "one = Flatten <axis = 2> (wide) before = Flatten <axis = 2> (context)"
        )
    return _parsed(
        "begin",
        f"float[N, frames, width] encoder_out, {_types(search)['context']} context",
        f"float[rows, width] one, int64[rows, {size}] before",
        f"int64 number = {{ {frame} }}, int64[1] axis = {{ 1 }}, int64[3] times = {{ 1, {k}, 1 }}",
        rows,
    )


def _penalized(search: Search) -> str:
    """``logits`` of ``logit``."""
    if not search.penalty:
        return "logits = Identity (logit)"
    return (
        "blank_logit = Slice (logit, zeros, ones, ones) others = Slice (logit, ones, far, ones) "
        "less = Sub (blank_logit, penalty) logits = Concat <axis = -1> (less, others)"
    )


def _constants(search: Search) -> str:
    none = [BLANK, *search.ignored]
    return (
        f"int64[{len(none)}] none = {{ {', '.join(map(str, none))} }}, int64 blank = {{ {BLANK} }}, int64[1] zeros = {{ 0 }}, "
        f"int64[1] ones = {{ 1 }}, int64[1] twos = {{ 2 }}, int64[1] far = {{ {2**31} }}, "
        f"float penalty = {{ {search.penalty:.9e} }}"
    )


def _choice(search: Search) -> onnx.ModelProto:
    """The most probable ``token`` int64 [N, 1], or 0 where nothing is said, and the context after it."""
    size = search.context
    both = "tail = Slice (context, ones, far, ones) both = Concat <axis = 1> (tail, best)"
    return _parsed(
        "choice",
        f"float[N, vocabulary] logit, int64[N, {size}] context",
        f"int64[N, 1] token, int64[N, {size}] new_context",
        _constants(search),
        f"""
            {_penalized(search)}
            best = ArgMax <axis = 1, keepdims = 1> (logits)
            equal = Equal (best, none)
            count = Cast <to = {TensorProto.INT32}> (equal)
            any = ReduceMax <keepdims = 1> (count, ones)
            nothing = Cast <to = {TensorProto.BOOL}> (any)
            token = Where (nothing, blank, best)
            {both if size > 1 else "both = Identity (best)"}
            new_context = Where (nothing, context, both)
        """,
    )


def _beams(search: Search) -> onnx.ModelProto:
    """The ``beams`` most probable continuations of the hypotheses, and their states; those of the same tokens become the first of
    them."""
    k, size, words = search.beams, search.context, search.vocabulary
    types = _types(search)
    tail = "tail = Slice (old_context, ones, far, twos) both = Concat <axis = 2> (tail, apart)"
    gained = "gained = Identity (best)"
    if search.hotwords is not None:
        width = search.hotwords.next.shape[1]
        gained = """
            old_place = GatherElements <axis = 1> (place, parent)
            column = Gather (columns, token)
            row = Mul (old_place, table_width)
            entry = Add (row, column)
            gain = Gather (gains, entry)
            some = Where (nothing, nil, gain)
            gained = Add (best, some)
            follows = Gather (next, entry)
            new_place = Where (nothing, old_place, follows)
        """
    tables = (
        f", int64 table_width = {{ {width} }}, float nil = {{ 0 }}, int64[1] columns = {{ 0 }}, int64[1] next = {{ 0 }}, "
        "float[1] gains = { 0 }"
        if search.hotwords is not None
        else ""
    )
    return _parsed(
        "beams",
        f"float[rows, {words}] logit, {', '.join(f'{kind} {name}' for name, kind in types.items())}",
        f"int64[N, {k}] token, int64[N, {k}] parent, {', '.join(f'{kind} new_{name}' for name, kind in types.items())}",
        _constants(search)
        + f", int64[2] column_shape = {{ -1, 1 }}, int64[2] flat_shape = {{ -1, {k * words} }}, int64[1] count = {{ {k} }}, "
        f"int64 words = {{ {words} }}, int64[3] each = {{ 1, 1, {size} }}, int64 factor = {{ {_FACTOR} }}, int64 one = {{ 1 }}, "
        f"float low = {{ {NONE:.1e} }}, int64[{k}] order = {{ {', '.join(map(str, range(k)))} }}{tables}",
        f"""
            {_penalized(search)}
            chances = LogSoftmax <axis = -1> (logits)
            scores_before = Reshape (score, column_shape)
            all = Add (chances, scores_before)
            flat = Reshape (all, flat_shape)
            best, cell = TopK <axis = 1> (flat, count)
            parent = Div (cell, words)
            first = Mul (parent, words)
            drawn = Sub (cell, first)
            apart = Unsqueeze (drawn, twos)
            equal = Equal (apart, none)
            number = Cast <to = {TensorProto.INT32}> (equal)
            any = ReduceMax <keepdims = 1> (number, twos)
            nothing_apart = Cast <to = {TensorProto.BOOL}> (any)
            nothing = Squeeze (nothing_apart, twos)
            token = Where (nothing, blank, drawn)
            parent_apart = Unsqueeze (parent, twos)
            parents = Expand (parent_apart, each)
            old_context = GatherElements <axis = 1> (context, parents)
            {tail if size > 1 else "both = Identity (apart)"}
            new_context = Where (nothing_apart, old_context, both)
            old_said = GatherElements <axis = 1> (said, parent)
            turned = Mul (old_said, factor)
            moved = Add (turned, token)
            more = Add (moved, one)
            new_said = Where (nothing, old_said, more)
            {gained}
            said_down = Unsqueeze (new_said, twos)
            said_across = Unsqueeze (new_said, ones)
            same = Equal (said_down, said_across)
            order_down = Unsqueeze (order, ones)
            before = Less (order, order_down)
            same_before = And (same, before)
            number_before = Cast <to = {TensorProto.INT32}> (same_before)
            any_before = ReduceMax <keepdims = 0> (number_before, twos)
            joined = Cast <to = {TensorProto.BOOL}> (any_before)
            across = Unsqueeze (gained, ones)
            masked = Where (same, across, low)
            most = ReduceMax <keepdims = 1> (masked, twos)
            apart_from = Sub (masked, most)
            shares = Exp (apart_from)
            share = ReduceSum <keepdims = 0> (shares, twos)
            log_share = Log (share)
            most_flat = Squeeze (most, twos)
            sum = Add (most_flat, log_share)
            new_score = Where (joined, low, sum)
        """,
    )


def _end(search: Search, frames: int) -> onnx.ModelProto:
    """The results of all frames, and the states."""
    kinds = _types(search)
    beams = "1" if search.beams == 1 else str(search.beams)
    names = [f"int64[N, {beams}] {result}_{frame}" for frame in range(frames) for result in search.results]
    states = [f"{kind} last_{name}" for name, kind in kinds.items()]
    outputs = [f"int32[a, b] {result}s" for result in search.results]
    outputs += ["float[c, d] scores"] if search.beams > 1 else []
    nodes = []
    for result in search.results:
        values = [f"{result}_{frame}" for frame in range(frames)]
        if search.beams > 1:
            nodes += [f"{value}_apart = Unsqueeze ({value}, ones)" for value in values]
            values = [f"{value}_apart" for value in values]
        nodes.append(f"{result}_wide = Concat <axis = 1> ({', '.join(values)})")
        nodes.append(f"{result}s = Cast <to = {TensorProto.INT32}> ({result}_wide)")
    nodes += ["scores = Identity (last_score)"] if search.beams > 1 else []
    nodes += [f"new_{name} = Identity (last_{name})" for name in kinds]
    outputs += [f"{kind} new_{name}" for name, kind in kinds.items()]
    return _parsed("end", ", ".join([*names, *states]), ", ".join(outputs), "int64[1] ones = { 1 }", " ".join(nodes))
