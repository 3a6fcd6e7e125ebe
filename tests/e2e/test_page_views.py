"""Each view of the status page with its elements and its limits, on a desktop and on a telephone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from autopilot.service.known import LastKnown
from autopilot.service.settings import Role
from tests.e2e.test_page_browser import a_world, go, served, tick
from tests.kits.browser import chromium, page_of, sign_in
from tests.kits.http_kit import ALERT, TOKENS, deliver, desk_over

pytestmark = pytest.mark.e2e

FACTS = "dl.facts dt"
HEADS = "thead th"
# view -> what it must show: a selector and the texts of its elements, in part
VIEWS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "fleet": (
        (FACTS, ("Capacity", "Allocated", "Really active", "Gap", "Pending", "Widest gang that fits", "Measured")),
        (HEADS, ("Pool", "Allocated", "Free", "Out of use", "Active", "Gap", "Real utilization")),
        ("#day", ("The last day",)),
    ),
    "recommendations": (
        ("li.rec .pairs dt", ("Gain", "Cost", "Place", "Tenant", "Queue", "Since")),
        ("li.rec button", ("Approve", "Reject")),
        ("li.rec summary", ("gain",)),
    ),
    "alerts": (
        ("li.card h2", (ALERT,)),
        ("li.card .pairs dt", ("About", "State", "Received", "Deliveries")),
        ("li.card summary", ("Runbook and live numbers",)),
    ),
    "queue": (
        (HEADS, ("Workload", "Tenant", "Queue", "Size", "Submitted", "Expected start", "Why pending")),
        ("tbody summary", ("The whole story",)),
        ("#find", ()),
    ),
    "workloads": (
        (HEADS, ("Workload", "State", "SM activityover 5 min", "Since", "Expected end", "Nodes", "Why it waits")),
        ("#find", ()),
        ("#sort", ()),
    ),
    "tenants": ((HEADS, ("Tenant", "Allocated", "Active", "Gap", "Idle work", "Running", "Oldest pending")),),
    "nodes": (
        (HEADS, ("Node", "Pool", "State", "Allocated", "Active", "GPUs")),
        ("ul.legend li", ("below 5 % active", "not measured", "out of use", "frame: allocated")),
    ),
    "forecasts": ((HEADS, ("Service", "p99over 5 min", "Objective", "Late requestslast minute", "Replicas")),),
    "decisions": ((HEADS, ("Time", "Action", "Workload", "Answer", "Gain", "Cost", "Why")),),
    "health": (
        ("main .buttons button", ("Pause", "Resume", "Kill")),
        (FACTS, ("Tick", "Last tick took", "Effects under way", "Leads", "Kill switch", "Policy")),
        (HEADS, ("Collector", "Age", "Problem", "List", "Objects")),
    ),
}
STACKED = {"queue", "workloads", "tenants", "forecasts", "decisions"}
"""Views whose rows become blocks of named lines on a telephone; a table of nodes or of health may scroll in its box."""
CUT = """
() => [...document.querySelectorAll('main *')].filter(each => {
  const style = getComputedStyle(each);
  const hides = style.overflowX === 'hidden' || style.overflowX === 'clip';
  return hides && style.display !== 'inline' && each.scrollWidth > each.clientWidth + 1;
}).map(each => each.outerHTML.slice(0, 120))
"""
BESIDE = """
(width) => [...document.querySelectorAll('header *, main h1, main h2, main dd .value, main .pill, main button')]
  .map(each => [each, each.getBoundingClientRect()])
  .filter(([each, box]) => box.width > 0 && (box.left < -1 || box.right > width + 1))
  .filter(([each]) => !each.closest('.box')).map(([each]) => each.outerHTML.slice(0, 120))
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all views."""
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module", params=[1440, 390])
def page(request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of a desk with some minutes of history, signed in; its address is the base of the context."""
    folder: Path = tmp_path_factory.mktemp("views")
    desk = desk_over(folder, *(tick(number, a_world(60.0 * number)) for number in range(1, 11)))
    desk.publisher.known = LastKnown(period_s=3600.0)
    deliver(desk, tenant="t0")
    with (
        served(desk) as listener,
        page_of(browser, viewport={"width": request.param, "height": 900}, base_url=listener.url) as opened,
    ):
        sign_in(opened, listener.url, TOKENS[Role.ADMIN])
        yield opened


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_its_elements_within_its_limits(page: Page, view: str) -> None:
    """Every element of the table is there; nothing scrolls sideways, is cut off or stands outside of the window."""
    size = page.viewport_size
    assert size is not None
    go(page, page.url.split("/#", maxsplit=1)[0].rstrip("/"), view)
    expect(page.locator("#status .pill")).not_to_have_text("Stale")
    for selector, texts in VIEWS[view]:
        found = page.locator(f"main {selector}" if not selector.startswith("main") else selector)
        expect(found.first).to_be_attached()
        shown = [each.strip() for each in found.all_text_contents()]
        assert [text for text in texts if not any(text in each for each in shown)] == [], shown
        if selector != HEADS:  # on a telephone the heads stand beside each value
            expect(found.first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CUT) == []
    assert page.evaluate(BESIDE, size["width"]) == []
    if view in STACKED:
        cells = page.locator("main tbody tr").first.locator("td")
        tops = set(cells.evaluate_all("cells => cells.map(cell => cell.offsetTop)"))
        assert (len(tops) == 1) == (size["width"] > 600)
        assert page.evaluate(
            "[...document.querySelectorAll('main .box')].every(box => box.scrollWidth <= box.clientWidth)"
        )
