"""Sends generated requests to `vkep serve` beside innocent ones, and compares innocent answers with those that came alone.

    python -m tools.fuzz.services [--requests 2000] [--seconds 60] [--kinds fields damaged ...] [--json out.json]

For each kind of attack (`tools.fuzz.service_attacks`, and over gRPC `tools.fuzz.service_grpc` where grpcio is installed):
``--requests`` of them, for at most ``--seconds``, from another address and in a process of lower priority, since attackers have
processors of their own. Beside them two users send a chat, a tensor and an index, over gRPC a tensor too, one after the other. A
table has the statuses of the attackers' requests and, of the innocent ones, the number, the wrong and the failed answers, and the
wait in the median and at its 99th percentile, in multiples of the same alone: the largest of the requests. Innocent requests are
alone and under attack in turns of five seconds. The exit status is 1 where an innocent answer was wrong or failed, or an
attacker's was a 500.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.util
import json
import math
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from tools.fuzz import service_grpc
from tools.fuzz.service_attacks import CHAT, GONE, INFER, KINDS, SLOW, UNREAD, Attack, attacks, chat, json_bytes, tensor
from vkep.models.starters import STARTERS

#: an attacker's address and an innocent user's; a client of gRPC has 127.0.0.1
ATTACKER, USER = "127.0.0.2", "127.0.0.3"
#: kinds of attacks over gRPC
GRPC_KINDS = {
    "fields over gRPC": service_grpc.fields,
    "damaged messages": service_grpc.damaged,
    "streams over gRPC": service_grpc.stream,
}
#: connections that an attacker leaves open at once, and seconds for an answer
_OPEN, _PATIENCE_S = 40, 120
#: of a part of a campaign, in seconds
_PART_S = 5.0
_OVER_GRPC = "over gRPC"
_ERRORS = (OSError, http.client.HTTPException)


def ask(
    address: str, path: str, body: bytes, source: str = "", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    connection = http.client.HTTPConnection(
        address, timeout=_PATIENCE_S, source_address=(source, 0) if source else None
    )
    with contextlib.closing(connection):
        connection.request("POST", path, body, dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.read()


class Attacker:
    """Sends attacks from one thread; connections of slow and unread ones stay open for a while."""

    def __init__(self, address: str) -> None:
        self._address, self._open = address, list[socket.socket]()

    def send(self, attack: Attack) -> str:
        """What came: the status, or the name of an error."""
        try:
            if attack.manner in (SLOW, UNREAD, GONE):
                self._leave(attack)
                return attack.manner
            return str(ask(self._address, attack.path, attack.body, ATTACKER, attack.headers)[0])
        except _ERRORS as error:
            return type(error).__name__

    def _leave(self, attack: Attack) -> None:
        host, _, port = self._address.rpartition(":")
        one = socket.create_connection((host, int(port)), _PATIENCE_S, (ATTACKER, 0))
        head = f"POST {attack.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(attack.body)}\r\n\r\n".encode()
        one.sendall(head + (attack.body[:1] if attack.manner == SLOW else attack.body))
        if attack.manner == GONE:
            one.close()
            return
        time.sleep(0.02)  # to hold what others need, not to send as many as the loop takes
        self._open.append(one)
        if len(self._open) > _OPEN:
            self._open.pop(0).close()

    def close(self) -> None:
        """Close the connections that are open."""
        for one in self._open:
            one.close()


def _sender(address: str, kind: str, seed: int) -> tuple[Callable[[], str], Callable[[], None]]:
    """What sends the next attack of a kind, and what ends it."""
    if kind in GRPC_KINDS:
        channel, rng = service_grpc.Channel(address), random.Random(f"{kind} {seed}")
        return lambda: channel.send(*GRPC_KINDS[kind](rng)), channel.close
    attacker, requests = Attacker(address), attacks(kind, seed)
    return lambda: attacker.send(next(requests)), attacker.close


def attack_for(address: str, kind: str, seed: int, count: int, seconds: float, threads: int = 4) -> Counter[str]:
    """Send up to ``count`` attacks of a kind, for at most ``seconds``; returns how often each status came. The address of those
    over gRPC is that of the gRPC server."""
    found: Counter[str] = Counter()
    lock, deadline, left = threading.Lock(), time.monotonic() + seconds, iter(range(count))

    def run(number: int) -> None:
        send, close = _sender(address, kind, seed + number)
        while time.monotonic() < deadline and next(left, None) is not None:
            came = send()
            with lock:
                found[came] += 1
        close()

    started = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return found


@dataclass
class Waits:
    """Innocent requests: how long each waited, and what was wrong with their answers."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  #: by path
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The answers that came, and the failed requests."""
        return sum(map(len, self.seconds.values())) + len(self.failed)

    def beside(self, alone: Waits, share: float) -> float:
        """The largest ratio, of all paths, of a quantile of the waits to the same alone."""
        at = {path: float(np.quantile(found, share)) for path, found in alone.seconds.items()}
        return max(
            (float(np.quantile(found, share)) / at[path] for path, found in self.seconds.items()), default=math.inf
        )


class Innocent:
    """A user whose answers are known."""

    def __init__(self, address: str, number: int, grpc: str = "") -> None:
        """``grpc``: the address of a gRPC server, if there is one."""
        self._address, self._channel = address, service_grpc.Channel(grpc) if grpc else None
        x = np.arange(6, dtype=np.float32).reshape(2, 3) + number
        index = np.array([[number % 3], [2]])
        given = json_bytes({"inputs": [tensor(x)]}), json_bytes({"inputs": [tensor(x), tensor(index, "i", "INT64")]})
        self._requests = [
            (CHAT, json_bytes(chat(max_tokens=8, temperature=0, seed=number))),
            (INFER.format("square"), given[0]),
            (INFER.format("pick"), given[1]),
        ]
        if self._channel is not None:
            self._requests.append((_OVER_GRPC, service_grpc.infer(x=x).SerializeToString()))
        self._expected = [self._answer(*request) for request in self._requests]

    def _answer(self, path: str, body: bytes) -> Any:
        if self._channel is not None and path == _OVER_GRPC:
            try:
                return self._channel.ask(body)
            except Exception as error:
                raise ConnectionError(str(error)) from None
        status, text = ask(self._address, path, body, USER)
        if status != 200:
            raise ConnectionError(f"{path}: status {status}: {text[:300]!r}")
        found = json.loads(text)
        return found["choices"][0]["message"]["content"] if "choices" in found else found["outputs"][0]["data"]

    def round(self, waits: Waits) -> None:
        """Send each request once."""
        for (path, body), expected in zip(self._requests, self._expected, strict=True):
            started = time.perf_counter()
            try:
                found = self._answer(path, body)
            except _ERRORS as error:
                waits.failed.append(f"{path}: {type(error).__name__}: {error}")
                continue
            waits.seconds[path].append(time.perf_counter() - started)
            if found != expected:
                waits.wrong.append(f"{path}: got {found!r}, expected {expected!r}")

    def rounds_while(self, goes_on: Any, waits: Waits) -> None:
        """`round` until the event is set, once at least."""
        while True:
            self.round(waits)
            if goes_on.is_set():
                return


@contextlib.contextmanager
def innocents(users: Sequence[Innocent], waits: Waits | None = None) -> Iterator[Waits]:
    """Users that send requests during the block; what they found after it, added to ``waits``."""
    waits, ended = waits or Waits(), threading.Event()
    threads = [threading.Thread(target=user.rounds_while, args=(ended, waits)) for user in users]
    for thread in threads:
        thread.start()
    try:
        yield waits
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@dataclass(frozen=True)
class Result:
    """Of one kind of attack. Waits of innocent users are in multiples of those alone."""

    kind: str
    sent: Mapping[str, int]
    innocent: int
    wrong: Sequence[str]
    failed: Sequence[str]
    median: float
    high: float

    @property
    def bad(self) -> bool:
        """Whether an innocent answer was wrong or failed, or the service had an error of its own."""
        return bool(self.wrong or self.failed or self.sent.get("500") or self.sent.get("INTERNAL"))


def campaign(
    address: str, kinds: Sequence[str], count: int, seconds: float, seed: int, grpc: str = ""
) -> Iterator[Result]:
    """The result of each kind; ``grpc``: the address of the gRPC server, if there is one. Parts with and without attacks take
    turns, since the machine may have other work too."""
    users = [Innocent(address, number, grpc) for number in range(2)]
    with multiprocessing.get_context("spawn").Pool(1, os.nice, (19,)) as attackers:
        for kind in kinds:
            alone, beside, sent = Waits(), Waits(), Counter[str]()
            parts = max(1, round(seconds / _PART_S))
            for part in range(parts):
                left = -(-(count - sum(sent.values())) // (parts - part))
                with innocents(users, alone):
                    time.sleep(min(seconds, _PART_S))
                given = grpc if kind in GRPC_KINDS else address, kind, seed + 1000 * part, left, seconds / parts
                found = attackers.apply_async(attack_for, given)
                with innocents(users, beside):
                    sent += found.get()
            quantiles = beside.beside(alone, 0.5), beside.beside(alone, 0.99)
            wrong, failed = alone.wrong + beside.wrong, alone.failed + beside.failed
            yield Result(kind, dict(sent.most_common()), beside.count, wrong, failed, *quantiles)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign, and print its table."""
    from tests.ray.conftest import free_ports
    from tests.serving.conftest import serving, write_models

    parser = argparse.ArgumentParser(prog="python -m tools.fuzz.services", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000, help="of each kind")
    parser.add_argument("--seconds", type=float, default=60, help="for each kind")
    parser.add_argument("--seed", type=int, default=0)
    grpc = importlib.util.find_spec("grpc") is not None
    every = [*KINDS, *(GRPC_KINDS if grpc else ())]
    parser.add_argument("--kinds", nargs="+", choices=every, default=every)
    parser.add_argument("--json", type=Path, help="write the results here")
    given = parser.parse_args(arguments)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        STARTERS["whisper"].write(Path(folder) / "whisper")
        models = ("llama", "whisper", "square.onnx", "pick.onnx")
        port = free_ports(1)[0]
        options = ("--grpc-port", str(port)) if grpc else ()
        with serving(Path(folder), models, "--log", "none", *options) as running:
            columns = ("attack", "requests", "statuses", "innocent answers", "wrong", "failed", "median", "p99")
            print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
            to = urlsplit(running.url).netloc, given.kinds, given.requests, given.seconds, given.seed
            for one in campaign(*to, f"127.0.0.1:{port}" if grpc else ""):
                found.append(one)
                statuses = ", ".join(f"{status}: {count}" for status, count in one.sent.items())
                cells = [one.kind, sum(one.sent.values()), statuses, one.innocent, len(one.wrong), len(one.failed)]
                print(f"| {' | '.join(map(str, cells))} | {one.median:.1f} | {one.high:.1f} |", flush=True)
                for text in [*one.wrong, *one.failed][:3]:
                    print(text, file=sys.stderr)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(one) for one in found], indent=1))
    return int(any(one.bad for one in found))


if __name__ == "__main__":
    sys.exit(main())
