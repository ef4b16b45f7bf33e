"""One process that serves: uvicorn with the application, and gRPC where it is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from vkep.serving.app import application
from vkep.serving.service import Service

#: seconds within which the head of a request must be there, and within which a client must read what was sent to it
_HEAD_S, _READ_S = 20.0, 60.0
_MOST_FILES = 65536
#: seconds after ``stop_s`` in which requests are answered with an error, before connections are closed
_AFTER_S = 3


class Protocol(AutoHTTPProtocol):
    """uvicorn's protocol, which closes connections that send no whole head of a request, and those whose answers are not read:
    each holds a file of the process, and answers their memory."""

    def connection_made(self, transport: Any) -> None:
        """As asyncio."""
        super().connection_made(transport)
        self._watch: asyncio.TimerHandle | None = self.loop.call_later(_HEAD_S, self._close_if_idle)
        self._unread: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """As asyncio: the client reads less than is written."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """As asyncio."""
        super().resume_writing()
        self._stop_unread()

    def _expect_reading(self) -> None:
        """Close the connection unless the client reads something in time, and so on until it has read what was written."""
        self._unread = self.loop.call_later(_READ_S, self._check_reading, self.transport.get_write_buffer_size())

    def _check_reading(self, before: int) -> None:
        if self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        else:
            self._expect_reading()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def data_received(self, data: bytes) -> None:
        """As asyncio."""
        super().data_received(data)
        if self._is_idle() and self._watch is None:
            self._watch = self.loop.call_later(_HEAD_S, self._close_if_idle)
        elif not self._is_idle() and self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio."""
        if self._watch is not None:
            self._watch.cancel()
        self._stop_unread()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_if_idle(self) -> None:
        self._watch = None
        if self._is_idle() and not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server, which says when it answers."""

    def __init__(self, config: uvicorn.Config, service: Service, stop_s: float, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._stop_s, self._started = service, stop_s, started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at a signal as uvicorn does, which would raise it again after that: models would not be closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn."""
        await super().startup(sockets)
        if self.started:
            self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn; answers that are not complete after ``stop_s`` seconds end with an error."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._stop_s, lambda: loop.run_in_executor(None, self._service.end_answers))
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


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
        _allow_connections()
        config = uvicorn.Config(
            application(service),
            http=Protocol,
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=math.ceil(stop_s) + _AFTER_S,
            server_header=False,
        )
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
        stack.callback(listening.close)
        address, bound = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        server = Server(config, service, stop_s, lambda: started(f"http://{shown}:{bound}"))
        asyncio.run(_run(server, listening, service, f"{shown}:{grpc_port}" if grpc_port is not None else None, stop_s))


def _allow_connections() -> None:
    """Raise the number of files that the process may have open, of which each connection is one."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # other systems, and those that allow it not
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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
