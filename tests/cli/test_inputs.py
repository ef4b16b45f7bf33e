"""Inputs from the command line: what is parsed, resolved, read and generated, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vkep.cli.common import UsageError
from vkep.cli.inputs import Sources, generate, make_inputs, parse_dims, parse_shapes, read_sources, resolve_shapes
from vkep.session import NodeArg

X = NodeArg("x", "tensor(float)", ["batch", 3, "length"])
MASK = NodeArg("mask", "tensor(int64)", ["batch", "length"])
FREE = NodeArg("free", "tensor(float)", [None, 2])
ANY = NodeArg("any", "tensor(float)", None)


def test_shapes_and_sizes_are_parsed() -> None:
    assert parse_shapes(["x=1x3x224x224", "a=b=2", "scalar=", "y=4,5"]) == {
        "x": (1, 3, 224, 224),
        "a=b": (2,),
        "scalar": (),
        "y": (4, 5),
    }
    assert parse_dims(["batch=4", "length=0"]) == {"batch": 4, "length": 0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "expected NAME=1x3x224x224"),
        ("=1x2", "expected NAME=1x3x224x224"),
        ("x=1x-2", "sizes joined by x"),
        ("x=1xN", "sizes joined by x"),
        ("x=1x", "sizes joined by x"),
        ("x=²", "sizes joined by x"),
    ],
)
def test_a_bad_shape_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_shapes([text])


def test_a_bad_size_is_refused() -> None:
    for text, message in (("batch", "SYMBOL=N"), ("batch=-1", "expected a size"), ("batch=", "expected a size")):
        with pytest.raises(UsageError, match=message):
            parse_dims([text])
    with pytest.raises(UsageError, match="twice"):
        parse_dims(["n=1", "n=2"])


def test_given_shapes_size_the_other_inputs() -> None:
    assert resolve_shapes([X, MASK], Sources(shapes={"mask": (2, 7)})) == {"x": (2, 3, 7), "mask": (2, 7)}
    read = Sources(arrays={"x": np.zeros((5, 3, 6), np.float32)})
    assert resolve_shapes([X, MASK], read) == {"x": (5, 3, 6), "mask": (5, 6)}
    assert resolve_shapes([X], Sources(dims={"batch": 2, "length": 4})) == {"x": (2, 3, 4)}


def test_a_size_of_its_own_wins_over_one_that_follows_from_a_shape() -> None:
    sources = Sources(shapes={"x": (2, 3, 7)}, dims={"length": 9})
    assert resolve_shapes([X, MASK], sources)["mask"] == (2, 9)  # and the session then refuses the contradiction


@pytest.mark.parametrize(
    ("arguments", "sources", "message"),
    [
        ([X, MASK], Sources(), "--shape x=Nx3xN or --dim batch=N --dim length=N"),
        ([X, MASK], Sources(dims={"batch": 2}), "--shape x=2x3xN or --dim length=N"),
        ([FREE], Sources(), "--shape free=Nx2$"),
        ([ANY], Sources(), "gives no shape for input 'any': give --shape any="),
        ([X], Sources(shapes={"q": (1,)}), "--shape: the model has no input named 'q'; it has x"),
        ([X], Sources(generated={"q": "ones"}), "--input: the model has no input named 'q'; it has x"),
        ([X], Sources(dims={"bach": 1}), "no dimension named 'bach'; it has batch, length"),
        ([NodeArg("f", "tensor(float)", [1])], Sources(dims={"n": 1}), "its shapes are all fixed"),
    ],
)
def test_inputs_without_a_size_and_unknown_inputs_are_refused(
    arguments: list[NodeArg], sources: Sources, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_shapes(arguments, sources)


def test_generated_inputs_have_the_models_types() -> None:
    for name, kind in (("float", np.float32), ("float16", np.float16), ("int64", np.int64), ("bool", np.bool_)):
        argument = NodeArg("a", f"tensor({name})", [4, 50])
        array = generate(argument, (4, 50), "random", 0)
        assert array.dtype == kind
        assert array.shape == (4, 50)
        assert len(np.unique(array)) > 1
        assert (generate(argument, (3,), "ones", 0) == 1).all()
        assert not generate(argument, (3,), "zeros", 0).any()
    integers = generate(MASK, (100,), "random", 0)
    assert set(integers) == {0, 1}  # an index that every table has
    with pytest.raises(UsageError, match=r"'s' is tensor\(string\): give --input s="):
        generate(NodeArg("s", "tensor(string)", [1]), (1,), "random", 0)


def test_random_inputs_are_seeded_and_differ_by_name() -> None:
    other = NodeArg("other", X.type, X.shape)

    def made(seed: int) -> dict[str, np.ndarray]:
        return make_inputs([X, other], Sources(dims={"batch": 1, "length": 9}, seed=seed))

    assert np.array_equal(made(1)["x"], made(1)["x"])
    assert not np.array_equal(made(1)["x"], made(2)["x"])
    assert not np.array_equal(made(1)["x"], made(1)["other"])


def test_files_are_read(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 3, 2)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "plain.npz", x=x, mask=np.ones((1, 2), np.int64))
    np.savez(tmp_path / "with_outputs.npz", in_x=x + 1, out_y=x)
    plain, prefixed = tmp_path / "plain.npz", tmp_path / "with_outputs.npz"
    assert np.array_equal(read_sources([f"x={tmp_path / 'x.npy'}"], None, None).arrays["x"], x)
    assert np.array_equal(read_sources([f"x={plain}"], None, None).arrays["x"], x)
    assert np.array_equal(read_sources([f"x={prefixed}"], None, None).arrays["x"], x + 1)
    assert set(read_sources([str(plain)], None, None).arrays) == {"x", "mask"}
    assert set(read_sources([str(prefixed)], None, None).arrays) == {"x"}
    assert read_sources(["x=ones"], ["mask=1x2"], ["n=3"], 7) == Sources(
        generated={"x": "ones"}, shapes={"mask": (1, 2)}, dims={"n": 3}, seed=7
    )


def test_a_reference_archive_gives_the_inputs_that_nothing_else_names(tmp_path: Path) -> None:
    archive = {"in_x": np.zeros(2), "in_z": np.zeros(3), "out_y": np.zeros(4)}
    assert set(read_sources(None, None, None, archive=archive).arrays) == {"x", "z"}
    assert set(read_sources(["x=ones"], None, None, archive=archive).arrays) == {"z"}
    assert read_sources(None, None, None, archive={"y": np.zeros(4)}).arrays == {}


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", a=np.arange(1000))
    (tmp_path / "short.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:600])
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "empty.npy").touch()
    np.save(tmp_path / "array.npy", np.zeros(1))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    (tmp_path / "junk.npy").write_text("junk here")
    for text, message in (
        (f"x={tmp_path / 'none.npy'}", "no such file"),
        (f"x={tmp_path / 'junk.npy'}", "it starts with b'junk h', which is neither .npy nor .npz"),
        (f"x={tmp_path / 'empty.npy'}", r"cannot be read as a \.npy array"),
        (f"x={tmp_path / 'objects.npy'}", r"cannot be read as a \.npy array.*save them as fixed-width \(dtype 'U'\)"),
        (f"x={tmp_path / 'short.npz'}", r"cannot be read as an \.npz archive"),
        (f"x={tmp_path / 'text.npz'}", r"cannot be read as an \.npz archive"),
        (f"x={tmp_path / 'array.npz'}", r"is no \.npz archive"),
        (f"x={tmp_path / 'good.npz'}", r"neither 'x' nor 'in_x', but \['a'\]"),
        ("x=input.txt", "expected a .npy or .npz file, or one of random, ones, zeros"),
        ("x", "expected NAME=WHAT"),
    ):
        with pytest.raises(UsageError, match=message):
            read_sources([text], None, None)


def test_an_input_given_twice_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(1))
    for first, second in (("x=ones", "x=zeros"), (f"x={tmp_path / 'x.npy'}", f"x={tmp_path / 'x.npy'}")):
        with pytest.raises(UsageError, match="--input: 'x' is given twice"):
            read_sources([first, second], None, None)
