"""A Ray instance on this machine for measurements, and its processes."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[3]

Answer = TypeVar("Answer")

#: Serve's logging, of proxies and of replicas: a line for each request takes a tenth of a replica's time
QUIET = {"enable_access_log": False, "log_level": "ERROR"}


@contextlib.contextmanager
def cluster(
    slots: int, threads: int, gpus: int | None = None, *, haproxy: bool = False, store_bytes: int = 512 << 20
) -> Iterator[None]:
    """A Ray instance of ``slots`` processors.

    Args:
        threads: processors that lavapipe uses in each worker (0: all), so that workers stand for devices.
        gpus: GPUs of the instance; None: as Ray counts them.
        haproxy: Serve's proxies are HAProxy and not Python.
        store_bytes: of its object store.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1")
    os.environ.update(environment(threads))
    if haproxy:
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
        for drained in ("RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S", "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S"):
            os.environ[drained] = "0.5"  # no request is in progress when a measurement ends; the default is 30 s
    import ray

    ray.init(
        address="local",
        num_cpus=slots,
        num_gpus=gpus,
        include_dashboard=False,
        object_store_memory=store_bytes,
        logging_level="error",
        log_to_driver=False,
    )
    try:
        yield
    finally:
        ray.shutdown()


def environment(threads: int) -> dict[str, str]:
    """Environment variables of processes that import this repository, and whose lavapipe uses this many processors (0:
    all)."""
    there = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = dict.fromkeys([str(ROOT), str(ROOT / "registry"), *filter(None, there)])
    return {"PYTHONPATH": os.pathsep.join(paths), **({"LP_NUM_THREADS": str(threads)} if threads else {})}


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """Ray Serve over HTTP; the port."""
    from ray import serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    serve.start(http_options={"port": port}, logging_config=QUIET)
    try:
        yield port
    finally:
        serve.shutdown()


def actors(part: str) -> dict[str, int]:
    """The process of each named actor with ``part`` in its name."""
    return asked(part, _process)


def asked(part: str, question: Callable[[Any], Answer]) -> dict[str, Answer]:
    """What each named actor with ``part`` in its name answers: ``question`` is called with it, in its process."""
    import ray

    found: dict[str, Answer] = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if part in actor["name"]:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):  # the process has just ended
                handle: Any = ray.get_actor(**actor)
                found[actor["name"]] = ray.get(handle.__ray_call__.remote(question), timeout=30)
    return found


def _process(actor: Any) -> int:
    return os.getpid()


def runs_of(replica: Any) -> tuple[int, int]:
    """Runs and rows of all models of a service's replica."""
    models = replica._replica_impl._user_callable_wrapper.user_callable.models.by_name
    every = [one for versions in models.values() for one in versions.values()]
    return sum(one.runs_done for one in every), sum(one.rows_done for one in every)


@dataclass
class Watched:
    """A service of Ray Serve under load: what its processes used between two looks. Its replicas have ``part`` in their names."""

    part: str

    def __post_init__(self) -> None:
        replicas, others = actors(self.part), actors("SERVE_PROXY")
        self._processes = {"replicas": list(replicas.values()), "proxies": [*others.values(), *named("haproxy")]}
        self._looks: list[tuple[float, dict[str, float], tuple[int, int]]] = []

    def look(self) -> None:
        """Read what was used until now."""
        runs = asked(self.part, runs_of).values()
        used = {name: processor_s(processes) for name, processes in self._processes.items()}
        self._looks.append((time.monotonic(), used, (sum(n for n, _ in runs), sum(n for _, n in runs))))

    @property
    def rows_of_a_run(self) -> float:
        """Between the last two looks."""
        (_, _, before), (_, _, after) = self._looks[-2:]
        return (after[1] - before[1]) / max(1, after[0] - before[0])

    def processors(self, name: str) -> float:
        """Those that the ``replicas`` or the ``proxies`` used between the last two looks, on average."""
        (began, before, _), (ended, after, _) = self._looks[-2:]
        return (after[name] - before[name]) / (ended - began)


def named(command: str) -> list[int]:
    """The processes of a command, by its name."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if folder.name.isdigit() and (folder / "comm").read_text(encoding="utf-8").strip() == command:
                found.append(int(folder.name))
    return found


def processor_s(processes: Iterable[int]) -> float:
    """Seconds of a processor that processes have used; those that have ended count as 0."""
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mb(process: int) -> float:
    """Memory that a process holds, in MB; 0 where it is gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
