"""One process that serves: uvicorn with the application, and gRPC where it is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import uvicorn

from vkep.serving.app import application
from vkep.serving.service import Service


class Server(uvicorn.Server):
    """uvicorn's server, which says when it answers."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn."""
        await super().startup(sockets)
        if self.started:
            self._started()


def serve(
    service: Service,
    host: str,
    port: int,
    *,
    stop_s: float = 10.0,
    grpc_port: int | None = None,
    started: Callable[[str], None] = lambda url: None,
) -> None:
    """Answer requests until SIGTERM or SIGINT: then requests in progress have ``stop_s`` seconds, and the service is closed.

    ``port`` 0: any free one. ``grpc_port``: of the Open Inference protocol over gRPC. ``started``: is called with the service's
    address. Raises ``OSError`` where the address cannot be used.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(service.close)
        config = uvicorn.Config(
            application(service),
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=max(1, round(stop_s)),
            server_header=False,
        )
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
        stack.callback(listening.close)
        address, bound = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        server = Server(config, lambda: started(f"http://{shown}:{bound}"))
        asyncio.run(_run(server, listening, service, f"{shown}:{grpc_port}" if grpc_port is not None else None, stop_s))


async def _run(server: Server, listening: socket.socket, service: Service, grpc: str | None, stop_s: float) -> None:
    async with _grpc(service, grpc, stop_s):
        await server.serve(sockets=[listening])


@contextlib.asynccontextmanager
async def _grpc(service: Service, address: str | None, stop_s: float) -> AsyncIterator[None]:
    """The gRPC server, if there is an address."""
    if address is None:
        yield
        return
    from vkep.serving.servicer import grpc_server

    server = grpc_server(service, address)
    await server.start()
    try:
        yield
    finally:
        await server.stop(stop_s)
