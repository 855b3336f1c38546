"""Look at a page in headless Chromium, by its DevTools protocol over a pipe: no driver is needed beside the browser."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_SECONDS = 60.0


class BrowserError(Exception):
    """The browser is missing, does not answer, or refuses a command."""


class Browser:
    """One page of a browser; use it as a context manager. `complaints` are errors of the page and its console.

    Raises BrowserError where no Chromium is installed.
    """

    def __init__(self) -> None:
        program = next((found for name in NAMES if (found := shutil.which(name))), None)
        if program is None:
            raise BrowserError("Chromium is not installed; on Debian: apt-get install --no-install-recommends chromium")
        self.complaints: list[str] = []
        self._profile = tempfile.TemporaryDirectory(prefix="heterotrain-browser-", ignore_cleanup_errors=True)
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # The protocol's pipe is descriptors 3 and 4.
        words = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", program, "--headless"]
        words += ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        words += ["--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(words, pass_fds=(theirs_in, theirs_out), stdout=quiet, stderr=quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._rest, self._session = 0, b"", ""
        self._events: list[str] = []

    def __enter__(self) -> Self:
        try:
            target = self._ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self._ask(f"{domain}.enable")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        os.close(self._to)  # at which it ends
        try:
            self._process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        self._profile.cleanup()

    def open(self, page: Path, *, width: int, theme: str, height: int = 900) -> None:
        """Load a page in a window of so many pixels, for a reader who prefers `light` or `dark`."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.complaints.clear()
        self._events.clear()
        self._ask("Page.navigate", url=page.resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._take(self._message())

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, as JSON has it."""
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"{script}: {found['exceptionDetails'].get('exception', {}).get('description')}")
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Let the mouse be `Pressed`, `Moved` or `Released` somewhere."""
        self._ask(
            "Input.dispatchMouseEvent",
            type=f"mouse{kind}",
            x=x,
            y=y,
            button="none" if kind == "Moved" else "left",
            clickCount=1,
        )

    def screenshot(self, height: int | None = None) -> bytes:
        """What the page shows as PNG: all of it, or the topmost so many pixels."""
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        found = self._ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        question: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            question["sessionId"] = self._session
        os.write(self._to, json.dumps(question).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            self._take(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _message(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_SECONDS
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise BrowserError(f"Chromium has not answered for {ANSWER_SECONDS:g} s")
            piece = os.read(self._from, 2**16)
            if not piece:
                raise BrowserError("Chromium has ended")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _take(self, event: dict[str, Any]) -> None:
        method, about = event.get("method", ""), event.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(about["exceptionDetails"].get("exception", about)))
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(about["entry"]["text"])
