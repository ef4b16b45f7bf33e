"""Headless Chromium, driven by the DevTools protocol over a pipe: for the tests and pictures of `vkep view`."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--mute-audio"),
    "--disable-dev-shm-usage",  # containers have little of it
)
TIMEOUT_S = 300.0


def find() -> str | None:
    """The browser's program, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page. Close it, or use ``with``. Errors and warnings that the page logs are in ``messages``."""

    def __init__(self) -> None:
        """Raises ``RuntimeError`` where there is no browser, or it does not start."""
        program = find()
        if program is None:
            raise RuntimeError(f"no browser: none of {', '.join(NAMES)} is installed")
        self.messages: list[str] = []
        self._profile = tempfile.mkdtemp(prefix="vkep-chromium-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # the browser reads commands from descriptor 3 and answers on descriptor 4
        theirs = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (theirs_in, theirs_out)]
        exec_it = (
            f"import os, sys; os.dup2({theirs[0]}, 3); os.dup2({theirs[1]}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        )
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", exec_it, program, *FLAGS, f"--user-data-dir={self._profile}"],
            pass_fds=theirs,
            **silent,  # type: ignore[call-overload]  # three descriptors by name
        )
        for one in theirs:
            os.close(one)
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._tracing, self._events = False, list[dict[str, Any]]()
        self._number = 0
        self._session: str | None = None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result. Raises ``RuntimeError`` where the browser
        refuses it or has ended, ``TimeoutError``."""
        self._number += 1
        order: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            order["sessionId"] = self._session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        until = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._next(until, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def _next(self, until: float, method: str) -> dict[str, Any]:
        answer = self._read(until, method)
        self._note(answer)
        return answer

    def _read(self, until: float, method: str) -> dict[str, Any]:
        os.set_blocking(self._in, False)
        while b"\0" not in self._buffer:
            try:
                got = os.read(self._in, 1 << 20)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(f"{method}: no answer within {TIMEOUT_S:g} s") from None
                time.sleep(0.005)
                continue
            if not got:
                raise RuntimeError(f"{method}: the browser has ended with status {self._process.poll()}")
            self._buffer += got
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, answer: dict[str, Any]) -> None:
        parameters = answer.get("params", {})
        if answer.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.messages.append(details.get("exception", {}).get("description") or details["text"])
        elif answer.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.messages.append(str([a.get("value", a.get("description")) for a in parameters["args"]]))
        elif answer.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.messages.append(parameters["entry"]["text"])
        elif answer.get("method") == "Tracing.dataCollected":
            self._events += parameters["value"]
        elif answer.get("method") == "Tracing.tracingComplete":
            self._tracing = False

    def show(self, url: str, width: int = 1360, height: int = 860, *, dark: bool = False, touch: bool = False) -> None:
        """Load a page with the network disabled, and wait until its scripts have run."""
        self.call("Network.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        self.resize(width, height, touch=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width: int, height: int, *, touch: bool = False) -> None:
        """Set the window's size, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)

    def run(self, script: str) -> Any:
        """The value of an expression in the page. Raises ``RuntimeError`` with the exception's text."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true. Raises ``TimeoutError``."""
        end = time.monotonic() + TIMEOUT_S
        while not self.run(script):
            if time.monotonic() > end:
                raise TimeoutError(f"{script}: not within {TIMEOUT_S:g} s; the page says {self.messages}")
            time.sleep(0.02)

    @contextlib.contextmanager
    def tasks(self) -> Iterator[list[float]]:
        """The milliseconds of processor time of each task that the page's main thread runs within the block, in the
        list that it gives, once the block has ended: other programs of a busy machine do not count."""
        self._tracing, self._events = True, []
        self.call("Tracing.start", transferMode="ReportEvents", traceConfig={"includedCategories": ["toplevel"]})
        found: list[float] = []
        yield found
        self.call("Tracing.end")
        until = time.monotonic() + TIMEOUT_S
        while self._tracing:
            self._next(until, "Tracing.end")
        names = {
            (e["pid"], e["tid"]): e["args"]["name"]
            for e in self._events
            if e["ph"] == "M" and e["name"] == "thread_name"
        }
        found += [
            e["tdur"] / 1e3
            for e in self._events
            if e["ph"] == "X" and "tdur" in e and names.get((e["pid"], e["tid"])) == "CrRendererMain"
        ]

    def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, x: float, y: float) -> None:
        """Press and release the mouse button at a position of the window, in CSS pixels."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Move the mouse with its button pressed, in CSS pixels."""
        for kind, at in (("mousePressed", (x, y)), ("mouseMoved", (to_x, to_y)), ("mouseReleased", (to_x, to_y))):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def picture(self, path: Path) -> None:
        """Write a screenshot, as WebP or PNG by the file's suffix."""
        kind = {"format": "webp", "quality": 82} if path.suffix == ".webp" else {"format": "png"}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **kind)["data"]))

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self._session = None
            self.call("Browser.close")
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for descriptor in (self._in, self._out):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
