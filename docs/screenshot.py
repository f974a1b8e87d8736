"""Pictures of the MLflow page: `python docs/screenshot.py URL out.png --wait-for TEXT`. Needs chromium and chromedriver.

The page is drawn by its own JavaScript, so a picture is only worth taking once the words looked for are there.
"""

import argparse
import base64
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class BrowserError(Exception):
    """The browser could not do it."""


class MissingBrowserError(BrowserError):
    """There is no browser on this machine."""


NO_ASSISTANT = """
localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');
"""
"""Keeps MLflow's chat panel, which opens by itself on a first visit, out of the picture."""


class Browser:
    """A headless Chromium, spoken to in WebDriver's protocol (https://www.w3.org/TR/webdriver2/)."""

    def __init__(self, address: str, session: str) -> None:
        """Attach to a session; `browser` makes one."""
        self._base = f"{address}/session/{session}"
        self._prepared = False

    def open(self, url: str) -> None:
        """Load a page. A change after `#` alone would not reload, so an empty page comes between."""
        request("POST", f"{self._base}/url", {"url": "about:blank"})
        request("POST", f"{self._base}/url", {"url": url})
        if not self._prepared:
            self._prepared = True
            self.run(NO_ASSISTANT)
            self.open(url)

    def run(self, script: str) -> Any:
        """Return what a JavaScript function body returns."""
        return request("POST", f"{self._base}/execute/sync", {"script": script, "args": []})

    def text(self) -> str:
        """Return the words on the page."""
        return str(self.run("return document.body ? document.body.innerText : ''"))

    def wait_for(self, words: Sequence[str], *, timeout_s: float = 60.0) -> str:
        """Return the page's text once it holds all of the words.

        Raises:
            BrowserError: If it does not in time; tells what is missing and what is there.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            text = self.text()
            missing = [word for word in words if word not in text]
            if not missing:
                return text
            if time.monotonic() > deadline:
                raise BrowserError(
                    f"not on the page after {timeout_s:.0f} s: {missing}; there is: {text[:2000]}"
                )
            time.sleep(0.25)

    @contextlib.contextmanager
    def frame(self, *, timeout_s: float = 60.0) -> Iterator[None]:
        """Look into the first frame of the page for the body, once it is there.

        Raises:
            BrowserError: If there is none in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                request("POST", f"{self._base}/frame", {"id": 0})
                break
            except BrowserError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.25)
        try:
            yield
        finally:
            request("POST", f"{self._base}/frame", {"id": None})

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the window."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(request("GET", f"{self._base}/screenshot")))


@contextlib.contextmanager
def browser(*, width: int = 1680, height: int = 1000, timeout_s: float = 60.0) -> Iterator[Browser]:
    """Start Chromium for the body, with an empty profile.

    Raises:
        MissingBrowserError: If there is no chromium or chromedriver.
        BrowserError: If it does not start.
    """
    driver, chromium = (
        shutil.which("chromedriver"),
        shutil.which("chromium") or shutil.which("chromium-browser"),
    )
    if driver is None or chromium is None:
        raise MissingBrowserError(
            "chromium and chromedriver are needed; on Debian: apt-get install chromium chromium-driver"
        )
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="memscale-browser-") as profile:
        process = subprocess.Popen(
            [driver, f"--port={port}", "--silent"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        address = f"http://127.0.0.1:{port}"
        try:
            _wait_until_ready(address, timeout_s)
            flags = [*FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}"]
            options = {"binary": chromium, "args": flags}
            session = request(
                "POST",
                f"{address}/session",
                {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}},
            )["sessionId"]
            try:
                yield Browser(address, session)
            finally:
                request("DELETE", f"{address}/session/{session}")
        finally:
            process.terminate()
            process.wait()


def request(method: str, url: str, body: Any = None) -> Any:
    """Return the value of one WebDriver command.

    Raises:
        BrowserError: If the driver says no.
    """
    data = None if body is None else json.dumps(body).encode()
    call = urllib.request.Request(
        url, data=data, method=method, headers={"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(call, timeout=120) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise BrowserError(json.load(error)["value"]["message"].splitlines()[0]) from error


def _wait_until_ready(address: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if request("GET", f"{address}/status")["ready"]:
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise BrowserError(
                    f"chromedriver does not answer after {timeout_s:.0f} s"
                ) from error
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--wait-for", action="append", default=[], help="words that must be on the page; repeatable"
    )
    parser.add_argument(
        "--after", type=float, default=3.0, help="seconds after that, for charts to be drawn"
    )
    parser.add_argument("--size", default="1680x1000", help="of the window")
    arguments = parser.parse_args()
    width, height = map(int, arguments.size.split("x"))
    try:
        with browser(width=width, height=height) as page:
            page.open(arguments.url)
            page.wait_for(arguments.wait_for)
            time.sleep(arguments.after)
            page.screenshot(arguments.out)
    except BrowserError as error:
        sys.exit(str(error))
    print(arguments.out)


if __name__ == "__main__":
    main()
