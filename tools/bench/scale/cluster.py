"""A Ray instance on this machine for measurements, and its processes."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]

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
    serve.start(http_options={"port": port, "request_timeout_s": 120}, logging_config=QUIET)
    try:
        yield port
    finally:
        serve.shutdown()


def actors(part: str) -> dict[str, int]:
    """The process of each named actor with ``part`` in its name."""
    import ray

    found: dict[str, int] = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if part in actor["name"]:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):  # the process has just ended
                handle: Any = ray.get_actor(**actor)
                found[actor["name"]] = ray.get(handle.__ray_call__.remote(lambda _: os.getpid()), timeout=30)
    return found


def resident_mb(process: int) -> float:
    """Memory that a process holds, in MB; 0 where it is gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
