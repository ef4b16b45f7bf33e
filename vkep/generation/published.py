"""Folders of language models and encoders from the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from vkep.generation.folder import (
    CONFIG,
    DECODERS,
    EMBEDDINGS,
    ENCODER,
    FIRST,
    GENAI,
    GENERATION,
    LATER,
    VISION,
    Record,
)
from vkep.hub import HubName, Snapshot, is_hub_name, model_of

_SMALL = (".json", ".jinja")
#: of an encoder's folder: how tokens become an embedding
_POOLING = "1_Pooling/config.json"


def local_folder(name: str | Path) -> Path:
    """The folder that a name means: a path, or after a download into Hugging Face's cache the one of ``hf:OWNER/NAME``, or of a
    text ``OWNER/NAME`` where no file or folder has that path. Raises as `published_folder`."""
    plain = isinstance(name, str) and re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) and not Path(name).parent.exists()
    return published_folder(name) if plain or is_hub_name(name) else Path(name)


def served(name: str | Path) -> Path:
    """The folder of a language model or an encoder, or the .onnx file, that a name means. Raises as `published_folder`."""
    return _folder_or_file(name, CONFIG)


def measured(name: str | Path) -> Path:
    """The folder of a language model, or the .onnx file, that a name means. Raises as `published_folder`."""
    return _folder_or_file(name, GENERATION)


def _folder_or_file(name: str | Path, sign: str) -> Path:
    if not is_hub_name(name):
        return Path(name)
    snapshot = Snapshot(HubName.of(name))
    inside = f"{snapshot.name.path}/" if snapshot.name.path else ""
    return (_folder_of if snapshot.names & {f"{inside}{GENAI}", f"{inside}{sign}"} else model_of)(snapshot)


def published_folder(name: str | Path) -> Path:
    """Download the files of ``OWNER/NAME[@REVISION][/FOLDER]`` that `Generator` reads, and return their folder: the configuration
    and the tokenizer, and the model of onnxruntime-genai's builder or of optimum with its weights.

    Raises `InvalidInputError` for a text that is no such name, ``FileNotFoundError`` where one of them does not exist, or
    huggingface_hub is not installed; `InvalidModelError`.
    """
    return _folder_of(Snapshot(HubName.of(name)))


def _folder_of(snapshot: Snapshot) -> Path:
    inside = f"{snapshot.name.path}/" if snapshot.name.path else ""
    names = {full.removeprefix(inside): full for full in snapshot.names if full.startswith(inside)}
    small = [full for n, full in names.items() if n.endswith(_SMALL) and ("/" not in n or n == _POOLING)]
    if not {GENAI, CONFIG} & names.keys():
        raise FileNotFoundError(f"{snapshot.name}: has neither {GENAI} (onnxruntime-genai) nor {CONFIG} (optimum)")
    folder = snapshot.fetch(small) / snapshot.name.path
    if GENAI in names:
        models = [n for n in names if n.endswith(".onnx") and "/" not in n]
    else:
        reads = bool(Record.read(folder, CONFIG).values.get("is_encoder_decoder"))
        models = _of_optimum(names, reads)
    if not models:
        raise FileNotFoundError(
            f"{snapshot.name}: has no model of a known name ({', '.join(DECODERS)}); its .onnx files: "
            f"{snapshot.listed('.onnx') or 'none'}. To export it: optimum-cli export onnx --model "
            f"{snapshot.name.repository} FOLDER"
        )
    return snapshot.fetch_models([names[n] for n in models]) / snapshot.name.path


def _of_optimum(names: Collection[str], reads: bool) -> list[str]:
    """The files that `read_folder` will name, of those that exist."""
    wanted = (f"{place}{name}" for place in ("", "onnx/") for name in DECODERS[reads:])
    decoder = next((name for name in wanted if name in names), None)
    if decoder is None:
        return []
    place = PurePosixPath(decoder)
    beside = [ENCODER] + [FIRST] * (place.name == LATER) if reads else [EMBEDDINGS, VISION]
    return [decoder, *(n for name in beside if (n := str(place.with_name(name))) in names)]
