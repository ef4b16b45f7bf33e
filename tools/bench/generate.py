"""Rates of prompts and answers of language models: vkep, ONNX Runtime's CPU provider and llama.cpp in one run.

    python -m tools.bench --generate [FOLDER ...] [--prompt 512] [--answer 64] [--sequences 1] [--runs 3] [--sampling] [--no-cpu]
        [--json FILE] [--llama-bench PROGRAM --gguf FILE ...]

Without a folder, one is made: 4 layers of 512 in int4, a vocabulary of 32000. Prompts are random tokens. With --sampling vkep
also answers with a temperature alone, and with all filters. ONNX Runtime's caches
are bound in place, and its logits are those of every token of a prompt, as the file says. llama-bench measures its own file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from vkep.cli.generation import Rate, print_rates, rates
from vkep.generation import Generator
from vkep.generation.folder import GENAI, ModelFolder, read_folder
from vkep.models.language import write_language

#: the model that is made where none is named
MADE = {
    "layers": 4,
    "hidden": 512,
    "wide": 1408,
    "heads": 8,
    "kv_heads": 2,
    "size": 64,
    "vocabulary": 32000,
    "context": 1024,
}
#: settings of answers that are not greedy, by the name of their row
SAMPLING: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8, "seed": 0},
    "all filters": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "seed": 0,
    },
}


class _OnCpu:
    """A folder's decoder on ONNX Runtime's CPU provider, with its caches bound in place."""

    def __init__(self, folder: ModelFolder, room: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(folder.decoder), options, providers=["CPUExecutionProvider"])
        self._value = onnxruntime.OrtValue.ortvalue_from_numpy
        kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        pasts = {i.name: kinds[i.type] for i in self._session.get_inputs() if i.name in folder.caches}
        shape = (1, folder.heads, room, folder.head_size)
        self._caches = {past: self._value(np.zeros(shape, kind)) for past, kind in pasts.items()}
        self._pairs = folder.caches

    def run(self, tokens: Sequence[int], done: int) -> int:
        """The most probable token after ``tokens``, of which ``done`` earlier ones are in the caches."""
        binding = self._session.io_binding()
        binding.bind_cpu_input("input_ids", np.array([tokens], np.int64))
        binding.bind_cpu_input("attention_mask", np.ones((1, done + len(tokens)), np.int64))
        for past, value in self._caches.items():
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(self._pairs[past], value)
        binding.bind_output("logits")
        self._session.run_with_iobinding(binding)
        names = [o.name for o in self._session.get_outputs()]
        order = [self._pairs[past] for past in self._caches] + ["logits"]
        assert set(order) == set(names)
        return int(binding.get_outputs()[order.index("logits")].numpy()[0, -1].argmax())


def on_cpu(path: Path, prompt: int, answer: int, runs: int) -> list[Rate]:
    """ONNX Runtime's rates of one sequence. Raises ``ValueError`` for a folder that is not the builder's."""
    folder = read_folder(path)
    if not folder.caches:
        raise ValueError(f"{path} has no {GENAI}: caches are bound in place by the names in it")
    engine, random = _OnCpu(folder, prompt + answer + 1), np.random.default_rng(0)
    filled, answered = [], []
    for _ in range(runs + 1):
        asked = [int(t) for t in random.integers(0, 256, prompt)]
        start = time.perf_counter()
        token = engine.run(asked, 0)
        between = time.perf_counter()
        for k in range(answer):
            token = engine.run([token], prompt + k)
        filled.append(between - start)
        answered.append(time.perf_counter() - between)
    name = "ONNX Runtime, CPU"
    return [
        Rate.of(path.name, name, f"pp{prompt}", prompt, filled),
        Rate.of(path.name, name, f"tg{answer}", answer, answered),
    ]


def by_llama_bench(program: Path, gguf: Path, prompt: int, answer: int, runs: int) -> Iterator[Rate]:
    """llama-bench's rates. Raises ``subprocess.CalledProcessError``, ``OSError``."""
    asked = ["-m", gguf, "-p", prompt, "-n", answer, "-r", runs, "-ngl", 99, "-fa", 1, "-o", "json"]
    result = subprocess.run([program, *map(str, asked)], capture_output=True, text=True, check=True)
    for row in json.loads(result.stdout):
        test = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
        where = f"llama.cpp {row.get('backends', '')}, {row.get('gpu_info') or row.get('cpu_info', '')}"
        yield Rate(gguf.stem, where, test, float(row["avg_ts"]), float(row["stddev_ts"]), float("nan"))


def measure(given: argparse.Namespace) -> list[Rate]:
    """Every engine's rates of every folder."""
    folders: list[Path] = given.folders
    if not folders:
        folders = [given.made]
        if not (given.made / GENAI).is_file():
            write_language(given.made, "llama", "int4", **MADE)
    found: list[Rate] = []
    for folder in folders:
        with Generator(folder, max_sequences=given.sequences) as generator:
            size = (given.prompt, given.answer, given.sequences, given.runs)
            found += rates(generator, *size)
            for name, how in SAMPLING.items() if given.sampling else ():
                _, answers = rates(generator, *size, sampling=how)
                found.append(replace(answers, test=f"{answers.test} {name}"))
        if given.sequences == 1 and not given.no_cpu:
            found += on_cpu(folder, given.prompt, given.answer, given.runs)
    for gguf in given.gguf:
        found += by_llama_bench(given.llama_bench, gguf, given.prompt, given.answer, given.runs)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print a table. Exit code 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench --generate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "folders", nargs="*", type=Path, help="folders of onnxruntime-genai's builder (default: a made one)"
    )
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt (512)")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer (64)")
    parser.add_argument("--sequences", type=int, default=1, help="answers at once, by vkep alone (1)")
    parser.add_argument("--runs", type=int, default=3, help="measured runs (3)")
    parser.add_argument("--sampling", action="store_true", help="answers that are not greedy too, by vkep alone")
    parser.add_argument("--no-cpu", action="store_true", help="without ONNX Runtime's CPU provider")
    parser.add_argument(
        "--made", type=Path, default=Path("models") / "language-int4", help="where the made folder lies"
    )
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's program")
    parser.add_argument("--gguf", type=Path, nargs="+", default=[], help="its models")
    parser.add_argument("--json", type=Path, help="write the rates to this file")
    given = parser.parse_args(arguments)
    if bool(given.gguf) != bool(given.llama_bench):
        parser.error("--llama-bench and --gguf belong together")
    found = measure(given)
    print_rates(found, json_output=False)
    if given.json is not None:
        rows: list[dict[str, Any]] = [asdict(rate) for rate in found]
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
