"""Transcriptions in OpenAI's form: a form with a sound (multipart/form-data, RFC 7578), and an answer with its text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from typing import TYPE_CHECKING, Any

from gpu_shared.errors import DeviceLostError
from vkep.generation.audio import read_wav
from vkep.generation.long_form import OPENAI, LongForm
from vkep.generation.transcribe import Sound, Transcriber
from vkep.serving.kserve import ProtocolError
from vkep.text import shown

if TYPE_CHECKING:
    from vkep.generation import Answer, Batch, Event, Generator
    from vkep.generation.speech import Segment

#: limits of a form
_MOST_FIELDS, _LONGEST_HEAD, _LONGEST_TEXT = 32, 4096, 1024
_FILE = "file"
#: fields of a request, and those that may only have certain values: others request features that do not exist
_FIELDS = ("model", "language", "response_format", "temperature", "max_tokens")
_ONLY = {
    "prompt": ("",),
    "stream": ("false",),
    "timestamp_granularities[]": ("segment",),
    "chunking_strategy": ("auto",),
}
FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
#: the requests in OpenAPI's form
DESCRIBED = {
    "requestBody": {
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [_FILE],
                    "properties": {
                        _FILE: {"type": "string", "format": "binary", "description": "a WAV file of 16 bits at 16 kHz"},
                        "model": {"type": "string"},
                        "language": {"type": "string"},
                        "response_format": {"type": "string", "enum": list(FORMATS)},
                        "temperature": {"type": "number"},
                        "max_tokens": {"type": "integer"},
                    },
                }
            }
        },
        "required": True,
    }
}


def fields_of(content_type: str, body: bytes) -> dict[str, bytes]:
    """The fields of a form by name. Raises `ProtocolError` (400)."""
    head = Message()
    head["Content-Type"] = content_type[:_LONGEST_HEAD]
    boundary = _param(head, "boundary", "content-type")
    if head.get_content_type() != "multipart/form-data" or not boundary:
        raise ProtocolError(
            400, f"the request's type is {shown(content_type)}; expected multipart/form-data with a boundary"
        )
    begin, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(errors="replace"), _MOST_FIELDS + 1)
    if len(parts) < 2 or begin.strip() or parts[-1].strip() != b"--":
        raise ProtocolError(400, f"the form cannot be read: expected up to {_MOST_FIELDS} fields, and its end")
    found: dict[str, bytes] = {}
    for part in parts[:-1]:
        lines, blank, content = part.partition(b"\r\n\r\n")
        headers = HeaderParser().parsestr(lines[:_LONGEST_HEAD].lstrip(b"\r\n").decode("latin-1"))
        name = _param(headers, "name", "content-disposition")
        if not blank or name is None or name in found:
            raise ProtocolError(
                400, f"field {len(found)} of the form has the name {shown(name)}; expected one of its own"
            )
        found[name] = content
    return found


def _param(head: Message, name: str, header: str) -> str | None:
    """A parameter of a header; None also for one with a charset (RFC 2231), which forms do not have (RFC 7578, section 4.2)."""
    try:
        found = head.get_param(name, header=header)
    except TypeError:  # the email package sorts its parts, with numbers and without
        return None
    return found if isinstance(found, str) else None


@dataclass(frozen=True)
class SpeechRequest:
    """A request for the text of a sound: ``file`` is that of the sound, ``task`` transcribe or translate. ``temperature`` None:
    OpenAI's, which rise where an answer fails its tests."""

    model: str
    file: bytes
    task: str
    language: str | None = None
    form: str = "json"
    temperature: float | None = None
    max_tokens: int | None = None

    @classmethod
    def read(cls, content_type: str, body: bytes, task: str) -> SpeechRequest:
        """A request's body. Raises `ProtocolError` (400)."""
        fields = fields_of(content_type, body)
        if _FILE not in fields:
            raise ProtocolError(400, "the form has no field 'file' with a sound", _FILE)
        file = fields.pop(_FILE)
        texts = {name: content[:_LONGEST_TEXT].decode(errors="replace") for name, content in fields.items()}
        for name, text in texts.items():
            if name not in _FIELDS and text not in _ONLY.get(name, ()):
                only = f"; only {_ONLY[name][0]!r} is supported" if name in _ONLY else ": there is no such field"
                raise ProtocolError(400, f"{shown(name)} is {shown(text)}{only}", name)
        form = texts.get("response_format", "json")
        if form not in FORMATS:
            raise ProtocolError(
                400, f"response_format is {shown(form)}, expected one of {', '.join(FORMATS)}", "response_format"
            )
        temperature, most = _number(texts, "temperature", float), _number(texts, "max_tokens", int)
        return cls(texts.get("model", ""), file, task, texts.get("language"), form, temperature, most)


def _number(texts: Mapping[str, str], name: str, kind: Any) -> Any:
    if name not in texts:
        return None
    try:
        return kind(texts[name])
    except ValueError:
        raise ProtocolError(400, f"{name} is {shown(texts[name])}, expected a number", name) from None


class Spoken:
    """`vkep.serving.writer.Work` for a sound: its windows are read one after the other, and the results are its segments."""

    def __init__(self, request: SpeechRequest, generator: Generator) -> None:
        """Takes as long as the sound's features do. Raises `InvalidInputError` for a file that is no sound, and as
        `Transcriber`."""
        settings: dict[str, Any] = {"max_tokens": request.max_tokens}
        form = LongForm(**OPENAI) if request.temperature is None else LongForm()
        if request.temperature is not None:
            settings["temperature"] = request.temperature
        samples = read_wav(request.file)
        decode = generator.text.decode
        self._transcriber = Transcriber(
            generator.decoder, decode, request.language, request.task, generator.sampling(**settings), form
        )
        self._sound: Sound = self._transcriber.sound(samples)
        self._transcriber.prepare(self._sound)
        self.seconds = samples.size / 16000

    @property
    def language(self) -> str:
        """The sound's, once a window was read."""
        return self._sound.language

    def begin(self, batch: Batch) -> Answer:
        """As `Work` says."""
        if batch.decoder is not self._transcriber.decoder:
            raise DeviceLostError(
                "transcribing", hint="the sound was read for a model that was closed since: send it again"
            )
        self._transcriber.begin(batch, self._sound)
        assert self._sound.reader is not None
        return self._sound.reader.answer

    def results(self, event: Event) -> Sequence[Segment]:
        """As `Work` says."""
        return self._transcriber.finished(self._sound) if event.reason else ()

    def ended(self, answer: Answer) -> bool:
        """As `Work` says."""
        return self._sound.ended

    def release(self) -> None:
        """As `Work` says."""
        self._sound.release()
        self._transcriber.close()


def answer(request: SpeechRequest, segments: Sequence[Segment], language: str, seconds: float) -> tuple[str, str]:
    """The answer's type and text, in the format that a request asks for."""
    text = "".join(segment.text for segment in segments).strip()
    if request.form in ("json", "verbose_json"):
        found: dict[str, Any] = {"text": text, "usage": {"type": "duration", "seconds": math.ceil(seconds)}}
        if request.form == "verbose_json":
            parts = [
                {"id": k, "start": s.start, "end": s.end, "text": s.text, "tokens": s.tokens}
                for k, s in enumerate(segments)
            ]
            found |= {"task": request.task, "language": language, "duration": seconds, "segments": parts}
        return "application/json", json.dumps(found, ensure_ascii=False)
    if request.form == "text":
        return "text/plain; charset=utf-8", f"{text}\n"
    mark = "," if request.form == "srt" else "."
    blocks = [f"{_clock(s.start, mark)} --> {_clock(s.end, mark)}\n{s.text.strip()}\n" for s in segments]
    if request.form == "srt":
        return "application/x-subrip; charset=utf-8", "\n".join(f"{k}\n{block}" for k, block in enumerate(blocks, 1))
    return "text/vtt; charset=utf-8", "\n".join(["WEBVTT\n", *blocks])


def _clock(seconds: float, mark: str) -> str:
    """Hours, minutes, seconds and milliseconds."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{mark}{rest % 1000:03}"
