"""Transcriptions with times: the rules of tokens, windows and segments, and whole sounds against ONNX Runtime's CPU provider."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.calls import noted
from tests.generation.genai_sources import write_genai_sources
from tests.generation.test_encoder_decoder import Sources
from tools.speech_rules import chosen_by_rules
from vkep.errors import InvalidInputError
from vkep.generation import Batch, Generator, Sampling
from vkep.generation.audio import Features, log_mel, read_wav
from vkep.generation.choices import Choice
from vkep.generation.choosing import Chooser
from vkep.generation.decoder import Made
from vkep.generation.folder import read_folder
from vkep.generation.long_form import OPENAI, LongForm, compression_ratio
from vkep.generation.speech import Bounds, Speech, bounds, segments_of
from vkep.generation.transcribe import Sound, Transcriber, end_of_part
from vkep.memory import ArenaOutOfMemory
from vkep.models.language import BEGIN, END
from vkep.models.sources import SPEECH, WHISPER, write_sources

Array = np.ndarray[Any, Any]
NO_TIMES = SPEECH["<|notimestamps|>"]
FIRST = NO_TIMES + 1
RULES = Speech(BEGIN, NO_TIMES, END)
START = [BEGIN, SPEECH["<|en|>"], SPEECH["<|transcribe|>"]]


def drawn_answer(rng: np.random.Generator) -> list[int]:
    """Tokens that the rules allow, and some that they do not."""
    tokens: list[int] = []
    for _ in range(int(rng.integers(0, 9))):
        scores = rng.normal(0, 1, WHISPER.vocabulary)
        scores[FIRST:] -= rng.uniform(0, 9)
        tokens.append(chosen_by_rules(scores, tokens))
    return tokens if rng.random() < 0.9 else [int(t) for t in rng.integers(0, WHISPER.vocabulary, len(tokens))]


@pytest.mark.gpu
def test_the_device_chooses_by_the_rules(tmp_path: Path) -> None:
    write_sources(tmp_path, "whisper")
    rng = np.random.default_rng(1)
    never = (3, END + 1)
    choice = Choice.of([Sampling(timestamps=True)], never, (NO_TIMES, WHISPER.vocabulary))
    only_times = 0
    with Generator(tmp_path, fallback="error") as generator:
        chooser = Chooser(generator.decoder)
        for _ in range(60):
            answers = [drawn_answer(rng) for _ in range(3)]
            scores = rng.normal(0, 2, (3, 1, WHISPER.vocabulary)).astype(np.float32)
            scores[:, :, FIRST:] -= rng.uniform(0, 9, (3, 1, 1)).astype(np.float32)
            within = [*(bounds(RULES, WHISPER.vocabulary, a) for a in answers[:2]), None]
            settings = [Sampling(timestamps=True)] * 2 + [Sampling()]
            with generator.decoder.session.device_tensor(scores) as logits:
                made = chooser.submit(Made(logits), choice, settings, [0.0] * 3, [()] * 3, [None] * 3, within)
                found = made.on_host()
            assert found[:2] == [chosen_by_rules(scores[k, 0], answers[k], never) for k in range(2)]
            plain = scores[2, 0].copy()
            plain[list(never)] = -np.inf
            assert found[2] == plain.argmax()  # a sequence without times in the same batch
            only_times += sum(t >= FIRST > scores[k, 0].argmax() for k, t in enumerate(found[:2]))
        chooser.close()
    assert only_times > 10


def test_segments_of_a_window() -> None:
    def times(*seconds: float) -> list[int]:
        return [FIRST + round(50 * s) for s in seconds]

    zero, two, four = times(0, 2, 4)
    cases: list[tuple[list[int], list[tuple[int, int]], int]] = [
        ([zero, 65, two], [(0, 100)], 3000),  # one segment, and nothing after it
        ([zero, 65, 66], [(0, 1500)], 3000),  # no end: all of the window
        ([zero, 65, two, two, 66, four], [(0, 100), (100, 200)], 3000),
        ([zero, 65, two, two, 66], [(0, 100)], 200),  # the second segment is not finished: it is read again
        ([zero, 65, two, four, 66, 67], [(0, 100)], 200),
        ([zero, 65, two, two], [(0, 100)], 200),
        ([], [(0, 1500)], 3000),
    ]
    for tokens, spans, advance in cases:
        found, count = segments_of(RULES, tokens, 3000)
        assert ([(start, end) for start, end, _ in found], count) == (spans, advance)
    assert segments_of(RULES, [zero, 65], 700) == ([(0, 350, [zero, 65])], 700)


def expected(
    folder: Path, features: Array, most: int, language: str, continued: bool = False
) -> list[tuple[int, int, list[int]]]:
    """The segments by ONNX Runtime's logits of each window, in steps of 0.02 s. If ``continued``, an answer begins with the last
    tokens of the segments before it."""
    found, seek, total = list[tuple[int, int, list[int]]](), 0, features.shape[1]
    start = [BEGIN, SPEECH[f"<|{language}|>"], SPEECH["<|transcribe|>"]]
    while seek < total:
        window = np.zeros((1, 80, 3000), np.float32)
        part = features[:, seek : seek + 3000]
        window[0, :, : part.shape[1]] = part
        theirs, tokens = Sources(folder, {"input_features": window}), list[int]()
        earlier = [t for _, _, s in found for t in (s[:-1] if len(s) > 2 and s[-2] >= FIRST else s)]
        first = (
            [SPEECH["<|startofprev|>"], *earlier[-(WHISPER.context // 2 - 1) :], BEGIN]
            if continued and found
            else [BEGIN]
        )
        while len(tokens) < most:
            token = chosen_by_rules(theirs.logits([*start[1:], *tokens], first), tokens)
            if token == END:
                break
            tokens.append(token)
        parts, advance = segments_of(RULES, tokens, part.shape[1])
        found += [(seek // 2 + a, seek // 2 + b, tokens) for a, b, tokens in parts]
        seek += advance
    return found


def features_of(seed: int, seconds: float) -> Array:
    """Features of noise: the answers of a random model need sounds that differ much."""
    return np.random.default_rng(seed).normal(0, 2, (80, round(seconds * 100))).astype(np.float32)


@pytest.mark.gpu
def test_whole_sounds(tmp_path: Path) -> None:
    write_sources(tmp_path, "whisper")
    sounds = [features_of(k, seconds) for k, seconds in enumerate((70.5, 12, 45, 30))]
    with Generator(tmp_path, fallback="error", max_sequences=3) as generator:
        made = generator.transcribe(sounds, max_tokens=10)
        windows = 0
        for sound, one in zip(sounds, made, strict=True):
            wanted = expected(tmp_path, sound, 10, one.language)
            windows += len(wanted)
            assert [(round(50 * s.start), round(50 * s.end), s.tokens) for s in one.segments] == wanted
            padded = np.pad(sound, ((0, 0), (0, max(0, 3000 - sound.shape[1]))))[None, :, :3000]
            scores = Sources(tmp_path, {"input_features": padded}).logits([])
            assert one.language == max(("en", "de", "fr"), key=lambda name: scores[SPEECH[f"<|{name}|>"]])
            assert one.text == "".join(
                generator.text.decode([t for t in s.tokens if t < NO_TIMES]) for s in one.segments
            )
        assert windows > 8
        streamed = list(generator.stream_transcript(sounds[0], language="fr", max_tokens=10))
        assert [(round(50 * s.start), round(50 * s.end), s.tokens) for s in streamed] == expected(
            tmp_path, sounds[0], 10, "fr"
        )
        again = generator.transcribe(sounds[2], language="de", task="translate", max_tokens=4)
        assert again.language == "de" and again.tokens
        answer = generator.generate(sounds[3], timestamps=True, max_tokens=6)  # one window, as any answer
        assert answer.prompt == START and answer.tokens[0] >= FIRST


@pytest.mark.gpu
def test_windows_continue_the_text_before(tmp_path: Path) -> None:
    write_sources(tmp_path, "whisper")
    sounds = [features_of(k, seconds) for k, seconds in enumerate((70.5, 12, 100))]
    with Generator(tmp_path, fallback="error") as generator:
        made = generator.transcribe(sounds, max_tokens=10, language="en", condition_on_prev_tokens=True)
        found = [[(round(50 * s.start), round(50 * s.end), s.tokens) for s in one.segments] for one in made]
        assert found == [expected(tmp_path, sound, 10, "en", continued=True) for sound in sounds]
        plain = generator.transcribe(sounds, max_tokens=10, language="en")
        assert [one.tokens for one in plain] != [one.tokens for one in made]


@pytest.mark.gpu
def test_answers_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each window is read at the temperatures until an answer passes; at the last one it is taken as it is."""
    write_sources(tmp_path, "whisper")
    sound, temperatures = features_of(3, 40), (0.0, 0.4, 0.9)
    with Generator(tmp_path, fallback="error") as generator:
        read = noted(
            monkeypatch, Batch, "read", lambda _, window, sampling, start: (id(window), sampling.temperature, start)
        )
        encoder = noted(monkeypatch, generator.decoder.sessions[0], "run_with_iobinding", lambda *_: 1)
        settings: dict[str, Any] = {"language": "en", "max_tokens": 6, "temperature": temperatures, "top_k": 1}
        never = generator.transcribe(sound, **settings, compression_ratio_threshold=100.0)
        assert {temperature for _, temperature, _ in read} == {0.0}
        read.clear()
        encoder.clear()
        always = generator.transcribe(sound, **settings, logprob_threshold=0.0, condition_on_prev_tokens=True)
        assert always.tokens == never.tokens  # the most probable token at any temperature, and no text of a hot answer
        assert [temperature for _, temperature, _ in read] == [*temperatures] * len(encoder)
        assert len(encoder) > 1 and {len(start) for *_, start in read} == {3}
        silent = generator.transcribe(sound, **settings, logprob_threshold=0.0, no_speech_threshold=0.0)
        assert not silent.segments


def test_settings_of_long_sounds() -> None:
    form, rest = LongForm.taken({"temperature": [0, 0.5], "top_k": 3, "logprob_threshold": -1})
    assert form == LongForm(temperature=(0, 0.5), logprob_threshold=-1) and rest == {"top_k": 3}
    assert LongForm.taken({"temperature": 0.5}) == (LongForm(), {"temperature": 0.5})
    assert LongForm(**OPENAI).weighs
    wrong: Any
    for wrong, message in (
        ({"condition_on_prev_tokens": 1}, "condition_on_prev_tokens is 1, expected True or False"),
        ({"temperature": (0.0, -1.0)}, "temperature is"),
        ({"logprob_threshold": "x"}, "logprob_threshold is 'x', expected a number, or None"),
        ({"no_speech_threshold": 0.5}, "logprob_threshold is not: both decide together"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            LongForm(**wrong)
    assert compression_ratio([7] * 90, 1767) > 10 > 1 > compression_ratio([1, 2, 3], 1767)


@pytest.mark.gpu
def test_the_encoder_runs_once_for_each_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sources(tmp_path, "whisper")
    with Generator(tmp_path, fallback="error") as generator:
        encoder = generator.decoder.sessions[0]
        runs = noted(monkeypatch, encoder, "run_with_iobinding", lambda *_: 1)
        windows = noted(monkeypatch, Transcriber, "begin", lambda *_: 1)
        generator.transcribe(features_of(5, 20), max_tokens=5)  # detects a language, too
        assert len(runs) == len(windows) > 1


@pytest.mark.gpu
def test_other_answers_are_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that has one of two rows; sounds that were read keep nothing on the device."""
    write_sources(tmp_path, "whisper")
    sounds: list[Sound] = []
    original = Transcriber.sound

    def kept(self: Transcriber, given: Any) -> Sound:
        sounds.append(original(self, given))
        return sounds[-1]

    monkeypatch.setattr(Transcriber, "sound", kept)
    features = [features_of(k, 31) for k in range(3)]
    with Generator(tmp_path, fallback="error", max_sequences=2) as generator:
        alone = [generator.transcribe(one, max_tokens=8).tokens for one in features]
        other = generator.stream(features_of(9, 30), max_tokens=60, ignore_end=True)
        next(other)
        assert [one.tokens for one in generator.transcribe(features, max_tokens=8)] == alone
        del other
    assert len(sounds) == 6
    assert all(part is None for one in sounds for part in (one.window, one.reader, one.features))


@pytest.mark.gpu
def test_a_language_is_detected_again_where_memory_was_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sources(tmp_path, "whisper")
    features = [features_of(k, 31) for k in range(2)]
    detect, asked = Transcriber._detected, list[int]()

    def lacks_memory(self: Transcriber, window: Any) -> str:
        asked.append(len(asked))
        if len(asked) == 2:  # of the second sound, while the first one is read
            raise ArenaOutOfMemory("it", asked=1, in_use=1, allocated=1, limit=1, largest_free=0, reason="full")
        return detect(self, window)

    with Generator(tmp_path, fallback="error", max_sequences=2) as generator:
        alone = [generator.transcribe(one, max_tokens=8) for one in features]
        monkeypatch.setattr(Transcriber, "_detected", lacks_memory)
        assert generator.transcribe(features, max_tokens=8) == alone and asked == [0, 1, 2]


@pytest.mark.gpu
def test_the_form_of_onnxruntime_genai(tmp_path: Path) -> None:
    write_genai_sources(tmp_path, times=True)
    with Generator(tmp_path, fallback="error") as generator:
        speech = generator.decoder.folder.speech
        assert speech is not None and speech.languages.keys() == {"en", "de", "fr"} and speech.no_times == NO_TIMES
        made = generator.transcribe([features_of(1, 61), features_of(2, 31)], max_tokens=8)
        for one in made:
            tokens: list[int] = []
            for segment in one.segments:
                assert segment.tokens[0] >= FIRST and segment.end >= segment.start
                tokens += segment.tokens
            assert one.tokens == tokens and one.segments[-1].end <= 60 + 30
        assert made[0].tokens == generator.transcribe(features_of(1, 61), max_tokens=8).tokens
    # as the builder writes it: the first token is in the tokenizer alone
    config, words = (json.loads((tmp_path / name).read_text()) for name in ("genai_config.json", "tokenizer.json"))
    del config["model"]["decoder_start_token_id"]
    words["added_tokens"].append({"id": BEGIN, "content": "<|startoftranscript|>"})
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    found = read_folder(tmp_path)
    assert found.speech == speech and found.start_tokens == (*START, NO_TIMES)


@pytest.mark.gpu
def test_what_is_refused(tmp_path: Path) -> None:
    write_sources(tmp_path, "whisper")
    sound = np.zeros(1000, np.float32)
    with Generator(tmp_path, fallback="error") as generator:
        for settings, message in (
            ({"language": "xx"}, "language is 'xx', expected None or one of de, en, fr"),
            ({"task": "sing"}, "task is 'sing'"),
            ({"stop": ["a"]}, "stop and grammar"),
            ({"no_speech_threshold": 0.5}, "logprob_threshold is not"),
            ({"timestamps": 1}, "timestamps is 1, expected True or False"),
        ):
            with pytest.raises(InvalidInputError, match=message):
                generator.transcribe(sound, **settings)
        wrongs: list[Any] = [
            *(np.zeros(shape, np.float32) for shape in ((2, 2, 2), 0, (16000, 2), (2, 16000), (81, 3000))),
            *(np.zeros(4, np.int64), np.array([0, np.nan], np.float32), np.array([np.inf, 1], np.float32)),
        ]
        for wrong in wrongs:
            with pytest.raises(
                InvalidInputError, match=r"sound 2 of 2: the sound (is|has 1 numbers that are not finite)"
            ):
                generator.transcribe([sound, wrong])
            with pytest.raises(InvalidInputError, match=r"the source (is|has 1 numbers that are not finite)"):
                generator.batch(1).add(wrong)
        with pytest.raises(InvalidInputError, match="the source has features of 7 frames; the model reads 3000"):
            generator.batch(1).add(np.zeros((80, 7), np.float32))
    write_sources(tmp_path / "t5", "t5")
    with Generator(tmp_path / "t5", fallback="error") as generator:
        with pytest.raises(InvalidInputError, match="has tokens of times"):
            generator.transcribe(sound)
        with pytest.raises(InvalidInputError, match="timestamps is True"):
            generator.generate("a", timestamps=True)


def test_features_of_long_sounds_are_those_of_their_parts(tmp_path: Path) -> None:
    sound = np.random.default_rng(0).normal(0, 0.1, 16000 * 65).astype(np.float32)
    whole = Features.read(tmp_path).of(sound)
    assert whole.shape == (80, 6500)
    part = Features.read(tmp_path).of(sound[: 16000 * 10])
    np.testing.assert_allclose(whole[:, 10:900], part[:, 10:900], atol=0.2)  # the loudest of each differ
    assert log_mel(sound[:16000], tmp_path).shape == (80, 3000)


def test_wav_files(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"

    def write(rate: int, channels: int, samples: Array) -> None:
        with wave.open(str(path), "wb") as file:
            file.setparams((channels, 2, rate, 0, "NONE", ""))
            file.writeframes(samples.astype("<i2").tobytes())

    write(16000, 2, np.array([[100, 300], [-200, 0]]))
    np.testing.assert_array_equal(read_wav(path), np.array([200, -100], np.float32) / 32768)
    write(8000, 1, np.array([1]))
    with pytest.raises(InvalidInputError, match="16 bits at 8000 Hz"):
        read_wav(path)
    whole = path.read_bytes()
    for content, why in ((b"RIFF", ""), (whole[:17] + b"\2" + whole[18:], "a length in it is wrong")):
        with pytest.raises(InvalidInputError, match=f"no WAV file .*{why}"):
            read_wav(content)


def test_tokens_of_a_folder(tmp_path: Path) -> None:
    write_sources(tmp_path, "whisper")
    found = read_folder(tmp_path)
    assert found.start_tokens == (*START, NO_TIMES)
    assert found.speech == Speech(
        BEGIN,
        NO_TIMES,
        END,
        {name: SPEECH[f"<|{name}|>"] for name in ("en", "de", "fr")},
        {name: SPEECH[f"<|{name}|>"] for name in ("transcribe", "translate")},
        previous=SPEECH["<|startofprev|>"],
    )
    path = tmp_path / "generation_config.json"
    config = json.loads(path.read_text())
    for name in ("lang_to_id", "task_to_id"):
        del config[name]
    path.write_text(json.dumps(config))  # a model of English
    del config["prev_sot_token_id"]
    config["suppress_tokens"] = [1, 2, 77, 78]  # without a name it is the last but one of these
    path.write_text(json.dumps(config))
    english = read_folder(tmp_path).speech
    assert english is not None and english.previous == 77
    assert english is not None and english.start(None, "transcribe", times=True) == (BEGIN,)
    with pytest.raises(InvalidInputError, match="the model has no tokens for them: expected None or 'en'"):
        english.start("de", "transcribe", times=True)
    assert bounds(english, 400, []) == Bounds(FIRST, FIRST, FIRST + 50)


def test_parts_of_long_sounds() -> None:
    """Equal shares whose ends move to where it is quiet: up to two seconds, and no part is longer than the model reads."""
    rng = np.random.default_rng(0)
    for most, step in ((3000, 160), (3000, 1), (100, 3)):
        sizes = [1, step, most * step, most * step + 1, *(int(n) for n in rng.integers(1, 12 * most * step, 40))]
        for size in sizes:
            total, sound, ends = -(-size // step), rng.normal(0, 1, size).astype(np.float32), [0]
            while ends[-1] < total:
                ends.append(end_of_part(sound, step, most, ends[-1]))
            shares = [k * total / (len(ends) - 1) for k in range(len(ends))]
            assert max(np.diff(ends)) <= most and np.abs(np.subtract(ends, shares)).max() <= 200
            assert ends[-1] == total and (len(ends) == 2) == (total <= most)
    sound = np.ones(61 * 16000, np.float32)
    sound[21 * 16000 : 21 * 16000 + 3200] = 0
    assert end_of_part(sound, 160, 3000, 0) == 2110


@pytest.mark.gpu
def test_texts_of_parts_have_spaces_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a decoder that leaves out the first space, as that of Moonshine's tokenizer: the text is that of all tokens."""
    pytest.importorskip("tokenizers")
    write_sources(tmp_path, "moonshine")
    sound = np.random.default_rng(0).normal(0, 0.1, 62 * 16000).astype(np.float32)
    with Generator(tmp_path) as generator:

        def decode(_: Any, tokens: list[int]) -> str:
            texts = [f" {token}" if token % 2 else "\N{REPLACEMENT CHARACTER}" for token in tokens]
            return "".join(texts).removeprefix(" ")

        monkeypatch.setattr(type(generator.text), "decode", decode)
        found = generator.transcribe(sound, max_tokens=6)
        assert len(found.segments) == 3 and all(any(token % 2 for token in s.tokens) for s in found.segments)
        assert any(segment.text.startswith(" ") for segment in found.segments[1:])
        assert found.text == decode(None, found.tokens)
