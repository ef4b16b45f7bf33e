"""Damaged files, opened and run: they must raise only documented exceptions, not crash or hang, and leave no object.

    python -m tools.fuzz.files --seed 1 --jobs 2 --what onnx=250000 external=100000 pte=200000
    python -m tools.fuzz.files --seed 1 --what onnx --case 17   # one case again

ONNX models (some networks, and ONNX's node tests) are changed by structure (fields of their nodes, values, types and weights)
and by bytes; external data, .pte, .ptd and VGF files, saved plans, SPIR-V, the driver's pipelines, tuning records and compile
specs by bytes, by words, by length and by text. Models run with their tensors between guard pages, on a driver that runs
shaders on the host's processor. So do the inputs and outputs of VGF files whose SPIR-V is unchanged (`tools.fuzz.graphs`); others
are decoded only. A damaged cache must not change an answer. A case is its kind, the seed and a number, so that
``--case`` repeats it. Cases of all kinds run mixed, in processes of 6 GiB each, which keep one context for some hundred cases.
After each case the objects that it made must be gone, and after the context closes all objects. SIGTERM ends the run with its
counts.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tools.fuzz.counts import Counts, Outcome, Task
from tools.fuzz.damage import NUMBERS, TEXTS, by_bytes, by_structure
from tools.fuzz.graphs import Graphs
from tools.fuzz.guard import guarded
from tools.fuzz.moments import DYNAMIC, PARTS, STATIC, model, no_object_left
from tools.waiting import LONG_S
from tools.worker_pool import run_tasks

DATA = Path(__file__).parents[2] / "tests"
_MOST_MEMORY = 6 << 30
#: time limit of a chunk of cases in seconds, on a machine that is also used otherwise
LIMIT = 120.0
#: cases that a process takes at once
_CHUNK = 20
#: cases after which a process closes its context, and all its objects must be gone
_ROUND = 400
#: limit in bytes of a node test's model, and of each of its inputs
_MOST_BYTES = 20_000
_VGF_FILES = "vgf/data/*.vgf"
#: what a context keeps for later sessions
_KEPT_KINDS = frozenset({"pipeline", "pipeline_layout", "shader_module"})
_RNG = np.random.default_rng(1)


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


@functools.cache
def _node_models() -> list[tuple[onnx.ModelProto, dict[str, Any]]]:
    """ONNX's node tests, with their inputs."""
    from tools.backend_suite.cases import load_cases

    found = []
    for case in load_cases().values():
        if case.kind == "node" and (proto := case.model()).ByteSize() <= _MOST_BYTES:
            values = next(iter(case.data(proto)), ([], []))[0]
            feeds = dict(zip((i.name for i in proto.graph.input), values, strict=False))
            if all(isinstance(v, np.ndarray) and v.nbytes <= _MOST_BYTES for v in values):
                found.append((proto, feeds))
    return found


def _open_and_run(source: Any, feeds: Mapping[str, Any] | None = None, **options: Any) -> list[Any]:
    import vkep

    with vkep.InferenceSession(source, **{"token": "files", "save_plans": False, **options}) as session:
        given = {}
        for info in session.get_inputs():
            if feeds is not None and info.name in feeds:
                given[info.name] = feeds[info.name]
                continue
            shape = [d if isinstance(d, int) and 0 <= d < 64 else 3 for d in (info.shape or ())]
            name = info.type.removeprefix("tensor(").removesuffix(")")
            dtype = {"float": "float32", "double": "float64"}.get(name, name)
            try:
                given[info.name] = np.ones(shape, dtype)
            except (TypeError, ValueError):  # bfloat16, maps
                given[info.name] = np.ones(shape, np.float32)
        return session.run(None, given)


def onnx_(rng: random.Random, folder: Path) -> None:
    proto, feeds = rng.choice(_node_models()) if rng.random() < 0.5 else (rng.choice(_models()), None)
    if rng.random() < 0.7:
        source: Any = by_structure(proto, rng)
        source = source if rng.random() < 0.3 else source.SerializeToString()
    else:
        source = by_bytes(proto.SerializeToString(), rng)
    if isinstance(source, bytes) and rng.random() < 0.2:
        path = folder / "m.onnx"
        path.write_bytes(source)
        source = path
    _open_and_run(source, feeds)


@functools.cache
def _saved_apart() -> tuple[onnx.ModelProto, bytes]:
    """A model whose weights are in the file "w.bin", and the file's content."""
    proto = onnx.ModelProto()
    proto.CopyFrom(_models()[3])
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "m.onnx"
        onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
        return onnx.load(path, load_external_data=False), (Path(name) / "w.bin").read_bytes()


def external(rng: random.Random, folder: Path) -> None:
    kept, data = _saved_apart()
    proto = onnx.ModelProto()
    proto.CopyFrom(kept)
    if rng.random() < 0.4:
        data = by_bytes(data, rng)
    else:
        entry = rng.choice([e for t in proto.graph.initializer for e in t.external_data])
        places = ("w.bin\0", "/etc/passwd", "a/../../w.bin", "./w.bin", "a" * 300, "m.onnx", ".", "..")
        if entry.value.isdecimal() and rng.random() < 0.8:
            old = int(entry.value)
            near = (old + 1, old - 1, old + 4, 2 * old, len(data), len(data) - 4, rng.randrange(len(data)), 10**30)
            entry.value = str(rng.choice((*NUMBERS, *near)))
        else:
            entry.value = rng.choice((*TEXTS, *places, *map(str, NUMBERS), "0x10", "1_0", " 4", "٤"))
    (folder / "w.bin").write_bytes(data)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
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


@functools.cache
def _bytes_of(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(DATA.glob(pattern))]


def ptd(rng: random.Random, folder: Path) -> None:
    program, data = (_bytes_of(f"executorch/data/external_constants/*.{kind}")[0] for kind in ("pte", "ptd"))
    _program(program, [by_bytes(data, rng)])


def vgf(rng: random.Random, folder: Path) -> None:
    """Decode a file, most often changed outside its SPIR-V only; run it where its code is the original's."""
    from vkep.vgf.decode import decode

    whole = rng.choice(_bytes_of(_VGF_FILES))
    (code,) = [module.spirv or b"" for module in decode(whole).modules]
    before, after = whole.split(code)
    kind = rng.choice(("before", "after", "after", "whole"))
    if kind == "whole":
        changed = by_bytes(whole, rng)
    else:
        changed = (by_bytes(before, rng) + code + after) if kind == "before" else before + code + by_bytes(after, rng)
    found = decode(changed)
    if _context.has_host_addresses and all(module.spirv == code for module in found.modules):
        _context.graphs().run(found)


def spec(rng: random.Random, folder: Path) -> None:
    from gpu_shared import CompileSpec, parse_shared_gpu_compile_spec

    texts = (b"", b"\0", b"x" * 300, b"\xff\xfe", b"timeline", b"3", b"-1", b"lookup_only", b"99999999999999999999")
    values = (*texts, "text", 7, None)
    keys = ("token", "group_id", "context_mode", "sync_mode", "prefer", "nope", "")
    made = [CompileSpec(f"gpu_shared_{rng.choice(keys)}", rng.choice(values)) for _ in range(rng.randrange(4))]  # type: ignore[arg-type]
    with contextlib.suppress(ValueError, TypeError):
        parse_shared_gpu_compile_spec(made)


def _damage(path: Path, rng: random.Random) -> None:
    """Change a file's bytes, or put what is no file of a sensible size in its place."""
    kind = rng.choice(("bytes", "bytes", "bytes", "fifo", "folder", "link", "giant"))
    if kind == "bytes":
        path.write_bytes(by_bytes(path.read_bytes(), rng))
        return
    path.unlink()
    if kind == "fifo" and sys.platform != "win32":
        os.mkfifo(path)
    elif kind == "folder":
        (path / "inside").mkdir(parents=True)
    elif kind == "link":
        path.symlink_to(rng.choice(("/dev/zero", "/etc/hostname", path.name)))
    else:
        path.touch()
        os.truncate(path, 1 << 40)


def cache(rng: random.Random, folder: Path) -> None:
    """A session leaves its plan, its SPIR-V, the driver's pipelines; one of these is damaged, and the next one runs."""
    kept, right = _kept_cache()
    shutil.copytree(kept, folder / "cache")
    shutil.copy(kept.parent / "m.onnx", folder / "m.onnx")
    files = [p for p in sorted((folder / "cache").rglob("*")) if p.is_file()]
    for path in rng.sample(files, rng.choice((1, 1, 3))):
        _damage(path, rng)
    with mock.patch.dict(os.environ, VKEP_CACHE_DIR=str(folder / "cache")), _compiled_once():
        found = _open_and_run(folder / "m.onnx", save_plans=True)
    if not all(np.array_equal(a, b) for a, b in zip(found, right, strict=True)):
        raise AssertionError("a damaged cache changed the answer")


@functools.cache
def _kept_cache() -> tuple[Path, list[Any]]:
    """A cache folder beside its model, and the model's answer."""
    import vkep
    from vkep.cache import sealed
    from vkep.device.per_device import device_file
    from vkep.device.tuning import save_choices

    home = Path(tempfile.mkdtemp(prefix="vkep-fuzz-"))
    text = " ".join(f"t{k + 1} = MatMul(t{k}, w) r{k} = Softmax(t{k})" for k in range(18))
    proto = model(f"g (float[4,16] t0) => (float[4,16] t18) {{ {text} }}")
    proto.graph.initializer.append(numpy_helper.from_array(_RNG.standard_normal((16, 16), np.float32), "w"))
    for k in range(18):
        proto.graph.output.append(helper.make_tensor_value_info(f"r{k}", 1, [4, 16]))
    onnx.save(proto, home / "m.onnx")
    with mock.patch.dict(os.environ, VKEP_CACHE_DIR=str(home / "cache")), _compiled_once():
        with vkep.InferenceSession(STATIC, token="files", save_plans=False) as session:
            caps = session._parts.delegate.capabilities
        save_choices(caps, {"a problem": (1, 2, 3), "another": (16, 16)})
        pipelines = device_file(caps, "pipelines", ".sealed")  # a driver may write none
        if not pipelines.exists():
            pipelines.parent.mkdir(exist_ok=True)
            pipelines.write_bytes(b"".join(map(bytes, sealed(pipelines.name, bytes(100)))))
        return home / "cache", _open_and_run(home / "m.onnx", save_plans=True)


_spirv: dict[tuple[str, str], bytes] = {}


@contextlib.contextmanager
def _compiled_once() -> Iterator[None]:
    """Compile each shader once in this process: the compiler is not what cases of caches are about."""
    from vkep.shaders.compiler import Compiler

    compile_source = Compiler.compile_source

    def once(self: Compiler, source: Any, defines: Mapping[str, str]) -> bytes:
        key = (self.identity, source.digest(defines))
        if key not in _spirv:
            _spirv[key] = compile_source(self, source, defines)
        return _spirv[key]

    with mock.patch.object(Compiler, "compile_source", once):
        yield


# ---- cases in processes


WHAT: dict[str, Callable[[random.Random, Path], None]] = {
    "onnx": onnx_, "external": external, "pte": pte, "ptd": ptd, "vgf": vgf, "spec": spec, "cache": cache,
}  # fmt: skip


#: a saved plan and a compile spec have no tensors to guard, and `Graphs` guards those of VGF files
_UNGUARDED = frozenset({"cache", "spec", "vgf"})


class _Context:
    """The context that this process's cases share: a session keeps it, with the objects that ``base`` counts."""

    def __init__(self) -> None:
        self.session: Any = None
        self.base: dict[str, int] = {}
        self.cases = 0
        self.has_host_addresses = False  #: so that tensors can be between guard pages
        self._graphs: Graphs | None = None

    def open(self) -> None:
        import vkep

        if self.session is None:
            self.session = vkep.InferenceSession(STATIC, token="files", save_plans=False)
            self.has_host_addresses = "llvmpipe" in self.session.context.capabilities.name
            _open_and_run(_models()[3])
            gc.collect()
            self.base = self.counted()
            gc.freeze()

    def graphs(self) -> Graphs:
        """What runs VGF files; called where no object of a case is alive."""
        if self._graphs is None:
            self._graphs = Graphs(_bytes_of(_VGF_FILES))
            gc.collect()
            self.base = self.counted()
        return self._graphs

    def counted(self) -> dict[str, int]:
        import vkep

        return {kind: n for kind, n in vkep.live_counts().items() if kind not in _KEPT_KINDS}

    def check(self, what: str) -> None:
        """Raise `AssertionError` unless the objects of the last case are freed soon."""
        self.cases += 1
        ends = time.monotonic() + LONG_S
        while gc.collect() >= 0 and (left := self.counted()) != self.base:
            if time.monotonic() > ends:
                self.close(what)
                raise AssertionError(f"{what}: left behind: {left}, expected {self.base}")
            time.sleep(0.01)
        gc.freeze()
        if self.cases % _ROUND == 0:
            self.close(what)

    def close(self, what: str) -> None:
        """Close the context. Raises `AssertionError` where an object is left."""
        if self.session is not None:
            self.session.close()
            self.session = None
            if self._graphs is not None:
                self._graphs.close()
                self._graphs = None
            gc.unfreeze()
            no_object_left(what)


_context = _Context()


def run(task: Task) -> Outcome:
    """One case; in a worker process."""
    import vkep
    from vkep.errors import Decline, KernelBoundsError

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    rng = random.Random(f"{task.what}/{task.seed}/{task.number}")
    folder = Path(tempfile.mkdtemp(prefix="vkep-fuzz-"))
    said, wrong = "answer", ""
    _context.open()
    try:
        guards_tensors = _context.has_host_addresses and task.what not in _UNGUARDED
        with guarded() if guards_tensors else contextlib.nullcontext() as guards:
            try:
                WHAT[task.what](rng, folder)
            except (Decline, KernelBoundsError) as error:
                said = wrong = f"{type(error).__name__}: {error}"
            except (vkep.VkepError, vkep.GpuError) as error:
                said = type(error).__name__
                error.__traceback__ = None
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                said = type(error).__name__
                wrong = f"{said}: {str(error)[:200]} ({Path(where.filename).name}:{where.lineno})"
            if guards is not None and (broken := guards.broken()):
                wrong = f"written beside {broken}"
        _context.check(task.what)
    except AssertionError as error:
        wrong = wrong or str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(task, said, wrong)


def run_chunk(tasks: Sequence[Task]) -> list[Outcome]:
    """Some cases, one after the other."""
    return [run(task) for task in tasks]


def _kind(text: str) -> tuple[str, int | None]:
    what, _, count = text.partition("=")
    if what not in WHAT:
        raise argparse.ArgumentTypeError(f"{what!r} is none of {', '.join(WHAT)}")
    return what, int(count) if count else None


def _chunks(given: argparse.Namespace) -> list[list[Task]]:
    """The cases in chunks of one kind each, mixed so that a run that is stopped has the same share of each kind."""
    placed = []
    for what, count in given.what:
        tasks = [Task(what, given.seed, number) for number in range(count or given.cases)]
        chunks = [tasks[k : k + _CHUNK] for k in range(0, len(tasks), _CHUNK)]
        placed += [((k + 0.5) / len(chunks), chunk) for k, chunk in enumerate(chunks)]
    return [chunk for _, chunk in sorted(placed, key=lambda item: item[0])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where no case found an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    every = [(what, None) for what in WHAT]
    parser.add_argument("--what", nargs="*", type=_kind, default=every, metavar="KIND[=CASES]", help=", ".join(WHAT))
    parser.add_argument("--seconds", type=float, help="begin no case after this time")
    parser.add_argument("--every", type=float, default=60, help="seconds between two reports")
    parser.add_argument("--case", type=int, help="this number alone, in this process")
    given = parser.parse_args(arguments)
    if given.case is not None:
        for what, _ in given.what:
            print(run(Task(what, given.seed, given.case)))
        return 0
    if any(what == "onnx" for what, _ in given.what):
        _node_models()  # here, for all processes
    counts = Counts()
    lost: list[list[Task]] = []
    now = time.monotonic()
    until = None if given.seconds is None else now + given.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def single(tasks: Sequence[Task], why: str) -> list[Outcome]:
        lost.extend([task] for task in tasks)
        if len(lost) < 10 * _CHUNK:
            print(f"lost among {tasks[0]} to {tasks[-1].number}: {why}", flush=True)
        return []

    def alone(tasks: Sequence[Task], why: str) -> list[Outcome]:
        return [Outcome(tasks[0], "lost", why)]

    try:
        for when_lost, chunks in ((single, _chunks(given)), (alone, lost)):  # those that were lost again, one by one
            for outcomes in run_tasks(chunks, run_chunk, when_lost, jobs=given.jobs, timeout=LIMIT, until=until):
                for outcome in outcomes:
                    counts.add(outcome)
                if time.monotonic() - now > given.every:
                    now = time.monotonic()
                    print(counts.report(), flush=True)
            until = None
    finally:
        print(counts.report(), flush=True)
    return bool(counts.wrong)


if __name__ == "__main__":
    sys.exit(main())
