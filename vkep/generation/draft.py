"""A small model that guesses the next tokens of a larger one (speculative decoding, arXiv:2211.17192)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vkep.generation.decoder import Decoder, Made
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
        row, made = self._begin(known, count)
        if made is None:
            return []
        count, rows, found = self._room(known, count), range(row, row + 1), list[int]()
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

    def drawn(self, known: Sequence[int], count: int, draw: Callable[[Made], int]) -> list[int]:
        """As `guess`, of tokens that ``draw`` chooses of each run."""
        row, made = self._begin(known, count)
        if made is None:
            return []
        found = [draw(made)]
        while len(found) < self._room(known, count):
            [(_, made)] = self._rows.step({row: found[-1]}, None)
            found.append(draw(made))
        return found

    def _room(self, known: Sequence[int], count: int) -> int:
        context = self._decoder.folder.context
        return min(count, context - len(known)) if context else count

    def _begin(self, known: Sequence[int], count: int) -> tuple[int, Made | None]:
        """A row with all that is known, and its last run; None where nothing may follow."""
        if self._room(known, count) < 1 or max(known) >= (self.vocabulary or FIRST_FEATURE):
            return 0, None
        row = self._rows.take(known, ())
        return row, fed(self._rows, row, known[len(self._rows.held[row]) :])

    @property
    def vocabulary(self) -> int:
        """The number of its tokens; 0: unknown."""
        return self._decoder.vocabulary

    def close(self) -> None:
        """Close the session and its caches."""
        self._rows.close()
        self._decoder.close()
