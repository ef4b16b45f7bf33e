"""Streaming transducers: the tokens of the same search with ONNX Runtime, many sounds that come and go; the features of Kaldi's
library, and the tokens and times of sherpa-onnx, where these packages are."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tools.cpu_transducer import BeamRule, CpuTransducer, beam_search, biased
from vkep import InferenceSession
from vkep.errors import InvalidInputError, InvalidModelError
from vkep.fbank import WINDOW, OnlineFbank, fbank
from vkep.graph.load import load_model
from vkep.hotword_texts import read_phrases, splitter
from vkep.hotwords import Hotwords
from vkep.models.transducer import CHUNK, STEP, VOCABULARY, write_transducer
from vkep.streaming import StreamingSession
from vkep.transducer import Hypothesis, Recognizer, search_model
from vkep.transducer_search import NONE, Search

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("transducer")
    write_transducer(made)
    return made


def drawn_sound(seed: int, seconds: float) -> Array:
    rng = np.random.default_rng(seed)
    count = round(16000 * seconds)
    loud = np.repeat(rng.uniform(0, 1, count // 1600 + 1), 1600)[:count]
    return (rng.normal(0, 0.1, count) * loud).astype(np.float32)


@pytest.mark.gpu
def test_the_same_tokens(folder: Path) -> None:
    """Sounds begin and end at other times, in parts of any length; a run reads those that have a chunk."""
    theirs, rng = CpuTransducer(folder), np.random.default_rng(2)
    lengths = [3.1, 1.7, 0.9, 2.4, 4.0]
    sounds = [drawn_sound(k, seconds) for k, seconds in enumerate(lengths)]
    with Recognizer(folder, streams=3, fallback="error") as recognizer:
        assert (recognizer.chunk, recognizer.step) == (CHUNK, STEP)
        found: dict[int, list[int]] = {}
        waiting, reading = list(range(len(sounds))), dict[int, tuple[int, int]]()
        mixed = 0
        while waiting or reading:
            for stream in range(3):
                if stream not in reading and waiting:
                    recognizer.reset(stream)
                    reading[stream] = waiting.pop(0), 0
            for stream, (number, at) in list(reading.items()):
                part = int(rng.integers(1, 9000))
                recognizer.accept(stream, sounds[number][at : at + part])
                reading[stream] = number, at + part
            mixed += 0 < len(recognizer.ready()) < 3
            recognizer.decode()
            for stream, (number, at) in list(reading.items()):
                if at >= sounds[number].size:
                    before = recognizer.tokens(stream)
                    recognizer.finish(stream)
                    recognizer.decode()
                    found[number] = recognizer.tokens(stream)
                    assert found[number][: len(before)] == before
                    del reading[stream]
        assert mixed > 3
        for number, sound in enumerate(sounds):
            online = OnlineFbank()
            features = np.concatenate(
                [online.accept(sound), online.accept(np.zeros(160 * CHUNK, np.float32)), online.finish()]
            )
            first = len(OnlineFbank().accept(sound))
            whole = first - first % STEP + CHUNK if first >= CHUNK else CHUNK
            expected = theirs.tokens(features[:whole], VOCABULARY - 1)
            assert found[number] == expected
        assert len({tuple(tokens[:9]) for tokens in found.values()}) == len(sounds)
        assert recognizer.encoder.session._parts.graph.plan_count <= 2


def small_parts(context: int) -> tuple[onnx.ModelProto, onnx.ModelProto, Callable[[Array, Sequence[int]], Array]]:
    """A joiner and a decoder of 9 tokens and 6 numbers, and the logits [9] that numpy makes of a frame after tokens."""
    text = """
        <ir_version: 9, opset_import: ["" : 18]>
        part (INPUTS) => (float[N, K] made) { NODES }
    """
    decoder = onnx.parser.parse_model(
        text.replace("INPUTS", f"int64[N, {context}] y").replace(
            "NODES",
            "zero = Constant <value_int = 0> () some = Max (y, zero) words = Gather (table, some) "
            "one = Constant <value_ints = [1]> () "
            "scaled = Mul (words, weights) made = ReduceSum <keepdims = 0> (scaled, one)",
        )
    )
    joiner = onnx.parser.parse_model(
        text.replace("INPUTS", "float[N, 6] a, float[N, 6] b").replace(
            "NODES", "sum = Add (a, b) bent = Tanh (sum) made = MatMul (bent, table)"
        )
    )
    rng = np.random.default_rng(context)
    tables = {"table": rng.normal(0, 1, (9, 6)), "weights": rng.normal(0, 1, (context, 1))}
    decoder.graph.initializer.extend(onnx.numpy_helper.from_array(v.astype(np.float32), n) for n, v in tables.items())
    head = rng.normal(0, 1, (6, 9)).astype(np.float32)
    joiner.graph.initializer.append(onnx.numpy_helper.from_array(head, "table"))

    def logits(frame: Array, said: Sequence[int]) -> Array:
        last = (tables["table"][np.maximum(said[-context:], 0)] * tables["weights"]).sum(0)
        made: Array = np.tanh(frame + last) @ head
        return made

    return joiner, decoder, logits


@pytest.mark.gpu
@pytest.mark.parametrize("context", [1, 2, 4])
@pytest.mark.parametrize("ignored", [(), (3, 5)])
def test_the_search_alone(context: int, ignored: tuple[int, ...]) -> None:
    joiner, decoder, logits = small_parts(context)
    rng = np.random.default_rng(context)
    model = search_model(load_model(joiner), load_model(decoder), 7, context, ignored)
    encoded, before = rng.normal(0, 1, (3, 7, 6)).astype(np.float32), rng.integers(0, 9, (3, context))
    with InferenceSession(model, fallback="error") as session:
        tokens, after = session.run(None, {"encoder_out": encoded, "context": before})
    for stream in range(3):
        said, found = list(before[stream]), []
        for frame in encoded[stream]:
            token = int(logits(frame, said).argmax())
            found.append(0 if token in (0, *ignored) else token)
            said += [token] if found[-1] else []
        assert tokens[stream].tolist() == found
        assert after[stream].tolist() == said[-context:]
    assert (tokens != 0).any() and (tokens == 0).any()


#: phrases of tokens of 9 that begin and end in each other, and what each of their tokens adds
PHRASES = {
    "none": ((), 1.5),
    "few": (((1, 2, 3), (2, 3)), 0.8),
    "many": (((4,), (4, 4, 5), (5, 6, 1, 2), (6, 1), (1, 5, 6)), 1.7),
}


@pytest.mark.gpu
@pytest.mark.parametrize("context", [1, 2, 4])
@pytest.mark.parametrize("beams", [2, 4, 9])
@pytest.mark.parametrize("ignored", [(), (3, 5)])
@pytest.mark.parametrize("phrases", PHRASES)
@pytest.mark.parametrize("penalty", [0.0, 1.3, -2.0])
def test_beams_alone(context: int, beams: int, ignored: tuple[int, ...], phrases: str, penalty: float) -> None:
    """Hypotheses of three streams over three chunks, one hypothesis after the other in numpy: tokens and scores."""
    joiner, decoder, logits = small_parts(context)
    given, score = PHRASES[phrases]
    hotwords = Hotwords.of(given, [score] * len(given), 9) if given else None
    search = Search(context, ignored, penalty, beams, 9, hotwords)
    model = search_model(load_model(joiner), load_model(decoder), 5, search)
    encoded = np.random.default_rng(beams).normal(0, 1, (3, 3, 5, 6)).astype(np.float32)
    states = {f"new_{name}": name for name in search.states}
    paths: list[list[tuple[int, ...]]] = [[()] * beams for _ in range(3)]
    merged = False
    with StreamingSession(model, states, streams=3, initial=search.initial, fallback="error") as session:
        for chunk in encoded:
            tokens, parents, scores = session.run(["tokens", "parents", "scores"], {"encoder_out": chunk})
            for stream, (said, before) in enumerate(zip(tokens, parents, strict=True)):
                for ids, places in zip(said.tolist(), before.tolist(), strict=True):
                    old = paths[stream]
                    paths[stream] = [(*old[k], *([t] if t else [])) for k, t in zip(places, ids, strict=True)]
                    merged |= len(set(paths[stream])) < beams
    for stream in range(3):
        frames = list(encoded[:, stream].reshape(-1, 6))
        begin = (*[-1] * (context - 1), 0)
        expected = beam_search(frames, logits, begin, BeamRule(beams, ignored, penalty, given, score))
        alive = [k for k in range(beams) if scores[stream, k] > NONE / 2]
        found = {paths[stream][k]: scores[stream, k] / (len(paths[stream][k]) + context) for k in alive}
        assert len(found) == len(alive)  # of different tokens
        assert found == pytest.approx(dict(expected), abs=1e-4)
    assert merged or penalty >= 0 or beams == 2  # hypotheses of the same tokens became one in some frame


@pytest.mark.parametrize("seed", range(8))
def test_automata_of_phrases(seed: int) -> None:
    """Drawn phrases over few tokens, against what the beginnings of phrases say one by one."""
    rng = np.random.default_rng(seed)
    drawn = {tuple(rng.integers(1, 5, rng.integers(1, 6)).tolist()) for _ in range(rng.integers(1, 9))}
    phrases, score = sorted(drawn), 1.25
    automaton, rule = Hotwords.of(phrases, [score] * len(phrases), 6), BeamRule(1, phrases=phrases, score=score)
    state, place, total, gained = 0, tuple[int, ...](), 0.0, 0
    for token in rng.integers(1, 6, 400).tolist():
        gain, place = biased(rule, place, token)
        column = automaton.columns[token]
        assert automaton.gains[state, column] == gain
        state, total, gained = int(automaton.next[state, column]), total + gain, gained + (gain > 0)
        assert (state == 0) == (place == ()) and total >= 0
    assert gained > 5


@pytest.mark.parametrize(
    ("phrases", "message"),
    [([()], r"has tokens \[\]"), ([(0,)], "expected tokens of 1 to 8"), ([(9,)], "expected tokens of 1 to 8")],
)
def test_hotwords_that_are_refused(phrases: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Hotwords.of(phrases, [1.0], 9)
    for score in (0.0, -1.0, 1e39, float("inf"), float("nan")):
        with pytest.raises(InvalidInputError, match="a score above 0"):
            Hotwords.of([(1, 2)], [score], 9)


#: pieces whose best cuts are not the longest ones, and two with the same sum
PIECES = {
    "\u2581": -3.0,
    "\u2581HE": -4.0,
    "L": -2.5,
    "LL": -6.5,
    "LO": -3.5,
    "O": -3.0,
    "\u2581L": -5.25,
    "W": -4.0,
    "OR": -4.5,
}
PIECES |= {
    "D": -3.25,
    "R": -3.0,
    "\u2581W": -7.0,
    "\u2581HELLO": -20.0,
    "E": -2.0,
    "H": -6.0,
    "'": -9.0,
    "\u00c9": -5.0,
}
TEXTS = (
    "HELLO",
    "HELLO WORLD",
    "L'\u00c9LE",
    "HELO LLLO \u4e16",
    "\u4f60\u597d",
    "\u4f60 HELLO\u597dOR'D",
    "WORD-LOO",
    "LE\u597d \u4e16LO",
)


def texts_of(pieces: Iterable[str]) -> list[str]:
    """The texts of all tokens of the small model: the pieces, characters, and words. Those that it finds often are in phrases."""
    likely = {17: "\u2581HE", 6: "L", 32: "LO", 13: "\u4f60", 19: "\u597d"}
    others = ["<blk>", "<sos/eos>", "<unk>", *pieces, "\u4e16", "-", "HELLO", "OR'D"]
    rest = iter([*[text for text in others if text not in likely.values()], *[f"~{k}" for k in range(VOCABULARY)]])
    return [likely.get(k) or next(rest) for k in range(VOCABULARY)]


@pytest.mark.parametrize(
    ("unit", "phrase", "expected"),
    [
        ("", "\u2581HE L", ["\u2581HE", "L"]),
        ("cjkchar", "\u4f60HELLO \u597d", ["\u4f60", "HELLO", "\u597d"]),
        ("bpe", "HELLO LO", ["\u2581HE", "L", "LO", "\u2581", "LO"]),
        ("cjkchar+bpe", "\u4f60LO-\u597d", ["\u4f60", "\u2581", "LO", "-", "\u597d"]),
    ],
)
def test_texts_of_hotwords(unit: str, phrase: str, expected: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "bpe.vocab").write_text("".join(f"{p}\t{s}\n" for p, s in PIECES.items()), encoding="utf-8")
    assert splitter(unit, tmp_path)(phrase) == expected


def test_files_of_hotwords(tmp_path: Path) -> None:
    file = tmp_path / "hotwords.txt"
    file.write_text("\ufeffHELLO  WORLD :2.5\n\n:3\n\u4f60\u597d\r\n", encoding="utf-8")
    assert read_phrases(file, 1.5) == [("HELLO WORLD", 2.5), ("\u4f60\u597d", 1.5)]
    for line in ("a :x", "a :1 b", "a :1 :2"):
        file.write_text(f"b\n{line}\n", encoding="utf-8")
        with pytest.raises(InvalidInputError, match=f"line 2 is '{line}'; expected words, and a score"):
            read_phrases(file, 1.5)
    with pytest.raises(InvalidInputError, match="none"):
        read_phrases(tmp_path / "none.txt", 1.5)


def test_texts_of_hotwords_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="hotwords_unit is 'phone', expected one of"):
        splitter("phone", tmp_path)
    with pytest.raises(InvalidModelError, match=r"has no bpe.vocab and no bpe.model"):
        splitter("bpe", tmp_path)
    (tmp_path / "bpe.vocab").write_text("a\t-1\nb\n", encoding="utf-8")
    with pytest.raises(InvalidModelError, match="expected a piece and its score in each line"):
        splitter("bpe", tmp_path)
    (tmp_path / "bpe.vocab").write_text("a\t-1\n\u2581\t-2\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="hotword 'ab' cannot be made of the pieces"):
        splitter("bpe", tmp_path)("a ab")


def test_pieces_of_sentencepiece(tmp_path: Path) -> None:
    """Of a folder with bpe.model alone: those that the package makes."""
    sentencepiece = pytest.importorskip("sentencepiece")
    rng, texts = np.random.default_rng(0), []
    for _ in range(400):
        texts.append(" ".join("".join(rng.choice(list("abcde"), 1 + int(rng.integers(6)))) for _ in range(5)))
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    given = {"input": str(tmp_path / "texts.txt"), "model_prefix": str(tmp_path / "bpe"), "vocab_size": 60}
    sentencepiece.SentencePieceTrainer.train(**given, model_type="unigram", minloglevel=2)
    (tmp_path / "bpe.vocab").rename(tmp_path / "other.vocab")
    theirs, split = (
        sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "bpe.model")),
        splitter("bpe", tmp_path),
    )
    for text in texts:
        for word in text.split():  # cuts into the same pieces in another order have the same score
            assert sorted(split(word)) == sorted(theirs.encode(word, out_type=str))


@pytest.mark.gpu
@pytest.mark.parametrize("unit", ["cjkchar", "bpe", "cjkchar+bpe"])
def test_texts_of_hotwords_of_sherpa_onnx(folder: Path, unit: str, tmp_path: Path) -> None:
    """The same tokens and times as of its recognizer, of a file with scores."""
    sherpa = pytest.importorskip("sherpa_onnx")
    shutil.copytree(folder, tmp_path / "model")
    names = texts_of(PIECES)
    lines = [f"{text} {k}" for k, text in enumerate(names)]
    (tmp_path / "model" / "tokens.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    vocab = tmp_path / "model" / "bpe.vocab"
    vocab.write_text("".join(f"{p}\t{s}\n" for p, s in PIECES.items()), encoding="utf-8")
    split = splitter(unit, tmp_path / "model")
    known = []
    for phrase in TEXTS:
        with contextlib.suppress(InvalidInputError):
            known += [phrase] if all(token in names for token in split(phrase)) else []
    assert len(known) > 2 - (unit == "cjkchar")
    file = tmp_path / "hotwords.txt"
    file.write_text("".join(f"{phrase} :{3 + k}.5\n" for k, phrase in enumerate(known)), encoding="utf-8")
    files = {part: str(tmp_path / "model" / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")}
    theirs = sherpa.OnlineRecognizer.from_transducer(
        **files,
        tokens=str(tmp_path / "model" / "tokens.txt"),
        num_threads=1,
        decoding_method="modified_beam_search",
        max_active_paths=6,
        hotwords_file=str(file),
        modeling_unit=unit,
        bpe_vocab=str(vocab),
    )
    changed = 0
    for hotwords in (file, ()):
        with Recognizer(tmp_path / "model", beams=6, hotwords=hotwords, hotwords_unit=unit) as recognizer:
            for seed in range(3):
                sound, stream = drawn_sound(seed, 3.1), theirs.create_stream()
                stream.accept_waveform(16000, sound)
                while theirs.is_ready(stream):
                    theirs.decode_stream(stream)
                recognizer.reset(0)
                recognizer.accept(0, sound)
                recognizer.decode()
                named = [names[k] for k in recognizer.tokens(0)]
                found = [token.replace(" ", "\u2581") for token in theirs.tokens(stream)]
                if hotwords:
                    assert named == found
                changed += not hotwords and named != found
    assert changed


@pytest.mark.gpu
def test_some_streams_continue(folder: Path) -> None:
    rng = np.random.default_rng(0)
    chunks = rng.normal(0, 1, (4, 3, CHUNK, 80)).astype(np.float32)
    with (
        StreamingSession(folder / "encoder.onnx", streams=3) as session,
        StreamingSession(folder / "encoder.onnx") as alone,
    ):
        session.run(["encoder_out"], {"x": chunks[0]})
        session.run(["encoder_out"], {"x": chunks[1]}, streams=[0, 2])
        session.run(["encoder_out"], {"x": chunks[2]}, streams=[1])
        (made,) = session.run(["encoder_out"], {"x": chunks[3]})
        for stream, parts in enumerate(([0, 1, 3], [0, 2, 3], [0, 1, 3])):
            alone.reset()
            for part in parts:
                (wanted,) = alone.run(["encoder_out"], {"x": chunks[part, stream : stream + 1]})
            np.testing.assert_allclose(made[stream], wanted[0], atol=1e-4)


@pytest.mark.parametrize("count", [1, 150, 399, 400, 4321])
def test_features_of_parts(count: int) -> None:
    """A sound in parts has the frames of the whole sound."""
    sound, rng = drawn_sound(count, count / 16000), np.random.default_rng(count)
    whole, parts = OnlineFbank(40), OnlineFbank(40)
    expected = np.concatenate([whole.accept(sound), whole.finish()])
    assert expected.shape == ((count + 80) // 160, 40)
    found, at = [], 0
    while at < count:
        size = int(rng.integers(1, 700))
        found.append(parts.accept(sound[at : at + size]))
        at += size
    np.testing.assert_array_equal(np.concatenate([*found, parts.finish()]), expected)


def test_a_tone_is_in_its_band() -> None:
    for hertz in (300, 1000, 4000):
        tone = np.sin(2 * np.pi * hertz * np.arange(WINDOW) / 16000).astype(np.float32)
        places = 1127 * np.log(1 + np.array([20, 7600, hertz]) / 700)
        band = (places[2] - places[0]) / (places[1] - places[0]) * 81 - 1
        assert abs(fbank(tone[None])[0].argmax() - band) <= 1


def test_features_of_kaldi() -> None:
    kaldi = pytest.importorskip("kaldi_native_fbank")
    options = kaldi.FbankOptions()
    options.frame_opts.dither, options.frame_opts.snip_edges = 0, False
    options.mel_opts.num_bins, options.mel_opts.high_freq = 80, -400
    sound = drawn_sound(0, 1.234)
    theirs = kaldi.OnlineFbank(options)
    theirs.accept_waveform(16000, sound.tolist())
    ours = OnlineFbank()
    found = ours.accept(sound)
    assert len(found) == theirs.num_frames_ready
    theirs.input_finished()
    found = np.concatenate([found, ours.finish()])
    assert len(found) == theirs.num_frames_ready
    expected = np.stack([theirs.get_frame(k) for k in range(len(found))])
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("seconds", [1.3, 4.1])
def test_sherpa_onnx(folder: Path, seconds: float) -> None:
    """The program that reads these files: the same texts and times."""
    sherpa = pytest.importorskip("sherpa_onnx")
    files = {part: str(folder / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")}
    theirs = sherpa.OnlineRecognizer.from_transducer(tokens=str(folder / "tokens.txt"), num_threads=1, **files)
    sound, stream = drawn_sound(9, seconds), theirs.create_stream()
    stream.accept_waveform(16000, sound)
    while theirs.is_ready(stream):
        theirs.decode_stream(stream)
    with Recognizer(folder, fallback="error") as recognizer:
        recognizer.accept(0, sound)
        recognizer.decode()
        assert recognizer.text(0) == theirs.get_result(stream) != ""
        # it takes four frames of features for each of the encoder's, of which this one has two
        np.testing.assert_allclose(recognizer.times(0), np.array(theirs.timestamps(stream)) / 2, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("beams", "hotwords", "score", "penalty"),
    [
        (4, (), 1.5, 0.0),
        (8, (), 1.5, 0.7),
        (4, ("q f", "f f q", "l f o"), 3.0, 0.0),
        (6, ("q q q f", "q f", "o q", "l"), 2.0, 0.5),
    ],
)
def test_beams_of_sherpa_onnx(
    folder: Path, beams: int, hotwords: Sequence[str], score: float, penalty: float, tmp_path: Path
) -> None:
    """The same texts and times of its modified beam search, with hotwords and a penalty."""
    sherpa = pytest.importorskip("sherpa_onnx")
    files: dict[str, Any] = {part: str(folder / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")}
    (tmp_path / "hotwords.txt").write_text("\n".join(hotwords) + "\n")
    if hotwords:
        files |= {"hotwords_file": str(tmp_path / "hotwords.txt"), "hotwords_score": score}
    theirs = sherpa.OnlineRecognizer.from_transducer(
        tokens=str(folder / "tokens.txt"),
        num_threads=1,
        decoding_method="modified_beam_search",
        max_active_paths=beams,
        blank_penalty=penalty,
        **files,
    )
    settings: dict[str, Any] = {"beams": beams, "hotwords": hotwords, "hotwords_score": score, "blank_penalty": penalty}
    with Recognizer(folder, fallback="error", streams=3, **settings) as recognizer:
        for seed in range(3):
            sound, stream = drawn_sound(seed, 3.1), theirs.create_stream()
            stream.accept_waveform(16000, sound)
            while theirs.is_ready(stream):
                theirs.decode_stream(stream)
            recognizer.accept(seed, sound)
            recognizer.decode()
            assert recognizer.text(seed) == theirs.get_result(stream) != ""
            np.testing.assert_allclose(recognizer.times(seed), np.array(theirs.timestamps(stream)) / 2, atol=1e-6)


@pytest.mark.gpu
def test_hypotheses_of_many_streams(folder: Path) -> None:
    """As the same search with ONNX Runtime; sounds begin and end at other times, and another one follows in a stream."""
    theirs, rule = CpuTransducer(folder), BeamRule(4, (VOCABULARY - 1,), 0.3, [[17, 6], [6, 6, 17]], 2.0)
    sounds = [drawn_sound(k, seconds) for k, seconds in enumerate((1.9, 1.2, 0.9))]
    symbols = {k: line.split(" ")[0] for k, line in enumerate((folder / "tokens.txt").read_text().splitlines())}
    words = {" ".join(symbols[t] for t in phrase): 2.0 for phrase in rule.phrases}
    found: dict[int, list[Hypothesis]] = {}
    with Recognizer(folder, fallback="error", streams=2, beams=4, hotwords=words, blank_penalty=0.3) as recognizer:
        changed = list[list[int]]()
        recognizer.accept(0, sounds[0][:9000])
        changed.append(recognizer.decode())
        recognizer.accept(1, sounds[1])
        recognizer.accept(0, sounds[0][9000:])
        changed.append(recognizer.decode())
        found |= {0: recognizer.hypotheses(0), 1: recognizer.hypotheses(1)}
        recognizer.reset(1)
        assert recognizer.tokens(1) == []
        recognizer.accept(1, sounds[2])
        changed.append(recognizer.decode())
        found[2] = recognizer.hypotheses(1)
        assert recognizer.hypotheses(0) == found[0] and recognizer.text(1) == found[2][0].text
    assert changed[0] in ([0], []) and changed[1:] == [[0, 1], [1]]
    for number, sound in enumerate(sounds):
        features = OnlineFbank().accept(sound)
        expected = theirs.hypotheses(features[: len(features) - (len(features) - CHUNK) % STEP], rule)
        assert [tuple(one.tokens) for one in found[number]] == [tokens for tokens, _ in expected]
        assert [one.score for one in found[number]] == pytest.approx([score for _, score in expected], abs=1e-3)
        assert all(len(one.times) == len(one.tokens) and one.times == sorted(one.times) for one in found[number])


@pytest.mark.gpu
def test_scores_that_are_no_numbers(tmp_path: Path) -> None:
    """Of a joiner that makes NaN no token is found."""
    write_transducer(tmp_path)
    joiner = onnx.load(tmp_path / "joiner.onnx")
    for weight in joiner.graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        if values.dtype == np.float32:
            weight.CopyFrom(onnx.numpy_helper.from_array(np.full_like(values, np.nan), weight.name))
    onnx.save(joiner, tmp_path / "joiner.onnx")
    with Recognizer(tmp_path, fallback="error", beams=4) as recognizer:
        recognizer.accept(0, drawn_sound(1, 1.0))
        recognizer.decode()
        assert recognizer.hypotheses(0) == []


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no encoder\*\.onnx"):
        Recognizer(tmp_path)
    write_transducer(tmp_path)
    model = onnx.load(tmp_path / "encoder.onnx")
    for name, value in (("T", "0"), ("decode_chunk_len", "many")):
        onnx.helper.set_model_props(model, {"T": "45", "decode_chunk_len": "32", name: value})
        onnx.save(model, tmp_path / "encoder.onnx")
        with pytest.raises(InvalidModelError, match=f"its metadata say {name} is '{value}'"):
            Recognizer(tmp_path)
    write_transducer(tmp_path)
    for line in ("a", "b \u00b2", f"c {'9' * 5000}"):
        (tmp_path / "tokens.txt").write_text(f"{line}\n", encoding="utf-8")
        with pytest.raises(InvalidModelError, match=f"'{line[0]}.* does not end with a token's number"):
            Recognizer(tmp_path)
    (tmp_path / "tokens.txt").unlink()
    onnx.save(onnx.load(tmp_path / "joiner.onnx"), tmp_path / "joiner.int8.onnx")
    joiner, decoder = (load_model(folder / f"{part}.onnx") for part in ("joiner", "decoder"))
    with pytest.raises(InvalidModelError, match=r"expected \[\(2, 1\), \(1, 1\)\]"):
        search_model(decoder, joiner, 4, 2)
    for wrong, message in (
        ({"beams": 0}, "beams is 0, expected 1 to 64"),
        ({"beams": 41}, "beams is 41, expected 1 to 40"),
        ({"hotwords": ["a"]}, "hotwords belong to a search with beams"),
        ({"beams": 2, "hotwords": ["\u2581a zz"]}, "'zz', which is no token of tokens.txt: write its tokens"),
        (
            {"beams": 2, "hotwords": "words.txt"},
            r"hotwords are the text 'words.txt'; expected .* Path\(...\) of a file",
        ),
        ({"beams": 2, "hotwords": [5]}, "hotword 5 is neither a text nor a list of token ids"),
        ({"beams": 2, "hotwords": [["q", "f"]]}, "is neither a text nor a list of token ids"),
        ({"beams": 2, "hotwords": [[1.5]]}, "is neither a text nor a list of token ids"),
        ({"beams": 2, "hotwords": {"\u2581a": "2"}}, "score '2'; expected .* a score above 0"),
        ({"beams": 2, "hotwords": [[40]]}, "expected tokens of 1 to 39"),
        ({"blank_penalty": float("nan")}, "blank_penalty is nan, expected a number of at most 1e\\+06"),
        ({"beams": 2, "blank_penalty": -1e40}, "blank_penalty is -1e\\+40"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            Recognizer(folder, **wrong)
    with Recognizer(tmp_path, fallback="error") as recognizer:
        with pytest.raises(InvalidInputError, match="a greedy search has one hypothesis"):
            recognizer.hypotheses(0)
        with pytest.raises(InvalidModelError, match=r"no tokens\.txt"):
            recognizer.text(0)
        with pytest.raises(InvalidInputError, match="stream is 1, expected 0 to 0"):
            recognizer.accept(1, np.zeros(4, np.float32))
        for samples in (np.zeros(4, np.int64), np.array([np.nan, 1], np.float32), np.zeros((4, 2), np.float32)):
            with pytest.raises(InvalidInputError, match=r"the part of the sound (is (int64|float32)|has 1 numbers)"):
                recognizer.accept(0, samples)
        recognizer.finish(0)
        recognizer.finish(0)
        with pytest.raises(InvalidInputError, match="stream 0 is finished"):
            recognizer.accept(0, np.zeros(4, np.float32))
