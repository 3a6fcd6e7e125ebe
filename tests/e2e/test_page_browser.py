"""The status page in a real browser over published ticks: every view, every state, an undisturbed reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from autopilot.core.intake.assemble import assemble
from autopilot.core.intake.signals import UNMEASURED
from autopilot.core.model.modes import Mode
from autopilot.core.model.promises import PromiseRecord
from autopilot.core.model.records import CommandKind, Observation
from autopilot.http.app import service_app
from autopilot.http.desk import Desk
from autopilot.service.known import LastKnown
from autopilot.service.listeners import Listener
from autopilot.service.published import Published
from autopilot.service.settings import Role
from tests.kits.browser import chromium, page_of, sign_in
from tests.kits.core_world import holds, waits, with_policy, world
from tests.kits.demand_world import forecast, serving
from tests.kits.http_kit import ALERT, TOKENS, client, deliver, desk_over, published

pytestmark = pytest.mark.e2e

VIEWS = (
    "fleet",
    "recommendations",
    "alerts",
    "queue",
    "workloads",
    "tenants",
    "nodes",
    "forecasts",
    "decisions",
    "health",
)
STRANGE = "<img src=x onerror=\"document.title='taken'\">'\n{{7*7}}"
POLICY = with_policy(modes={"admit_gang": Mode.APPROVE})
LOST = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")


def a_world(now_s: float = 600.0, *, waiting: int = 12) -> Observation:
    """A node in use, work that may start and work that may not, a service with a forecast, strange names."""
    work = [
        holds(STRANGE, 8, on=range(8)),
        waits("wide", 64),
        *(waits(f"job-{number:02d}") for number in range(waiting)),
    ]
    return serving(world("3x8", work, now_s), forecast({"chat": 5.0}, made_s=now_s))


def tick(number: int, observation: Observation) -> Published:
    """A tick with its number, that ended just now."""
    made = published(replace(observation, tick=number), POLICY)
    return replace(made, decision=replace(made.decision, tick=number))


@contextmanager
def served(desk: Desk) -> Iterator[Listener]:
    """The API and the page of a desk on a free port."""
    listener = Listener(service_app(desk), "127.0.0.1:0", "test")
    listener.start()
    try:
        yield listener
    finally:
        desk.publisher.close()
        listener.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    with chromium() as opened:
        yield opened


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk with some minutes of history and an alert."""
    found = desk_over(tmp_path, *(tick(number, a_world(60.0 * number)) for number in range(1, 11)))
    deliver(found, tenant="t0", strange=STRANGE)
    return found


def go(page: Page, url: str, view: str) -> None:
    """Open a view and wait until it is drawn."""
    page.goto(f"{url}/#/{view}")
    page.locator("main:not([aria-busy]) h1", has_text=view.capitalize()).wait_for()


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (360, "dark"), (3840, "light")])
def test_every_view_is_accessible_and_fits(browser: Browser, desk: Desk, width: int, scheme: str) -> None:
    """No finding of axe, no horizontal scrolling, strange names as text; from a telephone to 4K, light and dark."""
    size: dict[str, Any] = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with served(desk) as listener, page_of(browser, **size) as page:
        page.goto(listener.url)
        page.get_by_label("Token", exact=True).wait_for()
        assert Axe().run(page).violations_count == 0, Axe().run(page).generate_report()
        sign_in(page, listener.url, TOKENS[Role.ADMIN])
        for view in VIEWS:
            go(page, listener.url, view)
            found = Axe().run(page)
            assert found.violations_count == 0, f"{view}: {found.generate_report()}"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
            assert page.evaluate("document.querySelectorAll('main img').length") == 0, view
            assert "taken" not in page.title()


def test_an_update_leaves_the_reader_alone(browser: Browser, desk: Desk) -> None:
    """Open details, selection, focus and scroll position stay; what is read and gone is kept, and marked."""
    with served(desk) as listener, page_of(browser, viewport={"width": 900, "height": 600}) as page:
        sign_in(page, listener.url, TOKENS[Role.ADMIN])
        go(page, listener.url, "recommendations")
        card = page.locator("li.rec").first
        name = card.locator("h2").inner_text()
        card.locator("summary").first.click()
        card.locator("pre").wait_for()
        card.get_by_role("button", name="Reject").focus()
        page.evaluate("scrollTo(0, 100)")
        before = page.evaluate(
            "(() => { const text = document.querySelector('li.rec .why').firstChild;"
            " getSelection().setBaseAndExtent(text, 2, text, 14); return [scrollY, getSelection().toString()]; })()"
        )
        desk.publisher.publish(tick(20, a_world(700.0, waiting=0)))
        gone = page.locator("li.rec.gone")
        gone.wait_for()
        assert gone.locator("h2").inner_text() == name
        assert gone.locator("details[open] pre").is_visible()
        assert page.evaluate("getSelection().toString()") == before[1]
        assert page.evaluate("document.activeElement.dataset.do") == "reject"
        assert page.locator("li.rec:not(.gone)").count() == 0


def test_equal_recommendations_are_one_card_and_one_approval(browser: Browser, desk: Desk) -> None:
    """With a list inside. The dialog asks for what it is, and each of them becomes one command."""
    with served(desk) as listener, page_of(browser) as page:
        sign_in(page, listener.url, TOKENS[Role.APPROVER])
        go(page, listener.url, "recommendations")
        card = page.locator("li.rec").first
        shown = card.locator("summary").count()
        assert shown > 1
        told = client(desk, Role.VIEWER).get("/api/v1/recommendations").json()
        group = next(each for each in told["groups"] if each["count"] == shown)
        assert f"Gain\n{group['gain']}\nCost\n{group['cost']}\n" in card.inner_text()
        card.get_by_role("button", name="Approve").click()
        dialog = page.locator("dialog")
        expect(dialog).to_contain_text("The approval covers a cost of up to")
        dialog.locator("select[name=covers]").select_option("exactly")
        dialog.locator("[data-do=yes]").click()
        expect(dialog).to_contain_text("tored")
        commands = desk.inbox.drain(0.0)
        assert [(each.kind.value, each.exactly) for each in commands] == [("approve", True)] * shown


def test_the_empty_and_the_waiting_state(browser: Browser, tmp_path: Path) -> None:
    """Before the first tick the page waits for it; a cluster without work says so in each view."""
    empty = desk_over(tmp_path)
    with served(empty) as listener, page_of(browser, allowed=("503",)) as page:
        sign_in(page, listener.url, TOKENS[Role.VIEWER])
        page.get_by_text("Waiting for the first tick").wait_for()
        empty.publisher.publish(tick(1, world("1x4")))
        page.get_by_role("heading", name="Fleet").wait_for()
        page.get_by_text("The history begins with").wait_for()
        for view, words in (
            ("recommendations", "Nothing is recommended now"),
            ("queue", "Nothing waits"),
            ("workloads", "No workload holds GPUs or waits"),
            ("tenants", "No tenant holds GPUs"),
            ("forecasts", "no inference services"),
            ("decisions", "has decided nothing yet"),
            ("alerts", "No alert was delivered"),
        ):
            go(page, listener.url, view)
            page.get_by_text(words).wait_for()


def test_stale_lost_and_signed_out_are_said(browser: Browser, desk: Desk) -> None:
    """An old tick, a session that ended, and a service that went away, each with what to do."""
    with served(desk) as listener, page_of(browser, allowed=(*LOST, "401")) as page:
        sign_in(page, listener.url, TOKENS[Role.VIEWER])
        desk.publisher.known = LastKnown(period_s=1.0)
        desk.publisher.publish(tick(30, a_world(800.0)))
        page.get_by_text("Stale: the last tick, 2 s ago").wait_for()
        expect(page.locator("#status .pill")).to_have_text("Stale")
        desk.sessions.end(page.context.cookies()[0]["value"])
        page.get_by_text("The session has ended").wait_for()
        sign_in(page, listener.url, TOKENS[Role.VIEWER])
        desk.publisher.close()
        listener.close()
        page.get_by_text("The connection to the service is lost").wait_for()


def test_what_is_not_known_is_a_dash_with_its_age(browser: Browser, desk: Desk) -> None:
    """After a tick without a view of the cluster no view has a figure of it, and each says when it was last seen."""
    blind = replace(world("1x4"), snapshot=assemble((), 900.0)[0], signals=UNMEASURED, now_s=900.0)
    with served(desk) as listener, page_of(browser) as page:
        sign_in(page, listener.url, TOKENS[Role.VIEWER])
        desk.publisher.publish(tick(31, blind))
        expect(page.locator("#status .pill")).to_have_text("Stale")
        page.get_by_text("Stale: the cluster, ").wait_for()
        for view in ("fleet", "queue", "workloads", "tenants", "nodes", "forecasts"):
            go(page, listener.url, view)
            page.locator("[data-key=unseen]", has_text=re.compile(r"last seen \d+ s ago")).wait_for()
        go(page, listener.url, "fleet")
        facts = page.locator("dl.facts .value")
        assert set(facts.all_inner_texts()) == {"–"}
        assert "last seen" in page.locator("[data-key=fact-Capacity]").inner_text()


def test_a_viewer_sees_and_does_not_decide(browser: Browser, desk: Desk) -> None:
    """The buttons are off, with the reason; the keyboard reaches every view."""
    with served(desk) as listener, page_of(browser) as page:
        sign_in(page, listener.url, TOKENS[Role.VIEWER])
        go(page, listener.url, "recommendations")
        expect(page.get_by_role("button", name="Approve").first).to_be_disabled()
        page.get_by_text("Approving needs the role approver").wait_for()
        page.get_by_role("link", name="Health").focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Health").wait_for()
        expect(page.get_by_role("button", name="Kill")).to_be_disabled()


def test_the_explanation_of_waiting_work_and_of_a_node_open(browser: Browser, desk: Desk) -> None:
    """Details are fetched when they are opened, as text."""
    with served(desk) as listener, page_of(browser) as page:
        sign_in(page, listener.url, TOKENS[Role.VIEWER])
        go(page, listener.url, "queue")
        page.get_by_label("Find by name").fill("wide")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_text("The whole story").click()
        expect(page.locator("pre")).to_contain_text("wide")
        go(page, listener.url, "nodes")
        page.locator("tbody summary").first.click()
        expect(page.locator(".inside li").first).to_contain_text("<img src=x")


@pytest.mark.parametrize("width", [1440, 390])
def test_workloads_are_found_sorted_and_fit(browser: Browser, tmp_path: Path, width: int) -> None:
    """Figures with their window, "–" for what is not known; rows stack on a phone and nothing scrolls sideways."""
    work = [holds("runs", 8, limit_s=7200.0), holds("open", 8), waits("wide", 24)]
    desk = desk_over(tmp_path, tick(1, world("3x8", work, 600.0, total_s={"runs": 4200.0, "open": 4200.0})))
    with served(desk) as listener, page_of(browser, viewport={"width": width, "height": 900}) as page:
        sign_in(page, listener.url, TOKENS[Role.VIEWER])
        go(page, listener.url, "queue")
        expect(page.locator("td", has_text="in 1 h").first).to_be_visible()
        go(page, listener.url, "workloads")
        expect(page.locator("tbody tr")).to_have_count(3)
        page.get_by_label("Order").select_option("gpus")
        expect(page.locator("tbody tr").first).to_contain_text("wide")
        page.get_by_label("Find by name").fill("running")
        expect(page.locator("tbody tr")).to_have_count(2)
        row = page.locator("tbody tr", has_text="runs")
        expect(row.locator("[data-head='SM activity, over 5 min']")).to_have_text("–")
        expect(row.locator("[data-head='Expected end']")).to_have_text("in 1 h")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.box'))")
        tops = row.locator("td").evaluate_all("cells => cells.map(cell => cell.offsetTop)")
        assert (len(set(tops)) == 1) == (width > 600)
        assert Axe().run(page).violations_count == 0


@pytest.mark.parametrize("width", [1440, 390])
def test_an_alert_shows_its_runbook_and_leads_to_its_recommendation(browser: Browser, desk: Desk, width: int) -> None:
    """Stage, history and live answers of an alert; its link opens the recommendation; an unknown one says so.

    The answers come first, and nothing is cut off.
    """
    size: dict[str, Any] = {"viewport": {"width": width, "height": 900}}
    with served(desk) as listener, page_of(browser, allowed=("404",), **size) as page:
        sign_in(page, listener.url, TOKENS[Role.APPROVER])
        page.goto(f"{listener.url}/#/alerts/{1:016x}")
        card = page.locator("li.card", has_text=ALERT)
        expect(card.locator(".answers")).to_contain_text("no Prometheus is configured")
        expect(card.locator("h3").first).to_have_text("Meaning")
        expect(card).not_to_contain_text("##")
        answer, text = (card.locator(each).bounding_box() for each in (".answers", ".prose"))
        assert answer is not None
        assert text is not None
        assert answer["y"] < text["y"]
        cut = "[...document.querySelectorAll('li.card *')].filter((each) => each.scrollWidth > each.clientWidth + 1"
        assert (
            page.evaluate(f"{cut} && getComputedStyle(each).display !== 'inline').map((each) => each.outerHTML)") == []
        )
        expect(card).to_contain_text("approve or reject the recommendation", ignore_case=True)
        card.get_by_role("link").first.click()
        page.locator("li.rec details[open] pre").wait_for()
        page.goto(f"{listener.url}/#/recommendations/gone-1")
        page.get_by_text("gone-1 is not open now").get_by_role("link").click()
        page.get_by_role("heading", name="gone-1").wait_for()
        expect(page.locator("main pre").first).to_contain_text("not among the recent decisions")


def test_a_cap_is_shown_and_an_admin_lifts_it(browser: Browser, tmp_path: Path) -> None:
    """Health lists what actions promised and realised; the button asks, and the command reaches the inbox."""
    capped = PromiseRecord(((3600.0, 900.0),) * 20, 300.0)
    shown = tick(1, a_world())
    desk = desk_over(
        tmp_path,
        replace(
            shown, memory=replace(shown.memory, trust=replace(shown.memory.trust, kept_promises={"preempt": capped}))
        ),
    )
    with served(desk) as listener, page_of(browser) as page:
        sign_in(page, listener.url, TOKENS[Role.ADMIN])
        go(page, listener.url, "health")
        row = page.locator("tr", has_text="only recommends")
        assert "20 GPU-h" in row.inner_text()
        assert Axe().run(page).violations_count == 0
        row.get_by_role("button", name="Lift the cap").click()
        page.get_by_role("dialog").get_by_role("button", name="Lift the cap").click()
        page.get_by_role("dialog").get_by_role("button", name="Close").wait_for()
        (command,) = desk.inbox.drain(0.0)
        assert (command.kind, command.subject) == (CommandKind.LIFT, "preempt")
