"""Take the pictures of docs/images: each view of the status page at 1440 and 390 px, light and dark.

    python scripts/take_screenshots.py [--hours 4] [--speed 120]

The service runs over the simulated cluster `demo` under the policy `approve`, until the simulated time has come. Two
alerts are then delivered as Alertmanager sends them. Chromium of the system takes the pictures; `make test-services`
installs it.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SIZES = {"1440": (1440, 900, "light"), "390": (390, 844, "light"), "dark": (1440, 900, "dark")}
ALERTS = (
    {"alertname": "GPUAutopilotTenantHoarding", "tenant": "speech", "severity": "warning"},
    {"alertname": "GPUAutopilotClusterFragmented", "pool": "h100", "severity": "warning"},
)
QUALITY = 70
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
START_S = 60.0


class Service:
    """The API of a service that runs for the pictures."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token

    def ask(self, path: str, body: object | None = None) -> Any:
        """The answer to a GET, or to a POST of `body`."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        with urlopen(Request(self.url + path, data, headers)) as answer:  # the address is our own
            return json.load(answer)

    def wait_until(self, now_s: float) -> None:
        """Wait until the simulation has reached this time, and print its progress."""
        while (at_s := self.ask("/api/v1/summary").get("now_s") or 0.0) < now_s:
            print(f"  {at_s / 3600.0:.1f} of {now_s / 3600.0:.1f} h", flush=True)
            time.sleep(10.0)

    def deliver(self) -> None:
        """The alerts, as Alertmanager sends them."""
        now = datetime.now(UTC).isoformat()
        alerts = [
            {"status": "firing", "labels": labels, "annotations": {}, "startsAt": now, "fingerprint": f"{number:016x}"}
            for number, labels in enumerate(ALERTS)
        ]
        self.ask("/api/v1/alerts", {"version": "4", "alerts": alerts})


@contextmanager
def service(folder: Path, speed: float) -> Iterator[Service]:
    """A service of the checkout over the scenario `demo`."""
    command = [sys.executable, "-m", "autopilot.cli", "run", "--simulate", "demo", "--policy", "approve"]
    (folder / "settings.yaml").write_text("metrics: {listen: '127.0.0.1:0'}\n", encoding="utf-8")
    command += ["--speed", f"{speed:g}", "--listen", "127.0.0.1:0", "--state", str(folder)]
    command += ["--config", str(folder / "settings.yaml")]
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield Service(*_address(folder, process))
    finally:
        process.terminate()
        process.wait()


def _address(folder: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Address and token of the service, once it answers."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        found = sorted(folder.glob("service.json"))
        if found and (folder / "admin.token").exists():
            return json.loads(found[0].read_text())["url"], (folder / "admin.token").read_text().strip()
        time.sleep(0.2)
    raise SystemExit(f"the service did not start:\n{(folder / 'log').read_text()}")


def take(browser: Browser, served: Service, suffix: str) -> None:
    """The pictures of one size and theme."""
    width, height, theme = SIZES[suffix]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)  # type: ignore[arg-type]
    page.goto(served.url)
    page.get_by_label("Token", exact=True).fill(served.token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()
    camera = page.context.new_cdp_session(page)
    links = page.locator("#views a").evaluate_all("links => links.map((each) => each.getAttribute('href'))")
    for view in (link.removeprefix("#/") for link in links):
        page.goto(f"{served.url}/#/{view}")
        page.locator("main:not([aria-busy])").wait_for()
        page.wait_for_timeout(2000)  # charts are drawn after their data
        answer = camera.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
        (IMAGES / f"{view}-{suffix}.webp").write_bytes(base64.b64decode(answer["data"]))
    page.close()


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=4.0, help="simulated time before the pictures")
    parser.add_argument("--speed", type=float, default=120.0, help="virtual seconds per second")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium is absent; `make test-services` installs it")
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), given.speed) as served:
        served.wait_until(given.hours * 3600.0)
        served.deliver()
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
            for suffix in SIZES:
                take(browser, served, suffix)
            browser.close()


if __name__ == "__main__":
    main()
