"""Clients of a service in the Open Inference protocol with binary tensors: each sends a request when the last one is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass
class Heard:
    """The clients' answers: seconds of each, statuses, and what was wrong."""

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    unanswered: int = 0
    rows: int = 0
    processors: float = 0.0  #: that the clients used on average

    def percentile_ms(self, percent: float) -> float:
        """Of the answers with a result."""
        return float(np.percentile(self.seconds, percent)) * 1000 if self.seconds else float("nan")


#: a header with which Serve does not watch whether the client disconnects
UNWATCHED = {"x-request-disconnect-disabled": "?1"}


def request_of(feeds: Mapping[str, Array]) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request."""
    kinds = {"f": "FP", "i": "INT"}
    inputs = [
        {
            "name": name,
            "datatype": f"{kinds[array.dtype.kind]}{array.dtype.itemsize * 8}",
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in feeds.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return b"".join([head, *(a.tobytes() for a in feeds.values())]), {"Inference-Header-Content-Length": str(len(head))}


async def ask(
    url: str,
    clients: int,
    seconds: float,
    make: Callable[[int], tuple[Mapping[str, Array], Callable[[Array], bool] | None]],
    *,
    retry: bool = False,
) -> Heard:
    """``clients`` ask for ``seconds``. ``make(number)`` gives feeds, and what says whether the first output (of the
    first input's type) is right.
    With ``retry`` a request that failed with 5xx, or whose connection broke, is sent again until it is answered.
    """
    import aiohttp

    heard = Heard()
    until = time.monotonic() + seconds

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        count = 0
        sent: Mapping[str, Array] = {}
        while time.monotonic() < until:
            feeds, right = make(number * 1_000_003 + count)
            count += 1
            if feeds is not sent:
                sent, (body, headers) = feeds, request_of(feeds)
            first = next(iter(feeds.values()))
            while True:
                started = time.monotonic()
                status, answer, length = 0, b"", 0
                try:
                    async with session.post(url, data=body, headers=headers) as response:
                        status, answer = response.status, await response.read()
                        length = int(response.headers.get("Inference-Header-Content-Length", 0))
                except aiohttp.ClientError:
                    pass
                heard.statuses[status] = heard.statuses.get(status, 0) + 1
                if status == 200:
                    heard.seconds.append(time.monotonic() - started)
                    heard.rows += len(first)
                    if right is not None:
                        output = json.loads(answer[:length])["outputs"][0]
                        result = np.frombuffer(answer[length:], first.dtype).reshape(output["shape"])
                        if not right(result):
                            heard.wrong.append(f"{first.tolist()}: {result.tolist()}")
                    break
                if not retry:
                    break
                await asyncio.sleep(0.2)

    timeout = aiohttp.ClientTimeout(total=180)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        done = await asyncio.gather(*(client(session, number) for number in range(clients)), return_exceptions=True)
    heard.unanswered = sum(isinstance(one, BaseException) for one in done)
    return heard


class _Connection(asyncio.Protocol):
    """A client that sends the same HTTP request again as soon as it was answered, without anything that it does not need."""

    def __init__(self, message: bytes, rows: int, counts: Callable[[], bool], heard: Heard) -> None:
        self._message, self._rows, self._counts, self._heard = message, rows, counts, heard
        self._got, self._need = bytearray(), 0
        self._started = 0.0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._started = time.monotonic()
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._need:
            head = self._got.find(b"\r\n\r\n")
            if head < 0:
                return
            length = re.search(rb"\r\ncontent-length: *(\d+)", self._got[:head], re.IGNORECASE)
            if length is None:
                raise ValueError(f"an answer without a length: {bytes(self._got[:head])!r}")
            self._need = head + 4 + int(length[1])
        if len(self._got) < self._need:
            return
        if self._counts():
            status = int(self._got[9:12])
            self._heard.statuses[status] = self._heard.statuses.get(status, 0) + 1
            if status == 200:
                self._heard.seconds.append(time.monotonic() - self._started)
                self._heard.rows += self._rows
            else:
                self._heard.wrong.append(f"{status}: {bytes(self._got[-200:])!r}")
        self._got, self._need = bytearray(), 0
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def ask_from(
    processes: int,
    url: str,
    clients: int,
    seconds: float,
    feeds: Mapping[str, Array],
    *,
    warm_s: float = 3.0,
    look: Callable[[], None] = lambda: None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Heard:
    """``clients``, spread over ``processes``, ask with the same feeds for ``seconds``, after ``warm_s`` that do not count.
    ``look`` is called when these seconds begin, and when they end. ``headers`` are sent too.

    A client is a connection. One process of Python sends a few thousand requests per second, so it would be the limit of a fast
    service.
    """
    start = time.time() + 2.0 + warm_s  # processes import first
    shares = [len(range(at, clients, processes)) for at in range(min(processes, clients))]
    with ProcessPoolExecutor(len(shares), multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(_share, url, share, start, seconds, dict(feeds), dict(headers)) for share in shares]
        for at in (start, start + seconds):
            time.sleep(max(0.0, at - time.time()))
            look()
        found = [task.result() for task in tasks]
    whole = Heard()
    for one in found:
        whole.seconds += one.seconds
        whole.unanswered += one.unanswered
        whole.rows += one.rows
        whole.wrong += one.wrong
        whole.processors += one.processors
        for status, count in one.statuses.items():
            whole.statuses[status] = whole.statuses.get(status, 0) + count
    return whole


def _share(
    url: str, clients: int, start: float, seconds: float, feeds: Mapping[str, Array], more: Mapping[str, str]
) -> Heard:
    """One process of `ask_from`."""
    return asyncio.run(_repeat(url, clients, start, seconds, feeds, more))


async def _repeat(
    url: str, clients: int, start: float, seconds: float, feeds: Mapping[str, Array], more: Mapping[str, str]
) -> Heard:
    """Answers that arrive within ``seconds`` from ``start`` count."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    body, headers = request_of(feeds)
    headers = {"Host": parts.netloc, "Content-Length": str(len(body)), **headers, **more}
    head = f"POST {parts.path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    message = head.encode() + b"\r\n" + body
    heard, rows = Heard(), len(next(iter(feeds.values())))
    loop = asyncio.get_running_loop()

    def counts() -> bool:
        return start <= time.time() < start + seconds

    async def client() -> None:
        while time.time() < start + seconds:
            with contextlib.suppress(OSError):
                _, one = await loop.create_connection(lambda: _Connection(message, rows, counts, heard), host, port)
                await one.ended
            heard.unanswered += counts()
            await asyncio.sleep(0.05)  # a proxy closes connections while it learns of a service

    tasks = [asyncio.ensure_future(client()) for _ in range(clients)]
    await asyncio.sleep(start - time.time())
    used = time.process_time()
    await asyncio.wait(tasks, timeout=max(0.1, start + seconds - time.time()))
    heard.processors = (time.process_time() - used) / seconds
    return heard
