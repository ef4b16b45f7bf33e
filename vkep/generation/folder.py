"""Folders of language models, as onnxruntime-genai's builder and optimum write them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from vkep.errors import InvalidModelError
from vkep.generation.sampling import Sampling

GENAI, CONFIG = "genai_config.json", "config.json"
#: files of a decoder that optimum and transformers.js write; first those that serve both prompts and single tokens
DECODERS = ("model.onnx", "decoder_model_merged.onnx", "decoder_with_past_model.onnx")
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
#: the placeholders in the name patterns of genai_config.json
_PAST = {f"past_{part}_names": f"present_{part}_names" for part in ("key", "value")}


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


def read_folder(path: str | Path) -> ModelFolder:
    """Read ``genai_config.json``, or ``config.json`` with ``generation_config.json``.

    Raises ``FileNotFoundError`` where the folder or one of its files does not exist, `InvalidModelError` for a file
    that cannot be read, `UnsupportedModelError` for a kind of model that generation does not support.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is no folder; expected one with {GENAI} or {CONFIG} beside the model's files"
        )
    if (folder / GENAI).is_file():
        return _genai(folder, read_json(folder / GENAI))
    if (folder / CONFIG).is_file():
        return _optimum(folder, read_json(folder / CONFIG))
    raise FileNotFoundError(f"{folder} has neither {GENAI} (onnxruntime-genai) nor {CONFIG} (optimum)")


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises `InvalidModelError` where it holds none, ``FileNotFoundError``."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidModelError(f"{path}: no JSON ({error})") from None
    if not isinstance(found, dict):
        raise InvalidModelError(f"{path}: expected an object, found {type(found).__name__}")
    return found


def _genai(folder: Path, config: Mapping[str, Any]) -> ModelFolder:
    try:
        model, search = config["model"], config.get("search", {})
        decoder = model["decoder"]
        inputs, outputs = decoder.get("inputs", {}), decoder.get("outputs", {})
        file = folder / decoder["filename"]
        layers = int(decoder["num_hidden_layers"])
        sizes = int(decoder.get("num_key_value_heads", 0)), int(decoder.get("head_size", 0))
        end, context, kind = model.get("eos_token_id"), int(model.get("context_length", 0)), str(model.get("type", ""))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidModelError(f"{folder / GENAI}: {type(error).__name__}: {error}") from None
    pairs = [
        (inputs[past], outputs[present]) for past, present in _PAST.items() if past in inputs and present in outputs
    ]
    caches = {past % k: present % k for k in range(layers) for past, present in pairs}
    names = {name: what for what, name in inputs.items() if isinstance(name, str) and "%" not in name}
    sampling = _defaults(search, folder / GENAI)
    made = ModelFolder(folder, _file(file, GENAI), kind, context, _ids(end), sampling, caches, names, *sizes)
    return _genai_encoder(made, model) if "encoder" in model else made


def _genai_encoder(made: ModelFolder, model: Mapping[str, Any]) -> ModelFolder:
    """Add the encoder, whose outputs are the keys and values that the decoder's cross-attention reads."""
    try:
        encoder, inputs = model["encoder"], model["decoder"]["inputs"]
        file, written = made.path / encoder["filename"], encoder["outputs"]
        pairs = [
            (written[f"cross_present_{part}_names"], inputs[f"cross_past_{part}_names"]) for part in ("key", "value")
        ]
        layers, audio = int(encoder.get("num_hidden_layers", 0)), encoder["inputs"]["audio_features"]
        layers = int(model["decoder"].get("num_hidden_layers", layers))
        cross = {present % k: past % k for k in range(layers) for present, past in pairs}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidModelError(f"{made.path / GENAI}: {type(error).__name__}: {error}") from None
    settings = made.path / "generation_config.json"
    generation = read_json(settings) if settings.is_file() else {}
    return replace(
        made,
        encoder=_file(file, GENAI),
        audio=str(audio),
        cross=cross,
        start_tokens=_named_tokens(made.path, model),
        never=tuple(generation.get("suppress_tokens") or ()),
        never_first=tuple(generation.get("begin_suppress_tokens") or ()),
    )


def _named_tokens(folder: Path, model: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids of `_START` in the folder's tokenizer, else the configuration's start token; none where no file has them."""
    file = folder / "tokenizer.json"
    added = read_json(file).get("added_tokens", []) if file.is_file() else []
    ids: dict[Any, Any] = {token.get("content"): token.get("id") for token in added if isinstance(token, dict)}
    found = tuple(int(ids[name]) for name in _START if isinstance(ids.get(name), int))
    start = model.get("decoder_start_token_id")
    return found if found or start is None else (int(start),)


def _optimum(folder: Path, config: Mapping[str, Any]) -> ModelFolder:
    reads = bool(config.get("is_encoder_decoder"))
    found = [f / name for f in (folder, folder / "onnx") for name in DECODERS[reads:] if (f / name).is_file()]
    if not found:
        raise FileNotFoundError(f"{folder} has none of {', '.join(DECODERS[reads:])}, nor has its folder onnx")
    text = config.get("text_config", config)
    settings = folder / "generation_config.json"
    generation = read_json(settings) if settings.is_file() else {}
    context = next((int(text[name]) for name in _CONTEXT if isinstance(text.get(name), int)), 0)
    end = generation.get("eos_token_id", text.get("eos_token_id"))
    kind, sampling = str(config.get("model_type", "")), _defaults(generation, settings)
    heads = int(text.get("num_key_value_heads") or text.get("num_attention_heads") or text.get("n_head") or 0)
    width = int(text.get("hidden_size") or text.get("n_embd") or 0)
    size = int(text.get("head_dim") or width // max(int(text.get("num_attention_heads") or text.get("n_head") or 1), 1))
    made = ModelFolder(folder, found[0], kind, context, _ids(end), sampling, {}, {}, heads, size)
    made = replace(
        made,
        never=tuple(generation.get("suppress_tokens") or ()),
        never_first=tuple(generation.get("begin_suppress_tokens") or ()),
    )
    if not reads:
        return made
    encoder = _file(found[0].parent / "encoder_model.onnx", CONFIG)
    return replace(made, encoder=encoder, start_tokens=_start_tokens(config, generation, folder))


def _start_tokens(config: Mapping[str, Any], generation: Mapping[str, Any], folder: Path) -> tuple[int, ...]:
    """The decoder's start tokens. Whisper has several: for English, transcription, no timestamps."""
    start = generation.get("decoder_start_token_id", config.get("decoder_start_token_id"))
    if start is None:
        raise InvalidModelError(f"{folder}: no file says decoder_start_token_id")
    more = [
        (generation.get("lang_to_id") or {}).get("<|en|>"),
        (generation.get("task_to_id") or {}).get("transcribe"),
        generation.get("no_timestamps_token_id"),
    ]
    return (int(start), *(int(token) for token in more if token is not None))


def _file(path: Path, source: str) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; {source} beside it asks for it")
    return path


def _ids(value: Any) -> frozenset[int]:
    return frozenset(int(v) for v in (value if isinstance(value, Iterable) else [value]) if v is not None)


def _defaults(settings: Mapping[str, Any], source: Path) -> Sampling:
    """The folder's default settings; greedy unless it requests sampling."""
    known = {f.name for f in fields(Sampling)} - {"max_tokens", "seed", "stop"}
    given: dict[str, Any] = {k: v for k, v in settings.items() if k in known and isinstance(v, (int, float))}
    if not settings.get("do_sample"):
        given = {k: v for k, v in given.items() if k == "repetition_penalty"}
    elif not given.get("temperature"):
        given["temperature"] = 1.0
    try:
        return replace(Sampling(), **given)
    except ValueError as error:
        raise InvalidModelError(f"{source}: {error}") from None
