"""Headless Chromium, spoken to over the pipe of its DevTools protocol: JSON, each message ended by a null byte."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--remote-debugging-pipe", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--window-size=1600,1300", "about:blank",
)  # fmt: skip
START = "import os, sys; [os.dup2(int(sys.argv[n]), n + 2) for n in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"
"""The browser reads orders from file descriptor 3 and answers on 4."""
PATIENCE = 600.0
"""Seconds that a page may take."""
LIBRARY = """
const inside = (root) => [...root.querySelectorAll('*')].flatMap(
    (each) => each.shadowRoot ? [each, ...inside(each.shadowRoot)] : [each]);
const seen = () => inside(document).filter((each) => each.checkVisibility());
const skipped = ['STYLE', 'SCRIPT', 'TEMPLATE', 'TITLE', 'DESC'];
const words = () => seen().filter((each) => !skipped.includes(each.tagName)).flatMap((each) => [...each.childNodes])
    .filter((each) => each.nodeType == Node.TEXT_NODE).map((each) => each.textContent.trim()).filter((text) => text);
"""
"""Elements in shadow roots are elements too; words: the visible texts in the page's order."""
WAIT = """
new Promise((done) => {
    const look = () => { const value = known(); value ? done(value) : setTimeout(look, 100); };
    look();
})
"""


class Page:
    """The page that is open in a browser."""

    def __init__(self, orders: int, answers: int) -> None:
        self._orders, self._answers, self._rest, self._number = orders, answers, b"", 0
        self._session: str | None = None
        self._open_tab()

    def _open_tab(self) -> str:
        self._session = None
        target = str(self.call("Target.createTarget", url="about:blank")["targetId"])
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return target

    @contextmanager
    def new_tab(self) -> Iterator[None]:
        """Another page meanwhile, with a session of its own; then that of before, as it was."""
        before, target = self._session, self._open_tab()
        try:
            yield
        finally:
            self._session = before
            self.call("Target.closeTarget", targetId=target)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one call of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._orders, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        assert "error" not in answer, f"{method}: {answer}"
        return dict(answer["result"])

    def open(self, url: str) -> None:
        """A page anew, not a part of the one that is open."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)

    def wait_for(self, condition: str) -> Any:
        """The value of a condition, once it is true in the page; waited for there."""
        known = f"() => {{ try {{ return {condition} }} catch {{ return null }} }}"
        script = f"{{ {LIBRARY} const known = {known}; {WAIT} }}"
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"]["value"]

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser said nothing for {PATIENCE:.0f} s"
            read = os.read(self._answers, 1 << 20)
            assert read, "the browser is gone"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with a new profile; gone afterwards. Skips what asks for it where none is installed."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.skip("no Chromium is installed, and a page is looked at with one")
    told, orders = os.pipe()
    answers, telling = os.pipe()
    words = [sys.executable, "-c", START, str(told), str(telling), found, f"--user-data-dir={profile}", *FLAGS]
    with subprocess.Popen(
        words, pass_fds=(told, telling), stderr=subprocess.DEVNULL, start_new_session=True
    ) as running:
        os.close(told)
        os.close(telling)
        try:
            yield Page(orders, answers)
        finally:
            os.killpg(running.pid, 9)
            os.close(orders)
            os.close(answers)
