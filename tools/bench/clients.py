"""Decoding through Optimum's classes, beside `vkep.generation` on the same folder and torch's own loop.

    python -m tools.bench.clients [--small] [--tokens 64] [--rounds 5] [--parts]        # needs optimum-onnx and torch

The models have random weights, in float32, and are exported by Optimum: Whisper-base, and a decoder in Llama's form of 12 layers
of 768. The clients take turns. Printed are the milliseconds of a token (the median answer, with its prompt or sound), their
quotient with those of `vkep.generation`, and whether the tokens are the same. With ``--small`` the models are of 64: twelve
layers of the decoder, two of Whisper. With ``--parts`` the processor time of the calling thread in Optimum's answers is divided:
the device's work is no part of it.
"""

from __future__ import annotations

import argparse
import functools
import logging
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

Answer = Callable[[], list[int]]
PROMPT = list(range(5, 37))


def _answers(model: Any, given: dict[str, Any], tokens: int, skipped: int) -> Answer:
    """An answer of a class that has transformers' ``generate``, without the tokens that it begins with."""
    import torch

    def answer() -> list[int]:
        with torch.no_grad():
            made = model.generate(**given, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, num_beams=1)
        return made[0, skipped:].tolist()[:tokens]

    return answer


def _exported(model: Any, folder: Path, task: str) -> Path:
    from optimum.exporters.onnx import main_export

    model.save_pretrained(folder / "torch")
    main_export(str(folder / "torch"), str(folder / "onnx"), task=task, do_validation=False)
    return folder / "onnx"


def _language(folder: Path, stack: ExitStack, small: bool, tokens: int) -> dict[str, Answer]:
    import torch
    import transformers
    from optimum.onnxruntime import ORTModelForCausalLM

    from vkep.generation import Generator

    sizes = {"hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 128}
    if not small:
        sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 2048}
    config = transformers.LlamaConfig(vocab_size=32000, num_key_value_heads=4, **sizes)
    model = transformers.LlamaForCausalLM(config).eval()
    exported = _exported(model, folder, "text-generation-with-past")
    generator = stack.enter_context(Generator(exported))
    theirs = ORTModelForCausalLM.from_pretrained(exported, provider="VulkanExecutionProvider")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ids = torch.tensor([PROMPT])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pad_token_id": 0}
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    return {
        "vkep.generation": lambda: generator.generate(PROMPT, max_tokens=tokens, ignore_end=True).tokens,
        "Optimum": _answers(theirs, given, tokens, len(PROMPT)),
        f"torch, {device}": _answers(model.to(device), moved, tokens, len(PROMPT)),
    }


def _speech(folder: Path, stack: ExitStack, small: bool, tokens: int) -> dict[str, Answer]:
    import torch
    import transformers
    from optimum.onnxruntime import ORTModelForSpeechSeq2Seq

    from vkep.generation import Generator

    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    if not small:
        sizes = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8}
        sizes |= {"decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
    unused = {"suppress_tokens": None, "begin_suppress_tokens": None}
    config = transformers.WhisperConfig(**sizes, **unused)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=config.decoder_start_token_id, pad_token_id=0, eos_token_id=config.eos_token_id
    )
    transformers.WhisperFeatureExtractor().save_pretrained(folder / "torch")
    exported = _exported(model, folder, "automatic-speech-recognition-with-past")
    generator = stack.enter_context(Generator(exported))
    theirs = ORTModelForSpeechSeq2Seq.from_pretrained(exported, provider="VulkanExecutionProvider")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    features = np.random.default_rng(0).normal(0, 1, (80, 3000)).astype(np.float32)
    given = torch.from_numpy(features)[None]
    return {
        "vkep.generation": lambda: generator.generate(features, max_tokens=tokens, ignore_end=True).tokens,
        "Optimum": _answers(theirs, {"input_features": given}, tokens, 0),
        f"torch, {device}": _answers(model.to(device), {"input_features": given.to(device)}, tokens, 0),
    }


def measure(answers: dict[str, Answer], tokens: int, rounds: int) -> list[str]:
    """A line for each client; the first one is compared with."""
    first = {name: answer() for name, answer in answers.items()}  # plans, and what clients keep
    times: dict[str, list[float]] = {name: [] for name in answers}
    for _ in range(rounds):
        for name, answer in answers.items():
            start = time.perf_counter()
            answer()
            times[name].append(time.perf_counter() - start)
    medians = {name: 1e3 * statistics.median(taken) / tokens for name, taken in times.items()}
    [ours, *_] = answers
    rows = [(name, ms, ms / medians[ours], first[name] == first[ours]) for name, ms in medians.items()]
    return [f"| {n} | {ms:.3f} | {q:.2f} | {'same' if same else 'other'} |" for n, ms, q, same in rows]


def parts(answer: Answer, tokens: int, rounds: int) -> list[str]:
    """A line for each part of an answer of Optimum's, by the processor time that it takes itself."""
    from onnxruntime.capi.onnxruntime_inference_collection import Session
    from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForSpeechSeq2Seq
    from optimum.onnxruntime.base import ORTSessionMixin

    from vkep import optimum, ort
    from vkep.ort.memory.domain import MemoryDomain
    from vkep.ort.memory.transfers import Transfers
    from vkep.ort.nodes.fused import FusedNode

    called: list[float] = []  # seconds in what each of the functions in progress has called
    own: dict[str, float] = defaultdict(float)

    def timed(part: str, function: Any) -> Any:
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            called.append(0.0)
            start = time.thread_time()
            try:
                return function(*given, **named)
            finally:
                taken = time.thread_time() - start
                own[part] += taken - called.pop()
                if called:
                    called[-1] += taken

        return call

    functions: list[tuple[str, Any, str]] = [
        ("Optimum", ORTModelForCausalLM, "forward"), ("Optimum", ORTModelForSpeechSeq2Seq, "forward"),
        ("vkep.optimum", ORTSessionMixin, "_prepare_onnx_inputs"),
        ("vkep.optimum", ORTSessionMixin, "_prepare_onnx_outputs"),
        ("vkep.optimum", optimum._Run, "__call__"), ("vkep.ort.bind", ort, "bind"),
        ("ONNX Runtime", Session, "run_with_iobinding"), ("vkep's node", FusedNode, "Compute"),
        ("vkep's node", FusedNode, "_run_by_address"), ("vkep's copies", Transfers, "run"),
        ("vkep's memory", MemoryDomain, "alloc"), ("vkep's memory", MemoryDomain, "free"),
    ]  # fmt: skip
    with ExitStack() as stack:
        for part, owner, name in functions:
            stack.enter_context(mock.patch.object(owner, name, timed(part, getattr(owner, name))))
        theirs = {
            key: timed("Optimum", function) if key[1] in optimum._METHODS else function
            for key, function in optimum._own.items()
        }
        stack.enter_context(mock.patch.dict(optimum._own, theirs))
        for _ in range(rounds):
            timed("transformers", answer)()
    whole = sum(own.values())
    rows = sorted(own.items(), key=lambda item: -item[1])
    return [f"| {part} | {1e3 * s / tokens / rounds:.3f} | {s / whole:.0%} |" for part, s in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.clients", description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", action="store_true")
    chosen = parser.parse_args(arguments)
    import torch

    import vkep.optimum

    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    vkep.optimum.register()
    for name, open_ in {"Llama's form": _language, "Whisper-base": _speech}.items():
        print(f"\n| {name} | ms a token | quotient | tokens |\n|---|---:|---:|---|")
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            answers = open_(Path(folder), stack, chosen.small, chosen.tokens)
            print("\n".join(measure(answers, chosen.tokens, chosen.rounds)))
            if chosen.parts:
                print("\n| part of Optimum's | ms a token | |\n|---|---:|---:|")
                print("\n".join(parts(answers["Optimum"], chosen.tokens, chosen.rounds)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
