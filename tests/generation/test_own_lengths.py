"""Decoders whose rows get lengths of their own: drawn forms of attention against ONNX Runtime's CPU provider, one row at a time;
and answers of several sources in one run."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.calls import noted
from tests.generation.genai_sources import write_genai_sources
from tests.generation.test_encoder_decoder import merged
from tools.ort_cpu import cpu_session
from vkep import InferenceSession
from vkep.generation import Generator, Sampling, encoder_decoder
from vkep.generation.decoder import Decoder
from vkep.generation.encoder_decoder import EncoderDecoder
from vkep.generation.own_lengths import with_lengths
from vkep.graph.load import load_model
from vkep.models.language import BEGIN
from vkep.models.sources import write_sources

Array = np.ndarray[Any, Any]
HEADS, SIZE, WIDTH, CONTEXT, VOCABULARY = 2, 8, 16, 24, 11
PAIRS = {"past.key": "present.key", "past.value": "present.value"}

#: parts of a drawn form, each with the name of its result
POSITIONS = {
    "gather": "place = Range (past, all, one) row = Unsqueeze (place, zeros) read = Gather (table, row)",
    "moved": "place = Range (past, all, one) two = Add (one, one) on = Add (place, one) row = Unsqueeze (on, zeros) "
    "read = Gather (table, row)",
    "slice": "from = Unsqueeze (past, zeros) to = Unsqueeze (all, zeros) read = Slice (table, from, to, zeros)",
}
#: an addend [1, heads, queries, keys] of the distances between ``keys`` and ``column``, of which large ones count alike
_DISTANCES = (
    "line = Unsqueeze (keys, zeros) away = Sub (line, column) behind = Neg (away) near = Max (behind, zero) "
    "sizes_of = Shape (near) top = ConstantOfShape <value = int64[1] {10}> (sizes_of) at = Min (near, top) "
    "found = Gather (distances, at) turned = Transpose <perm = [2, 0, 1]> (found) addend = Unsqueeze (turned, zeros)"
)
SCALES = {
    "queries": "q = Mul (q_heads, scale) t = Transpose <perm = [0, 1, 3, 2]> (present.key) scores = MatMul (q, t)",
    "both": "root = Sqrt (scale) t = Transpose <perm = [0, 1, 3, 2]> (present.key) q = Mul (q_heads, half) "
    "k = Mul (half, t) scores = MatMul (q, k)",
    "scores": "t = Transpose <perm = [0, 1, 3, 2]> (present.key) made = MatMul (q_heads, t) scores = Div (made, scale)",
}
MASKS = {
    "none": "masked = Identity (scores)",
    "shapes": "keys = Range (zero, all, one) rows = Range (past, all, one) column = Unsqueeze (rows, ones) "
    "may = LessOrEqual (keys, column) addend = Where (may, nothing, low) masked = Add (scores, addend)",
    "distances": "keys = Range (zero, all, one) rows = Range (past, all, one) column = Unsqueeze (rows, ones) "
    f"{_DISTANCES} masked = Add (scores, addend)",
    "distances of each": "keys = Range (zero, all, one) rows = Range (past, all, one) column = Unsqueeze (rows, ones) "
    f"{_DISTANCES} may = LessOrEqual (keys, column) hidden = Where (may, nothing, low) both = Add (hidden, addend) "
    "masked = Add (scores, both)",
    "distances of all": "keys = Range (zero, all, one) column = Unsqueeze (keys, ones) "
    f"{_DISTANCES} newest = Neg (ones) many = Unsqueeze (all, zeros) last = Slice (addend, newest, many, twos) "
    "may = LessOrEqual (keys, column) hidden = Where (may, nothing, low) own = Slice (hidden, newest, many, zeros) "
    "both = Add (own, last) masked = Add (both, scores)",
}
ENDS = {
    "plain": "p = Softmax <axis = -1> (masked)",
    "torch": "soft = Softmax <axis = -1> (masked) bad = IsNaN (soft) p = Where (bad, nothing, soft)",
}
#: masks that hold for several new tokens in a run
OF_SEVERAL = ("shapes", "distances of each")
#: forms that no row of another length may have
OTHERS = {
    "bias of weights": ("gather", "queries", "keys = Range (zero, all, one) near = Gather (biases, keys) "
                        "masked = Add (scores, near)", "plain"),
    "a bias of sums": ("gather", "queries", "keys = Range (zero, all, one) rows = Range (past, all, one) "
                       "column = Unsqueeze (rows, ones) line = Unsqueeze (keys, zeros) far = Add (line, column) "
                       "found = Gather (distances, far) turned = Transpose <perm = [2, 0, 1]> (found) "
                       "addend = Unsqueeze (turned, zeros) masked = Add (scores, addend)", "plain"),
    "another reader": ("gather", "queries", "far = Cast <to = 1> (all) masked = Mul (scores, far)", "plain"),
    "positions of another kind": ("turned = Cast <to = 1> (past) read = Mul (turned, scale)", "queries", "none", "plain"),
}  # fmt: skip


def drawn(positions: str, scale: str, mask: str, end: str, seed: int = 0) -> onnx.ModelProto:
    """A layer of a decoder; each part is the name of a form, or nodes."""
    text = f"""
    <ir_version: 9, opset_import: ["" : 18]>
    layer (int64[rows, length] input_ids, float[rows, {HEADS}, before, {SIZE}] past.key,
           float[rows, {HEADS}, before, {SIZE}] past.value)
        => (float[rows, length, {VOCABULARY}] logits, float[rows, {HEADS}, total, {SIZE}] present.key,
            float[rows, {HEADS}, total, {SIZE}] present.value)
    <int64[1] twos = {{ 2 }}, int64[1] zeros = {{ 0 }}, int64[1] ones = {{ 1 }}, int64 zero = {{ 0 }},
     int64 one = {{ 1 }}, int64 second = {{ 2 }},
     float scale = {{ 0.25 }}, float half = {{ 0.5 }}, float nothing = {{ 0 }}, float low = {{ -10000 }},
     int64[4] apart = {{ 0, 0, {HEADS}, {SIZE} }}, int64[3] whole = {{ 0, 0, {WIDTH} }}>
    {{
        sizes = Shape (past.key) past = Gather (sizes, second) given = Shape (input_ids) new = Gather (given, one)
        all = Add (past, new)
        {POSITIONS.get(positions, positions)}
        tokens = Gather (words, input_ids) x = Add (tokens, read)
        qx = MatMul (x, wq) kx = MatMul (x, wk) vx = MatMul (x, wv)
        qa = Reshape (qx, apart) ka = Reshape (kx, apart) va = Reshape (vx, apart)
        q_heads = Transpose <perm = [0, 2, 1, 3]> (qa) k_heads = Transpose <perm = [0, 2, 1, 3]> (ka)
        v_heads = Transpose <perm = [0, 2, 1, 3]> (va)
        present.key = Concat <axis = -2> (past.key, k_heads) present.value = Concat <axis = 2> (past.value, v_heads)
        {SCALES.get(scale, scale)}
        {MASKS.get(mask, mask)}
        {ENDS[end]}
        y = MatMul (p, present.value) back = Transpose <perm = [0, 2, 1, 3]> (y) flat = Reshape (back, whole)
        sum = Add (x, flat) logits = MatMul (sum, head)
    }}
    """
    names = ("past.key", "past.value", "present.key", "present.value")
    for name in names:
        text = text.replace(name, name.replace(".", "_"))
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(seed)
    shapes = {
        "table": (CONTEXT, WIDTH),
        "words": (VOCABULARY, WIDTH),
        "head": (WIDTH, VOCABULARY),
        "biases": (CONTEXT, 1),
        "distances": (11, HEADS),
    }
    shapes |= dict.fromkeys(("wq", "wk", "wv"), (WIDTH, WIDTH))
    for name, shape in shapes.items():
        value = rng.normal(0, 0.6, shape).astype(np.float32)
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(value.reshape(-1) if name == "biases" else value, name)
        )
    for value in (*model.graph.input, *model.graph.output):
        value.name = value.name.replace("past_", "past.").replace("present_", "present.")
    for node in model.graph.node:
        for values in (node.input, node.output):
            values[:] = [v.replace("past_", "past.").replace("present_", "present.") for v in values]
    return model


@pytest.mark.gpu
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("end", ENDS)
def test_drawn_forms(positions: str, scale: str, mask: str, end: str) -> None:
    proto = drawn(positions, scale, mask, end)
    changed = with_lengths(load_model(proto), PAIRS, "logits")
    assert changed is not None
    theirs, rng = cpu_session(proto), np.random.default_rng(5)
    lengths, capacity, count = [3, 9, 0, 5], 12, 3 if mask in OF_SEVERAL else 1
    places = np.array(lengths)[:, None] + np.arange(count)
    pasts = {name: rng.normal(size=(4, HEADS, capacity, SIZE)).astype(np.float32) for name in PAIRS}
    ids = rng.integers(0, VOCABULARY, (4, count))
    with InferenceSession(changed, fallback="error") as session:
        caches = {name: session.device_tensor(value) for name, value in pasts.items()}
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", ids)
        binding.bind_cpu_input("attention_mask", (np.arange(capacity) <= places[:, -1:]).astype(np.int64))
        binding.bind_cpu_input("position_ids", places)
        for name, tensor in caches.items():
            binding.bind_input(name, tensor)
            binding.bind_output(PAIRS[name], tensor)
        binding.bind_output("logits", device="cpu")
        session.run_with_iobinding(binding)
        logits = binding.get_outputs()[[*binding.outputs].index("logits")]
        for row, length in enumerate(lengths):
            own = {name: value[row : row + 1, :, :length] for name, value in pasts.items()}
            wanted = dict(
                zip(
                    [o.name for o in theirs.get_outputs()],
                    theirs.run(None, {"input_ids": ids[row : row + 1], **own}),
                    strict=True,
                )
            )
            np.testing.assert_allclose(logits[row], wanted["logits"][0], atol=2e-5)
            for name, tensor in caches.items():
                np.testing.assert_allclose(tensor.numpy()[row, :, : length + count], wanted[PAIRS[name]][0], atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_other_forms(name: str) -> None:
    assert with_lengths(load_model(drawn(*OTHERS[name])), PAIRS, "logits") is None


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["optimum", "merged", "genai", "t5", "t5 merged", "moonshine"])
def test_sources_share_runs(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers begin at any step, with other first tokens, and end at any time; each has the tokens that it has alone, in a
    generator that reads one source at a time."""
    kind = form.split(" ")[0] if form.split(" ")[0] in ("t5", "moonshine") else "whisper"
    write_genai_sources(tmp_path, times=True) if form == "genai" else write_sources(tmp_path, kind)
    if "merged" in form:
        merged(tmp_path)
    rng = [np.random.default_rng(k) for k in range(5)]
    encoded = noted(monkeypatch, EncoderDecoder, "encode", lambda self, source: weakref.ref(source))
    lengths = [5, 9, 150, 70, 12]  # the room for sources grows
    sources: list[Any] = {
        "whisper": [each.normal(0, 2, (80, 3000)).astype(np.float32) for each in rng],
        "t5": [each.integers(0, 256, n).tolist() for each, n in zip(rng, lengths, strict=True)],
        "moonshine": [each.normal(0, 1, 400 * n + 30).astype(np.float32) for each, n in zip(rng, lengths, strict=True)],
    }[kind]
    starts = [[BEGIN], [BEGIN, 40, 41], [BEGIN, 7], [BEGIN], [BEGIN, 9, 8, 7, 6]]
    counts = [9, 14, 3, 12, 7]
    each = list(zip(sources, starts, counts, strict=True))
    with monkeypatch.context() as patch:
        patch.setattr(encoder_decoder, "with_lengths", lambda *_: None)
        with Generator(tmp_path, fallback="error", max_sequences=4) as generator:
            alone = [generator.generate(s, start=b, max_tokens=n, ignore_end=True).tokens for s, b, n in each]
    assert len({tuple(tokens[:3]) for tokens in alone}) > 2
    rows = noted(monkeypatch, Decoder, "_run", lambda self, ids, *rest: int(ids.shape[0]))
    with Generator(tmp_path, fallback="error", max_sequences=4) as generator:
        assert [generator.generate(s, start=b, max_tokens=n, ignore_end=True).tokens for s, b, n in each] == alone
        assert set(rows) == {1}
        batch, answers = generator.batch(), list[Any]()
        for source, start, count in each:
            while len(batch.in_progress) == 4:
                batch.step()
            answers.append(batch.add(source, Sampling(max_tokens=count, ignore_end=True), start=start))
            batch.step()
        gc.collect()
        alive = [found for source in encoded if (found := source()) is not None]
        assert not any(found.made for found in alive)  # rows have what they need of it
        while batch.in_progress:
            batch.step()
        batch.close()
        assert [answer.tokens for answer in answers] == alone
        assert max(rows) == 4
        found = generator.search(sources[0], beams=3, count=3, start=starts[1], max_tokens=6)
        assert max(rows[-4:]) == 3  # beams share runs, too
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["t5", "moonshine"])
def test_a_row_reads_nothing_of_the_source_before(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the encoder makes of a long source is NaN; a shorter one has the row after it."""
    write_sources(tmp_path, kind)
    rng = np.random.default_rng(1)
    sources: list[Any] = [rng.integers(0, 256, n).tolist() for n in (40, 6)]
    if kind == "moonshine":
        sources = [rng.normal(0, 1, 400 * n).astype(np.float32) for n in (40, 6)]
    settings: dict[str, Any] = {"max_tokens": 8, "ignore_end": True}
    encode = EncoderDecoder.encode

    def poisoned(self: EncoderDecoder, source: Any) -> Any:
        made = encode(self, source)
        if source.feeds["attention_mask"].size == len(sources[0]):
            for tensor in made.values():
                tensor.write(np.full(tensor.shape, np.nan, np.float32))
        return made

    with Generator(tmp_path, fallback="error", max_sequences=1) as generator:
        alone = generator.generate(sources[1], **settings).tokens
    monkeypatch.setattr(EncoderDecoder, "encode", poisoned)
    with Generator(tmp_path, fallback="error", max_sequences=1) as generator:
        generator.generate(sources[0], **settings)
        assert generator.generate(sources[1], **settings).tokens == alone
