"""`/v1/audio/transcriptions` and `/v1/audio/translations` by OpenAI's client: the generator's texts, and what is refused."""

from __future__ import annotations

import asyncio
import io
import itertools
import threading
import urllib.error
import urllib.request
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
pytest.importorskip("tokenizers")
from tests.serving.conftest import Running, serving
from tests.session.test_replicas import lose
from tools.waiting import LONG_S, comes_true
from vkep.generation import Generator
from vkep.generation.audio import read_wav
from vkep.generation.speech import Segment
from vkep.models.language import write_language
from vkep.models.sources import write_sources
from vkep.models.starters import STARTERS
from vkep.serving.kserve import ProtocolError
from vkep.serving.speech import SpeechRequest, Spoken, answer, fields_of
from vkep.serving.writer import Writer

openai = pytest.importorskip("openai")

EXACT: dict[str, Any] = {"temperature": 0, "extra_body": {"max_tokens": 20}}


def wav(seconds: float, seed: int = 0, rate: int = 16000) -> bytes:
    sound, file = np.random.default_rng(seed).normal(0, 3000, round(seconds * rate)), io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(sound.astype("<i2").tobytes())
    return file.getvalue()


@pytest.fixture(scope="module")
def running(vulkan: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("speech")
    STARTERS["whisper"].write(folder / "whisper")
    write_language(folder / "llama")
    write_sources(folder / "moonshine", "moonshine")
    with serving(folder, ["whisper", "llama", "moonshine"], "--max-sequences", "4") as found:
        yield found


@pytest.fixture(scope="module")
def client(running: Running) -> Any:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def generator(running: Running) -> Iterator[Generator]:
    with Generator(running.log.parent / "whisper") as opened:
        yield opened


def test_transcriptions_are_the_generators(client: Any, generator: Generator) -> None:
    """Of several sounds at the same time, each of windows, in other languages and tasks."""
    asked = [
        (3.0, "en", "transcribe"),
        (47.0, "de", "transcribe"),
        (33.0, None, "translate"),
        (61.5, None, "transcribe"),
    ]
    sounds = [wav(seconds, seed) for seed, (seconds, _, _) in enumerate(asked)]

    def ask(number: int) -> Any:
        _, language, task = asked[number]
        of = client.audio.transcriptions if task == "transcribe" else client.audio.translations
        more = {"language": language} if language else {}
        file = ("a.wav", sounds[number])
        return of.create(model="whisper", file=file, response_format="verbose_json", **EXACT, **more)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(ask, range(4)))
    for one, sound, (seconds, language, task) in zip(found, sounds, asked, strict=True):
        samples = read_wav(sound)
        expected = generator.transcribe(samples, language=language, task=task, temperature=0.0, max_tokens=20)
        assert one.text == expected.text.strip() and one.language == expected.language and one.duration == seconds
        assert [(s["start"], s["end"], s["text"], s["tokens"]) for s in map(dict, one.segments)] == [
            (s.start, s.end, s.text, s.tokens) for s in expected.segments
        ]
    assert len({one.text for one in found}) == 4


def test_other_formats(client: Any, generator: Generator) -> None:
    sound = wav(31.0, 7)
    expected = generator.transcribe(read_wav(sound), temperature=0.0, max_tokens=20)

    def ask(form: str) -> Any:
        return client.audio.transcriptions.create(model="whisper", file=sound, response_format=form, **EXACT)

    assert ask("json").text == expected.text.strip() and ask("json").usage.seconds == 31
    assert ask("text") == expected.text.strip() + "\n"
    assert ask("srt").startswith("1\n00:00:") and ask("srt").count(" --> ") == len(expected.segments)
    assert ask("vtt").startswith("WEBVTT\n\n00:00:")
    # without a temperature those of OpenAI, which rise where an answer fails its tests
    assert (
        client.audio.transcriptions.create(model="whisper", file=wav(1.0), extra_body={"max_tokens": 8}).text
        is not None
    )


def test_models_without_times(client: Any, running: Running) -> None:
    """Moonshine's: a segment for each part of at most 30 seconds, with the text that the generator makes of it."""
    sound = bytearray(wav(41.0, 3))
    sound[44 + 2 * 310_400 : 44 + 2 * 313_600] = bytes(6400)  # 19.4 to 19.6 s, where the sound is cut
    quiet = bytes(sound)

    def ask(file: bytes, form: str = "verbose_json") -> Any:
        return client.audio.transcriptions.create(model="moonshine", file=file, response_format=form, **EXACT)

    with Generator(running.log.parent / "moonshine") as generator:
        for file, cuts in ((wav(2.51, 1), []), (quiet, [19.5])):
            given, found = read_wav(file), ask(file)
            ends = [*[round(16000 * cut) for cut in cuts], given.size]
            texts = [
                generator.generate(given[a:b], max_tokens=20).text for a, b in zip([0, *ends[:-1]], ends, strict=True)
            ]
            assert found.text == "".join(texts).strip() and found.text
            spans = [(s.start, s.end) for s in found.segments]
            bounds = [0.0, *cuts, given.size / 16000]
            np.testing.assert_allclose(spans, list(itertools.pairwise(bounds)), atol=1e-6)
            assert [s.text for s in found.segments] == texts
        assert ask(quiet, "srt").startswith("1\n00:00:00,000 --> 00:00:19,500\n")
        one = generator.transcribe(read_wav(quiet), temperature=0.0, max_tokens=20)
        assert [s.text for s in one.segments] == texts and one.language == ""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "moonshine", "language": "de"}, "the model has no tokens for them"),
        ({"model": "moonshine", "file": wav(0.01)}, "the sound has 160 samples, which the encoder does not read: Conv"),
        ({"file": b"no sound"}, "the sound is no WAV file"),
        (
            {"file": wav(0.1, rate=8000)},
            "the sound: 16 bits at 8000 Hz, expected 16 bits at 16000 Hz: ffmpeg -i IN.wav",
        ),
        ({"file": wav(0)}, "expected float32 samples"),
        ({"model": "llama"}, "transcribe needs a model of speech"),
        ({"model": "other"}, "there is no model 'other'"),
        ({"language": "xx"}, "language is 'xx', expected None or one of"),
        ({"response_format": "diarized_json"}, "response_format is 'diarized_json', expected one of json"),
        ({"prompt": "before"}, "'prompt' is 'before'; only '' is supported"),
        ({"stream": True}, "'stream' is 'true'; only 'false' is supported"),
        ({"temperature": -1}, "temperature is -1"),
        ({"extra_body": {"other": "1"}}, "'other' is '1': there is no such field"),
        ({"extra_body": {"max_tokens": "many"}}, "max_tokens is 'many', expected a number"),
    ],
)
def test_what_is_refused(client: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        client.audio.transcriptions.create(**{"model": "whisper", "file": wav(0.5), **EXACT, **changed})
    assert error.value.status_code == (404 if "no model" in message else 400) and message in str(error.value)


def test_forms_that_are_refused(running: Running) -> None:
    def post(body: bytes, kind: str) -> str:
        request = urllib.request.Request(f"{running.url}/v1/audio/transcriptions", body, {"Content-Type": kind})
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=60)
        assert error.value.code == 400
        return error.value.read().decode()

    assert "expected multipart/form-data" in post(b"{}", "application/json")
    assert "no field 'file'" in post(
        b"--b\r\nContent-Disposition: form-data; name=model\r\n\r\nw\r\n--b--\r\n", "multipart/form-data; boundary=b"
    )


def test_fields_of_forms() -> None:
    kind = 'multipart/form-data; boundary="a b"'
    field = b'--a b\r\nContent-Disposition: form-data; name="%b"; filename="f"\r\nContent-Type: audio/wav\r\n\r\n%b\r\n'
    content = b"\r\n--a\r\n\r\nx\n\0\xff--"
    assert fields_of(kind, field % (b"file", content) + field % (b"model", b"") + b"--a b--\r\n") == {
        "file": content,
        "model": b"",
    }
    for kinds in ("multipart/form-data; boundary*0=a; boundary*=b", "multipart/form-data; boundary*=utf-8''b"):
        with pytest.raises(ProtocolError, match="expected multipart/form-data with a boundary"):
            fields_of(kinds, b"")
    several = b"".join(field % (f"{k}".encode(), b"") for k in range(33))
    for wrong in (
        b"",
        field % (b"file", b"x"),
        field % (b"file", b"x") * 2 + b"--a b--",
        b"--a b\r\n\r\n\r\n--a b--",
        b"--a b\r\nContent-Disposition: form-data; name=x--a b--",
        b"--a b\r\nContent-Disposition: form-data; name*0=x; name*=y\r\n\r\n\r\n--a b--",
        b"--a b\r\nContent-Disposition: form-data; name*=utf-8''x\r\n\r\n\r\n--a b--",
        several + b"--a b--",
    ):
        with pytest.raises(ProtocolError, match="form"):
            fields_of(kind, wrong)


def test_times_of_subtitles() -> None:
    segments = [Segment(0.0, 1.5, [1], " one"), Segment(3661.02, 3662.999, [2], " two")]
    request = SpeechRequest("w", b"", "transcribe", form="srt")
    blocks = "1\n00:00:00,000 --> 00:00:01,500\none\n\n2\n01:01:01,020 --> 01:01:02,999\ntwo\n"
    assert answer(request, segments, "en", 1.0)[1] == blocks
    assert answer(SpeechRequest("w", b"", "transcribe", form="vtt"), segments[1:], "en", 1.0)[1] == (
        "WEBVTT\n\n01:01:01.020 --> 01:01:02.999\ntwo\n"
    )


@pytest.mark.gpu
def test_a_client_leaves_and_a_device_is_lost(vulkan: object, tmp_path: Path) -> None:
    """Its rows are free, and the next sounds are read; a sound that was prepared for the model before is refused."""
    STARTERS["whisper"].write(tmp_path)
    goes_on = threading.Event()
    goes_on.set()

    def opened() -> Generator:
        generator = Generator(tmp_path, max_sequences=2)
        generator.text  # noqa: B018
        return generator

    def waits(answers: int, tokens: int, seconds: float) -> None:
        goes_on.wait(LONG_S)

    writer = Writer(opened, waits, 2)
    request = SpeechRequest("w", wav(40.0), "transcribe", "en", temperature=0.0, max_tokens=9)

    async def texts(work: Spoken) -> str:
        return "".join([segment.text async for _, segment in writer.run([work])])

    async def leaves() -> None:
        async for _ in writer.run([Spoken(request, writer.generator)]):
            break

    try:
        expected = asyncio.run(texts(Spoken(request, writer.generator)))
        asyncio.run(leaves())
        assert asyncio.run(texts(Spoken(request, writer.generator))) == expected != ""
        assert all(job.left or job.answer is None or job.answer.ended for job in writer._jobs) and not writer._waiting

        async def lost() -> list[Any]:
            early, late = Spoken(request, writer.generator), Spoken(request, writer.generator)
            goes_on.clear()
            first = asyncio.create_task(texts(early))
            await asyncio.sleep(0.5)
            lose(writer.generator.decoder.sessions[0])
            goes_on.set()
            return list(await asyncio.gather(first, texts(late), return_exceptions=True))

        before = writer.generator
        found = asyncio.run(lost())
        assert comes_true(lambda: writer.generator is not before)
        assert all(isinstance(one, Exception) for one in found), found
        assert asyncio.run(texts(Spoken(request, writer.generator))) == expected
    finally:
        writer.close()
