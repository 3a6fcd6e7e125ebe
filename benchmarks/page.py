"""The status page at 4,000 GPUs, 300 tenants and 30 services in headless Chromium: first paint, and bytes by view.

The service's API and page run in this process on loopback, over one published tick of `python -m benchmarks metrics`.
A signed-in browser opens the page anew in each round, without its cache. The goal is the first paint under 1 s, and
under 1 MB for the page with the data of every view, the plotting library not counted.

    python -m benchmarks page [--quick] [--rounds 5] [--json OUT]
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Page, sync_playwright

from autopilot.http.app import service_app
from autopilot.http.auth import Caller, Tokens
from autopilot.http.desk import Desk
from autopilot.service.inbox import SqliteInbox
from autopilot.service.kill_switch import KillSwitch
from autopilot.service.listeners import Listener
from autopilot.service.published import Published, Publisher
from autopilot.service.record import Record
from autopilot.service.settings import Role
from autopilot.settings import shipped_policy
from benchmarks.kit import FIGURE, ended, judged, options
from benchmarks.metrics import large_observation, large_step

VIEWS = ("fleet", "recommendations", "queue", "tenants", "nodes", "forecasts", "decisions", "health")
GOAL_S, GOAL_MB = 1.0, 1.0
TOKEN = "a-token-of-the-benchmark"
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
LOADED = """performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))
    .map(each => [new URL(each.name).pathname, each.transferSize])"""


def large_desk(folder: Path) -> Desk:
    """A desk over one tick of the large cluster."""
    observation = large_observation()
    step, policy = large_step(observation), shipped_policy("recommend")
    publisher, kill = Publisher(), KillSwitch(folder / "kill")
    tokens = Tokens([(TOKEN, Caller("benchmark", Role.ADMIN))])
    inbox = SqliteInbox(folder / "inbox.sqlite", kill.reason)
    desk = Desk(
        publisher, inbox, kill, tokens, Record(folder / "audit"), lambda: observation.now_s, lambda: None, answer_s=0.0
    )
    publisher.follow(desk.history.take)
    published = Published(observation, step.decision, step.memory, policy, step.wake_at_s, 0.5)
    publisher.publish(published)
    return desk


def measure(page: Page, url: str, rounds: int) -> dict[str, Any]:
    """First paint, time until the numbers of the fleet are shown, and the bytes of the page with every view."""
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    network.send("Network.setCacheDisabled", {"cacheDisabled": True})
    page.goto(url)
    page.fill("#token", TOKEN)
    page.click("button[type=submit]")
    page.locator("dl.facts").wait_for()
    paint_s, fleet_s = [], []
    for _ in range(rounds):
        page.goto("about:blank")
        began_s = time.perf_counter()
        page.goto(url)
        page.locator("dl.facts").wait_for()
        fleet_s.append(time.perf_counter() - began_s)
        paint_s.append(page.evaluate(PAINT) / 1000.0)
    loaded: list[list[Any]] = page.evaluate(LOADED)
    view_s = {}
    for view in VIEWS[1:]:
        began_s = time.perf_counter()
        page.goto(f"{url}/#/{view}")
        page.locator("main:not([aria-busy]) h1").get_by_text(view.capitalize()).wait_for()
        view_s[view] = time.perf_counter() - began_s
    every: list[list[Any]] = page.evaluate(LOADED)
    return {
        "paint_s": median(paint_s),
        "fleet_s": median(fleet_s),
        "first_mb": _megabytes(loaded),
        "all_mb": _megabytes(every),
        "slowest_view_s": max(view_s.values()),
        "view_s": view_s,
    }


def _megabytes(loaded: Sequence[Sequence[Any]]) -> float:
    """Bytes over the network, each address once, without the plotting library."""
    sizes: dict[str, int] = {}
    for path, size in loaded:
        if "/vendor/" not in path:
            sizes[path] = max(sizes.get(path, 0), int(size))
    return sum(sizes.values()) / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a figure misses its goal."""
    given = options(__doc__, arguments, rounds=5)
    chromium = shutil.which("chromium")
    if chromium is None:
        print("SKIPPED: chromium is absent; `make test-services` installs it")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        desk = large_desk(Path(folder))
        listener = Listener(service_app(desk), "127.0.0.1:0", "page")
        listener.start()
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            figures = measure(context.new_page(), listener.url, 2 if given.quick else given.rounds)
            browser.close()
        desk.publisher.close()
        listener.close()
    rows = [
        ("first paint, s", judged(figures["paint_s"], GOAL_S)),
        ("numbers of the fleet shown, s", f"{figures['fleet_s']:.2f}"),
        ("slowest other view shown, s", f"{figures['slowest_view_s']:.2f}"),
        ("page with the first view, MB", f"{figures['first_mb']:.2f}"),
        ("page with every view, MB", judged(figures["all_mb"], GOAL_MB)),
    ]
    return ended(given, FIGURE, rows, figures)


if __name__ == "__main__":
    raise SystemExit(main())
