"""Folders of language models, as onnxruntime-genai's builder and optimum write them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vkep.errors import InvalidInputError, InvalidModelError
from vkep.files import file_inside, file_status, read_file
from vkep.generation.sampling import Sampling
from vkep.generation.speech import NO_TIMES, PREVIOUS, Speech
from vkep.text import shown

GENAI, CONFIG, GENERATION = "genai_config.json", "config.json", "generation_config.json"
TOKENIZER = "tokenizer.json"
#: limits of what a folder may say: its files come from strangers
_MOST_BYTES, _MOST_LAYERS, _MOST_TOKENS = 1 << 28, 1024, 1 << 20
#: settings of an answer that a folder may have
_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
#: files of optimum and transformers.js: the encoder, the decoder of the first token, that of later ones, or both in one
ENCODER, FIRST, LATER, MERGED = (
    "encoder_model.onnx",
    "decoder_model.onnx",
    "decoder_with_past_model.onnx",
    "decoder_model_merged.onnx",
)
#: files of transformers.js for a decoder that reads embeddings in place of tokens: what makes these of tokens, and of images
EMBEDDINGS, VISION = "embed_tokens.onnx", "vision_encoder.onnx"
#: files of a decoder; first those that serve both prompts and single tokens
DECODERS = ("model.onnx", MERGED, LATER)
#: names of a sequence's maximum length in configurations of various models
_CONTEXT = (
    "max_target_positions",
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)
#: what Whisper's answers begin with: English, transcribed, without times
_START = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
#: names of the token that stands for an image in a prompt
_IMAGE_TOKENS = ("image_token_id", "image_token_index")
#: kinds of models whose images are cut into tiles
_TILED = ("idefics3", "smolvlm")
#: kinds of models whose texts number images, and what follows an image in a message
_NUMBERED = {"phi3v": "\n", "phi4mm": ""}
#: names in genai_config.json of the encoder's inputs, and in models
_GENAI_INPUTS = {
    "vision": {"attention_mask": "image_attention_mask"},
    "speech": {"attention_mask": "audio_attention_mask"},
}
#: patterns in genai_config.json of the names of caches, and of states that recurrent layers have in their place
_PAST = re.compile(r"past_(\w+)_names")


@dataclass(frozen=True)
class SoundFolder:
    """The encoder of sounds in prompts; ``root``, ``steps``, ``inputs`` and ``adapter`` as of `VisionFolder`."""

    root: Path
    path: Path
    steps: str
    inputs: Mapping[str, str]
    adapter: Path | None = None


@dataclass(frozen=True)
class VisionFolder:
    """The encoder of images. In a prompt the token ``mark`` (-1: none, images are before the prompt) stands for an image: it
    becomes the text ``before``, the image's features, and the text ``after``."""

    root: Path  #: the model's folder, whose files say how images are read
    path: Path
    mark: int
    before: str = ""
    after: str = ""
    tiled: bool = False  #: whether an image is cut into tiles, whose rows and columns the prompt names (Idefics 3)
    #: what follows an image in a message where texts number them, as ``<|image_1|>`` (Phi), and tokens as -1; None: they do not
    numbered: str | None = None
    steps: str = ""  #: the file that says how images are read, where the folder names it
    inputs: Mapping[str, str] = field(
        default_factory=dict
    )  #: roles of the encoder's inputs by name, where they are not the usual ones
    adapter: Path | None = None  #: LoRA weights of prompts with images
    sounds: SoundFolder | None = None


@dataclass(frozen=True)
class ModelFolder:
    """The configuration of a model. ``context`` is the maximum number of tokens of a sequence (0: unknown); ``caches``
    maps past inputs to the present outputs that replace them, where the folder lists them."""

    path: Path
    decoder: Path
    kind: str
    context: int
    end_tokens: frozenset[int]
    defaults: Sampling
    caches: Mapping[str, str]
    inputs: Mapping[str, str]  #: roles of the model's inputs by name, where the names are not the usual ones
    heads: int = 0  #: of keys and values; 0: the model's inputs have it
    head_size: int = 0  #: as ``heads``
    encoder: Path | None = None  #: of a model that reads a source
    start_tokens: tuple[int, ...] = ()  #: the first tokens of its answers
    never: tuple[int, ...] = ()  #: tokens that are never chosen
    never_first: tuple[int, ...] = ()  #: tokens that are never the first of an answer
    audio: str = "input_features"  #: the encoder's input of features, where it reads audio
    cross: Mapping[str, str] = field(default_factory=dict)  #: encoder's outputs that are the decoder's inputs, by name
    speech: Speech | None = None  #: of a model of speech whose answers may have times
    embeddings: Path | None = None  #: of a decoder that reads embeddings: what makes them of tokens
    vision: VisionFolder | None = None

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a ``tokenizer.json``."""
        return (self.path / TOKENIZER).is_file()


def read_folder(path: str | Path) -> ModelFolder:
    """Read ``genai_config.json``, or ``config.json`` with ``generation_config.json``.

    Raises ``FileNotFoundError`` where the folder or one of its files does not exist, `InvalidModelError` for a file
    that cannot be read, `UnsupportedModelError` for a kind of model that generation does not support.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not a folder; expected one with {GENAI} or {CONFIG} beside the model's files"
        )
    if (folder / GENAI).is_file():
        return _genai(folder, Record.read(folder, GENAI))
    if (folder / CONFIG).is_file():
        return _optimum(folder, Record.read(folder, CONFIG))
    raise FileNotFoundError(f"{folder} has neither {GENAI} (onnxruntime-genai) nor {CONFIG} (optimum)")


def read_text(folder: Path, name: str) -> str:
    """The text of a file of a folder. Raises `InvalidModelError` where it is no regular file inside the folder, is too large, or
    is not UTF-8."""
    path = file_inside(folder, name, InvalidModelError)
    if file_status(path, error=InvalidModelError).st_size > _MOST_BYTES:
        raise InvalidModelError(f"{path}: has more than {_MOST_BYTES} bytes")
    try:
        return read_file(path, error=InvalidModelError).decode()
    except ValueError as error:
        raise InvalidModelError(f"{path}: is not UTF-8 ({error})") from None


class Record:
    """An object of a JSON file, whose values are checked when they are read. Raises `InvalidModelError` with the file's name."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise InvalidModelError(f"{where}: expected an object, found {type(values).__name__}")
        self.values, self.where = values, where

    @classmethod
    def read(cls, folder: Path, name: str, needed: bool = True) -> Record:
        """The object in a file; without ``needed`` an empty one where there is no file. Raises `InvalidModelError`."""
        if not needed and not os.path.lexists(folder / name):
            return cls({}, str(folder / name))
        try:
            return cls(json.loads(read_text(folder, name)), str(folder / name))
        except (ValueError, RecursionError) as error:
            if isinstance(error, InvalidModelError):
                raise
            raise InvalidModelError(f"{folder / name}: no JSON ({error})") from None

    def record(self, name: str, needed: bool = True) -> Record:
        """An object in it; without ``needed`` an empty one where it is absent or null."""
        value = self._value(name, needed)
        return Record({} if value is None else value, f"{self.where}: {name}")

    def text(self, name: str, default: str | None = None) -> str:
        """A text."""
        value = self._value(name, default is None)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        return value if value is not None else default or ""

    def number(self, name: str, default: int | None = None, most: int = 2**31 - 1) -> int:
        """A whole number of 0 to ``most``."""
        value = self._value(name, default is None)
        if value is None:
            return default or 0
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise self._wrong(name, value, f"a whole number of 0 to {most}")
        return value

    def first(self, *names: str) -> int:
        """The first of some numbers that is there and not 0; 0 without any."""
        return next((found for name in names if (found := self.number(name, 0))), 0)

    def tokens(self, name: str) -> tuple[int, ...]:
        """Token ids: one, or a list of them."""
        value = self._value(name, False)
        ids = value if isinstance(value, list) else [value] if value is not None else []
        if len(ids) > _MOST_TOKENS or not all(type(i) is int and -1 <= i < 1 << 31 for i in ids):
            raise self._wrong(name, value, "a token id, or a list of them")
        return tuple(i for i in ids if i >= 0)

    def names(self, name: str, count: int) -> list[str]:
        """The names of ``count`` layers, from a text with %d for the layer's number."""
        pattern = self.text(name)
        if pattern.count("%") != 1 or "%d" not in pattern:
            raise self._wrong(name, pattern, "a text with one %d")
        return [pattern.replace("%d", str(k)) for k in range(count)]

    def _value(self, name: str, needed: bool) -> Any:
        value = self.values.get(name)
        if value is None and needed:
            raise InvalidModelError(f"{self.where}: has no {name!r}")
        return value

    def _wrong(self, name: str, value: Any, expected: str) -> InvalidModelError:
        return InvalidModelError(f"{self.where}: {name} is {shown(value)}, expected {expected}")


def _genai(folder: Path, config: Record) -> ModelFolder:
    model = config.record("model")
    decoder = model.record("decoder")
    inputs, outputs = decoder.record("inputs", needed=False), decoder.record("outputs", needed=False)
    layers = decoder.number("num_hidden_layers", most=_MOST_LAYERS)
    caches = {
        past: present
        for part in inputs.values
        if (named := _PAST.fullmatch(part)) and (other := f"present_{named[1]}_names") in outputs.values
        for past, present in zip(inputs.names(part, layers), outputs.names(other, layers), strict=True)
    }
    names = {name: what for what, name in inputs.values.items() if isinstance(name, str) and "%" not in name}
    found = ModelFolder(
        folder,
        _file(folder, decoder.text("filename"), GENAI),
        model.text("type", ""),
        model.number("context_length", 0),
        frozenset(model.tokens("eos_token_id")),
        _defaults(config.record("search", needed=False)),
        caches,
        names,
        decoder.number("num_key_value_heads", 0),
        decoder.number("head_size", 0),
    )
    if "embedding" in model.values:
        embeddings = _file(folder, model.record("embedding").text("filename"), GENAI)
        found = replace(found, embeddings=embeddings, vision=_genai_vision(found, model))
    return _genai_encoder(found, model) if "encoder" in model.values else found


def _genai_vision(found: ModelFolder, model: Record) -> VisionFolder | None:
    vision = model.record("vision", needed=False)
    if not vision.values:
        return None
    path = _file(found.path, vision.text("filename"), GENAI)
    config = Record.read(found.path, CONFIG, needed=False)
    made = _vision(path, found.kind, Record({**config.values, **model.values}, model.where), found.path)
    steps, inputs, adapter = _genai_steps(found.path, vision, _GENAI_INPUTS["vision"])
    speech = model.record("speech", needed=False)
    sounds = None
    if speech.values and found.kind in _NUMBERED:
        file = _file(found.path, speech.text("filename"), GENAI)
        sounds = SoundFolder(found.path, file, *_genai_steps(found.path, speech, _GENAI_INPUTS["speech"]))
    return made and replace(made, steps=steps, inputs=inputs, adapter=adapter, sounds=sounds)


def _genai_steps(folder: Path, part: Record, names: Mapping[str, str]) -> tuple[str, dict[str, str], Path | None]:
    """Of a part of genai_config.json: the file of its steps, the roles of its inputs by name, its LoRA weights."""
    adapter, given = part.text("adapter_filename", ""), part.record("inputs", needed=False).values.items()
    inputs = {name: names.get(what) or what for what, name in given if isinstance(name, str)}
    return part.text("config_filename", ""), inputs, _file(folder, adapter, GENAI) if adapter else None


def _vision(path: Path, kind: str, config: Record, folder: Path) -> VisionFolder | None:
    """The encoder of images of a model; None where no file says which token stands for an image."""
    mark = next((t for name in _IMAGE_TOKENS for t in config.tokens(name)), -1 if kind == "florence2" else None)
    if kind in _NUMBERED:
        return VisionFolder(folder, path, -1, numbered=_NUMBERED[kind])
    if kind.startswith("gemma3"):
        tokenizer = Record.read(folder, "tokenizer_config.json", needed=False)
        texts = [
            tokenizer.text(*names) for names in (("boi_token", "<start_of_image>"), ("eoi_token", "<end_of_image>"))
        ]
        begin = next(iter(config.tokens("boi_token_index")), _added_tokens(folder).get(texts[0]))
        return VisionFolder(folder, path, begin, f"\n\n{texts[0]}", f"{texts[1]}\n\n") if begin is not None else None
    return VisionFolder(folder, path, mark, tiled=kind in _TILED) if mark is not None else None


def _genai_encoder(found: ModelFolder, model: Record) -> ModelFolder:
    """Add the encoder, whose outputs are the keys and values that the decoder's cross-attention reads."""
    encoder, decoder = model.record("encoder"), model.record("decoder")
    inputs, written = decoder.record("inputs"), encoder.record("outputs")
    layers = decoder.number("num_hidden_layers", encoder.number("num_hidden_layers", 0, _MOST_LAYERS), _MOST_LAYERS)
    cross = {
        present: past
        for part in ("key", "value")
        for present, past in zip(
            written.names(f"cross_present_{part}_names", layers),
            inputs.names(f"cross_past_{part}_names", layers),
            strict=True,
        )
    }
    generation = Record.read(found.path, GENERATION, needed=False)
    ids = _added_tokens(found.path)
    end = model.tokens("eos_token_id")
    begin = model.tokens("decoder_start_token_id") or tuple(ids[name] for name in _START[:1] if name in ids)
    return replace(
        found,
        encoder=_file(found.path, encoder.text("filename"), GENAI),
        audio=encoder.record("inputs").text("audio_features"),
        cross=cross,
        start_tokens=tuple(ids[name] for name in _START if name in ids) or begin,
        speech=Speech.of_tokens(ids, begin, end),
        never=generation.tokens("suppress_tokens"),
        never_first=generation.tokens("begin_suppress_tokens"),
    )


def _added_tokens(folder: Path) -> dict[str, int]:
    """The ids of the tokens that the folder's tokenizer has beside those of its model, by their texts."""
    added = Record.read(folder, TOKENIZER, needed=False).values.get("added_tokens")
    return {
        token["content"]: i
        for token in (added if isinstance(added, list) else [])
        if isinstance(token, dict) and isinstance(token.get("content"), str) and type(i := token.get("id")) is int
    }


def _optimum(folder: Path, config: Record) -> ModelFolder:
    reads = bool(config.values.get("is_encoder_decoder"))
    paths = [f"{place}{name}" for place in ("", "onnx/") for name in DECODERS[reads:]]
    path = next((path for path in paths if (folder / path).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has none of {', '.join(DECODERS[reads:])}, nor has its folder onnx")
    text = config.record("text_config") if config.values.get("text_config") is not None else config
    generation = Record.read(folder, GENERATION, needed=False)
    end = generation if "eos_token_id" in generation.values else text
    heads = text.first("num_attention_heads", "n_head")
    found = ModelFolder(
        folder,
        _file(folder, path, CONFIG),
        config.text("model_type", ""),
        text.first(*_CONTEXT),
        frozenset(end.tokens("eos_token_id")),
        _defaults(generation),
        {},
        {},
        text.first("num_key_value_heads") or heads,
        text.first("head_dim") or text.first("hidden_size", "n_embd") // max(heads, 1),
        never=generation.tokens("suppress_tokens"),
        never_first=generation.tokens("begin_suppress_tokens"),
    )
    found = _with_embeddings(found, config)
    if not reads:
        return found
    encoder = _file(folder, f"{path.rpartition('/')[0] or '.'}/{ENCODER}", CONFIG)
    starts = (record.tokens("decoder_start_token_id") for record in (generation, config, text))
    begin = next(filter(None, starts), ())
    if not begin:
        raise InvalidModelError(f"{config.where}: no file says decoder_start_token_id")
    speech = _speech(generation, begin, found.end_tokens)
    start = speech.start(None, "transcribe", times=False) if speech is not None else begin
    return replace(found, encoder=encoder, start_tokens=start, speech=speech)


def _with_embeddings(found: ModelFolder, config: Record) -> ModelFolder:
    """Add the models beside a decoder that reads embeddings, in the form of transformers.js."""
    beside = found.decoder.parent
    if not (beside / EMBEDDINGS).is_file():
        return found
    found = replace(found, embeddings=file_inside(beside, EMBEDDINGS, InvalidModelError))
    if not (beside / VISION).is_file():
        return found
    return replace(
        found, vision=_vision(file_inside(beside, VISION, InvalidModelError), found.kind, config, found.path)
    )


def _speech(generation: Record, begin: tuple[int, ...], end: frozenset[int]) -> Speech | None:
    """The tokens of speech that ``generation_config.json`` has, by their texts."""
    languages = generation.record("lang_to_id", needed=False)
    tasks = generation.record("task_to_id", needed=False)
    ids = {name: languages.number(name) for name in languages.values}
    ids |= {f"<|{name}|>": tasks.number(name) for name in tasks.values}
    ids |= dict(zip([NO_TIMES], generation.tokens("no_timestamps_token_id"), strict=False))
    # OpenAI's list of suppressed tokens ends with those of earlier text and of no speech
    earlier = generation.tokens("prev_sot_token_id") or generation.tokens("suppress_tokens")[-2:-1]
    ids |= dict(zip([PREVIOUS], earlier, strict=False))
    found = Speech.of_tokens(ids, begin, sorted(end))
    latest = generation.number("max_initial_timestamp_index", 0)
    return replace(found, latest=latest) if found is not None and latest else found


def _file(folder: Path, name: str, source: str) -> Path:
    path = file_inside(folder, name, InvalidModelError)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; {source} beside it asks for it")
    return path


def _defaults(settings: Record) -> Sampling:
    """The folder's default settings; greedy unless it requests sampling."""
    values = settings.values
    given = {name: values[name] for name in _DEFAULTS if values.get(name) is not None}
    if not values.get("do_sample"):
        given = {k: v for k, v in given.items() if k == "repetition_penalty"}
    elif not given.get("temperature"):
        given["temperature"] = 1.0
    try:
        return Sampling(**given)
    except InvalidInputError as error:
        raise InvalidModelError(f"{settings.where}: {error}") from None
