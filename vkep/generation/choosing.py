"""The sessions that choose tokens on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.device.tensor import DeviceTensor
from vkep.generation.choices import Choice, chooser, padded, settings_of
from vkep.generation.decoder import Decoder, Made
from vkep.generation.encoder_decoder import EncoderDecoder
from vkep.generation.sampling import Sampling
from vkep.session import InferenceSession, IOBinding


class Chooser:
    """Chooses the next token of each sequence from a decoder's logits, which stay on the device."""

    def __init__(self, decoder: Decoder | EncoderDecoder) -> None:
        self._decoder = decoder
        self._sessions: dict[Choice, InferenceSession] = {}
        self._bound: dict[tuple[Choice, int], IOBinding] = {}
        self._tokens: dict[int, tuple[DeviceTensor, DeviceTensor]] = {}  # by the number of sequences

    def submit(
        self,
        made: Made,
        choice: Choice,
        each: Sequence[Sampling],
        chances: Sequence[float],
        seen: Sequence[Sequence[int]],
    ) -> Made:
        """Submit the choice from a run's logits; returns the run with the tokens, which the next call overwrites.

        Each sequence has its settings, its random number, and the tokens that occurred if its penalty needs them.
        ``choice`` has the options that any of them needs.
        """
        binding = self._binding(choice, made.logits.shape[0])
        binding.bind_input("logits", made.logits)
        if not choice.greedy:
            settings = [settings_of(s, chance) for s, chance in zip(each, chances, strict=True)]
            binding.bind_cpu_input("settings", np.array(settings, np.float32))
        if choice.penalty:
            binding.bind_cpu_input("seen", padded([tokens or [0] for tokens in seen]))
        self._sessions[choice].run_with_iobinding(binding)
        tokens, chosen = self._tokens[made.logits.shape[0]]
        return made._replace(tokens=tokens, chosen=chosen)

    def _binding(self, choice: Choice, rows: int) -> IOBinding:
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
        return binding

    def close(self) -> None:
        """Close the sessions."""
        self._bound.clear()
        for tensors in self._tokens.values():
            for tensor in tensors:
                tensor.close()
        for session in self._sessions.values():
            session.close()
        self._sessions = {}
