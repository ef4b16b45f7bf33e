"""Clients of a service in the Open Inference protocol with binary tensors: each asks again once it was answered."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass
class Heard:
    """The clients' answers: seconds of each, statuses, and the number of wrong answers."""

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    unanswered: int = 0
    rows: int = 0

    def percentile_ms(self, percent: float) -> float:
        """Of the answers with a result."""
        return float(np.percentile(self.seconds, percent)) * 1000 if self.seconds else float("nan")


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


def ask_from(
    processes: int, url: str, clients: int, seconds: float, feeds: Mapping[str, Array], *, warm_s: float = 3.0
) -> Heard:
    """``clients``, spread over ``processes``, ask with the same feeds for ``seconds``, after ``warm_s`` that do not count.

    One process of Python sends about a thousand requests a second, so it would be the limit of a fast service.
    """
    start = time.time() + 2.0 + warm_s  # processes import first
    shares = [len(range(at, clients, processes)) for at in range(min(processes, clients))]
    with ProcessPoolExecutor(len(shares), multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(_share, url, share, start, warm_s, seconds, dict(feeds)) for share in shares]
        found = [task.result() for task in tasks]
    whole = Heard()
    for one in found:
        whole.seconds += one.seconds
        whole.unanswered += one.unanswered
        whole.rows += one.rows
        for status, count in one.statuses.items():
            whole.statuses[status] = whole.statuses.get(status, 0) + count
    return whole


def _share(url: str, clients: int, start: float, warm_s: float, seconds: float, feeds: Mapping[str, Array]) -> Heard:
    """One process of `ask_from`."""
    asyncio.run(ask(url, clients, max(0.1, start - time.time()), lambda number: (feeds, None)))
    return asyncio.run(ask(url, clients, seconds, lambda number: (feeds, None)))
