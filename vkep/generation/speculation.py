"""Sampled answers with a draft model: the draft's tokens are kept or replaced so that an answer has the model's own distribution
(speculative sampling, arXiv:2211.17192 and arXiv:2302.01318)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from vkep.device.tensor import DeviceTensor
from vkep.generation.choices import Choice
from vkep.generation.decoder import Decoder, Made
from vkep.generation.draft import Draft
from vkep.generation.sampling import Chances, Sampling
from vkep.session import InferenceSession

#: settings that answers with a draft may have
_SAMPLED = Choice(sample=True, penalty=False)


@dataclass(frozen=True)
class Filters:
    """Which filters of `Sampling` apply: they are parts of a graph."""

    top_k: bool
    top_p: bool
    min_p: bool

    @classmethod
    def of(cls, sampling: Sampling, vocabulary: int) -> Filters:
        """The filters of some settings."""
        return cls(0 < sampling.top_k < vocabulary, sampling.top_p < 1, sampling.min_p > 0)


class Speculation:
    """Draws tokens of a draft model, and decides which of them a model keeps, on the device."""

    def __init__(self, decoder: Decoder, draft: Draft) -> None:
        self._decoder, self._draft = decoder, draft
        self._sessions: dict[tuple[Filters, int], InferenceSession] = {}

    def serves(self, choice: Choice) -> bool:
        """Whether answers that need these options of token choice may have a draft: both models must have the same tokens."""
        return choice == _SAMPLED and self._draft.vocabulary == self._decoder.vocabulary > 0

    def guess(
        self, known: Sequence[int], count: int, sampling: Sampling, chances: Chances, at: int
    ) -> tuple[list[int], list[DeviceTensor]]:
        """Up to ``count`` tokens that the draft draws after ``known``, the first of which is the answer's token ``at``, and the
        probabilities float32 [1, vocabulary] that each was drawn by. Raises as `Draft.guess`."""
        shares: list[DeviceTensor] = []

        def drawn(made: Made) -> int:
            values, token = self.draw(made.logits, sampling, chances.at(at + len(shares), "draft"))
            shares.append(values)
            return token

        return self._draft.drawn(known, count, drawn), shares

    def draw(self, logits: DeviceTensor, sampling: Sampling, chance: float) -> tuple[DeviceTensor, int]:
        """The probabilities float32 [1, vocabulary] after the last of ``logits`` [1, length, vocabulary], and a token."""
        session = self._session(sampling, 0)
        binding = session.io_binding()
        binding.bind_input("logits", logits)
        binding.bind_cpu_input("settings", _settings(sampling))
        binding.bind_cpu_input("chance", np.array(chance, np.float32))
        binding.bind_output("probabilities")
        binding.bind_output("token", device="cpu")
        session.run_with_iobinding(binding)
        probabilities, token = binding.get_outputs()
        return probabilities, int(token[0])

    def kept(
        self,
        logits: DeviceTensor,
        drawn: Sequence[int],
        shares: Sequence[DeviceTensor],
        sampling: Sampling,
        accept: Sequence[float],
        chance: float,
    ) -> tuple[int, int]:
        """How many of the ``drawn`` tokens are kept, and the token after these. ``logits`` [1, drawn + 1, vocabulary] are the
        model's before each drawn token and after the last; ``accept`` and ``chance`` random numbers of 0 to 1."""
        session = self._session(sampling, len(drawn))
        binding = session.io_binding()
        binding.bind_input("logits", logits)
        for k, tensor in enumerate(shares):
            binding.bind_input(f"draft_{k}", tensor)
        binding.bind_cpu_input("drawn", np.array(drawn, np.int64)[:, None])
        binding.bind_cpu_input("accept", np.array(accept, np.float32)[:, None])
        binding.bind_cpu_input("settings", _settings(sampling))
        binding.bind_cpu_input("chance", np.array(chance, np.float32))
        for name in ("count", "token"):
            binding.bind_output(name, device="cpu")
        session.run_with_iobinding(binding)
        count, token = binding.get_outputs()
        return int(count[0, 0]), int(token[0])

    def _session(self, sampling: Sampling, drawn: int) -> InferenceSession:
        filters = Filters.of(sampling, self._decoder.vocabulary)
        found = self._sessions.get((filters, drawn))
        if found is None:
            element, lease = self._decoder.element, self._decoder.session.lease
            model = keeping(element, filters, drawn) if drawn else drawing(element, filters)
            found = self._sessions[filters, drawn] = InferenceSession(model, context=lease)
        return found

    def close(self) -> None:
        """Close the sessions."""
        for session in self._sessions.values():
            session.close()
        self._sessions = {}


def _settings(sampling: Sampling) -> np.ndarray:
    least = math.log(sampling.min_p) if sampling.min_p else -math.inf
    return np.array([sampling.temperature, sampling.top_p, least, sampling.top_k], np.float32)


def drawing(element: int, filters: Filters) -> onnx.ModelProto:
    """A graph: ``logits`` [1, length, vocabulary] of the ONNX type ``element``, ``settings`` float32 [4] and ``chance`` to the
    ``probabilities`` float32 [1, vocabulary] of the last one, and a ``token`` int32 [1] drawn by these."""
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        draw ({_kind(element)}[1, length, vocabulary] logits, float[4] settings, float chance)
            => (float[1, vocabulary] probabilities, int32[1] token)
        {_CONSTANTS.format(drawn=1)}
        {{
            last = Slice (logits, minus, many, one)
            rows = Squeeze (last, one)
            {_probabilities(filters)}
            {_pick("probabilities")}
        }}
    """)


def keeping(element: int, filters: Filters, drawn: int) -> onnx.ModelProto:
    """A graph: ``logits`` [1, drawn + 1, vocabulary], the draft's probabilities ``draft_0`` and so on float32 [1, vocabulary],
    the tokens ``drawn`` int64 [drawn, 1], the random numbers ``accept`` float32 [drawn, 1] and ``chance``, and ``settings``, to
    how many tokens are kept, ``count`` int64 [1, 1], and the ``token`` int32 [1] after these.

    A token drawn with the probability q that the model gives p is kept with the probability min(1, p / q). After the first one
    that is not, the next token is drawn by max(0, p - q), and after the last one by p.
    """
    names = [f"draft_{k}" for k in range(drawn)]
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        keep ({_kind(element)}[1, length, vocabulary] logits, {", ".join(f"float[1, vocabulary] {name}" for name in names)},
              int64[{drawn}, 1] drawn, float[{drawn}, 1] accept, float[4] settings, float chance)
            => (int64[1, 1] count, int32[1] token)
        {_CONSTANTS.format(drawn=drawn)}
        {{
            rows = Squeeze (logits, front)
            {_probabilities(filters)}
            q = Concat <axis = 0> ({", ".join(names)})
            before = Slice (probabilities, front, drawn_count, front)
            p_drawn = GatherElements <axis = 1> (before, drawn)
            q_drawn = GatherElements <axis = 1> (q, drawn)
            needed = Mul (accept, q_drawn)
            is_kept = Less (needed, p_drawn)
            is_not = Not (is_kept)
            wrong = Cast <to = {TensorProto.INT64}> (is_not)
            so_far = CumSum (wrong, begin)
            none_wrong = Equal (so_far, begin)
            right = Cast <to = {TensorProto.INT64}> (none_wrong)
            count = ReduceSum <keepdims = 1> (right, front)
            place = Squeeze (count, one)
            nothing = Sub (probabilities, probabilities)
            empty = Slice (nothing, front, one, front)
            q_all = Concat <axis = 0> (q, empty)
            p_next = Gather <axis = 0> (probabilities, place)
            q_next = Gather <axis = 0> (q_all, place)
            more = Sub (p_next, q_next)
            rest = Max (more, zero)
            mass = ReduceSum <keepdims = 1> (rest, one)
            has_mass = Greater (mass, zero)
            of_next = Where (has_mass, rest, p_next)
            {_pick("of_next")}
        }}
    """)


_CONSTANTS = """
    <int64[1] front = {{ 0 }}, int64[1] one = {{ 1 }}, int64[1] minus = {{ -1 }}, int64[1] many = {{ 2147483647 }},
     int64 begin = {{ 0 }}, int64 second = {{ 1 }}, int64 third = {{ 2 }}, int64[1] fourth = {{ 3 }},
     int64[1] drawn_count = {{ {drawn} }}, float zero = {{ 0 }}, float farthest = {{ -32 }}>
"""


def _kind(element: int) -> str:
    return TensorProto.DataType.Name(element).lower()


#: nodes from ``{given}``, the shares of tokens, to ``{kept}``, those that a filter leaves
_TOP_K = """
    z_sizes = Shape (z)
    z_all = Slice (z_sizes, one, many)
    z_falling, z_order = TopK <axis = 1> (z, z_all)
    top_k = Gather (settings, fourth)
    k = Cast <to = 7> (top_k)
    k_place = Sub (k, one)
    least = Gather <axis = 1> (z_falling, k_place)
    is_low = Less (z, least)
    {kept} = Where (is_low, zero, {given})
"""
_TOP_P = """
    sizes = Shape ({given})
    all = Slice (sizes, one, many)
    falling, order = TopK <axis = 1> ({given}, all)
    sums = CumSum (falling, second)
    total = ReduceSum <keepdims = 1> ({given}, one)
    top_p = Gather (settings, second)
    wanted = Mul (total, top_p)
    is_short = Less (sums, wanted)
    short = Cast <to = 7> (is_short)
    enough = ReduceSum <keepdims = 1> (short, one)
    last_place = Sub (all, one)
    at = Min (enough, last_place)
    smallest = GatherElements <axis = 1> (falling, at)
    is_small = Less ({given}, smallest)
    {kept} = Where (is_small, zero, {given})
"""
_MIN_P = """
    floor = Gather (settings, third)
    is_under = Less (z, floor)
    is_worse = Less (z, zero)
    is_out = And (is_under, is_worse)
    {kept} = Where (is_out, zero, {given})
"""


def _probabilities(filters: Filters) -> str:
    """Nodes from ``rows`` [n, vocabulary] to ``probabilities``: those by which `ChooseToken` draws."""
    nodes = f"""
        numbers = Cast <to = {TensorProto.FLOAT}> (rows)
        temperature = Gather (settings, begin)
        best = ReduceMax <keepdims = 1> (numbers, one)
        below = Sub (numbers, best)
        z = Div (below, temperature)
        powers = Exp (z)
        is_near = GreaterOrEqual (z, farthest)
        share = Where (is_near, powers, zero)
    """
    share = "share"
    for chosen, text in ((filters.top_k, _TOP_K), (filters.top_p, _TOP_P), (filters.min_p, _MIN_P)):
        if chosen:
            given, share = share, f"kept_{share}"
            nodes += text.format(given=given, kept=share)
    return f"{nodes} sum = ReduceSum <keepdims = 1> ({share}, one) probabilities = Div ({share}, sum)"


def _pick(name: str) -> str:
    """Nodes that draw ``token`` by the numbers ``name`` [1, vocabulary]: the first at which their sum is above a share of it."""
    return f"""
        pick_sums = CumSum ({name}, second)
        pick_end = Slice (pick_sums, minus, many, one)
        pick_share = Mul (pick_end, chance)
        pick_passed = Greater (pick_sums, pick_share)
        pick_any = Cast <to = {TensorProto.INT32}> (pick_passed)
        pick_first = ArgMax <axis = 1, keepdims = 0> (pick_any)
        token = Cast <to = {TensorProto.INT32}> (pick_first)
    """
