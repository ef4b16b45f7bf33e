"""The Open Inference protocol's requests and answers: what is read right, and what is refused with a status."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkep.serving import messages
from vkep.serving.bodies import BinaryFeeds, joined
from vkep.serving.kserve import (
    DATATYPES,
    InferRequest,
    ModelSpec,
    ProtocolError,
    TensorSpec,
    _same_answer_json,
    infer_response,
    inflated,
    parse_infer,
)

MODEL = ModelSpec(
    "m",
    "3",
    {"x": TensorSpec("x", "FP32", (None, 2)), "k": TensorSpec("k", "INT8", (None,))},
    {"y": TensorSpec("y", "FP32", (None, 2)), "z": TensorSpec("z", "BOOL", (None,))},
)
X, K = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([1, -2, 3], np.int8)


def body_of(request: Any, *binary: bytes) -> tuple[bytes, str]:
    text = json.dumps(request).encode()
    return b"".join([text, *binary]), str(len(text))


def good(**changes: Any) -> dict[str, Any]:
    x = {"name": "x", "datatype": "FP32", "shape": [3, 2], "data": X.ravel().tolist()}
    k = {"name": "k", "datatype": "INT8", "shape": [3], "data": K.tolist()}
    return {"id": "7", "inputs": [{**x, **changes}, k]}


def test_numbers_in_json() -> None:
    request = parse_infer(body_of(good())[0], None, MODEL)
    np.testing.assert_array_equal(request.feeds["x"], X)
    np.testing.assert_array_equal(request.feeds["k"], K)
    assert request.feeds["k"].dtype == np.int8 and request.outputs == {"y": False, "z": False}
    answer = infer_response(MODEL, request, {"y": X, "z": np.array([True, False])})
    assert answer.json_size == 0
    got = json.loads(b"".join(answer.pieces))
    assert (got["id"], got["model_name"], got["model_version"]) == ("7", "m", "3")
    assert got["outputs"][1] == {"name": "z", "datatype": "BOOL", "shape": [2], "data": [True, False]}
    deep: Any = 1.0
    for _ in range(70):  # numpy's arrays have 64 axes at most
        deep = [deep]
    with pytest.raises(ProtocolError, match="its data are no FP32"):
        parse_infer(body_of(good(data=[deep]))[0], None, MODEL)
    nested = parse_infer(body_of(good(data=X.tolist()))[0], None, MODEL)
    np.testing.assert_array_equal(nested.feeds["x"], X)


def test_binary_data_both_ways() -> None:
    request = good(parameters={"binary_data_size": X.nbytes}, data=None)
    request["outputs"] = [{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}]
    parsed = parse_infer(*body_of(request, X.tobytes()), MODEL)
    np.testing.assert_array_equal(parsed.feeds["x"], X)
    assert parsed.outputs == {"y": True, "z": False}
    answer = infer_response(MODEL, parsed, {"y": X.T, "z": np.array([True])})
    whole = b"".join(answer.pieces)
    got = json.loads(whole[: answer.json_size])
    assert got["outputs"][0]["parameters"] == {"binary_data_size": 24} and got["outputs"][0]["shape"] == [2, 3]
    np.testing.assert_array_equal(np.frombuffer(whole[answer.json_size :], np.float32).reshape(2, 3), X.T)
    request = {**request, "outputs": [], "parameters": {"binary_data_output": True}}
    assert parse_infer(*body_of(request, X.tobytes()), MODEL).outputs == {"y": True, "z": True}


def binary(identity: str = "") -> tuple[bytes, str]:
    """A request with both inputs in binary form."""
    inputs = [
        {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": nbytes}}
        for name, kind, shape, nbytes in (("x", "FP32", [3, 2], X.nbytes), ("k", "INT8", [3], K.nbytes))
    ]
    return body_of({"inputs": inputs, **({"id": identity} if identity else {})}, X.tobytes(), K.tobytes())


@given(st.lists(st.integers(0, 500), max_size=6))
def test_a_body_in_pieces(cuts: list[int]) -> None:
    body, size = binary()
    places = [0, *sorted(cuts), len(body)]
    pieces = [body[a:b] for a, b in pairwise(places)]
    for given_body in (body, pieces):
        parsed = parse_infer(given_body, size, MODEL)
        assert isinstance(parsed.feeds, BinaryFeeds) and list(parsed.feeds) == ["x", "k"]
        np.testing.assert_array_equal(parsed.feeds["x"], X)
        np.testing.assert_array_equal(parsed.feeds["k"], K)
        assert all(array.ctypes.data % array.itemsize == 0 for array in parsed.feeds.values())


def test_a_json_text_is_read_once_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loads, texts = replace(MODEL, read_before={}), json.loads, list[bytes]()

    def read(text: bytes, **options: Any) -> Any:
        texts.append(text)
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", read)
    body, size = binary()
    first = parse_infer(body, size, model)
    other = parse_infer(body[:-3] + K[::-1].tobytes(), size, model)
    assert len(texts) == 1 and other.outputs == first.outputs and other.id == ""
    np.testing.assert_array_equal(other.feeds["k"], K[::-1])
    with pytest.raises(ProtocolError, match="2 bytes are left"):  # the same text before fewer bytes
        parse_infer(body[:-1], size, model)
    assert parse_infer(*binary("7"), model).id == "7"  # each request has another one
    assert len(model.read_before) == 1
    for space in range(100):
        parse_infer(b" " * space + body, str(space + int(size)), model)
    parse_infer(b" " * 5000 + body, str(5000 + int(size)), model)
    assert len(model.read_before) == 64
    parse_infer(body_of(good())[0], None, model)  # numbers in JSON
    assert len(model.read_before) == 64


def test_values_that_are_no_numbers_in_place_are_copied() -> None:
    model = ModelSpec("m", "1", {"b": TensorSpec("b", "BOOL", (2,)), "x": TensorSpec("x", "FP32", (1,))}, {})
    inputs = [
        {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": nbytes}}
        for name, kind, shape, nbytes in (("b", "BOOL", [2], 2), ("x", "FP32", [1], 4))
    ]
    parsed = parse_infer(*body_of({"inputs": inputs}, b"\0\7", np.float32(3).tobytes()), model)
    assert parsed.feeds["b"].tolist() == [False, True] and parsed.feeds["x"].tolist() == [3] and not model.read_before


@pytest.mark.parametrize("name", [name for name in DATATYPES if name != "BYTES"])
def test_every_datatype(name: str) -> None:
    model = ModelSpec("m", "1", {"x": TensorSpec("x", name, (2,))}, {"y": TensorSpec("y", name, (2,))})
    array = np.array([0, 1]).astype(DATATYPES[name])
    asked = {"name": "x", "datatype": name, "shape": [2]}
    as_json = {"inputs": [{**asked, "data": [False, True] if name == "BOOL" else [0, 1]}]}
    as_binary = {"inputs": [{**asked, "parameters": {"binary_data_size": array.nbytes}}]}
    for request in (
        parse_infer(*body_of(as_binary, array.tobytes()), model),
        parse_infer(body_of(as_json)[0], None, model),
    ):
        assert request.feeds["x"].dtype == array.dtype
        np.testing.assert_array_equal(request.feeds["x"], array)
        answer = infer_response(model, request, {"y": array})
        assert json.loads(b"".join(answer.pieces))["outputs"][0]["data"] == [0, 1]
    message = messages.message("ModelInferRequest", model_name="m", raw_input_contents=[array.tobytes()])
    message.inputs.add(name="x", datatype=name, shape=[2])
    parsed = messages.parse_infer(messages.read("ModelInferRequest", message.SerializeToString()), model)
    np.testing.assert_array_equal(parsed.feeds["x"], array)
    answer = messages.infer_response(model, parsed, {"y": array})
    assert answer.raw_output_contents[0] == array.tobytes() and answer.outputs[0].datatype == name


TEXTS = ModelSpec("t", "1", {"s": TensorSpec("s", "BYTES", (None,))}, {"u": TensorSpec("u", "BYTES", (None,))})
WORDS = ["", "Grüße", "a\0", "数"]


def words_of(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def words_request(count: int, size: int) -> dict[str, Any]:
    return {"inputs": [{"name": "s", "datatype": "BYTES", "shape": [count], "parameters": {"binary_data_size": size}}]}


def test_strings_both_ways() -> None:
    binary = words_of(*(word.encode() for word in WORDS))
    plain = {"inputs": [{"name": "s", "datatype": "BYTES", "shape": [4], "data": WORDS}]}
    for body, size in (body_of(words_request(4, len(binary)), binary), (body_of(plain)[0], None)):
        request = parse_infer(body, size, TEXTS)
        assert request.feeds["s"].dtype == object and request.feeds["s"].tolist() == WORDS
    wanted = InferRequest({}, {"u": True})
    for given_words in (np.array(WORDS, object), np.array(WORDS[:2]), np.array([w.encode() for w in WORDS], object)):
        answer = infer_response(TEXTS, wanted, {"u": given_words})
        got = [w.encode() if isinstance(w, str) else w for w in given_words.tolist()]
        assert b"".join(map(bytes, answer.pieces[1:])) == words_of(*got)
    answer = infer_response(TEXTS, InferRequest({}, {"u": False}), {"u": np.array(WORDS, object)})
    assert json.loads(b"".join(answer.pieces))["outputs"] == [
        {"name": "u", "datatype": "BYTES", "shape": [4], "data": WORDS}
    ]
    assert TEXTS.config()["input"][0]["data_type"] == "TYPE_STRING"
    contents = messages.message("InferTensorContents", bytes_contents=[word.encode() for word in WORDS])
    message = messages.message("ModelInferRequest")
    message.inputs.add(name="s", datatype="BYTES", shape=[4], contents=contents)
    assert messages.parse_infer(message, TEXTS).feeds["s"].tolist() == WORDS
    assert messages.infer_response(TEXTS, wanted, {"u": np.array(WORDS, object)}).raw_output_contents == [binary]
    assert messages.config_response(TEXTS).config.input[0].data_type == 13  # TYPE_STRING


@pytest.mark.parametrize(
    ("count", "binary", "says"),
    [
        (1, b"\x05\0\0\0abc", "string 0 ends after the 7 bytes"),
        (2, words_of(b"a", b"b") + b"\x01\0", "string 2 ends"),
        (2, words_of(b"a"), r"got 1 strings for shape \[2\]"),
        (1, b"\xff\xff\xff\xffa", "string 0 ends"),
        (1, words_of(b"\xff"), "not UTF-8"),
    ],
)
def test_strings_that_are_refused(count: int, binary: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        parse_infer(*body_of(words_request(count, len(binary)), binary), TEXTS)


@pytest.mark.parametrize("data", [[1], ["a", 1], [["a"], ["b", "c"]], "a", [None]])
def test_values_that_are_no_strings(data: Any) -> None:
    request = {"inputs": [{"name": "s", "datatype": "BYTES", "shape": [len(data)], "data": data}]}
    with pytest.raises(ProtocolError) as raised:
        parse_infer(body_of(request)[0], None, TEXTS)
    assert raised.value.status == 400


def test_a_byte_that_is_neither_0_nor_1_is_true() -> None:
    model = ModelSpec("m", "1", {"x": TensorSpec("x", "BOOL", (3,))}, {})
    request = {"inputs": [{"name": "x", "datatype": "BOOL", "shape": [3], "parameters": {"binary_data_size": 3}}]}
    found = parse_infer(*body_of(request, b"\x00\x01\x7f"), model).feeds["x"]
    assert found.view(np.uint8).tolist() == [0, 1, 1]


BAD: dict[str, tuple[Any, bytes | None, str]] = {
    "no object": ([], None, "no JSON object"),
    "no inputs": ({}, None, "inputs is expected"),
    "inputs of another kind": ({"inputs": [1]}, None, "inputs is expected"),
    "a name that is unknown": (good(name="q"), None, "no input 'q'"),
    "a name of another kind": (good(name={}), None, "no input"),
    "a name twice": (good(name="k", datatype="INT8", shape=[3], data=[1, 2, 3]), None, "given twice"),
    "another datatype": (good(datatype="FP16"), None, "got datatype 'FP16', expected 'FP32'"),
    "another rank": (good(shape=[6]), None, r"got shape \[6\], expected \[-1, 2\]"),
    "another size": (good(shape=[2, 3]), None, "got shape"),
    "a negative size": (good(shape=[-3, 2]), None, "expected a list of sizes"),
    "a huge size": (good(shape=[1 << 40, 2]), None, "expected a list of sizes"),
    "a size of another kind": (good(shape=[3.0, 2]), None, "expected a list of sizes"),
    "too few values": (good(data=[1.0]), None, "got 1 values"),
    "ragged values": (good(data=[[1.0], [1.0, 2.0]]), None, "are no FP32"),
    "texts": (good(data=["1"] * 6), None, "are no FP32"),
    "no data": (good(data=None), None, "neither data"),
    "an integer beyond its type": (
        {"inputs": [{"name": "k", "datatype": "INT8", "shape": [1], "data": [300]}]},
        None,
        "beyond -128 to 127",
    ),
    "a float for an integer": (
        {"inputs": [{"name": "k", "datatype": "INT8", "shape": [1], "data": [1.5]}]},
        None,
        "got values of float64",
    ),
    "an input is missing": ({"inputs": good()["inputs"][:1]}, None, r"inputs \['k'\] are missing"),
    "binary data of another size": (good(parameters={"binary_data_size": 23}), b"x" * 23, "got 23 bytes, expected 24"),
    "half of the binary data": (good(parameters={"binary_data_size": 24}), b"x" * 12, "12 bytes are left"),
    "more than the binary data": (good(parameters={"binary_data_size": 24}), b"x" * 30, "6 bytes after the last"),
    "a negative binary size": (good(parameters={"binary_data_size": -24}), b"x" * 24, "binary_data_size is -24"),
    "parameters of another kind": (good(parameters=[]), None, "parameters is no JSON object"),
    "classes": (
        {**good(), "outputs": [{"name": "y", "parameters": {"classification": 3}}]},
        None,
        "only values are offered",
    ),
    "an output that is unknown": ({**good(), "outputs": [{"name": "q"}]}, None, "no output 'q'"),
    "outputs of another kind": ({**good(), "outputs": "y"}, None, "outputs is expected"),
}


@pytest.mark.parametrize("what", BAD)
def test_requests_that_are_refused(what: str) -> None:
    request, binary, says = BAD[what]
    body, size = body_of(request, binary or b"")
    with pytest.raises(ProtocolError, match=says) as raised:
        parse_infer(body, size if binary is not None else None, MODEL)
    assert raised.value.status == 400


def test_a_size_of_json_with_more_digits_than_python_reads() -> None:
    with pytest.raises(ProtocolError, match="Inference-Header-Content-Length") as raised:
        parse_infer(body_of(good())[0], "9" * 5000, MODEL)
    assert raised.value.status == 400


def test_answers_with_an_id_are_not_kept() -> None:
    """A client chooses the id: its size, and another one for each request."""
    before = _same_answer_json.cache_info()
    request = InferRequest({}, {"y": True}, "i" * 1000)
    assert b'"id": "iii' in bytes(infer_response(MODEL, request, {"y": X}).pieces[0])
    assert _same_answer_json.cache_info() == before


def test_rows_without_elements_of_many_requests_are_joined() -> None:
    model = ModelSpec("m", "1", {"x": TensorSpec("x", "FP64", (None,) * 4)}, {})
    given = {"name": "x", "datatype": "FP64", "parameters": {"binary_data_size": 0}}
    most = parse_infer(*body_of({"inputs": [{**given, "shape": [1, 0, 2**20, 2**20 - 1]}]}), model).feeds
    assert joined([most] * 1024)["x"].shape == (1024, 0, 2**20, 2**20 - 1)
    with pytest.raises(ProtocolError, match="no array has shape"):
        parse_infer(*body_of({"inputs": [{**given, "shape": [1, 0, 2**31 - 1, 2**27]}]}), model)


def test_a_shape_without_elements_that_no_array_has() -> None:
    model = ModelSpec("m", "1", {"x": TensorSpec("x", "FP32", (None,) * 4)}, {})
    given = {"name": "x", "datatype": "FP32", "shape": [0, *[2**31 - 1] * 3]}
    ways: list[dict[str, Any]] = [{"data": []}, {"parameters": {"binary_data_size": 0}}]
    for how in ways:
        with pytest.raises(ProtocolError, match="no array has shape") as raised:
            parse_infer(*body_of({"inputs": [{**given, **how}]}), model)
        assert raised.value.status == 400
    message = messages.message("ModelInferRequest", raw_input_contents=[b""])
    message.inputs.add(**given)
    with pytest.raises(ProtocolError, match="no array has shape"):
        messages.parse_infer(message, model)


@pytest.mark.parametrize("length", ["-1", "0", "x", "99999", "1" * 30])
def test_a_header_length_that_cannot_be(length: str) -> None:
    with pytest.raises(ProtocolError, match="Inference-Header-Content-Length"):
        parse_infer(body_of(good())[0], length, MODEL)


@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode) | st.integers(0, 3000).map(lambda n: b"[" * n))
def test_noise_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_infer(body, None, MODEL)


def read_or_refused(read: Callable[[], InferRequest]) -> InferRequest | None:
    """What is read; None where it is refused with 400."""
    status = 0
    try:
        return read()
    except ProtocolError as error:
        status = error.status
    assert status == 400
    return None


@settings(max_examples=100)
@given(st.data())
def test_a_request_with_something_else_in_it_is_read_or_refused(data: st.DataObject) -> None:
    values = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=3)
        | st.lists(st.integers(), max_size=7)
    )
    request = good()
    where = data.draw(st.sampled_from([request, *request["inputs"]]))
    where[data.draw(st.sampled_from([*where, "parameters", "outputs"]))] = data.draw(values)
    parsed = read_or_refused(lambda: parse_infer(body_of(request)[0], None, MODEL))
    if parsed is not None:
        assert {name: (a.dtype, a.shape[1:]) for name, a in parsed.feeds.items()} == {
            "x": (X.dtype, (2,)),
            "k": (K.dtype, ()),
        }


def test_compressed_bodies() -> None:
    plain = b"x" * 1000
    assert inflated(plain, "", 10) == plain
    assert inflated(gzip.compress(plain), "gzip", 1000) == inflated(zlib.compress(plain), "deflate", 1000) == plain
    for body, encoding, most, status in (
        (gzip.compress(plain), "gzip", 999, 413),
        (gzip.compress(plain)[:-9], "gzip", 1000, 400),
        (plain, "gzip", 1000, 400),
        (plain, "br", 1000, 415),
    ):
        with pytest.raises(ProtocolError) as raised:
            inflated(body, encoding, most)
        assert raised.value.status == status


def infer_message(**changes: Any) -> Any:
    message = messages.message("ModelInferRequest", model_name="m")
    x = {"name": "x", "datatype": "FP32", "shape": [3, 2], "contents": {"fp32_contents": X.ravel()}, **changes}
    k: dict[str, Any] = {"name": "k", "datatype": "INT8", "shape": [3], "contents": {"int_contents": K}}
    for given_input in (x, k):
        contents = given_input.pop("contents")
        message.inputs.add(**given_input, contents=messages.message("InferTensorContents", **contents))
    return message


def test_contents_by_type() -> None:
    parsed = messages.parse_infer(infer_message(), MODEL)
    np.testing.assert_array_equal(parsed.feeds["x"], X)
    np.testing.assert_array_equal(parsed.feeds["k"], K)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (infer_message(contents={"fp32_contents": [1.0]}), "got 1 values in fp32_contents"),
        (infer_message(shape=[-1, 2]), "expected a list of sizes"),
        (infer_message(name="k"), "expected 'INT8'"),
        (messages.message("ModelInferRequest"), "are missing"),
        (messages.message("ModelInferRequest", raw_input_contents=[b""]), "1 raw_input_contents for 0 inputs"),
    ],
)
def test_messages_that_are_refused(message: Any, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        messages.parse_infer(message, MODEL)


def test_values_beyond_a_narrow_integer() -> None:
    message = infer_message()
    message.inputs[1].contents.int_contents[0] = 300
    with pytest.raises(ProtocolError, match="beyond INT8"):
        messages.parse_infer(message, MODEL)


@given(st.binary(max_size=80))
def test_bytes_are_a_message_or_refused(data: bytes) -> None:
    parsed = read_or_refused(lambda: messages.parse_infer(messages.read("ModelInferRequest", data), MODEL))
    if parsed is not None:
        assert set(parsed.feeds) == {"x", "k"}


def test_types_without_a_datatype() -> None:
    from vkep.serving.kserve import datatype

    assert datatype(np.dtype(ml_dtypes.bfloat16)) == "BF16"
    with pytest.raises(ValueError, match="no datatype for complex64"):
        datatype(np.dtype(np.complex64))
