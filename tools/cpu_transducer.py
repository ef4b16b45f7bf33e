"""Greedy and beam search of a streaming transducer with ONNX Runtime's CPU provider, one sound at a time: what `vkep.transducer`
is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.ort_cpu import cpu_session
from vkep.models.transducer import CHUNK, CONTEXT, STEP

Array = np.ndarray[Any, Any]


class CpuTransducer:
    """A folder of `vkep.models.transducer`."""

    def __init__(self, folder: Path) -> None:
        self._sessions = {part: cpu_session(folder / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")}

    def _run(self, part: str, feeds: dict[str, Array]) -> dict[str, Array]:
        session = self._sessions[part]
        return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))

    def _chunks(self, features: Array) -> Iterator[Array]:
        """What the encoder makes of each chunk [frames, width]."""
        inputs = self._sessions["encoder"].get_inputs()
        kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
        states = {
            i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape], kinds[i.type]) for i in inputs[1:]
        }
        for at in range(0, len(features) - CHUNK + 1, STEP):
            made = self._run("encoder", {"x": features[None, at : at + CHUNK], **states})
            states = {name: made[f"new_{name}"] for name in states}
            yield made["encoder_out"][0]

    def logits(self, frame: Array, said: Sequence[int]) -> Array:
        """Of a frame [width] after tokens, [vocabulary]."""
        [encoded] = self._run("decoder", {"y": np.array([said[-CONTEXT:]])}).values()
        logits: Array = self._run("joiner", {"encoder_out": frame[None], "decoder_out": encoded})["logit"][0]
        return logits

    def tokens(self, features: Array, ignored: int) -> list[int]:
        """Of features [frames, 80], of which whole chunks are read."""
        said = [-1] * (CONTEXT - 1) + [0]
        for chunk in self._chunks(features):
            for frame in chunk:
                token = int(self.logits(frame, said).argmax())
                if token not in (0, ignored):
                    said.append(token)
        return said[CONTEXT:]

    def hypotheses(self, features: Array, rule: BeamRule) -> list[tuple[tuple[int, ...], float]]:
        """As `beam_search`, of features [frames, 80]."""
        frames = [frame for chunk in self._chunks(features) for frame in chunk]
        return beam_search(frames, self.logits, (*[-1] * (CONTEXT - 1), 0), rule)


@dataclass(frozen=True)
class BeamRule:
    """Of a search: hypotheses, tokens that add nothing, what is subtracted from the logit of token 0, phrases, and what each of
    their tokens adds."""

    beams: int
    ignored: Sequence[int] = ()
    penalty: float = 0.0
    phrases: Sequence[Sequence[int]] = ()
    score: float = 1.5


def beam_search(
    frames: Sequence[Array], logits: Callable[[Array, Sequence[int]], Array], begin: tuple[int, ...], rule: BeamRule
) -> list[tuple[tuple[int, ...], float]]:
    """Modified beam search as sherpa-onnx has it, hypothesis by hypothesis: the tokens of each and their score by length, the
    best first. ``logits``: of a frame after tokens. ``begin``: the tokens before a sound."""
    found: dict[tuple[int, ...], tuple[float, tuple[int, ...]]] = {
        begin: (0.0, ())
    }  # scores, and beginnings of phrases
    for frame in frames:
        moves = []
        for said, (score, place) in found.items():
            values = logits(frame, said).astype(np.float64)
            values[0] -= rule.penalty
            values += score - np.logaddexp.reduce(values)
            moves += [(float(value), said, place, token) for token, value in enumerate(values)]
        found = {}
        for score, said, place, token in sorted(moves, key=lambda move: -move[0])[: rule.beams]:
            if token != 0 and token not in rule.ignored:
                gain, place = biased(rule, place, token)
                said, score = (*said, token), score + gain
            before = found.get(said)
            found[said] = (score, place) if before is None else (float(np.logaddexp(before[0], score)), before[1])
    ranked = [(said[len(begin) :], score / len(said)) for said, (score, _) in found.items()]
    return sorted(ranked, key=lambda one: -one[1])


def biased(rule: BeamRule, place: tuple[int, ...], token: int) -> tuple[float, tuple[int, ...]]:
    """What a token adds to the score after ``place``, the longest beginning of a phrase that was said last, and the place after
    it."""
    longer = (*place, token)
    ends = (longer[k:] for k in range(len(longer) + 1))
    after = next(end for end in ends if not end or any(tuple(p[: len(end)]) == end for p in rule.phrases))
    gain = rule.score * (len(after) - len(place))
    whole = [after[k:] for k in range(len(after)) if after[k:] in {tuple(p) for p in rule.phrases}]
    if not whole:
        return gain, after
    return gain + rule.score * (len(whole[0]) - len(after)), ()
