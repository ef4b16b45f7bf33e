"""Pipelines of networks that torch has, beside torch on its own device: the second table of docs/pipelines.md.

    python -m tools.pipelines --torch cuda --write [--only NAME ...] [--jobs 14] [--limit 380]

Both have the same network with the same random weights, which torch's exporters or Optimum wrote for vkep, and the same inputs at
the largest size of the first table, in float32 (torch without TF32). Inputs of single networks are on the device, and so are
their results; a run waits for them. Each pipeline has a process: ``--jobs`` of them prepare their clients (export, plans,
torch.compile in its default mode) at the same time, all of them in ``--limit`` seconds; then one after another is timed, its
clients in turns. A dash stands for what torch cannot compile or run, or a package that is missing; the reason is printed.
"""

from __future__ import annotations

import copy
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from gpu_shared import list_devices
from gpu_shared.instance import select_device
from tools import pipelines
from vkep import InferenceSession
from vkep.generation import Generator
from vkep.session.binding import IOBinding
from vkep.video_objects import Prompt, VideoObjects

Run = Callable[[], Any]
SIZE = pipelines.SIZES - 1
#: what each column is, and runs before the times
CLIENTS, BEFORE = ("vkep", "torch", "torch.compile"), 3
#: seconds of a row's times
_LONGEST = 60.0
HEAD = ["| pipeline | vkep | torch | torch.compile | right |", "|---|---:|---:|---:|---|"]


@dataclass
class Beside:
    """A pipeline in vkep, ``ours``, and in torch: ``theirs`` makes it from a device's name, compiled if the second argument is
    true. A run does ``steps`` steps and returns tokens or tensors."""

    ours: Run
    theirs: Callable[[str, bool], Run]
    steps: int


# ---- the pipelines


def _networks(*names: str) -> Any:
    """Models of `tools.bench.sizes`, one after another."""

    def open_(folder: Path, stack: ExitStack) -> Beside:
        import torch

        ours, theirs = [], []
        for name in names:
            _, session, feeds = pipelines.network(name, folder, stack)
            binding = session.io_binding()
            for key, array in feeds[SIZE].items():
                binding.bind_input(key, session.device_tensor(array))
            for output in session.get_outputs():
                binding.bind_output(output.name, "gpu")
            ours.append((session, binding))
            theirs.append((_network(name), [torch.from_numpy(array) for array in feeds[SIZE].values()]))

        def made(device: str, compiled: bool) -> Run:
            moved = [(copy.deepcopy(net).to(device), [x.to(device) for x in given]) for net, given in theirs]
            nets = [(torch.compile(net) if compiled else net, given) for net, given in moved]
            return lambda: [net(*given) for net, given in nets]

        return Beside(partial(run_whole, ours), made, 1)

    return open_


def run_whole(bound: Sequence[tuple[InferenceSession, IOBinding]]) -> list[Any]:
    """Results of runs that have ended: one whose results stay on the device returns before."""
    for session, binding in bound:
        session.run_with_iobinding(binding)
    for _, binding in bound:
        binding.synchronize_outputs()
    return [value for _, binding in bound for value in binding.get_outputs()]


def _network(name: str) -> Any:
    """What torch exported."""
    import torch

    if name == "greedy CTC":
        return _greedy()
    from tools.bench.sizes.exports import TRACED

    torch.manual_seed(0)
    network = TRACED[name]().network.eval()
    if name == "vits":  # as in the file
        network.inner.noise_scale = network.inner.noise_scale_duration = 0.0
    return network


def _greedy() -> Any:
    """That of `tools.bench.sizes.texts`."""
    import torch

    class Greedy(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            best = x[0].argmax(1)
            return best[1:][(best[1:] != best[:-1]) & (best[1:] != 0)]

    return Greedy()


def _generated(model: Any, given: dict[str, Any], tokens: Callable[[Any], list[int]], **settings: Any) -> Any:
    """Makes transformers' own loop, compiled with its static cache."""

    def made(device: str, compiled: bool) -> Run:
        import torch
        import transformers

        net = copy.deepcopy(model).to(device)
        given_there = {name: torch.from_numpy(array).to(device) for name, array in given.items()}
        more = {name: x.to(device) if isinstance(x, torch.nn.Module) else x for name, x in settings.items()}
        if compiled:
            how = transformers.CompileConfig(mode="default")
            how._compile_all_devices = True
            net.generation_config.cache_implementation, net.generation_config.compile_config = "static", how
        return lambda: tokens(net.generate(**given_there, do_sample=False, **more))

    return made


def _chat(
    prompt: Sequence[int], count: int = pipelines.TOKENS, kind: str = "Llama", layers: int = 2, draft: bool = False
) -> Any:
    """``kind``: Llama, in `vkep.generation`; GPT2, through Optimum. No run finds the caches of one before it."""

    def open_(folder: Path, stack: ExitStack) -> Beside:
        def exported(layers: int) -> tuple[Any, Path]:
            model = _language(kind, layers, len(prompt) + 256)
            files = _exported(model, folder / str(layers), "text-generation-with-past")
            model.generation_config.eos_token_id = None  # all answers have `count` tokens
            return model, files

        model, files = exported(layers)
        ids = np.array([prompt])
        settings = {"max_new_tokens": count, "pad_token_id": 0}
        more: dict[str, Any] = {}
        if kind == "GPT2":
            run = _through_optimum(files, ids, settings)
        else:
            if draft:
                more["assistant_model"], drafts = exported(1)
            generator = stack.enter_context(Generator(files, draft=drafts if draft else None, max_sequences=1))
            run = partial(_answer, generator, prompt, count)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        theirs = _generated(model, given, lambda made: made[0, len(prompt) :].tolist(), **settings, **more)
        return Beside(run, theirs, count)

    return open_


def _language(kind: str, layers: int, context: int) -> Any:
    """In the sizes of `vkep.models.language`."""
    import torch
    import transformers

    torch.manual_seed(1)
    ends = {"bos_token_id": 257, "eos_token_id": 258, "vocab_size": 320}
    if kind == "GPT2":
        config = transformers.GPT2Config(n_embd=64, n_head=4, n_layer=layers, n_inner=128, n_positions=context, **ends)
        return transformers.GPT2LMHeadModel(config).eval()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=layers, max_position_embeddings=context, **ends)
    return transformers.LlamaForCausalLM(config).eval()


def _exported(model: Any, folder: Path, task: str) -> Path:
    from optimum.exporters.onnx import main_export

    model.save_pretrained(folder / "torch")
    main_export(str(folder / "torch"), str(folder / "onnx"), task=task, do_validation=False)
    return folder / "onnx"


def _answer(generator: Generator, prompt: Sequence[int], count: int) -> list[int]:
    batch = generator.batch()
    answer = batch.add(prompt, generator.sampling(max_tokens=count, ignore_end=True))
    while batch.in_progress:
        batch.step()
    batch.close()
    return answer.tokens


def _through_optimum(files: Path, ids: Any, settings: dict[str, Any]) -> Run:
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM

    import vkep.optimum

    vkep.optimum.register()
    model, prompt = ORTModelForCausalLM.from_pretrained(files, provider="VulkanExecutionProvider"), torch.tensor(ids)
    given = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt), "do_sample": False, **settings}
    model.generation_config.eos_token_id = None
    return lambda: model.generate(**given)[0, prompt.shape[1] :].tolist()


_SPEECH = "automatic-speech-recognition-with-past"


def _whisper(folder: Path, stack: ExitStack) -> Beside:
    """A step is a token."""
    from tools.speech_networks import whisper

    model, count = whisper(), pipelines.TOKENS
    generator = stack.enter_context(Generator(_exported(model, folder, _SPEECH)))
    features = pipelines.normal(80, 3000)
    return Beside(
        lambda: generator.transcribe(features, language="en", max_tokens=count).tokens,
        _generated(model, {"input_features": features[None]}, _said, **_TIMES, max_new_tokens=count),
        count,
    )


_TIMES = {"language": "en", "task": "transcribe", "return_timestamps": True, "return_segments": True}


def _said(made: Any) -> list[int]:
    return [token for segments in made["segments"] for each in segments for token in each["tokens"].tolist()]


def _long_whisper(together: int) -> Any:
    """So many sounds at the same time; a step is one of them."""

    def open_(folder: Path, stack: ExitStack) -> Beside:
        from tools.speech_networks import whisper

        model, count = whisper(), pipelines.TOKENS
        generator = stack.enter_context(Generator(_exported(model, folder, _SPEECH)))
        frames = [3100 + 300 * ((SIZE + k) % pipelines.SIZES) for k in range(together)]
        sounds = [pipelines.normal(80, n) * 2 for n in frames]
        whole = np.stack([np.pad(sound, ((0, 0), (0, max(frames) - sound.shape[1]))) for sound in sounds])
        mask = np.stack([np.arange(max(frames)) < n for n in frames]).astype(np.int64)
        given = {"input_features": whole, "attention_mask": mask}
        return Beside(
            lambda: [t for one in generator.transcribe(sounds, language="en", max_tokens=count) for t in one.tokens],
            _generated(model, given, _said, **_TIMES, max_new_tokens=count, temperature=0.0),
            together,
        )

    return open_


def _moonshine(folder: Path, stack: ExitStack) -> Beside:
    from tools.speech_networks import moonshine

    model, count = moonshine(), pipelines.TOKENS
    generator = stack.enter_context(Generator(_exported(model, folder, _SPEECH)))
    samples = 0.1 * pipelines.normal(9000 * pipelines.SIZES + SIZE)
    settings = {"max_new_tokens": count, "min_new_tokens": count}
    return Beside(
        lambda: generator.generate(samples, max_tokens=count, ignore_end=True).tokens,
        _generated(model, {"input_values": samples[None]}, lambda made: made[0, 1:].tolist(), **settings),
        count,
    )


def _images(folder: Path, stack: ExitStack) -> Beside:
    """Stable Diffusion through diffusers' and Optimum's pipelines."""
    import diffusers
    import torch
    from optimum.onnxruntime import ORTStableDiffusionPipeline

    import vkep.optimum
    from tests.ort.diffusion_forms import export

    diffusers.utils.logging.disable_progress_bar()
    export("StableDiffusion", folder, torch.float32)
    vkep.optimum.register()
    ours = ORTStableDiffusionPipeline.from_pretrained(folder / "onnx", provider="VulkanExecutionProvider")

    def drawn(pipeline: Any) -> Run:
        pipeline.set_progress_bar_config(disable=True)
        settings = {"height": 64 + 16 * SIZE, "width": 64 + 16 * (SIZE % 4), "num_inference_steps": pipelines.STEPS}

        def run() -> Any:
            noise = torch.Generator().manual_seed(0)
            return [np.asarray(pipeline("a red boat", generator=noise, output_type="np", **settings).images)]

        return run

    def made(device: str, compiled: bool) -> Run:
        pipeline = diffusers.StableDiffusionPipeline.from_pretrained(folder / "torch").to(device)
        for part in (pipeline.text_encoder, pipeline.unet, pipeline.vae.decoder) if compiled else ():
            part.compile()
        return drawn(pipeline)

    return Beside(drawn(ours), made, pipelines.STEPS)


def _video_objects(folder: Path, stack: ExitStack) -> Beside:
    """One object in thirty frames."""
    from examples.export_sam2 import export
    from tools.bench.sizes.video import EDGE
    from tools.sam2_video import masks_of, small_model

    count = 3 * pipelines.SIZES
    frames = list(np.random.default_rng(SIZE).standard_normal((count, 1, 3, EDGE, EDGE), np.float32))
    export(small_model(), folder)
    video = stack.enter_context(VideoObjects(folder))

    def run() -> Any:
        video.reset()
        shown = {0: {0: Prompt([(25, 30)])}}
        return [mask for k, frame in enumerate(frames) for mask in video.frame(frame, shown.get(k)).values()]

    def made(device: str, compiled: bool) -> Run:
        model = small_model().to(device)
        for part in model.children() if compiled else ():
            part.compile()
        prompts = {0: {0: ([[25, 30]], [1])}}
        return lambda: [mask for each in masks_of(model, frames, prompts) for mask in each]

    return Beside(run, made, count)


def _alone(name: str) -> Any:
    """The first table's pipeline, whose network `vkep.models` wrote."""

    def open_(folder: Path, stack: ExitStack) -> Beside:
        def none(device: str, compiled: bool) -> Run:
            raise NotImplementedError("no network of torch's is the same")

        opened = pipelines.PIPELINES[name].open(folder, stack)
        return Beside(lambda: opened.run(SIZE), none, opened.steps)

    return open_


#: by the first table's names
ROWS: dict[str, Callable[[Path, ExitStack], Beside]] = {
    "chat": _chat(pipelines.prompt(SIZE)),
    "chat through Optimum": _chat(pipelines.prompt(SIZE), kind="GPT2"),
    "prompts of 819 to 8,192 tokens": _chat(pipelines.long_prompt(SIZE), 1, layers=1),
    "image generation (Stable Diffusion's form)": _images,
    "chat with a draft model": _chat(pipelines.prompt(SIZE), draft=True),
    "transcription (Whisper)": _whisper,
    "transcription of 31 to 58 s, with times": _long_whisper(1),
    "the same of eight sounds together": _long_whisper(8),
    "transcription (Moonshine)": _moonshine,
    "recognition by CTC (wav2vec2, HuBERT, greedy search)": _networks("wav2vec2", "hubert", "greedy CTC"),
    "text to speech (piper's form)": _networks("vits"),
    "semantic search": _networks("bert"),
    "detection (YOLOv8's form)": _networks("yolo"),
    "images and texts (CLIP, SigLIP, BLIP)": _networks("clip", "siglip", "blip"),
    "detection with suppression (YOLOv8's form)": _networks("yolo_nms"),
    "detection without suppression (YOLOv10's and RT-DETR's forms)": _networks("yolo_end", "rt_detr"),
    "objects in videos (SAM 2, 3 to 30 frames)": _video_objects,
    "background removal (U2-Net's form)": _networks("u2net"),
    "upscaling (Real-ESRGAN's two forms)": _networks("esrgan", "pixelshuffle"),
    "frames between frames (RIFE's form)": _networks("frames"),
    "audio separation (Demucs' form)": _networks("demucs"),
    "audio codecs (EnCodec, DAC)": _networks("encodec", "dac"),
}


# ---- what is measured


def _row(name: str, folder: Path, device: str, rounds: int, pipe: Connection) -> None:
    """In a process of its own: prepares the clients, says so, and measures them when the answer comes. Sends the row's cells and
    why some are missing."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    del sys.argv[1:]  # torch.compile writes the word after --only into its code
    with ExitStack() as stack:
        runs, results, notes = dict[str, Run](), dict[str, Any](), list[str]()
        steps, makers = 1, list[Callable[[], Run]]()
        try:
            row = (ROWS.get(name) or _alone(name))(folder, stack)
            steps = row.steps
            makers = [
                lambda: row.ours,
                *[partial(_waiting, row.theirs, device, compiled) for compiled in (False, True)],
            ]
        except Exception as error:
            notes.append(f"not opened: {_said_by(error)}")
        for client, make in zip(CLIENTS, makers, strict=False):
            try:
                run = make()
                results[client] = [_host(run()) for _ in range(BEFORE)][-1]
                runs[client] = run
            except Exception as error:
                notes.append(f"{client}: {_said_by(error)}")
        pipe.send(None)
        pipe.recv()
        spent: dict[str, list[float]] = {client: [] for client in runs}
        for _ in range(rounds):
            for client, run in runs.items():
                start = time.perf_counter()
                run()
                spent[client].append(1e3 * (time.perf_counter() - start) / steps)
        times = [f"{statistics.median(spent[c]):.2f}" if c in spent else "-" for c in CLIENTS]
        both = CLIENTS[0] in results and CLIENTS[1] in results
        pipe.send(([*times, pipelines.compared(*[results[c] for c in CLIENTS[:2]]) if both else "-"], notes))


def _waiting(theirs: Callable[[str, bool], Run], device: str, compiled: bool) -> Run:
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    run = theirs(device, compiled)

    def whole() -> Any:
        with torch.no_grad():
            made = run()
        if device == "cuda":
            torch.cuda.synchronize()
        return made

    return whole


def _host(made: Any) -> Any:
    """Tokens, or the numbers of all tensors."""
    if len(made) == 0 or isinstance(made[0], int):
        return made
    flat = [part for each in made for part in (each if isinstance(each, tuple) else [each])]
    arrays = [
        np.asarray(part.cpu() if hasattr(part, "cpu") else part.numpy() if hasattr(part, "numpy") else part)
        for part in flat
    ]
    return np.concatenate([array.ravel().astype(np.float32) for array in arrays])


def _said_by(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def caption(device: str) -> str:
    """What the figures were measured on."""
    import diffusers
    import torch
    import transformers

    found = select_device(list_devices()).capabilities
    card = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    packages = ", ".join(f"{p.__name__} {p.__version__}" for p in (torch, transformers, diffusers))
    return (
        f"Median milliseconds of a step: vkep on {found.name} with driver {found.driver_info}; on {card}, {packages}."
    )


def table(names: Sequence[str], device: str, rounds: int, jobs: int, limit: float) -> Iterator[str]:
    """The table's lines. Prints why a cell is missing."""
    os.environ |= dict.fromkeys(("TORCHINDUCTOR_COMPILE_THREADS", "OMP_NUM_THREADS"), "1")  # the processes are many
    context, end = multiprocessing.get_context("spawn"), time.monotonic() + limit

    def started(name: str) -> tuple[Any, Connection, str]:
        ours, theirs = context.Pipe()
        folder = Path(tempfile.mkdtemp(dir=parent))
        process = context.Process(target=_row, args=(name, folder, device, rounds, theirs), daemon=True)
        process.start()
        theirs.close()
        why = _answered(ours, max(0, end - time.monotonic()))[1]
        if why:
            process.kill()
        return process, ours, why and f"not prepared in {limit:.0f} s: {why}"

    yield from (caption(device), "", *HEAD)
    with tempfile.TemporaryDirectory() as parent:
        with ThreadPoolExecutor(jobs) as pool:
            prepared = list(pool.map(started, names))
        for name, (process, pipe, why) in zip(names, prepared, strict=True):
            cells, notes = ["-"] * 4, [why]
            if not why:
                pipe.send(None)
                answer, why = _answered(pipe, _LONGEST)
                cells, notes = answer or (cells, [why])
            process.kill()
            process.join()
            for note in notes:
                print(f"{name}: {note}")
            yield f"| {name} | {' | '.join(cells)} |"


def _answered(pipe: Connection, limit: float) -> tuple[Any, str]:
    """What the process sent, or why nothing."""
    try:
        return (pipe.recv(), "") if pipe.poll(limit) else (None, "no answer")
    except EOFError:
        return None, "its process ended"
