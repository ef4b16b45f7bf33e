"""The effect of padding: a batch job with rows of different lengths, where each length gets separate runs, or rows are padded to
common lengths."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from tools.models.catalog import Options, build_model
from vkep.ray.batches import Array, Columns
from vkep.ray.predictor import Predictor

#: sizes that lengths are padded to, by the choice's name
CHOICES: dict[str, tuple[int, ...]] = {
    "rows of equal length share runs": (),
    "padded to 32, 64, 96, ...": tuple(range(32, 513, 32)),
    "padded to powers of two": (16, 32, 64, 128, 256, 512),
    "padded to the longest": (512,),
}
#: the input and the output of ``bert_enc`` [batch, sequence, width]
INPUT = "x"


def lengths(rows: int, most: int) -> list[int]:
    """Random lengths of texts: half of them are below a quarter of ``most``."""
    drawn = np.random.default_rng(0).lognormal(np.log(most / 4), 0.7, rows)
    return [int(length) for length in np.clip(drawn, 1, most)]


class Counted(Predictor):
    """A predictor that counts its runs and the elements of their input."""

    runs = elements = 0

    def _run(self, feeds: Columns) -> list[Array]:
        self.runs += 1
        self.elements += feeds[INPUT].size
        return super()._run(feeds)


def job(predictor: Predictor, column: Array, batch: int) -> float:
    """Seconds that a job takes."""
    started = time.perf_counter()
    for at in range(0, len(column), batch):
        predictor({INPUT: column[at : at + batch]})
    return time.perf_counter() - started


def main(arguments: argparse.Namespace) -> int:
    """Print the rates of each choice."""
    proto = build_model("bert_enc", Options(dynamic=True, float16=arguments.float16))
    width = proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    sizes = lengths(arguments.rows, arguments.most)
    column = np.empty(len(sizes), object)
    column[:] = [np.zeros((size, width), np.float16 if arguments.float16 else np.float32) for size in sizes]
    print(f"{len(sizes)} rows of {len(set(sizes))} lengths up to {max(sizes)}, batches of {arguments.batch}\n")
    predictors: dict[str, Counted] = {}
    first: dict[str, float] = {}
    for choice, all_steps in CHOICES.items():
        steps = tuple(sorted({min(step, arguments.most) for step in all_steps}))
        options: dict[str, Any] = {"pad": {INPUT: 0}, "steps": steps} if steps else {}
        predictors[choice] = Counted(proto, **options)
        first[choice] = job(predictors[choice], column, arguments.batch)
    counts = {choice: (one.runs, one.elements) for choice, one in predictors.items()}
    # the choices alternate, since the machine's load varies
    turns = [{choice: job(one, column, arguments.batch) for choice, one in predictors.items()} for _ in range(5)]
    print("| choice | runs | padding | first job, rows/s | later, rows/s |")
    print("|---|---|---|---|---|")
    for choice, (runs, elements) in counts.items():
        later = min(turn[choice] for turn in turns)
        print(
            f"| {choice} | {runs} | {1 - sum(sizes) * width / elements:.0%} | {len(sizes) / first[choice]:.1f} | "
            f"{len(sizes) / later:.1f} |"
        )
        predictors[choice].close()
    return 0
