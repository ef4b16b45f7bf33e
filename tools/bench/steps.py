"""``python -m tools.bench.steps``: what a decoder's step costs while its sequence grows.

A model in the form of onnxruntime-genai's builder takes one token at a time, its caches in buffers of one size. Three sessions
take turns, token by token:

- **fixed**: the mask keeps its length, so that every step has the same signature; the caches are updated in place;
- **grows**: the mask grows by one with each token; in place;
- **two sets**: the mask grows; present and past change places after each token.

Printed are the milliseconds of a step (median), their quotient with the first session's, and how many plans each session made.

    python -m tools.bench.steps --layers 4 --hidden 512 --precision int4 --tokens 100
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

import vkep
from tools.models.language import ARCHITECTURES, PRECISIONS, Language, language_model


class Steps:
    """One session that takes tokens."""

    def __init__(self, model: bytes, language: Language, room: int, grows: bool, in_place: bool) -> None:
        self._session = vkep.InferenceSession(model, fallback="error", save_plans=False)
        self._grows, self._at = grows, room // 4
        caches = [info for info in self._session.get_inputs() if info.name.startswith("past_key_values")]
        shape = (1, language.kv_heads, room, language.size)
        dtype = "float16" if "float16" in caches[0].type else "float32"

        def made() -> list[vkep.DeviceTensor]:
            return [self._session.device_tensor(np.zeros(shape, dtype)) for _ in caches]

        self._names = [info.name for info in caches]
        self._past = made()
        self._present = self._past if in_place else made()
        self._ids = np.ones((1, 1), np.int64)

    def step(self) -> float:
        """Milliseconds of the next token."""
        self._at += self._grows
        mask = np.ones((1, self._at), np.int64)
        start = time.perf_counter()
        binding = self._session.io_binding()
        binding.bind_cpu_input("input_ids", self._ids)
        binding.bind_cpu_input("attention_mask", mask)
        for name, past, present in zip(self._names, self._past, self._present, strict=True):
            binding.bind_input(name, past)
            binding.bind_output(name.replace("past_key_values", "present"), present)
        binding.bind_output("logits", device="cpu")
        self._session.run_with_iobinding(binding)
        spent = 1e3 * (time.perf_counter() - start)
        self._past, self._present = self._present, self._past
        return spent

    @property
    def plans(self) -> int:
        return self._session._parts.graph.plan_count

    def close(self) -> None:
        self._session.close()


def measure(language: Language, precision: str, room: int, tokens: int) -> Iterator[str]:
    """The table's lines."""
    model = language_model(language, precision).SerializeToString()
    kinds = {"fixed": (False, True), "grows": (True, True), "two sets": (True, False)}
    sessions = {name: Steps(model, language, room, *kind) for name, kind in kinds.items()}
    try:
        times: dict[str, list[float]] = {name: [] for name in sessions}
        for token in range(tokens + 4):
            for name, session in sessions.items():
                spent = session.step()
                if token >= 4:  # plans are made, all is warm
                    times[name].append(spent)
        yield "| mask | ms a token | of fixed | plans |"
        yield "|---|---|---|---|"
        for name, found in times.items():
            quotient = statistics.median([a / b for a, b in zip(found, times["fixed"], strict=True)])
            yield f"| {name} | {statistics.median(found):.3f} | {quotient:.3f} | {sessions[name].plans} |"
    finally:
        for session in sessions.values():
            session.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.steps", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--wide", type=int, help="default: four times --hidden")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--precision", choices=PRECISIONS, default="int4")
    parser.add_argument("--room", type=int, default=512, help="positions that the caches have room for")
    parser.add_argument("--tokens", type=int, default=100)
    given = parser.parse_args(arguments)
    language = replace(
        ARCHITECTURES["llama"],
        layers=given.layers,
        hidden=given.hidden,
        heads=given.heads,
        kv_heads=given.kv_heads,
        size=given.hidden // given.heads,
        wide=given.wide or 4 * given.hidden,
        vocabulary=given.vocabulary,
        context=given.room,
    )
    for line in measure(language, given.precision, given.room, min(given.tokens, given.room // 2)):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
