"""The report in a real browser, at the width of a desktop and of a telephone."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from autopilot.report.page import write_report
from tests.kits.report_data import make_report, with_result

Reply = dict[str, Any]
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# the browser reads commands from descriptor 3 and answers on 4; the copies keep clear of both
LAUNCH = """
import os, sys
commands, answers = (os.dup(os.dup(os.dup(int(n)))) for n in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE_S = 90.0
WIDTHS = (1280, 390)
TALLEST_PX = 5000
OPEN_ALL = "document.querySelectorAll('details.fold').forEach(each => { each.open = true; })"
HOSTILE = "<img src=x onerror=alert(1)><script>document.title='taken'</script>$x$"


class Browser:
    """One page of a headless browser, spoken to over a pair of pipes (DevTools protocol)."""

    def __init__(self, path: str, folder: Path) -> None:
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        self.errors = (folder / "browser.log").open("wb")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                LAUNCH,
                str(to_child),
                str(from_child),
                path,
                *FLAGS,
                f"--user-data-dir={folder / 'profile'}",
                "about:blank",
            ],
            pass_fds=(to_child, from_child),
            stdout=self.errors,
            stderr=self.errors,
        )
        os.close(to_child)
        os.close(from_child)
        self._numbers = itertools.count(1)
        self._rest = b""
        self.events: list[Reply] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Reply:
        """The result of one command; what happens meanwhile is kept in `events`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = self._read_until(lambda reply: reply.get("id") == number)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        result: Reply = answer["result"]
        return result

    def open(self, address: str) -> None:
        """Go to a page and wait until it has loaded."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        loaded = any(event.get("method") == "Page.loadEventFired" for event in self.events)
        if not loaded:
            self._read_until(lambda reply: reply.get("method") == "Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is worth in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def show(self, width: int, scheme: str = "light") -> None:
        """Give the page a width and a colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self) -> bytes:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        """End the browser that this object started."""
        os.close(self._out)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        os.close(self._in)
        self.errors.close()

    def _read_until(self, wanted: Callable[[Reply], bool]) -> Reply:
        end = time.monotonic() + PATIENCE_S
        while True:
            while b"\0" in self._rest:
                line, self._rest = self._rest.split(b"\0", 1)
                reply: Reply = json.loads(line)
                if "id" not in reply:
                    self.events.append(reply)
                if wanted(reply):
                    return reply
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            received = os.read(self._in, 1 << 20) if ready else b""
            assert received, f"the browser did not answer within {PATIENCE_S:.0f} s: {self.errors.name}"
            self._rest += received


@pytest.fixture(scope="module")
def browser(require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless browser for the tests of this file."""
    opened = Browser(require_tool("chromium"), tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def address(require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report whose job names try to get out of their cells."""
    require_tool("chromium")
    page = write_report(make_report(name=HOSTILE), tmp_path_factory.mktemp("report"))
    return page.resolve().as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_its_window_and_asks_nothing_of_a_network(
    browser: Browser, address: str, width: int, scheme: str, tmp_path: Path
) -> None:
    """The page loads at both widths and in both schemes, quietly, by itself, and never scrolls sideways."""
    browser.show(width, scheme)
    browser.open(address)
    (tmp_path / f"report-{width}-{scheme}.png").write_bytes(browser.picture())
    noise = [e for e in browser.events if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
    noise += [e for e in browser.events if e["method"] == "Runtime.consoleAPICalled"]
    asked = {e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"}
    assert not noise
    assert {url for url in asked if not url.startswith("data:")} == {address}
    assert browser.value("innerWidth") == width
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("document.title").startswith("Nine days")


def test_the_page_of_two_policies_is_short(browser: Browser, tmp_path: Path) -> None:
    """At most 5,000 px tall on a desktop; opened or folded it never scrolls sideways, also on a telephone."""
    data = make_report(("autopilot", "kueue"))
    for name in ("autopilot", "kueue"):
        job = {"tenant": "vision", "gpus": 8, "total_wait_s": 7200.0}
        longest = [job | {"job_id": f"train-{row}"} for row in range(20)]
        data = with_result(data, name, guarantees={"owed_gpu_s": 7200.0}, jobs={"longest_waits": longest})
    address = write_report(data, tmp_path / "two").resolve().as_uri()
    for width in (1440, 390):
        browser.show(width)
        unpacked(browser, address)
        height_px = browser.value("document.documentElement.scrollHeight")
        assert width < 600 or height_px <= TALLEST_PX
        browser.value(OPEN_ALL)
        assert browser.value("document.documentElement.scrollHeight") > height_px
        assert browser.value("document.documentElement.scrollWidth") <= width
    clipped = browser.value(
        "[...document.querySelectorAll('.tiles h2, .tiles .figure, .tiles em')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth).map(e => e.textContent)"
    )
    assert clipped == []


@pytest.mark.parametrize("width", WIDTHS)
def test_every_picture_is_seen_and_its_words_can_be_read(browser: Browser, address: str, width: int) -> None:
    """Each figure shows one drawing, as wide as its section, with letters of 9 px or more."""
    browser.show(width)
    browser.open(address)
    browser.value(OPEN_ALL)
    shown = browser.value(
        "[...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().width > 0).map(s => ["
        "s.closest('section').id, s.getBoundingClientRect().width / s.closest('section').clientWidth,"
        "Math.min(...[...s.querySelectorAll('text')].map(t => parseFloat(getComputedStyle(t).fontSize)))"
        " * s.getBoundingClientRect().width / s.viewBox.baseVal.width])"
    )
    assert [name for name, _, _ in shown] == ["utilization", "waits", "latency", "nodes", "fragmentation"]
    assert all(0.85 < share <= 1 for _, share, _ in shown), shown
    assert all(letters_px >= 9 for _, _, letters_px in shown), shown


def test_nothing_of_a_picture_is_cut_off(browser: Browser, address: str) -> None:
    """Every word of a drawing lies inside it and on no other, with the letters that the browser has."""
    for width in WIDTHS:
        browser.show(width)
        browser.open(address)
        browser.value(OPEN_ALL)
        outside = browser.value(
            "[...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().width > 0).flatMap("
            "s => { const f = s.getBoundingClientRect(); return [...s.querySelectorAll('text')].filter(t => {"
            "const b = t.getBoundingClientRect(); return b.left < f.left - 1 || b.right > f.right + 1"
            "|| b.top < f.top - 1 || b.bottom > f.bottom + 1; }).map(t => s.closest('section').id + ': ' + "
            "t.textContent) })"
        )
        assert outside == [], f"at {width} px"
        overlapping = browser.value(
            "[...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().width > 0).flatMap("
            "s => { const all = [...s.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);"
            "return all.flatMap(([one, a], at) => all.slice(at + 1).filter(([, b]) => a.left < b.right - 2"
            "&& b.left < a.right - 2 && a.top < b.bottom - 4 && b.top < a.bottom - 4)"
            ".map(([two]) => `${s.closest('section').id}: ${one} / ${two}`)) })"
        )
        assert overlapping == [], f"at {width} px"


READY = "document.documentElement.dataset.ready === 'yes'"
ROWS = "document.querySelectorAll('.decisions tbody tr').length"
FOUND = "document.querySelector('.find output').textContent"


def unpacked(browser: Browser, address: str) -> None:
    """Open a page and let its script unpack the decisions."""
    browser.open("about:blank")  # so that an address that differs in its fragment alone is loaded anew
    browser.open(address)
    browser.call(
        "Runtime.evaluate",
        expression=f"new Promise(done => "
        f"{{ const look = () => {READY} ? done() : requestAnimationFrame(look); look(); }})",
        awaitPromise=True,
    )


def choose(browser: Browser, field: str, value: str) -> None:
    """Set a field of the search as a person does."""
    browser.value(
        f"(() => {{ const f = document.querySelector('.find [name={field}]'); f.value = {json.dumps(value)};"
        "f.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def test_every_decision_is_found_by_word_action_tenant_and_answer(browser: Browser, address: str) -> None:
    """All are unpacked, a hundred are shown at once, and each field of the search narrows them."""
    browser.show(1280)
    unpacked(browser, address)
    assert (browser.value(FOUND), browser.value(ROWS)) == ("260 of 260 decisions", 100)
    choose(browser, "words", "Refused  budget")
    assert browser.value(FOUND) == "86 of 260 decisions"
    choose(browser, "tenant", "vision")
    assert browser.value(FOUND) == "43 of 260 decisions"
    choose(browser, "words", "")
    choose(browser, "tenant", "")
    choose(browser, "answer", "accepted")
    choose(browser, "action", "backfill")
    assert browser.value(FOUND) == "87 of 260 decisions"
    choose(browser, "order", "gain")
    gains = "[...document.querySelectorAll('.decisions tbody .gain')].map(c => c.textContent)"
    first, second = browser.value(gains)[:2]
    assert first.endswith("GPU-h")
    assert float(first.split()[0]) >= float(second.split()[0])
    assert browser.value(ROWS) == 87


def test_a_link_leads_to_the_whole_case_of_a_decision(browser: Browser, address: str) -> None:
    """From the summary, and as an address: the row is there, open, with the text of explain."""
    browser.show(1280)
    unpacked(browser, address)
    href = browser.value("document.querySelector('#summary a[href^=\"#d-\"]').getAttribute('href')")
    unpacked(browser, address + href)
    row = f"document.getElementById({json.dumps(unquote(href[1:]))})"
    assert browser.value(f"{row}.querySelector('details').open")
    assert browser.value(f"{row}.querySelector('.chip').textContent") == "accepted"
    case = browser.call(
        "Runtime.evaluate",
        expression=f"new Promise(done => setTimeout(() => "
        f"done({row}.nextElementSibling.querySelector('pre').textContent)))",
        awaitPromise=True,
        returnByValue=True,
    )
    assert case["result"]["value"].startswith(f"{href[3:]}: the case")
    assert browser.value(f"{row}.getBoundingClientRect().top < innerHeight && {row}.getBoundingClientRect().bottom > 0")


def test_a_wide_table_shows_that_it_goes_on(browser: Browser, address: str) -> None:
    """At the width of a telephone the table of tenants scrolls inside its box, under a shadow."""
    browser.show(390)
    unpacked(browser, address)
    browser.value(OPEN_ALL)
    box = "document.querySelector('#tenants .box')"
    assert browser.value(f"{box}.scrollWidth > {box}.clientWidth")
    assert "scroll" in browser.value(f"getComputedStyle({box}).backgroundAttachment")


def test_a_name_full_of_html_stays_a_name(browser: Browser, address: str) -> None:
    """Job names are shown letter by letter; nothing of them becomes an element or runs."""
    browser.show(1280)
    unpacked(browser, address)
    assert browser.value("document.querySelectorAll('td img, td script').length") == 0
    assert HOSTILE in browser.value("document.querySelector('.decisions .work').textContent")
    assert browser.value("document.title").startswith("Nine days")
