"""``python -m tools.pipelines``: whole pipelines, and what each costs: the table of docs/pipelines.md.

    python -m tools.pipelines                     # prints the table
    python -m tools.pipelines --write             # writes it into docs/pipelines.md
    python -m tools.pipelines --only chat --rounds 20
    python -m tools.pipelines --torch cuda --write    # the second table, beside torch: see `tools.beside_torch`

Each pipeline runs a model of ``vkep model`` through its client, or models of `tools.bench.sizes`, which torch exports. Columns:

- **on the device**: the operators of nodes that ran on the CPU, or "all";
- **right**: the comparison with ONNX Runtime's CPU provider: the same tokens, or the largest difference, as a part of the largest
  value;
- **plans**: plans that all sessions of the pipeline made for ten sizes (of prompts, sounds, batches), after those were run;
- **bytes a step**: what a step copies to the device and back; a step is a token, a chunk, a frame or a batch of texts;
- **ms a step**: the median, and that of ONNX Runtime's CPU provider on one thread;
- **memory**: growth over 50 iterations of the device arena, and of the process's resident memory; the arena's peak where the
  client tells it.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import vkep
from tools.cpu_transducer import CpuTransducer
from tools.growth import grown
from tools.heap import resident_mb
from tools.lora import add_lora, drawn_adapter, merged
from tools.ort_cpu import cpu_session
from tools.ort_video import CpuVideo
from tools.speech_rules import chosen_by_rules
from vkep.arena.records import ArenaStats
from vkep.fbank import OnlineFbank
from vkep.generation import Generator
from vkep.generation.audio import log_mel
from vkep.generation.images import Processor
from vkep.generation.speech import segments_of
from vkep.models.language import write_language
from vkep.models.sources import write_sources
from vkep.models.starters import STARTERS
from vkep.models.streams import CHUNKS, FEATURES, FRAMES
from vkep.models.transducer import STEP, VOCABULARY, write_transducer
from vkep.models.vision_language import IMAGE, write_vision_language
from vkep.session.session_state import SessionState
from vkep.streaming import StreamingSession
from vkep.transducer import Recognizer
from vkep.video_objects import Prompt, VideoObjects

PAGE = Path(__file__).resolve().parents[1] / "docs" / "pipelines.md"
BEGIN_TABLE, END_TABLE = "<!-- pipelines: python -m tools.pipelines --write -->", "<!-- end of the pipelines -->"
BEGIN_TORCH = "<!-- beside torch: python -m tools.pipelines --torch cuda --write -->"
END_TORCH = "<!-- end of those beside torch -->"
SIZES, ITERATIONS = 10, 50
#: tokens of an answer, and steps of an image
TOKENS, STEPS = 8, 4
Array = np.ndarray[Any, Any]


@dataclass
class Opened:
    """A pipeline that is open. ``run`` and ``theirs`` (ONNX Runtime's CPU) take a number of 0 to 9, the size; both do ``steps``
    steps and return tokens or an array. ``sessions`` are vkep's. Where the client has its own, ``crossed`` counts bytes and
    ``plans`` plans, and ``stats`` are the arena's."""

    run: Callable[[int], Any]
    theirs: Callable[[int], Any]
    steps: int
    sessions: Sequence[vkep.InferenceSession]
    crossed: Callable[[], Any] | None = None
    plans: Callable[[], int] | None = None
    stats: Callable[[], ArenaStats] | None = None


@dataclass(frozen=True)
class Pipeline:
    """A pipeline by its client. ``open`` gets an empty folder, and a stack that closes what it opens."""

    client: str
    step: str
    open: Callable[[Path, ExitStack], Opened]


# ---- clients' own sessions


@contextmanager
def _transferred() -> Iterator[list[int]]:
    """Counts the bytes that the provider copies between host and device."""
    from vkep.ort.memory.transfers import Transfers

    found, own = [0], Transfers.run

    def counted(self: Transfers, key: Any, hosts: Any, count: int) -> None:
        found[0] += sum(key[2 * k + 1] for k in range(count))
        own(self, key, hosts, count)

    Transfers.run = counted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Transfers.run = own  # type: ignore[method-assign]


def _plans_since_now() -> Callable[[], int]:
    """Counts the plans of the provider's fused nodes that are made from now on."""
    from vkep.ort.boundary import live

    others = {id(node) for node in live("OrtNodeComputeInfo")}

    def count() -> int:
        nodes = [node for node in live("OrtNodeComputeInfo") if id(node) not in others]
        return sum(node.planned.plan_count for node in nodes if hasattr(node, "planned"))

    return count


# ---- ONNX Runtime's CPU, step by step


class CpuDecoder:
    """Greedy tokens of a decoder, with the keys and values of an encoder's source if there is one."""

    def __init__(self, first: Path, later: Path | None = None) -> None:
        self._sessions = [cpu_session(first), cpu_session(later)] if later else [cpu_session(first)] * 2

    def tokens(
        self,
        prompt: Sequence[int],
        count: int,
        known: Mapping[str, Array] | None = None,
        embed: Callable[[Sequence[int]], Array] | None = None,
        choose: Callable[[Array, list[int]], int] = lambda logits, found: int(logits.argmax()),
    ) -> list[int]:
        """``count`` tokens after the prompt; ``embed`` gives tokens' embeddings [1, tokens, hidden] to a decoder of those.
        ``choose`` takes the logits and the tokens so far."""
        held, found, part, done = dict(known or {}), list[int](), list(prompt), 0
        for k in range(count):
            session = self._sessions[k > 0]
            done += len(part)
            feeds = {"input_ids": np.array([part]), "attention_mask": np.ones((1, done), np.int64), **held}
            feeds["position_ids"] = np.arange(done - len(part), done)[None]
            if embed is not None:
                feeds["inputs_embeds"] = embed(part)
            for i in session.get_inputs():
                if i.name.startswith("past") and i.name not in feeds:
                    feeds[i.name] = np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32)
            wanted = {i.name: feeds[i.name] for i in session.get_inputs()}
            results = dict(zip([o.name for o in session.get_outputs()], session.run(None, wanted), strict=True))
            part = [choose(results.pop("logits")[0, -1], found)]
            found += part
            held |= {name.replace("present", "past_key_values"): value for name, value in results.items()}
        return found


def prompt(size: int) -> list[int]:
    return np.random.default_rng(size).integers(1, 250, 4 + 5 * size).tolist()


def long_prompt(size: int) -> list[int]:
    """Of up to 8,192 tokens."""
    return np.random.default_rng(size).integers(1, 250, 8192 * (1 + size) // SIZES).tolist()


# ---- the pipelines


def _chat(folder: Path, stack: ExitStack) -> Opened:
    write_language(folder, "llama")
    generator = stack.enter_context(Generator(folder, max_sequences=1))
    theirs = CpuDecoder(folder / "model.onnx")
    return Opened(
        lambda k: generator.generate(prompt(k), max_tokens=TOKENS, ignore_end=True).tokens,
        lambda k: theirs.tokens(prompt(k), TOKENS),
        TOKENS,
        generator.decoder.sessions,
    )


def _optimum(folder: Path, stack: ExitStack) -> Opened:
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM

    import vkep.optimum

    write_language(folder, "gpt2")
    vkep.optimum.register()
    stack.callback(vkep.optimum.unregister)
    plans = _plans_since_now()
    model = ORTModelForCausalLM.from_pretrained(folder, provider="VulkanExecutionProvider")
    theirs = CpuDecoder(folder / "model.onnx")

    def run(size: int) -> list[int]:
        ids = torch.tensor([prompt(size)])
        mask, count = torch.ones_like(ids), {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS}
        return model.generate(input_ids=ids, attention_mask=mask, pad_token_id=0, **count)[0, ids.shape[1] :].tolist()

    return Opened(run, lambda k: theirs.tokens(prompt(k), TOKENS), TOKENS, [], _transferred, plans)


def _chat_image(folder: Path, stack: ExitStack) -> Opened:
    write_vision_language(folder)
    generator = stack.enter_context(Generator(folder, max_sequences=1))
    decoder = CpuDecoder(folder / "onnx" / "decoder_model_merged.onnx")
    texts, vision = (cpu_session(folder / "onnx" / f"{name}.onnx") for name in ("embed_tokens", "vision_encoder"))
    processor = Processor.of(folder)

    def picture(size: int) -> Array:
        return np.random.default_rng(size).integers(0, 256, (30 + 10 * size, 40, 3), np.uint8)

    def expected(size: int) -> list[int]:
        (features,) = vision.run(None, {"pixel_values": processor.pixels(picture(size)).values})

        def embed(part: Sequence[int]) -> Array:
            shown = np.equal(part, IMAGE)
            (found,) = texts.run(None, {"input_ids": np.where(shown, 0, part)[None]})
            found[0, shown] = features.reshape(-1, found.shape[2])[: shown.sum()]
            return np.asarray(found)

        return decoder.tokens([*[IMAGE] * features.shape[1], *prompt(size)], TOKENS, embed=embed)

    return Opened(
        lambda k: (
            generator.generate([IMAGE, *prompt(k)], images=[picture(k)], max_tokens=TOKENS, ignore_end=True).tokens
        ),
        expected,
        TOKENS,
        generator.decoder.sessions,
    )


def _images_in(max_memory: int, folder: Path, stack: ExitStack) -> Opened:
    """``max_memory``: of the device, in bytes (0: no limit)."""
    import diffusers
    import onnxruntime
    import torch
    from optimum.onnxruntime import ORTStableDiffusionPipeline

    import vkep.optimum

    diffusers.utils.logging.set_verbosity_error()
    STARTERS["diffusion"].write(folder)
    vkep.optimum.register()
    stack.callback(vkep.optimum.unregister)
    plans, one_thread = _plans_since_now(), onnxruntime.SessionOptions()
    one_thread.intra_op_num_threads = 1
    pipelines = [
        ORTStableDiffusionPipeline.from_pretrained(folder, **options)
        for options in (
            {
                "provider": "VulkanExecutionProvider",
                "provider_options": {"max_memory": max_memory} if max_memory else {},
            },
            {"session_options": one_thread},
        )
    ]

    def drawn(pipeline: Any) -> Callable[[int], Array]:
        pipeline.set_progress_bar_config(disable=True)

        def run(size: int) -> Array:
            settings = {"height": 64 + 16 * size, "width": 64 + 16 * (size % 4), "num_inference_steps": STEPS}
            noise = torch.Generator().manual_seed(size)
            return np.asarray(pipeline("a red boat", generator=noise, output_type="np", **settings).images)

        return run

    ours, theirs = map(drawn, pipelines)
    return Opened(ours, theirs, STEPS, [], _transferred, plans, vkep.ort.memory_stats)


def _transcription(folder: Path, stack: ExitStack) -> Opened:
    STARTERS["whisper"].write(folder)
    generator = stack.enter_context(Generator(folder))
    start = generator.decoder.folder.start_tokens
    encoder = cpu_session(folder / "encoder_model.onnx")
    theirs = CpuDecoder(folder / "decoder_model.onnx", folder / "decoder_with_past_model.onnx")

    def sound(size: int) -> Array:
        return np.random.default_rng(size).normal(0, 0.1, 16000 * (1 + size)).astype(np.float32)

    def expected(size: int) -> list[int]:
        (states,) = encoder.run(None, {"input_features": log_mel(sound(size), folder)[None]})
        return theirs.tokens(start, TOKENS, {"encoder_hidden_states": states})

    return Opened(
        lambda k: generator.generate(sound(k), max_tokens=TOKENS, ignore_end=True).tokens,
        expected,
        TOKENS,
        generator.decoder.sessions,
    )


def _long_transcription(together: int) -> Any:
    """So many sounds at the same time; a step is one of them."""

    def open_(folder: Path, stack: ExitStack) -> Opened:
        STARTERS["whisper"].write(folder)
        generator = stack.enter_context(Generator(folder))
        encoder = cpu_session(folder / "encoder_model.onnx")
        theirs = CpuDecoder(folder / "decoder_model.onnx", folder / "decoder_with_past_model.onnx")
        speech = generator.decoder.folder.speech
        assert speech is not None
        start = speech.start("en", "transcribe", times=True)

        def sounds(size: int) -> list[Array]:
            return [normal(80, 3100 + 300 * ((size + k) % SIZES)) * 2 for k in range(together)]

        def one(features: Array) -> list[int]:
            seek, found = 0, list[int]()
            while seek < features.shape[1]:
                part = features[:, seek : seek + 3000]
                window = np.pad(part, ((0, 0), (0, 3000 - part.shape[1])))
                (states,) = encoder.run(None, {"input_features": window[None]})
                tokens = theirs.tokens(start, TOKENS, {"encoder_hidden_states": states}, choose=chosen_by_rules)
                tokens = tokens[: tokens.index(speech.end)] if speech.end in tokens else tokens
                segments, frames = segments_of(speech, tokens, part.shape[1])
                found += [token for _, _, more in segments for token in more]
                seek += frames
            return found

        return Opened(
            lambda k: [t.tokens for t in generator.transcribe(sounds(k), language="en", max_tokens=TOKENS)],
            lambda k: [one(sound) for sound in sounds(k)],
            together,
            generator.decoder.sessions,
        )

    return open_


def _speculation(folder: Path, stack: ExitStack) -> Opened:
    for name, layers in (("model", 2), ("draft", 1)):
        write_language(folder / name, "llama", layers=layers)
    generator = stack.enter_context(Generator(folder / "model", draft=folder / "draft", max_sequences=1))
    theirs = CpuDecoder(folder / "model" / "model.onnx")
    return Opened(
        lambda k: generator.generate(prompt(k), max_tokens=TOKENS, ignore_end=True).tokens,
        lambda k: theirs.tokens(prompt(k), TOKENS),
        TOKENS,
        [*generator.decoder.sessions, *generator.draft_sessions],
    )


def _moonshine(folder: Path, stack: ExitStack) -> Opened:
    write_sources(folder, "moonshine")
    generator = stack.enter_context(Generator(folder))
    encoder = cpu_session(folder / "encoder_model.onnx")
    theirs = CpuDecoder(folder / "decoder_model.onnx", folder / "decoder_with_past_model.onnx")

    def sound(size: int) -> Array:
        return 0.1 * normal(9000 * (1 + size) + size)

    def expected(size: int) -> list[int]:
        feeds = {"input_values": sound(size)[None], "attention_mask": np.ones((1, sound(size).size), np.int64)}
        (states,) = encoder.run(None, feeds)
        return theirs.tokens(generator.decoder.folder.start_tokens, TOKENS, {"encoder_hidden_states": states})

    return Opened(
        lambda k: generator.generate(sound(k), max_tokens=TOKENS, ignore_end=True).tokens,
        expected,
        TOKENS,
        generator.decoder.sessions,
    )


def _adapters(folder: Path, stack: ExitStack) -> Opened:
    """Two adapters and the model alone, in one batch; a step is a token of each."""
    write_language(folder, "llama", layers=1)
    sizes, names = add_lora(folder / "model.onnx"), ("one", "two", "")
    files = {name: folder / f"{name}.onnx_adapter" for name in names}
    weights = {name: drawn_adapter(sizes, rank, rank, files[name]) for name, rank in zip(names, (4, 8, 0), strict=True)}
    theirs = {
        name: CpuDecoder(merged(folder / "model.onnx", folder / f"{name}_.onnx", weights[name])) for name in names
    }
    generator = stack.enter_context(Generator(folder, max_sequences=len(names)))
    for name in names[:-1]:
        generator.load_adapter(files[name], name)
    batch = generator.batch()
    stack.callback(batch.close)

    def run(size: int) -> list[int]:
        answers = [
            batch.add(prompt(size), generator.sampling(adapter=name, max_tokens=TOKENS, ignore_end=True))
            for name in names
        ]
        while batch.in_progress:
            batch.step()
        return [token for answer in answers for token in answer.tokens]

    return Opened(
        run,
        lambda k: [token for name in names for token in theirs[name].tokens(prompt(k), TOKENS)],
        TOKENS,
        generator.decoder.sessions,
    )


def _long_prompts(folder: Path, stack: ExitStack) -> Opened:
    """A step is a prompt of up to 8,192 tokens and the first token of its answer; no caches are kept."""
    write_language(folder, "llama", context=16384, layers=1)
    generator = stack.enter_context(Generator(folder, max_sequences=1))
    theirs = CpuDecoder(folder / "model.onnx")

    def run(size: int) -> list[int]:
        batch = generator.batch()
        answer = batch.add(long_prompt(size), generator.sampling(max_tokens=1, ignore_end=True))
        while batch.in_progress:
            batch.step()
        batch.close()
        return answer.tokens

    return Opened(run, lambda k: theirs.tokens(long_prompt(k), 1), 1, generator.decoder.sessions)


def _stream(name: str, constants: Mapping[str, int], feed: Callable[[int], dict[str, Array]], output: str) -> Any:
    def open_(folder: Path, stack: ExitStack) -> Opened:
        path = folder / "model.onnx"
        STARTERS[name].write(path)
        session = stack.enter_context(StreamingSession(path, constants=constants))
        theirs = cpu_session(path)
        with session.copy() as first:
            empty = {n: t.numpy() for n, t in first.tensors.items()}
        given = {n: np.array(v) for n, v in constants.items()}
        names = [o.name for o in theirs.get_outputs()]

        def expected(size: int) -> Array:
            states = empty
            for _ in range(2):
                results = dict(zip(names, theirs.run(None, {**feed(size), **states, **given}), strict=True))
                states = {n: results[o] for o, n in session.states.items()}
            return results[output]

        def run(size: int) -> Any:
            session.reset()
            return [session.run([output], feed(size))[0] for _ in range(2)][-1]

        return Opened(run, expected, 2, [session.session])

    return open_


def _transducer(folder: Path, stack: ExitStack) -> Opened:
    write_transducer(folder)
    recognizer = stack.enter_context(Recognizer(folder))
    theirs = CpuTransducer(folder)

    def sound(size: int) -> Array:
        return 0.1 * normal(16000 * (1 + size))

    def run(size: int) -> list[int]:
        recognizer.reset(0)
        recognizer.accept(0, sound(size))
        recognizer.decode()
        return recognizer.tokens(0)

    def expected(size: int) -> list[int]:
        return theirs.tokens(OnlineFbank().accept(sound(size)), VOCABULARY - 1)

    chunks = len(OnlineFbank().accept(sound(SIZES - 1))) // STEP
    return Opened(run, expected, chunks, [recognizer.encoder.session, recognizer.search.session])


def _session(name: str, feed: Callable[[int], dict[str, Array]]) -> Any:
    def open_(folder: Path, stack: ExitStack) -> Opened:
        path = folder / "model.onnx"
        STARTERS[name].write(folder if name == "sentences" else path)
        session, theirs = stack.enter_context(vkep.InferenceSession(path)), cpu_session(path)
        return Opened(lambda k: session.run(None, feed(k))[0], lambda k: theirs.run(None, feed(k))[0], 1, [session])

    return open_


def network(name: str, folder: Path, stack: ExitStack) -> tuple[Path, vkep.InferenceSession, list[dict[str, Array]]]:
    """A model of `tools.bench.sizes`: its file, a session, and inputs at ten sizes."""
    from tools.bench.sizes.networks import NETWORKS

    found, path = NETWORKS[name], folder / f"{name}.onnx"
    found.write(path)
    session, rng = stack.enter_context(vkep.InferenceSession(path)), np.random.default_rng(0)
    inputs = session.get_inputs()
    dims = list(dict.fromkeys(d for i in inputs for d in i.shape or () if isinstance(d, str)))
    return path, session, [found.feeds(inputs, found.draw(dims, rng), rng) for _ in range(SIZES)]


def _networks(*names: str) -> Any:
    """Models of `tools.bench.sizes`, one after another, at ten sizes each."""

    def open_(folder: Path, stack: ExitStack) -> Opened:
        paths, ours, feeds = zip(*[network(name, folder, stack) for name in names], strict=True)
        theirs = [cpu_session(path) for path in paths]

        def joined(sessions: Sequence[Any], size: int) -> Array:
            results = [
                r for session, given in zip(sessions, feeds, strict=True) for r in session.run(None, given[size])
            ]
            return np.concatenate([r.ravel() for r in results])

        return Opened(lambda k: joined(ours, k), lambda k: joined(theirs, k), 1, ours)

    return open_


def _video_objects(folder: Path, stack: ExitStack) -> Opened:
    """Whole videos of transformers' SAM 2, in which one to three objects begin."""
    from examples.export_sam2 import export
    from tools.bench.sizes.video import EDGE
    from tools.sam2_video import small_model

    export(small_model(), folder)
    video, theirs = stack.enter_context(VideoObjects(folder)), CpuVideo(folder)

    def masks(one: VideoObjects | CpuVideo, size: int) -> Array:
        one.reset()
        shown = {3 * k: {k: Prompt([(20 + 5 * k, 30)])} for k in range(1 + size % 3)}
        frames = np.random.default_rng(size).standard_normal((3 + 3 * size, 1, 3, EDGE, EDGE), np.float32)
        found = [one.frame(frame, shown.get(k)) for k, frame in enumerate(frames)]
        return np.concatenate([mask.ravel() for each in found for mask in each.values()])

    return Opened(lambda k: masks(video, k), lambda k: masks(theirs, k), 3 * SIZES, list(video.sessions.values()))


def normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def _texts(size: int) -> dict[str, Array]:
    ids = np.random.default_rng(size).integers(1, 250, (4, 5 + 9 * size))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _phonemes(size: int) -> dict[str, Array]:
    """Without noise, which would differ."""
    ids = np.random.default_rng(size).integers(1, 250, (1, 5 + 7 * size))
    return {"input": ids, "input_lengths": np.array([ids.size]), "scales": np.array([0, 1, 0], np.float32)}


PIPELINES = {
    "chat": Pipeline("`vkep.generation`", "a token", _chat),
    "chat through Optimum": Pipeline("`ORTModelForCausalLM`, `vkep.optimum`", "a token", _optimum),
    "chat with two LoRA adapters and none": Pipeline("`vkep.generation`", "a token of each", _adapters),
    "prompts of 819 to 8,192 tokens": Pipeline("`vkep.generation`", "a prompt", _long_prompts),
    "chat about an image": Pipeline("`vkep.generation`", "a token", _chat_image),
    "image generation (Stable Diffusion's form)": Pipeline(
        "`ORTStableDiffusionPipeline`, `vkep.optimum`", "a step", partial(_images_in, 0)
    ),
    "the same in less memory": Pipeline(
        "`ORTStableDiffusionPipeline`, `max_memory`", "a step", partial(_images_in, 16 << 20)
    ),
    "chat with a draft model": Pipeline("`vkep.generation`", "a token", _speculation),
    "transcription (Whisper)": Pipeline("`vkep.generation`", "a token", _transcription),
    "transcription of 31 to 58 s, with times": Pipeline("`vkep.generation`", "a sound", _long_transcription(1)),
    "the same of eight sounds together": Pipeline("`vkep.generation`", "a sound", _long_transcription(8)),
    "transcription (Moonshine)": Pipeline("`vkep.generation`", "a token", _moonshine),
    "recognition by CTC (wav2vec2, HuBERT, greedy search)": Pipeline(
        "`vkep.InferenceSession`, three", "a sound", _networks("wav2vec2", "hubert", "greedy CTC")
    ),
    "voice activity (silero-vad's form)": Pipeline(
        "`vkep.streaming`",
        "a chunk",
        _stream("vad", {"sr": 16000}, lambda k: {"input": normal(1, CHUNKS[16000] + 32 * k)}, "output"),
    ),
    "streaming recognizer, 30 states": Pipeline(
        "`vkep.streaming`",
        "a chunk",
        _stream("recognizer", {}, lambda k: {"x": normal(1, FRAMES, FEATURES)}, "log_probs"),
    ),
    "streaming transducer, whole (icefall's files)": Pipeline("`vkep.transducer`", "a chunk", _transducer),
    "text to speech (piper's form)": Pipeline("`vkep.InferenceSession`", "a text", _session("voice", _phonemes)),
    "semantic search": Pipeline("`vkep.InferenceSession`", "four texts", _session("sentences", _texts)),
    "detection (YOLOv8's form)": Pipeline(
        "`vkep.InferenceSession`", "ten frames", _session("detector", lambda k: {"images": normal(1 + k, 3, 64, 64)})
    ),
    "images and texts (CLIP, SigLIP, BLIP)": Pipeline(
        "`vkep.InferenceSession`, three", "texts and images", _networks("clip", "siglip", "blip")
    ),
    "detection with suppression (YOLOv8's form)": Pipeline("`vkep.InferenceSession`", "a frame", _networks("yolo_nms")),
    "detection without suppression (YOLOv10's and RT-DETR's forms)": Pipeline(
        "`vkep.InferenceSession`, two", "a frame", _networks("yolo_end", "rt_detr")
    ),
    "objects in videos (SAM 2, 3 to 30 frames)": Pipeline("`vkep.video_objects`", "a frame", _video_objects),
    "background removal (U2-Net's form)": Pipeline("`vkep.InferenceSession`", "an image", _networks("u2net")),
    "upscaling (Real-ESRGAN's two forms)": Pipeline(
        "`vkep.InferenceSession`, two", "an image", _networks("esrgan", "pixelshuffle")
    ),
    "frames between frames (RIFE's form)": Pipeline("`vkep.InferenceSession`", "a frame", _networks("frames")),
    "audio separation (Demucs' form)": Pipeline("`vkep.InferenceSession`", "a sound", _networks("demucs")),
    "audio codecs (EnCodec, DAC)": Pipeline("`vkep.InferenceSession`, two", "a sound", _networks("encodec", "dac")),
}


# ---- what is measured


@contextmanager
def crossing() -> Iterator[list[int]]:
    """Counts the bytes that vkep's sessions copy between host and device. A token that the host reads counts too."""
    found, own = [0], SessionState.execute

    def counted(self: SessionState, values: Any, targets: Any, options: Any) -> None:
        found[0] += sum(v.nbytes for v in values.values() if isinstance(v, np.ndarray))
        own(self, values, targets, options)
        results = (values.get(name) for name in self.outputs if name not in targets)
        found[0] += sum(v.nbytes for v in results if isinstance(v, np.ndarray))
        found[0] += sum(t.nbytes for t in targets.values() if t is not None and t.in_host_memory)

    SessionState.execute = counted  # type: ignore[assignment,method-assign]
    try:
        yield found
    finally:
        SessionState.execute = own  # type: ignore[method-assign]


class _Warnings(logging.Handler):
    """The provider's warnings of nodes that other providers run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "run on other providers" in record.getMessage():
            self.found.append(record.getMessage())


def compared(ours: Any, theirs: Any) -> str:
    if isinstance(ours, list):
        return "same tokens" if ours == theirs else f"tokens differ: {ours}, {theirs}"
    if ours.shape != theirs.shape:
        return f"shapes differ: {ours.shape}, {theirs.shape}"
    return f"difference {np.abs(ours - theirs).max() / np.abs(theirs).max():.0e}"


def _times(run: Callable[[int], Any], rounds: int, steps: int) -> float:
    spent = []
    for _ in range(rounds):
        start = time.perf_counter()
        run(SIZES - 1)
        spent.append(1e3 * (time.perf_counter() - start) / steps)
    return statistics.median(spent)


def _kib(nbytes: float) -> str:
    return f"{nbytes / 1024:.1f} KiB"


def measure(name: str, pipeline: Pipeline, rounds: int) -> str:
    """A row of the table."""
    warnings = _Warnings()
    logging.getLogger("vkep.ort").addHandler(warnings)
    try:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            opened = pipeline.open(Path(folder), stack)
            return f"| {name} | {pipeline.client} | {' | '.join(_columns(opened, pipeline.step, rounds, warnings))} |"
    except ImportError as error:
        return f"| {name} | {pipeline.client} | not run: needs {error.name} | | | | | | |"
    finally:
        logging.getLogger("vkep.ort").removeHandler(warnings)


def _columns(opened: Opened, step: str, rounds: int, warnings: _Warnings) -> list[str]:
    right = [compared(opened.run(k), opened.theirs(k)) for k in range(SIZES)]
    wrong = [r for r in right if "differ:" in r]
    worst = wrong[0] if wrong else max(right, key=lambda r: float(r.split()[-1]) if "difference" in r else 0)
    cpu = sorted({n.op_type for s in opened.sessions for n in s.report().nodes if n.where == "cpu"})
    with (opened.crossed or crossing)() as crossed:
        opened.run(SIZES - 1)
    ours = _times(opened.run, rounds, opened.steps)
    theirs = _times(opened.theirs, rounds, opened.steps)
    arena, resident = [], []
    for k in range(ITERATIONS):
        opened.run(k % SIZES)
        arena.append(sum(s.memory().arena.bytes_in_use for s in opened.sessions[:1]))
        resident.append(resident_mb())
    plans = opened.plans() if opened.plans else sum(s._parts.graph.plan_count for s in opened.sessions)
    memory = (
        f"{_kib(grown(arena))}, {grown(resident):.1f} MB" if opened.sessions else f"{grown(resident):.1f} MB (process)"
    )
    if opened.stats:
        stats = opened.stats()
        limit = f" of {stats.bytes_limit >> 20}" if stats.bytes_limit else ""
        memory += f"; peak {stats.max_bytes_in_use / 2**20:.1f}{limit} MiB"
    return [
        "all" if not cpu and not warnings.found else ", ".join(cpu) or "; ".join(warnings.found),
        worst,
        str(plans),
        f"{_kib(crossed[0] / opened.steps)}, {step}",
        f"{ours:.2f}",
        f"{theirs:.2f}",
        memory,
    ]


def table(names: Sequence[str], rounds: int) -> Iterator[str]:
    """The table's lines."""
    yield "| pipeline | client | on the device | right | plans | bytes a step | ms a step | ONNX Runtime's CPU | memory |"
    yield "|---|---|---|---|---:|---|---:|---:|---|"
    for name in names:
        yield measure(name, PIPELINES[name], rounds)


def _write(begin: str, end: str, lines: Sequence[str]) -> None:
    """Write rows, and what is above them, between two lines of the page. Rows that were not measured now stay, if what is above
    them does."""
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    table_, after = rest.split(end)
    first = [line.startswith("|---") for line in lines].index(True) + 1
    earlier = table_.strip().splitlines()
    rows = (*earlier[first:], *lines[first:]) if earlier[:first] == list(lines[:first]) else lines[first:]
    by_name = {line.split("|")[1].strip(): line for line in rows}
    kept = [by_name[name] for name in PIPELINES if name in by_name]
    PAGE.write_text(before + "\n".join([begin, *lines[:first], *kept, end]) + after, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the table. Exit status 1 where a result differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.pipelines", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(PIPELINES), default=list(PIPELINES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help=f"write these rows into the table of {PAGE.name}")
    parser.add_argument("--torch", choices=["cuda", "cpu"], help="the second table: beside torch on that device")
    parser.add_argument("--jobs", type=int, default=14, help="of --torch: rows that are prepared at the same time")
    parser.add_argument("--limit", type=float, default=380, help="of --torch: seconds in which all rows are prepared")
    given = parser.parse_args(arguments)
    if given.torch:
        from tools import beside_torch

        marks = BEGIN_TORCH, END_TORCH
        lines_of = beside_torch.table(given.only, given.torch, given.rounds, given.jobs, given.limit)
    else:
        marks, lines_of = (BEGIN_TABLE, END_TABLE), table(given.only, given.rounds)
    lines = []
    for line in lines_of:
        print(line, flush=True)
        lines.append(line)
        if given.write and any(
            line.startswith("|---") for line in lines
        ):  # what is measured is not lost by a later row
            _write(*marks, lines)
    return int(any("differ:" in line for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
