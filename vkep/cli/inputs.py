"""A run's inputs from the command line: shapes, symbolic dimensions, files, generated arrays."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.cli.common import UsageError

if TYPE_CHECKING:
    from vkep.session import NodeArg

Array = np.ndarray[Any, Any]
GENERATED = ("random", "ones", "zeros")
#: key prefixes of archives with inputs and reference outputs (tools/models writes them)
INPUT_PREFIX, OUTPUT_PREFIX = "in_", "out_"
#: random integers are 0 or 1: valid for masks, and as indices of any table
INTEGERS_BELOW = 2


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``["x=1x3x224x224", "n="]`` as ``{"x": (1, 3, 224, 224), "n": ()}`` (no size after the sign: a scalar).
    Raises `UsageError`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, text in _pairs(texts, "--shape", "NAME=1x3x224x224"):
        parts = text.replace(",", "x").split("x") if text else []
        if not all(p.isascii() and p.isdigit() for p in parts):
            raise UsageError(f"--shape {name}={text}: expected sizes joined by x, such as {name}=1x3x224x224")
        shapes[name] = tuple(int(p) for p in parts)
    return shapes


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """``["batch=4"]`` as ``{"batch": 4}``. Raises `UsageError`."""
    return parse_sizes(texts, "--dim", "SYMBOL=N")


def parse_sizes(texts: Sequence[str], option: str, form: str) -> dict[str, int]:
    """``["batch=4"]`` as ``{"batch": 4}``. Raises `UsageError` that names the option and the form."""
    sizes = {}
    for name, text in _pairs(texts, option, form):
        if not (text.isascii() and text.isdigit()):
            raise UsageError(f"{option} {name}={text}: expected a size, such as {name}=4")
        sizes[name] = int(text)
    return sizes


def _pairs(texts: Sequence[str], option: str, form: str) -> list[tuple[str, str]]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.rpartition("=") if option == "--shape" else text.partition("=")
        if not sign or not name:
            raise UsageError(f"{option} {text}: expected {form}")
        if name in pairs:
            raise UsageError(f"{option}: {name!r} is given twice")
        pairs[name] = value
    return list(pairs.items())


@dataclass
class Sources:
    """Where inputs come from: arrays from files, how to generate the others, and shapes and sizes for those."""

    arrays: dict[str, Array] = field(default_factory=dict)
    generated: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    seed: int = 0


def read_sources(
    inputs: Sequence[str] | None,
    shapes: Sequence[str] | None,
    dims: Sequence[str] | None,
    seed: int = 0,
    archive: Mapping[str, Array] | None = None,
) -> Sources:
    """Read ``--input``, ``--shape``, ``--dim`` and ``--seed``. ``archive`` has inputs that none of them names (its keys
    ``in_*``). Raises `UsageError`."""
    sources = Sources(shapes=parse_shapes(shapes or ()), dims=parse_dims(dims or ()), seed=seed)
    named: set[str] = set()
    for text in inputs or ():
        name, sign, what = text.partition("=")
        if sign and name in named:
            raise UsageError(f"--input: {name!r} is given twice")
        named.add(name)
        if not sign:
            if not text.endswith(".npz"):
                raise UsageError(f"--input {text}: expected NAME=WHAT, or an .npz file that holds every input")
            sources.arrays.update(_inputs_of(read_archive(Path(text)), bare=True))
        elif what in GENERATED:
            sources.generated[name] = what
        else:
            sources.arrays[name] = _read_one(name, Path(what))
    if archive is not None:
        for name, array in _inputs_of(archive, bare=False).items():
            if name not in sources.generated and name not in sources.shapes:
                sources.arrays.setdefault(name, array)
    return sources


def read_archive(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file. Raises `UsageError`."""
    archive: dict[str, Array] = _load(path, dict, "an .npz archive")
    return archive


def read_array(path: Path) -> Array:
    """The array of a .npy file. Raises `UsageError`."""
    array: Array = _load(path, np.ndarray, "a .npy array")
    return array


def _read_one(name: str, path: Path) -> Array:
    if path.suffix == ".npz":
        arrays = read_archive(path)
        for key in (name, INPUT_PREFIX + name):
            if key in arrays:
                return arrays[key]
        raise UsageError(f"--input {name}={path}: the archive has neither {name!r} nor {INPUT_PREFIX + name!r}, but "
                         f"{sorted(arrays)}")  # fmt: skip
    if path.suffix == ".npy":
        return read_array(path)
    raise UsageError(f"--input {name}={path}: expected a .npy or .npz file, or one of {', '.join(GENERATED)}")


def _load(path: Path, kind: type, what: str) -> Any:
    try:
        with path.open("rb") as file:
            magic = file.read(6)
        if magic != b"\x93NUMPY" and magic[:2] != b"PK":  # numpy would read anything else as a pickle
            raise ValueError(f"it starts with {magic!r}, which is neither .npy nor .npz")
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:  # an archive reads its members lazily: read them here, so that a damaged one is reported
                loaded = {key: loaded[key] for key in loaded}
        if isinstance(loaded, kind):
            return loaded
    except FileNotFoundError as error:
        raise UsageError(f"no such file: {path}") from error
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if "Object arrays" in reason:
            reason = "it holds Python objects; texts: save them as fixed-width (dtype 'U')"
        raise UsageError(f"{path}: cannot be read as {what}: {reason}") from error
    raise UsageError(f"{path}: is no {what.split(' ', 1)[1]}")


def _inputs_of(archive: Mapping[str, Array], *, bare: bool) -> dict[str, Array]:
    """Return the inputs in an archive: keys ``in_*``; with ``bare`` every key, where no key has the prefix."""
    found = {k[len(INPUT_PREFIX) :]: v for k, v in archive.items() if k.startswith(INPUT_PREFIX)}
    return found or (dict(archive) if bare else {})


def resolve_shapes(arguments: Sequence[NodeArg], sources: Sources) -> dict[str, tuple[int, ...]]:
    """A shape for every input of the model.

    A given array or ``--shape`` also determines the symbolic dimensions that other inputs share. Raises `UsageError`
    for names that the model does not have, and for dimensions that are not determined.
    """
    names = [a.name for a in arguments]
    for option, given in (("--input", {**sources.arrays, **sources.generated}), ("--shape", sources.shapes)):
        unknown = [n for n in given if n not in names]
        if unknown:
            raise UsageError(
                f"{option}: the model has no input named {unknown[0]!r}; it has {', '.join(names) or 'none'}"
            )
    symbols = {d for a in arguments for d in a.shape or () if isinstance(d, str)}
    unknown = [d for d in sources.dims if d not in symbols]
    if unknown:
        there = f"it has {', '.join(sorted(symbols))}" if symbols else "its shapes are all fixed"
        raise UsageError(f"--dim: the model has no dimension named {unknown[0]!r}; {there}")
    sizes = dict(sources.dims)
    given = {n: tuple(a.shape) for n, a in sources.arrays.items()} | sources.shapes
    for argument in arguments:
        if argument.name in given and argument.shape is not None:
            for dim, size in zip(argument.shape, given[argument.name], strict=False):
                if isinstance(dim, str):
                    sizes.setdefault(dim, size)
    shapes = {}
    for argument in arguments:
        if argument.name in given:
            shapes[argument.name] = given[argument.name]
            continue
        if argument.shape is None:
            raise UsageError(f"the model gives no shape for input {argument.name!r}: give --shape {argument.name}=...")
        open_dims = [str(d) for d in argument.shape if not isinstance(d, int) and (d is None or d not in sizes)]
        if open_dims:
            form = "x".join("N" if d in open_dims or d is None else str(sizes.get(str(d), d)) for d in argument.shape)
            by_dim = " ".join(f"--dim {d}=N" for d in dict.fromkeys(open_dims) if d != "None")
            raise UsageError(
                f"input {argument.name!r} has dynamic dimensions {list(argument.shape)}: give --shape {argument.name}={form}"
                + (f" or {by_dim}" if by_dim else "")
            )
        shapes[argument.name] = tuple(d if isinstance(d, int) else sizes[str(d)] for d in argument.shape)
    return shapes


def make_inputs(arguments: Sequence[NodeArg], sources: Sources) -> dict[str, Array]:
    """Return every input of the model: read, or generated (random unless ``--input`` says ones or zeros).

    Random floats are standard normal; integers 0 or 1. The same seed and name give the same values.
    """
    shapes = resolve_shapes(arguments, sources)
    feeds: dict[str, Array] = {}
    for argument in arguments:
        if argument.name in sources.arrays:
            feeds[argument.name] = sources.arrays[argument.name]
            continue
        what = sources.generated.get(argument.name, "random")
        feeds[argument.name] = generate(argument, shapes[argument.name], what, sources.seed)
    return feeds


def generate(argument: NodeArg, shape: tuple[int, ...], what: str, seed: int) -> Array:
    """Generate one array; ``what`` is "random", "ones" or "zeros". Raises `UsageError` for types that cannot be
    generated."""
    dtype = dtype_of(argument)
    if what == "ones":
        return np.ones(shape, dtype)
    if what == "zeros":
        return np.zeros(shape, dtype)
    generator = np.random.default_rng([seed, zlib.crc32(argument.name.encode())])
    if dtype.kind in "iub":
        return generator.integers(0, INTEGERS_BELOW, shape).astype(dtype)
    return generator.standard_normal(shape, np.float32).astype(dtype)


def dtype_of(argument: NodeArg) -> np.dtype[Any]:
    """The numpy type of an input. Raises `UsageError` for one that is not a tensor of numbers."""
    from vkep.dtypes import DTYPES

    for dtype in DTYPES.values():
        if argument.type == f"tensor({dtype.onnx_name})":
            return dtype.numpy
    raise UsageError(f"input {argument.name!r} is {argument.type}: give --input {argument.name}=FILE.npy")
