"""``python -m tools.bench.steps``: the cost of a decoder's step while its sequence grows.

A model takes one token at a time. Sessions take turns, token by token. In the form of onnxruntime-genai's builder (``--form
builder``) the caches are buffers of one size:

- **fixed**: the mask keeps its length, so that every step has the same signature; the caches are updated in place;
- **grows**: the mask grows by one with each token; in place;
- **stays**: the mask grew at first and keeps its length now: the plan is that of **grows**, and no length is new; in place;
- **two sets**: the mask grows; present and past change places after each token.

In the form that optimum writes (``--form concat``) the caches grow by Concat:

- **fixed**: each step has the same past, of the length that **grows** has half-way; new rows are written to the memory behind it;
- **grows**: the past grows by one with each token, in one buffer;
- **copied**: it grows, and each run makes new caches;
- **numpy**: as copied, and the caches of each step are the arrays that the last one returned, as clients without a binding do;
- **numpy, ONNX Runtime** (with ``--ort``): the same through the plugin.

Printed are the milliseconds of a step (median), their quotient with the first session's, and how many plans each session made.

    python -m tools.bench.steps --layers 4 --hidden 512 --precision int4 --tokens 100
    python -m tools.bench.steps --form concat --layers 6 --hidden 512 --heads 8 --precision fp32 --tokens 200 --ort
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import vkep
from vkep.models.language import ARCHITECTURES, PRECISIONS, Language, language_model

Cache = vkep.DeviceTensor | np.ndarray[Any, Any]
#: tokens that sessions take before they are measured
_WARM = 4


class Way(NamedTuple):
    """How a session's sequence grows: by one for so many ``grows`` tokens; whether caches are updated in place, or are arrays."""

    grows: float
    in_place: bool
    arrays: bool = False


class Steps:
    """One session that runs one token after another. ``at``: the number of tokens in its caches at first."""

    def __init__(self, model: bytes, language: Language, room: int, at: int, way: Way) -> None:
        self._session = vkep.InferenceSession(model, fallback="error", save_plans=False)
        self._way, self._at, self._steps = way, at, 0
        caches = [info for info in self._session.get_inputs() if info.name.startswith("past_key_values")]
        self._shape = (1, language.kv_heads, room, language.size)
        self._dtype = "float16" if "float16" in caches[0].type else "float32"
        self._names = [info.name for info in caches]
        self._past = self._buffers()
        self._ids = np.ones((1, 1), np.int64)

    def _buffers(self) -> list[vkep.DeviceTensor]:
        return [self._session.device_tensor(np.zeros(self._shape, self._dtype)) for _ in self._names]

    def step(self) -> float:
        """Milliseconds of the next token."""
        self._at += self._steps < self._way.grows
        self._steps += 1
        mask = np.ones((1, self._at), np.int64)
        start = time.perf_counter()
        binding = self._session.io_binding()
        binding.bind_cpu_input("input_ids", self._ids)
        binding.bind_cpu_input("attention_mask", mask)
        for name, (past, present) in zip(self._names, self._caches(), strict=True):
            output = name.replace("past_key_values", "present")
            if isinstance(past, np.ndarray):
                binding.bind_cpu_input(name, past)
                binding.bind_output(output, device="cpu")
            else:
                binding.bind_input(name, past)
                binding.bind_output(output, present)
        binding.bind_output("logits", device="cpu")
        self._session.run_with_iobinding(binding)
        spent = 1e3 * (time.perf_counter() - start)
        self._ran(binding.get_outputs())
        return spent

    def _caches(self) -> list[tuple[Cache, vkep.DeviceTensor | None]]:
        """Past and present of the next run."""
        raise NotImplementedError

    def _ran(self, results: Sequence[Any]) -> None:
        """Called after each run."""

    @property
    def plans(self) -> int:
        return self._session._parts.graph.plan_count

    def close(self) -> None:
        self._session.close()


class _Builder(Steps):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._present = self._past if self._way.in_place else self._buffers()

    def _caches(self) -> list[tuple[Cache, vkep.DeviceTensor | None]]:
        return list(zip(self._past, self._present, strict=True))

    def _ran(self, results: Sequence[Any]) -> None:
        self._past, self._present = self._present, self._past


class _Concat(Steps):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._own: list[Cache] = []
        if not self._way.in_place:
            first = [np.zeros(self._part(), self._dtype) for _ in self._names]
            self._own = list(first) if self._way.arrays else [self._session.device_tensor(array) for array in first]

    def _part(self) -> tuple[int, ...]:
        return (*self._shape[:2], self._at - 1 + (not self._way.in_place), self._shape[3])

    def _caches(self) -> list[tuple[Cache, vkep.DeviceTensor | None]]:
        if not self._way.in_place:
            return [(past, None) for past in self._own]
        views = [tensor.leading(self._part()) for tensor in self._past]
        return list(zip(views, views, strict=True))

    def _ran(self, results: Sequence[Any]) -> None:
        if not self._way.in_place:
            self._own = list(results[: len(self._names)])


class _ByOrt(Steps):
    """Arrays through ONNX Runtime's plugin."""

    def __init__(self, model: bytes, language: Language, room: int, at: int, way: Way) -> None:
        import onnxruntime

        import vkep.ort

        vkep.ort.register()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._inside = onnxruntime.InferenceSession(model, options, providers=[vkep.ort.get_ep_name()])
        self._names = [info.name for info in self._inside.get_inputs() if info.name.startswith("past_key_values")]
        self._at, self._ids = at, np.ones((1, 1), np.int64)
        kind = np.float16 if "float16" in self._inside.get_inputs()[-1].type else np.float32
        self._caches_now: list[Any] = [np.zeros((1, language.kv_heads, at, language.size), kind) for _ in self._names]

    def step(self) -> float:
        self._at += 1
        feeds: dict[str, Any] = {"input_ids": self._ids, "attention_mask": np.ones((1, self._at), np.int64)}
        feeds |= dict(zip(self._names, self._caches_now, strict=True))
        start = time.perf_counter()
        _, *self._caches_now = self._inside.run(
            ["logits", *[name.replace("past_key_values", "present") for name in self._names]], feeds
        )
        return 1e3 * (time.perf_counter() - start)

    @property
    def plans(self) -> int:
        from vkep.ort.boundary import live

        return max(node.planned.plan_count for node in live("OrtNodeComputeInfo"))

    def close(self) -> None:
        del self._inside


#: by the model's form: the sessions
FORMS: dict[str, tuple[type[Steps], dict[str, Way]]] = {
    "builder": (
        _Builder,
        {
            "fixed": Way(0, True),
            "grows": Way(math.inf, True),
            "stays": Way(_WARM, True),
            "two sets": Way(math.inf, False),
        },
    ),
    "concat": (
        _Concat,
        {
            "fixed": Way(0, True),
            "grows": Way(math.inf, True),
            "copied": Way(math.inf, False),
            "numpy": Way(math.inf, False, arrays=True),
        },
    ),
}


def measure(
    language: Language, precision: str, room: int, tokens: int, form: str, by_ort: bool = False
) -> Iterator[str]:
    """The table's lines."""
    model = language_model(language, precision).SerializeToString()
    kind, ways = FORMS[form]
    sessions: dict[str, Steps] = {}
    for name, way in ways.items():
        at = room // 4 + (tokens // 2 if form == "concat" and not way.grows else 0)
        sessions[name] = kind(model, language, room, at, way)
    if by_ort:
        sessions["numpy, ONNX Runtime"] = _ByOrt(model, language, room, room // 4, ways["numpy"])
    try:
        times: dict[str, list[float]] = {name: [] for name in sessions}
        for token in range(tokens + _WARM):
            for name, session in sessions.items():
                spent = session.step()
                if token >= _WARM:  # plans are made and caches are warm
                    times[name].append(spent)
        yield "| sequence | ms a token | of fixed | plans |"
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
    parser.add_argument("--form", choices=FORMS, default="builder")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--wide", type=int, help="default: four times --hidden")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--precision", choices=PRECISIONS, default="int4")
    parser.add_argument("--room", type=int, default=512, help="positions that the caches have room for")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument(
        "--ort", action="store_true", help="with --form concat: arrays through ONNX Runtime's plugin too"
    )
    given = parser.parse_args(arguments)
    language = replace(
        ARCHITECTURES["llama" if given.form == "builder" else "gpt2"],
        layers=given.layers,
        hidden=given.hidden,
        heads=given.heads,
        kv_heads=given.kv_heads if given.form == "builder" else given.heads,
        size=given.hidden // given.heads,
        wide=given.wide or 4 * given.hidden,
        vocabulary=given.vocabulary,
        context=given.room,
    )
    for line in measure(
        language, given.precision, given.room, min(given.tokens, given.room // 2), given.form, given.ort
    ):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
