"""What is added to the logits of an answer: penalties of tokens that occurred, a request's own numbers, and a grammar's mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.errors import VkepError

if TYPE_CHECKING:
    from vkep.generation.grammar import Grammar
    from vkep.generation.sampling import Sampling


class Bias:
    """The numbers for one answer's next token. ``grammar``: which its tokens follow, if any."""

    def __init__(self, sampling: Sampling, grammar: Grammar | None) -> None:
        self._sampling, self.grammar = sampling, grammar
        self._added: dict[int, float] = dict(sampling.logit_bias)
        self._occurred: set[int] = set()

    def row(self, vocabulary: int) -> np.ndarray[Any, Any]:
        """float32 [vocabulary]; -inf for a token that may not follow. Raises `VkepError` as `Grammar.mask`, and where no
        token may follow."""
        row = np.zeros(vocabulary, np.float32)
        if self._added:
            row[[token for token in self._added if token < vocabulary]] = [
                value for token, value in self._added.items() if token < vocabulary
            ]
        if self.grammar is not None:
            allowed = self.grammar.mask(vocabulary)
            if not allowed.any():
                raise VkepError("the answer cannot follow its grammar: the model has no token that may follow")
            row[~allowed] = -np.inf
        return row

    def took(self, token: int) -> None:
        """Continue after a token. Raises `VkepError` as `Grammar.take`."""
        s = self._sampling
        added = s.frequency_penalty + (s.presence_penalty if token not in self._occurred else 0.0)
        self._occurred.add(token)
        if added:
            self._added[token] = self._added.get(token, 0.0) - added
        if self.grammar is not None:
            self.grammar.take(token)
