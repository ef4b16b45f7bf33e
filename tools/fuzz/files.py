"""Damaged files, opened and run: they must raise only documented exceptions, not crash or hang, and leave no object.

    python -m tools.fuzz.files --cases 100000 --seed 1 --jobs 2 --what onnx external pte

ONNX models are changed by structure (fields of their nodes, values, types and weights) and by bytes; external data, .pte, .ptd
and VGF files, saved plans, SPIR-V, the driver's pipelines and compile specs by bytes, by words, by length and by text. A case is
its kind, the seed and a number, so that ``--case`` repeats it. Cases run in processes of 6 GiB each.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import random
import re
import resource
import shutil
import struct
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tools.fuzz.interrupts import DYNAMIC, PARTS, STATIC, model, no_object_left
from tools.worker_pool import run_tasks

DATA = Path(__file__).parents[2] / "tests"
_MOST_MEMORY = 6 << 30
#: time limit of a case in seconds, on a machine that is also used otherwise
LIMIT = 120.0
_RNG = np.random.default_rng(1)


@dataclass(frozen=True)
class Task:
    what: str
    seed: int
    number: int


@dataclass(frozen=True)
class Outcome:
    """``said`` is "answer" or an exception's name; ``wrong`` is "" or the error that was found."""

    task: Task
    said: str
    wrong: str = ""


# ---- changes of bytes


def by_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to four changes: bits, bytes, words; ranges that are cut, doubled or inserted."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind = rng.choice(("bit", "byte", "word", "word", "long", "cut", "insert", "double", "zero"))
        at = rng.randrange(max(len(changed), 1))
        if kind == "cut":
            del changed[at : at + rng.choice((1, 4, 100, len(changed)))]
        elif kind == "insert":
            changed[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
        elif kind == "double":
            changed[at:at] = changed[at : at + rng.choice((4, 16, 256))]
        elif not changed:
            continue
        elif kind == "bit":
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == "zero":
            changed[at : at + 16] = bytes(len(changed[at : at + 16]))
        else:
            size, form = (4, "<I") if kind == "word" else (8, "<Q")
            place = at // size * size
            if place + size <= len(changed):
                old = struct.unpack_from(form, changed, place)[0]
                most = 256**size - 1
                new = rng.choice((0, 1, most, most >> 1, old + 1, old - 1, 2 * old, old + 1000, rng.randrange(most)))
                struct.pack_into(form, changed, place, new & most)
    return bytes(changed)


_NUMBERS = (-1, 0, 1, 2, 3, 7, 1 << 20, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))
_TEXTS = (
    "",
    "x",
    "y",
    "t",
    "Relu",
    "Conv",
    "If",
    "Loop",
    "ai.onnx.ml",
    "com.microsoft",
    "nope",
    "é" * 40,
    "../../etc",
    "a" * 5000,
)


def by_structure(proto: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """One to four fields of the model's messages take other values, or messages are dropped, doubled or swapped."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    for _ in range(rng.choice((1, 1, 2, 2, 4))):
        message = _somewhere(changed, rng)
        field = rng.choice(message.DESCRIPTOR.fields)
        repeated = field.label == field.LABEL_REPEATED if hasattr(field, "label") else field.is_repeated
        try:
            if repeated:
                _change_list(getattr(message, field.name), field, rng)
            elif field.message_type is not None:
                message.ClearField(field.name)
            else:
                setattr(message, field.name, _value(field, getattr(message, field.name), rng))
        except (ValueError, TypeError, OverflowError):
            continue
    return changed


def _somewhere(message: Any, rng: random.Random) -> Any:
    while True:
        inside = [
            one
            for field, value in message.ListFields()
            if field.message_type is not None
            for one in (list(value) if hasattr(value, "__len__") and not hasattr(value, "DESCRIPTOR") else [value])
        ]
        if not inside or rng.random() < 0.15:
            return message
        message = rng.choice(inside)


def _value(field: Any, old: Any, rng: random.Random) -> Any:
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice((*_NUMBERS, old + 1, old - 1, 2 * old, rng.randrange(1, 30)))
    if isinstance(old, float):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    if isinstance(old, bytes):
        return by_bytes(old, rng) if old else rng.randbytes(8)
    return rng.choice(_TEXTS)


def _change_list(items: Any, field: Any, rng: random.Random) -> None:
    kind = rng.choice(("drop", "double", "change", "clear"))
    if kind == "clear" and rng.random() < 0.3:
        del items[:]
    elif not len(items):
        if field.message_type is not None:
            items.add()
        else:
            items.append(rng.choice(_NUMBERS) if field.cpp_type in (1, 2, 3, 4) else rng.choice(_TEXTS))
    elif kind == "drop":
        del items[rng.randrange(len(items))]
    elif field.message_type is not None:
        items.add().CopyFrom(items[rng.randrange(len(items))])
    elif kind == "double":
        items.append(items[rng.randrange(len(items))])
    else:
        at = rng.randrange(len(items))
        items[at] = _value(field, items[at], rng)


# ---- damaged files, opened and run


@functools.cache
def _models() -> list[onnx.ModelProto]:
    weights = {
        "w": _RNG.standard_normal((8, 3, 3, 3), np.float32),
        "b": np.zeros(8, np.float32),
        "m": _RNG.standard_normal((8, 4), np.float32),
        "i": np.array([1, 0, 3]),
        "s": np.array([-1, 8]),
    }
    network = model(
        "g (float[1,3,8,8] x) => (float[1,4] y) { c = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(c) p = GlobalAveragePool(r)"
        " f = Reshape(p, s) y = MatMul(f, m) }"
    )
    looping = model(
        "g (float[n,4] x) => (float[m] y) { g = Gather<axis=1>(x, i) t = Transpose(g) f = ReduceSum<keepdims=0>(t)"
        " l = LayerNormalization(g, o) a = Softmax(l) r = ReduceMax<keepdims=0>(a) p = Add(f, r) e = Expand(p, z)"
        " c = Concat<axis=0>(e, o) u = Slice(c, st, en) y = Cast<to=1>(u) }"
    )
    more = {"o": np.ones(3, np.float32), "z": np.array([5]), "st": np.array([0]), "en": np.array([4])}
    for proto in (network, looping):
        names = {n for node in proto.graph.node for n in node.input}
        for name, array in {**weights, **more}.items():
            if name in names:
                proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return [STATIC, DYNAMIC, PARTS, network, looping]


def _open_and_run(source: Any, **options: Any) -> None:
    import vkep

    with vkep.InferenceSession(source, token="files", **{"save_plans": False, **options}) as session:
        feeds = {}
        for info in session.get_inputs():
            shape = [d if isinstance(d, int) and 0 <= d < 64 else 3 for d in (info.shape or ())]
            name = info.type.removeprefix("tensor(").removesuffix(")")
            dtype = {"float": "float32", "double": "float64"}.get(name, name)
            try:
                feeds[info.name] = np.ones(shape, dtype)
            except TypeError:
                feeds[info.name] = np.ones(shape, np.float32)
        session.run(None, feeds)


def onnx_(rng: random.Random, folder: Path) -> None:
    proto = rng.choice(_models())
    if rng.random() < 0.6:
        source: Any = by_structure(proto, rng)
        source = source if rng.random() < 0.3 else source.SerializeToString()
    else:
        source = by_bytes(proto.SerializeToString(), rng)
    if isinstance(source, bytes) and rng.random() < 0.3:
        path = folder / "m.onnx"
        path.write_bytes(source)
        source = path
    _open_and_run(source)


def external(rng: random.Random, folder: Path) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(_models()[3])
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    data = folder / "w.bin"
    if rng.random() < 0.4:
        data.write_bytes(by_bytes(data.read_bytes(), rng))
    else:
        read = onnx.load(folder / "m.onnx", load_external_data=False)
        entry = rng.choice([e for t in read.graph.initializer for e in t.external_data])
        entry.value = rng.choice(
            (*_TEXTS, *map(str, _NUMBERS), "w.bin\0", "/etc/passwd", "a/../../w.bin", "a" * 300, "m.onnx")
        )
        (folder / "m.onnx").write_bytes(read.SerializeToString())
    _open_and_run(folder / "m.onnx")


def _program(source: Any, data: Sequence[Any] = ()) -> None:
    from vkep.executorch import Program

    with Program.load(source, data=data, token="files") if data else Program.load(source, token="files") as program:
        for name in sorted(program.method_names):
            method = program.load_method(name)
            metas = [method.metadata.input_tensor_meta(k) for k in range(method.metadata.num_inputs())]
            method.execute([np.ones(meta.sizes(), meta.numpy_dtype) for meta in metas])


@functools.cache
def _programs() -> list[bytes]:
    files = sorted((DATA / "executorch" / "data").glob("*/*.pte"), key=lambda p: (p.stat().st_size, p.name))
    read = [path.read_bytes() for path in files if path.stat().st_size < 200_000]
    # its SPIR-V would be passed to the driver or the layers unchanged
    return [data for data in read if b"VgfBackend" not in data]


def pte(rng: random.Random, folder: Path) -> None:
    _program(by_bytes(rng.choice(_programs()), rng))


def ptd(rng: random.Random, folder: Path) -> None:
    source = DATA / "executorch" / "data" / "external_constants"
    (program,), (data,) = sorted(source.glob("*.pte"))[:1], sorted(source.glob("*.ptd"))[:1]
    _program(program.read_bytes(), [by_bytes(data.read_bytes(), rng)])


def vgf(rng: random.Random, folder: Path) -> None:
    from vkep.vgf.decode import decode

    files = sorted((DATA / "vgf" / "data").glob("*.vgf"))
    decode(by_bytes(rng.choice(files).read_bytes(), rng))


def spec(rng: random.Random, folder: Path) -> None:
    from gpu_shared import CompileSpec, parse_shared_gpu_compile_spec

    values = (
        b"",
        b"\0",
        b"x" * 300,
        b"\xff\xfe",
        b"timeline",
        b"3",
        b"-1",
        "text",
        7,
        None,
        b"lookup_only",
        b"99999999999999999999",
    )
    keys = ("token", "group_id", "context_mode", "sync_mode", "prefer", "nope", "")
    made = [CompileSpec(f"gpu_shared_{rng.choice(keys)}", rng.choice(values)) for _ in range(rng.randrange(4))]  # type: ignore[arg-type]
    with contextlib.suppress(ValueError, TypeError):
        parse_shared_gpu_compile_spec(made)


def cache(rng: random.Random, folder: Path) -> None:
    """A session leaves its plan, its SPIR-V, the driver's pipelines; one of these is damaged, and the next one runs."""
    os.environ["VKEP_CACHE_DIR"] = str(folder / "cache")
    kept = _kept_cache()
    shutil.copytree(kept, folder / "cache")
    shutil.copy(kept.parent / "m.onnx", folder / "m.onnx")
    files = [p for p in sorted((folder / "cache").rglob("*")) if p.is_file() and p.suffix not in (".so", "")] + [
        folder / "cache" / "secret"
    ]
    for path in rng.sample(files, min(len(files), rng.choice((1, 1, 3)))):
        path.write_bytes(by_bytes(path.read_bytes(), rng))
    _open_and_run(folder / "m.onnx", save_plans=True)


@functools.cache
def _kept_cache() -> Path:
    home = Path(tempfile.mkdtemp(prefix="vkep-fuzz-"))
    before = os.environ.get("VKEP_CACHE_DIR", "")
    os.environ["VKEP_CACHE_DIR"] = str(home / "cache")
    text = " ".join(f"t{k + 1} = MatMul(t{k}, w) r{k} = Softmax(t{k})" for k in range(18))
    proto = model(f"g (float[4,16] t0) => (float[4,16] t18) {{ {text} }}")
    proto.graph.initializer.append(numpy_helper.from_array(_RNG.standard_normal((16, 16), np.float32), "w"))
    for k in range(18):
        proto.graph.output.append(helper.make_tensor_value_info(f"r{k}", 1, [4, 16]))
    onnx.save(proto, home / "m.onnx")
    _open_and_run(home / "m.onnx", save_plans=True)
    tuning = home / "cache" / "tuning"
    tuning.mkdir(exist_ok=True)
    os.environ["VKEP_CACHE_DIR"] = before
    return home / "cache"


WHAT: dict[str, Callable[[random.Random, Path], None]] = {
    "onnx": onnx_, "external": external, "pte": pte, "ptd": ptd, "vgf": vgf, "spec": spec, "cache": cache,
}  # fmt: skip


def run(task: Task) -> Outcome:
    """One case; in a worker process."""
    from gpu_shared.errors import GpuError
    from vkep.errors import Decline, KernelBoundsError, VkepError

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    rng = random.Random(f"{task.what}/{task.seed}/{task.number}")
    folder = Path(tempfile.mkdtemp(prefix="vkep-fuzz-"))
    before = os.environ.get("VKEP_CACHE_DIR")
    try:
        WHAT[task.what](rng, folder)
        said, wrong = "answer", ""
    except (Decline, KernelBoundsError) as error:
        said = wrong = f"{type(error).__name__}: {error}"
    except (VkepError, GpuError) as error:
        said, wrong = type(error).__name__, ""
        error.__traceback__ = None
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = type(error).__name__
        wrong = f"{said}: {str(error)[:200]} ({Path(where.filename).name}:{where.lineno})"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if before is not None:
            os.environ["VKEP_CACHE_DIR"] = before
    if not wrong:
        try:
            no_object_left(task.what)
        except AssertionError as error:
            wrong = str(error)
    return Outcome(task, said, wrong)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where no case found an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--what", nargs="*", default=list(WHAT), choices=list(WHAT))
    parser.add_argument("--case", type=int, help="this number alone, in this process")
    given = parser.parse_args(arguments)
    if given.case is not None:
        for what in given.what:
            print(run(Task(what, given.seed, given.case)))
        return 0
    bad, total = 0, 0
    for what in given.what:
        tasks = [Task(what, given.seed, number) for number in range(given.cases)]
        said: Counter[str] = Counter()
        groups: Counter[str] = Counter()
        for outcome in run_tasks(
            tasks, run, lambda task, why: Outcome(task, "lost", why), jobs=given.jobs, timeout=LIMIT
        ):
            total += 1
            said[outcome.said.split(":")[0]] += 1
            if outcome.wrong:
                bad += 1
                group = re.sub(r"\d+|'[^']*'", "#", outcome.wrong)
                groups[group] += 1
                if groups[group] <= 3:
                    print(f"{what} case {outcome.task.number}: {outcome.wrong}", flush=True)
        print(f"{what}: {len(tasks)} cases: {json.dumps(dict(said.most_common()))}", flush=True)
    print(f"{total} files, {bad} with something wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
