"""Parts of messages that are images or sounds, in transformers' form and in OpenAI's."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vkep.errors import InvalidInputError
from vkep.text import shown

#: by the type of a part: what it is, and the part's field
_PARTS = {
    "image": ("image", "image"),
    "image_url": ("image", "image_url"),
    "audio": ("audio", "audio"),
    "input_audio": ("audio", "input_audio"),
}


def without_media(
    messages: Sequence[Mapping[str, Any]], written: Callable[[str, int], str] | None = None
) -> tuple[list[Mapping[str, Any]], list[Any], list[Any]]:
    """Messages as chat templates read them, and the images and the sounds of their parts: of ``{"type": "image", "image": ...}``
    an `ImageLike`, of ``{"type": "audio", "audio": ...}`` a `SoundLike`, and in OpenAI's form the bytes of a file in base64: of
    ``{"type": "image_url", "image_url": {"url": ...}}`` in a data URL (RFC 2397), of ``{"type": "input_audio", "input_audio":
    {"data": ..., "format": "wav"}}``. ``written``: the text of the "image" or "audio" of a number from 1; the parts of a message
    with such parts then become one text.

    Raises `InvalidInputError` for another URL (nothing is downloaded), another format, and what is no base64.
    """
    found: list[Mapping[str, Any]] = []
    media: dict[str, list[Any]] = {"image": [], "audio": []}
    for number, message in enumerate(messages):
        parts = message.get("content")
        if isinstance(parts, (list, tuple)) and any(_kind(part) for part in parts):
            kept: list[Any] = []
            for at, part in enumerate(parts):
                if kind := _kind(part):
                    media[kind].append(_content(part, f"messages[{number}].content[{at}]"))
                    text = written(kind, len(media[kind])) if written is not None else None
                    part = {"type": kind} if text is None else {"type": "text", "text": text}
                kept.append(part)
            message = {**message, "content": kept if written is None else "".join(map(_text_of, kept))}
        found.append(message)
    return found, media["image"], media["audio"]


def _kind(part: Any) -> str:
    named = part.get("type") if isinstance(part, Mapping) else None
    return _PARTS[named][0] if isinstance(named, str) and named in _PARTS else ""


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        raise InvalidInputError(f"a part of a message is {shown(part)}; expected a text, an image or a sound")
    return text


def _content(part: Mapping[str, Any], where: str) -> Any:
    kind, name = _PARTS[part["type"]]
    given = part.get(name)
    if name == kind:
        if given is None:
            raise InvalidInputError(f"{where}: a part of type {kind} has {shown(sorted(part))}, expected {kind}")
        return given
    return _decoded(_of_url(given, where) if kind == "image" else _of_sound(given, where), f"{where}: {name}")


def _of_url(given: Any, where: str) -> str:
    url = given.get("url") if isinstance(given, Mapping) else given
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not head.startswith("data:") or not head.endswith(";base64") or not comma:
        raise InvalidInputError(
            f"{where}: image_url is {shown(head if comma else url)}; expected data:image/...;base64,...: nothing is downloaded"
        )
    return data


def _of_sound(given: Any, where: str) -> str:
    data, form = (given.get("data"), given.get("format")) if isinstance(given, Mapping) else (None, None)
    if not isinstance(data, str) or form != "wav":
        raise InvalidInputError(
            f"{where}: input_audio has data of {type(data).__name__} and format {shown(form)}; expected base64 and 'wav'"
        )
    return data


def _decoded(data: str, where: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise InvalidInputError(f"{where} has no base64: {error}") from None
