"""The sessions that choose tokens on the device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from vkep.device.tensor import DeviceTensor
from vkep.generation.choices import LOGPROBS, Array, Choice, chooser, every, padded, settings_of
from vkep.generation.decoder import Decoder, Made
from vkep.generation.encoder_decoder import EncoderDecoder
from vkep.generation.sampling import MOST_LOGPROBS, Sampling
from vkep.generation.speech import Bounds
from vkep.session import InferenceSession, IOBinding


class Chooser:
    """Chooses the next token of each sequence from a decoder's logits, which stay on the device."""

    def __init__(self, decoder: Decoder | EncoderDecoder) -> None:
        self._decoder = decoder
        self._sessions: dict[Choice, InferenceSession] = {}
        self._bound: dict[tuple[Choice, int], IOBinding] = {}
        self._greedy: InferenceSession | None = None
        self._tokens: dict[int, tuple[DeviceTensor, DeviceTensor]] = {}  # by the number of sequences
        self._logprobs: dict[tuple[int, int], list[DeviceTensor]] = {}  # by the number of sequences and the vocabulary

    def submit(
        self,
        made: Made,
        choice: Choice,
        each: Sequence[Sampling],
        chances: Sequence[float],
        seen: Sequence[Sequence[int]],
        biases: Sequence[Array | None],
        bounds: Sequence[Bounds | None],
    ) -> Made:
        """Submit the choice from a run's logits; returns the run with the tokens, which the next call overwrites.

        Each sequence has its settings, its random number, the tokens that occurred if its penalty needs them, its bias
        (float32 [vocabulary]) or None, and its bounds or None.
        ``choice`` has the options that any of them needs.
        """
        rows, _, vocabulary = made.logits.shape
        binding = self._binding(choice, rows, vocabulary)
        binding.bind_input("logits", made.logits)
        if not choice.greedy:
            settings = [settings_of(s, chance) for s, chance in zip(each, chances, strict=True)]
            binding.bind_cpu_input("settings", np.array(settings, np.float32))
        if choice.penalty:
            binding.bind_cpu_input("seen", padded([tokens or [0] for tokens in seen]))
        if choice.extended:
            given = [bias for bias in biases if bias is not None]
            places = itertools.count(1)
            binding.bind_cpu_input("bias", np.stack([np.zeros(vocabulary, np.float32), *given]))
            binding.bind_cpu_input("bias_of", np.array([0 if b is None else next(places) for b in biases], np.int64))
        if choice.timed:
            numbers = [(b or Bounds.none(vocabulary)).numbers for b in bounds]
            binding.bind_cpu_input("bounds", np.array(numbers, np.int32))
        self._sessions[choice].run_with_iobinding(binding)
        tokens, chosen = self._tokens[rows]
        logprobs = self._logprobs[rows, vocabulary] if choice.extended else None
        return made._replace(tokens=tokens, chosen=chosen, logprobs=logprobs)

    def greedy(self, made: Made) -> list[int]:
        """The most probable token after each of a run's tokens, of one sequence; waits for them."""
        if self._greedy is None:
            self._greedy = InferenceSession(every(self._decoder.element), context=self._decoder.session.lease)
        (tokens,) = self._greedy.run(None, {"logits": made.logits})
        return [int(token) for token in tokens[0]]

    def _binding(self, choice: Choice, rows: int, vocabulary: int) -> IOBinding:
        session = self._sessions.get(choice)
        if session is None:
            model = chooser(self._decoder.element, choice)
            lease = self._decoder.session.lease
            session = self._sessions[choice] = InferenceSession(model, context=lease, run_ahead=True)
        if rows not in self._tokens:
            chosen = session.empty_device_tensor((rows,), "int32", host_visible=True)
            self._tokens[rows] = session.empty_device_tensor((rows, 1), "int64"), chosen
        binding = self._bound.get((choice, rows))
        if binding is None:
            binding = self._bound[choice, rows] = session.io_binding()
            for name, tensor in zip(("tokens", "chosen"), self._tokens[rows], strict=True):
                binding.bind_output(name, tensor)
            if choice.extended:
                for name, tensor in zip(LOGPROBS, self._logprobs_of(session, rows, vocabulary), strict=True):
                    binding.bind_output(name, tensor)
        return binding

    def _logprobs_of(self, session: InferenceSession, rows: int, vocabulary: int) -> list[DeviceTensor]:
        """The memory of the logarithms, which the host reads."""
        if (rows, vocabulary) not in self._logprobs:
            most = min(MOST_LOGPROBS, vocabulary)
            self._logprobs[rows, vocabulary] = [
                session.empty_device_tensor((rows, width), dtype, host_visible=True)
                for width, dtype in ((1, "float32"), (most, "float32"), (most, "int32"))
            ]
        return self._logprobs[rows, vocabulary]

    def close(self) -> None:
        """Close the sessions."""
        self._bound.clear()
        for tensors in (*self._tokens.values(), *self._logprobs.values()):
            for tensor in tensors:
                tensor.close()
        for session in (*self._sessions.values(), *([self._greedy] if self._greedy else [])):
            session.close()
        self._sessions = {}
