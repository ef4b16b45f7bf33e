"""Sampled answers with a draft model: the draft's tokens are kept or replaced so that an answer has the model's own distribution
(speculative sampling, arXiv:2211.17192 and arXiv:2302.01318)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from vkep.device.tensor import DeviceTensor
from vkep.dtypes import onnx_name
from vkep.generation.choices import Choice, settings_of
from vkep.generation.decoder import Decoder, Made
from vkep.generation.draft import Draft
from vkep.generation.sampling import Chances, Sampling
from vkep.graph.model import GENERATION
from vkep.session import InferenceSession

#: settings that answers with a draft may have
_SAMPLED = Choice(sample=True, penalty=False)


class Speculation:
    """Draws tokens of a draft model, and decides which of them a model keeps, on the device."""

    def __init__(self, decoder: Decoder, draft: Draft) -> None:
        self._decoder, self._draft = decoder, draft
        self._sessions: dict[int, InferenceSession] = {}  # by the number of drawn tokens

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
        session = self._session(0)
        binding = session.io_binding()
        binding.bind_input("logits", logits)
        binding.bind_cpu_input("settings", np.array([settings_of(sampling, chance)], np.float32))
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
        session, settings = self._session(len(drawn)), settings_of(sampling, chance)
        binding = session.io_binding()
        binding.bind_input("logits", logits)
        for k, tensor in enumerate(shares):
            binding.bind_input(f"draft_{k}", tensor)
        binding.bind_cpu_input("drawn", np.array(drawn, np.int64)[:, None])
        binding.bind_cpu_input("accept", np.array(accept, np.float32)[:, None])
        binding.bind_cpu_input("settings", np.array([settings] * (len(drawn) + 1), np.float32))
        binding.bind_cpu_input("next_settings", np.array([settings_of(Sampling(temperature=1.0), chance)], np.float32))
        for name in ("count", "token"):
            binding.bind_output(name, device="cpu")
        session.run_with_iobinding(binding)
        count, token = binding.get_outputs()
        return int(count[0, 0]), int(token[0])

    def _session(self, drawn: int) -> InferenceSession:
        found = self._sessions.get(drawn)
        if found is None:
            element, lease = self._decoder.element, self._decoder.session.lease
            model = keeping(element, drawn) if drawn else drawing(element)
            found = self._sessions[drawn] = InferenceSession(model, context=lease)
        return found

    def close(self) -> None:
        """Close the sessions."""
        for session in self._sessions.values():
            session.close()
        self._sessions = {}


def drawing(element: int) -> onnx.ModelProto:
    """A graph: ``logits`` [1, length, vocabulary] of the ONNX type ``element`` and ``settings`` float32 [1, 6] to the
    ``probabilities`` float32 [1, vocabulary] of the last one, and a ``token`` int32 [1] drawn by these."""
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18, "{GENERATION}" : 1]>
        draw ({onnx_name(element)}[1, length, vocabulary] logits, float[1, 6] settings)
            => (float[1, vocabulary] probabilities, int32[1] token)
        <int64[1] one = {{ 1 }}>
        {{
            tokens, token, shares = {GENERATION}.ChooseToken (logits, settings)
            sum = ReduceSum <keepdims = 1> (shares, one)
            probabilities = Div (shares, sum)
        }}
    """)


def keeping(element: int, drawn: int) -> onnx.ModelProto:
    """A graph: ``logits`` [1, drawn + 1, vocabulary], the draft's probabilities ``draft_0`` and so on float32 [1, vocabulary],
    the tokens ``drawn`` int64 [drawn, 1], random numbers ``accept`` float32 [drawn, 1], ``settings`` float32 [drawn + 1, 6] and
    those of the next token by itself float32 [1, 6], to how many tokens are kept, ``count`` int64 [1, 1], and the ``token`` int32
    [1] after these.

    A token drawn with the probability q that the model gives p is kept with the probability min(1, p / q). After the first one
    that is not, the next token is drawn by max(0, p - q), and after the last one by p.
    """
    names = [f"draft_{k}" for k in range(drawn)]
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18, "{GENERATION}" : 1]>
        keep ({onnx_name(element)}[1, length, vocabulary] logits, {", ".join(f"float[1, vocabulary] {name}" for name in names)},
              int64[{drawn}, 1] drawn, float[{drawn}, 1] accept, float[length, 6] settings, float[1, 6] next_settings)
            => (int64[1, 1] count, int32[1] token)
        <int64[1] front = {{ 0 }}, int64[1] one = {{ 1 }}, int64 begin = {{ 0 }}, int64[1] drawn_count = {{ {drawn} }},
         float zero = {{ 0 }}>
        {{
            rows = Transpose <perm = [1, 0, 2]> (logits)
            tokens, chosen, shares = {GENERATION}.ChooseToken (rows, settings)
            sum = ReduceSum <keepdims = 1> (shares, one)
            probabilities = Div (shares, sum)
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
            logs = Log (of_next)
            row = Unsqueeze (logs, front)
            next, token = {GENERATION}.ChooseToken (row, next_settings)
        }}
    """)
