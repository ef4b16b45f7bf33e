"""One Ray cluster of this machine for the tests that need one; they are skipped where Ray is not installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tools.bench.scale.cluster import environment

#: ends a process at once; Windows has no SIGKILL, and its SIGTERM does
KILL: signal.Signals = getattr(signal, "SIGKILL", signal.SIGTERM)


@pytest.fixture(scope="session")
def cluster(vulkan: object) -> Iterator[None]:
    """A Ray instance with four processors' worth of slots, ended after the tests."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install vkep[ray] (docs/scaling.md says how these tests are run)")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.update(environment(threads=0))
    import ray

    ray.init(
        address="local", num_cpus=4, include_dashboard=False, object_store_memory=256 << 20, logging_level="warning"
    )
    yield
    ray.shutdown()


@dataclass(frozen=True)
class Ports:
    """Where the proxies of the tests listen."""

    http: int
    grpc: int


@pytest.fixture(scope="session")
def serving(cluster: None) -> Iterator[Ports]:
    """Ray Serve with both protocols."""
    from ray import serve

    from vkep.serving.messages import SERVICER_FUNCTION

    ports = Ports(*free_ports(2))
    serve.start(
        http_options={"port": ports.http, "request_timeout_s": 60},
        grpc_options={"port": ports.grpc, "grpc_servicer_functions": [SERVICER_FUNCTION], "request_timeout_s": 60},
        logging_config={"enable_access_log": False, "log_level": "ERROR"},
    )
    yield ports
    serve.shutdown()


def free_ports(count: int) -> list[int]:
    """Ports without a listener."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def replicas(name: str) -> dict[str, int]:
    """The processes of a deployment's replicas that run, by replica."""
    from tools.bench.scale.cluster import actors

    return actors(f"#{name}#")
