"""The sessions that choose tokens on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkep.device.tensor import DeviceTensor
from vkep.generation.choices import Choice, chooser, padded, settings_of
from vkep.generation.decoder import Decoder
from vkep.generation.encoder_decoder import EncoderDecoder
from vkep.generation.sampling import Sampling
from vkep.session import InferenceSession


class Chooser:
    """Chooses the next token of each sequence from a decoder's logits, which stay on the device."""

    def __init__(self, decoder: Decoder | EncoderDecoder) -> None:
        self._decoder = decoder
        self._sessions: dict[Choice, InferenceSession] = {}
        self._tokens: dict[int, DeviceTensor] = {}  # by the number of sequences: overwritten at each step

    def choose(
        self,
        logits: DeviceTensor,
        choice: Choice,
        each: Sequence[Sampling],
        chances: Sequence[float],
        seen: Sequence[Sequence[int]],
    ) -> tuple[DeviceTensor, list[int]]:
        """Return the tokens in the form that the next step reads, int64 [batch, 1] on the device, and on the host (4
        bytes each).

        Each sequence has its settings, its random number, and the tokens that occurred if its penalty needs them.
        ``choice`` has the options that any of them needs.
        """
        session = self._sessions.get(choice)
        if session is None:
            model = chooser(self._decoder.element, choice)
            session = self._sessions[choice] = InferenceSession(model, context=self._decoder.session.context)
        binding = session.io_binding()
        binding.bind_input("logits", logits)
        if not choice.greedy:
            settings = [settings_of(s, chance) for s, chance in zip(each, chances, strict=True)]
            binding.bind_cpu_input("settings", np.array(settings, np.float32))
        if choice.penalty:
            binding.bind_cpu_input("seen", padded([tokens or [0] for tokens in seen]))
        rows = logits.shape[0]
        if rows not in self._tokens:
            self._tokens[rows] = session.empty_device_tensor((rows, 1), "int64")
        binding.bind_output("tokens", self._tokens[rows])
        binding.bind_output("chosen", device="cpu")
        session.run_with_iobinding(binding)
        results: list[Any] = binding.results
        return results[0], [int(token) for token in results[1]]

    def close(self) -> None:
        """Close the sessions."""
        for tensor in self._tokens.values():
            tensor.close()
        for session in self._sessions.values():
            session.close()
        self._sessions = {}
