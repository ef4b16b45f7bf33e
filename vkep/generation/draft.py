"""A small model that guesses the next tokens of a larger one (speculative decoding, arXiv:2211.17192)."""

from __future__ import annotations

from collections.abc import Sequence

from vkep.generation.decoder import Decoder
from vkep.generation.rewrite import FIRST_FEATURE
from vkep.generation.rows import BufferRows, GrownRows, fed
from vkep.session import InferenceSession


class Draft:
    """A decoder's most probable tokens after a sequence. Its caches stay: the next guess computes only what is new."""

    def __init__(self, decoder: Decoder, most: int) -> None:
        """``most``: so many tokens are guessed."""
        self._decoder, self.most = decoder, most
        self._rows = BufferRows(decoder, 1) if decoder.by_rows else GrownRows(decoder, 1)

    @property
    def sessions(self) -> list[InferenceSession]:
        """The sessions of the model."""
        return self._decoder.sessions

    def guess(self, known: Sequence[int], count: int) -> list[int]:
        """Up to ``count`` tokens that follow ``known``; none for a sequence that is too long for the model, or has tokens that
        it does not know. Raises as `InferenceSession.run`, `ArenaOutOfMemory`."""
        context, vocabulary = self._decoder.folder.context, self._decoder.vocabulary or FIRST_FEATURE
        count = min(count, context - len(known) if context else count)
        if count < 1 or max(known) >= vocabulary:
            return []
        row = self._rows.take(known, ())
        rows, found = range(row, row + 1), list[int]()
        made = fed(self._rows, row, known[len(self._rows.held[row]) :])
        while (tokens := made.tokens) is not None:
            more = len(found) + 1 < count
            ahead = self._rows.ahead(rows, tokens) if more else None
            [token] = made.on_host()
            found.append(token)
            if not more:
                return found
            if ahead is not None:
                self._rows.append({row: token})
                made = ahead
            else:
                [(_, made)] = self._rows.step({row: token}, (tokens, [token]))
        return found

    def close(self) -> None:
        """Close the session and its caches."""
        self._rows.close()
        self._decoder.close()
