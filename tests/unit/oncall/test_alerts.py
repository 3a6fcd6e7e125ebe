"""Alerts as they are delivered: repeated, reordered, truncated, malformed; and what happens about them."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.model.errors import InputError
from autopilot.core.model.policy import Mode
from autopilot.oncall import book as book_module
from autopilot.oncall.book import AlertBook, AlertRecord, Stage
from autopilot.oncall.follow import Follower
from autopilot.oncall.payload import parse_payload
from autopilot.oncall.queries import QueryError, Series, no_prometheus
from autopilot.oncall.runbook import parse_runbook
from autopilot.records.journal.alerts import AlertStep
from autopilot.service.published import Published, Publisher
from tests.kits.core_world import waits, with_policy
from tests.kits.ticking_world import ALL_AUTO, Ticking
from tests.unit.oncall.test_runbook import BODY

NAME = "GPUAutopilotGangStarving"
FRONT = f"""---
alert: {NAME}
subject: queue
diagnosis:
  - title: Age of the oldest
    query: max(oldest{{queue=$queue}})
    unit: s
actions:
  - action: admit_gang
    why: It starts the gang.
verification:
  query: max(oldest{{queue=$queue}})
  below: 100
  within: 10m
undo: A start is not undone.
---
"""


def alert(number: int = 1, status: str = "firing", queue: str = "root", name: str = NAME) -> dict[str, Any]:
    """One alert as Alertmanager sends it."""
    return {
        "status": status,
        "labels": {"alertname": name, "queue": queue, "severity": "warning"},
        "annotations": {"summary": "A gang starves."},
        "startsAt": "2026-11-23T12:00:00.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": f"{number:016x}",
    }


def payload(*alerts: dict[str, Any], **more: Any) -> bytes:
    """A delivery."""
    return json.dumps({"version": "4", "status": "firing", "alerts": list(alerts), **more}).encode()


@pytest.fixture
def book(tmp_path: Path) -> Iterator[AlertBook]:
    """An empty book."""
    opened = AlertBook(tmp_path / "alerts.db")
    yield opened
    opened.close()


# --- deliveries -------------------------------------------------------------------------------------


def test_a_sender_that_fills_the_book_loses_its_own_oldest_alerts(
    book: AlertBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alerts of another sender stay, and are still taken while the book is full."""
    monkeypatch.setattr(book_module, "MOST_EACH", 20)
    monkeypatch.setattr(book_module, "MOST_OPEN", 30)
    book.receive(parse_payload(payload(alert(1)))[0], 0.0, sender="honest")
    for first in (100, 200):
        for sender, more in (("forger", 0), ("another", 1000)):
            forged = [alert(number + more) for number in range(first, first + 40)]
            book.receive(parse_payload(payload(*forged))[0], 1.0, sender=sender)
    book.receive(parse_payload(payload(alert(2)))[0], 2.0, sender="honest")
    kept = [int(each.fingerprint, 16) for each in book.open_alerts()]
    assert {1, 2, 239, 1239} <= set(kept)
    assert len(kept) == 30


def test_a_book_of_an_earlier_version_is_opened(tmp_path: Path) -> None:
    """It does not know who sent its alerts."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as old:
        old.execute(
            "CREATE TABLE alerts (fingerprint TEXT NOT NULL, started TEXT NOT NULL, firing INTEGER NOT NULL, "
            "ended INTEGER NOT NULL, deliveries INTEGER NOT NULL, record TEXT NOT NULL, "
            "PRIMARY KEY (fingerprint, started))"
        )
        old.commit()
    book = AlertBook(path)
    assert book.receive(parse_payload(payload(alert()))[0], 0.0, sender="a") == 1
    book.close()


def test_a_thousand_alerts_repeated_and_reordered_are_each_kept_once(book: AlertBook) -> None:
    """None is lost and none is doubled; an alert that ended stays ended."""
    draw = random.Random(7)
    deliveries = [("firing", number) for number in range(1000)] * 2 + [("resolved", n) for n in range(0, 1000, 3)]
    draw.shuffle(deliveries)
    for at in range(0, len(deliveries), 100):
        alerts = [alert(number, status) for status, number in deliveries[at : at + 100]]
        book.receive(parse_payload(payload(*alerts))[0], 5.0)
    found = book.recent(5000)
    assert len(found) == len({each.key for each in found}) == 1000
    ended = {int(each.fingerprint, 16) for each in found if not each.firing}
    assert ended == set(range(0, 1000, 3))
    assert sum(each.deliveries for each in found) == len(deliveries)


def test_a_new_start_is_a_new_alert(book: AlertBook) -> None:
    """The same labels that fire again later are another alert."""
    again = alert() | {"startsAt": "2026-11-23T18:00:00Z"}
    book.receive(parse_payload(payload(alert(), alert(status="resolved"), again))[0], 0.0)
    assert [each.firing for each in book.recent(10)] == [True, False]


def test_one_instant_in_two_time_zones_is_one_alert(book: AlertBook) -> None:
    """The key has the start in UTC and milliseconds, whatever the sender writes."""
    abroad = alert() | {"startsAt": "2026-11-23T17:30:00.123+05:30"}
    book.receive(parse_payload(payload(alert(), abroad))[0], 0.0)
    assert [each.deliveries for each in book.recent(10)] == [2]


def test_alerts_survive_a_restart(tmp_path: Path) -> None:
    """What was confirmed is on disk."""
    first = AlertBook(tmp_path / "alerts.db")
    first.receive(parse_payload(payload(alert()))[0], 3.0)
    second = AlertBook(tmp_path / "alerts.db")
    assert [(each.name, each.received_s) for each in second.open_alerts()] == [(NAME, 3.0)]
    first.close()
    second.close()


def test_a_truncated_delivery_says_how_many_are_missing() -> None:
    """Alertmanager cuts long groups (`max_alerts`)."""
    assert parse_payload(payload(alert(), truncatedAlerts=12))[1] == 12


def test_grafana_payloads_are_read() -> None:
    """Grafana adds fields."""
    more = {"orgId": 1, "title": "t", "state": "alerting", "message": "m"}
    one = alert() | {"values": {"A": 1.0}, "valueString": "[]", "dashboardURL": "", "silenceURL": ""}
    assert parse_payload(payload(one, **more))[0][0].name == NAME


@pytest.mark.parametrize(
    "bad",
    [
        {"labels": {"queue": "q"}},
        {"labels": 7},
        {"startsAt": "yesterday\x1b[31m"},
        {"startsAt": 10**20},
        {"fingerprint": "../../etc"},
        {"status": None},
        {"annotations": {"summary": "x" * 9_000}},
    ],
)
def test_one_alert_that_cannot_be_read_costs_no_other(bad: dict[str, object]) -> None:
    """It is named by its place; the others are taken."""
    found = parse_payload(payload(alert(1), alert(2) | bad, alert(3)))
    assert [int(each.fingerprint, 16) for each in found.alerts] == [1, 3]
    assert len(found.refused) == 1
    assert found.refused[0].startswith("alerts[1]")
    assert found.refused[0].isprintable()


@pytest.mark.parametrize("deep", [b'{"x": %s}', b'{"labels": {"alertname": %s}}', b"%s"])
def test_an_alert_that_is_nested_deeply_costs_no_other(deep: bytes) -> None:
    """Nor does a number of missing alerts that is none."""
    good = json.dumps(alert(1)).encode()
    bad = deep % (b"[" * 3000 + b"]" * 3000)
    found = parse_payload(b'{"version": "4", "truncatedAlerts": 1e300, "alerts": [%s, %s]}' % (bad, good))
    assert [each.name for each in found.alerts] == [NAME]
    assert (found.truncated, len(found.refused)) == (0, 1)
    assert found.refused[0].startswith("alerts[0]: ")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not a payload"),
        (b"[1, 2]", "not a payload"),
        (b"\xff\xfe", "not a payload"),
        (b"[" * 100_000, "not a payload"),
        (payload(alert() | {"status": "maybe"}), "alerts[0]: "),
        (payload(alert() | {"labels": {"queue": "q"}}), "alerts[0]: the label alertname is missing"),
        (payload(alert() | {"startsAt": "yesterday"}), "alerts[0].startsAt: 'yesterday' is not a time"),
        (payload(alert() | {"fingerprint": "../../etc"}), "alerts[0]: "),
        (payload(alert() | {"labels": {str(n): "x" for n in range(100)}}), "alerts[0]: "),
        (payload(*[alert(n) for n in range(5001)]), "5,001 alerts"),
        (b" " * (5 << 20), "bytes"),
    ],
)
def test_a_malformed_delivery_is_refused_with_its_reason(body: bytes, words: str) -> None:
    """One message; nothing is stored."""
    with pytest.raises(InputError) as raised:
        parse_payload(body)
    assert words in str(raised.value)


@given(st.binary(max_size=300) | st.builds(lambda text: payload(alert(queue=text)), st.text()))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    """No other exception escapes."""
    with suppress(InputError):
        parse_payload(body)


# --- following --------------------------------------------------------------------------------------


class Play:
    """A small cluster, its controller, and the follower of its alerts."""

    def __init__(self, book: AlertBook, mode: Mode, shape: str = "1x8", front: str = FRONT) -> None:
        self.policy = with_policy(ALL_AUTO, modes={"admit_gang": mode})
        self.cluster = Ticking(shape, [waits("w", 8)], self.policy)
        self.oldest_s: float | None = 900.0
        self.asked: list[str] = []
        runbook = parse_runbook((front + BODY.replace("GPUAutopilotClusterFragmented", NAME)).encode(), "F.md")
        self.recorded: list[AlertStep] = []
        self.follower = Follower(book, {NAME: runbook}, self.ask, Publisher().wait_for_next, self.recorded.extend)
        self.book = book
        self.now_s = 0.0

    def ask(self, query: str) -> Series:
        self.asked.append(query)
        if self.oldest_s is None:
            raise QueryError("HTTP 503")
        return (({}, self.oldest_s),)

    def look(self, after_s: float = 10.0, halted: str = "") -> AlertRecord:
        """The next tick, and the alert after it."""
        self.now_s += after_s
        observation = self.cluster.observe(self.now_s)
        step = self.cluster.tick(self.now_s)
        decision = replace(step.decision, halted=halted) if halted else step.decision
        self.follower.look(Published(observation, decision, step.memory, self.policy, 0.0, 0.0))
        return self.book.recent(1)[0]


def start(book: AlertBook, mode: Mode, **changes: Any) -> Play:
    """A delivered alert before the first tick."""
    book.receive(parse_payload(payload(alert(**changes)))[0], 0.0)
    return Play(book, mode)


def test_evidence_is_gathered_and_a_recommendation_is_linked(book: AlertBook) -> None:
    """The label of the alert is in the query; the proposal waits for a person."""
    play = start(book, Mode.APPROVE)
    found = play.look()
    assert found.evidence[0].query == 'max(oldest{queue="root"})'
    assert found.evidence[0].series == (({}, 900.0),)
    assert (found.stage, found.reason) == (Stage.PROPOSED, "approve or reject the recommendation")
    assert found.proposals[0].startswith("admit-gang-w-")


def test_a_recommendation_that_cannot_be_approved_says_so(book: AlertBook) -> None:
    """Mode recommend: a runbook raises no mode."""
    play = start(book, Mode.RECOMMEND)
    assert play.look().reason == "recommended only: the mode takes no approvals"
    assert play.cluster.running() == []


def test_an_effect_is_followed_until_the_query_shows_that_it_helped(book: AlertBook) -> None:
    """Proposed, acting, verified; the history has each step with its reason."""
    play = start(book, Mode.APPROVE)
    play.look()
    play.cluster.policy = with_policy(play.policy, modes={"admit_gang": Mode.AUTO})  # as after an approval
    assert play.look().stage == Stage.ACTING
    assert play.look(60.0).stage == Stage.VERIFYING
    play.oldest_s = 0.0
    found = play.look()
    assert (found.stage, found.reason) == (Stage.VERIFIED, "verified: 0")
    stages = [Stage.RECEIVED, Stage.PROPOSED, Stage.ACTING, Stage.VERIFYING, Stage.VERIFIED]
    assert [each.stage for each in found.history] == stages
    assert [each.at_s for each in found.history] == [0.0, 10.0, 20.0, 80.0, 90.0]
    assert [each.stage for each in play.recorded] == [each.value for each in stages]


def test_an_effect_that_does_not_help_is_reported_with_the_way_back(book: AlertBook) -> None:
    """After the time of the runbook the alert is not verified, and stays so."""
    play = start(book, Mode.AUTO)
    assert play.look().stage == Stage.ACTING
    assert play.look(60.0).stage == Stage.VERIFYING
    assert play.look(599.0).stage == Stage.VERIFYING
    found = play.look(2.0)
    assert found.stage == Stage.NOT_VERIFIED
    assert found.reason.endswith("A start is not undone.")
    assert play.look(60.0) == found


@pytest.mark.parametrize("started", ["2031-01-01T00:00:00Z", "1999-01-01T00:00:00Z"])
def test_the_clock_of_the_sender_moves_no_deadline(book: AlertBook, started: str) -> None:
    """A start years ahead or behind is a name: receipt, steps and the time to verify go by the clock of the cluster."""
    book.receive(parse_payload(payload(alert() | {"startsAt": started}))[0], 0.0)
    play = Play(book, Mode.AUTO)
    play.look()
    play.look(60.0)
    assert play.look(599.0).stage == Stage.VERIFYING
    found = play.look(2.0)
    assert found.stage == Stage.NOT_VERIFIED
    assert [each.at_s for each in found.history] == [0.0, 10.0, 70.0, 671.0]


def test_a_silent_prometheus_verifies_nothing(book: AlertBook) -> None:
    """No answer is unknown, not good."""
    play = start(book, Mode.AUTO)
    play.oldest_s = None
    assert play.look().evidence[0].problem == "HTTP 503"
    play.look(60.0)
    assert play.look(700.0).stage == Stage.NOT_VERIFIED


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 100.0, 250.0])
def test_a_value_that_is_not_below_the_bound_verifies_nothing(book: AlertBook, value: float) -> None:
    """NaN, infinity and the bound itself do not hold."""
    play = start(book, Mode.AUTO)
    play.oldest_s = value
    play.look()
    assert play.look(60.0).stage == Stage.VERIFYING


def test_the_end_of_the_alert_ends_the_work(book: AlertBook) -> None:
    """Resolved, at whatever stage."""
    play = start(book, Mode.APPROVE)
    play.look()
    book.receive(parse_payload(payload(alert(status="resolved")))[0], 15.0)
    assert play.look().stage == Stage.ENDED
    assert book.open_alerts() == []


def test_what_was_recommended_and_not_done_before_the_end_is_not_credited(book: AlertBook) -> None:
    """Nothing acted for the alert: an approval that is given after its end is not for it."""
    play = start(book, Mode.APPROVE)
    assert play.look().proposals
    book.receive(parse_payload(payload(alert(status="resolved")))[0], 15.0)
    play.cluster.policy = with_policy(play.policy, modes={"admit_gang": Mode.AUTO})
    for _ in range(2):
        found = play.look()
        assert (found.stage, found.proposals, found.acted) == (Stage.ENDED, (), ())
    assert play.cluster.running() == ["w"]


def test_what_was_done_while_it_fired_is_credited(book: AlertBook) -> None:
    """Also after its end."""
    play = start(book, Mode.AUTO)
    acted = play.look().acted
    assert [each.rsplit("-", 1)[0] for each in acted] == ["admit-gang-w"]
    book.receive(parse_payload(payload(alert(status="resolved")))[0], 15.0)
    found = play.look()
    assert (found.stage, found.acted) == (Stage.ENDED, acted)


def test_what_was_decided_before_the_alert_came_is_not_credited(book: AlertBook) -> None:
    """The tick is older than its receipt."""
    book.receive(parse_payload(payload(alert()))[0], 12.0)
    found = Play(book, Mode.AUTO).look()
    assert (found.stage, found.acted) == (Stage.WAITING, ())


def test_another_object_concerns_no_proposal(book: AlertBook) -> None:
    """The proposal is about the root queue; the alert names another queue."""
    play = start(book, Mode.AUTO, queue="other")
    found = play.look()
    assert (found.stage, found.reason) == (Stage.WAITING, "nothing is proposed for it now, by admit_gang")
    assert play.cluster.running() == ["w"]  # the controller decides without the alert


def test_a_halted_controller_is_the_reason(book: AlertBook) -> None:
    """Nothing acts: the alert says why."""
    found = start(book, Mode.AUTO).look(halted="kill switch")
    assert (found.stage, found.reason) == (Stage.WAITING, "nothing acts: kill switch")


def test_an_unknown_alert_needs_a_person(book: AlertBook) -> None:
    """No runbook, no guess."""
    found = start(book, Mode.AUTO, name="SomethingElse").look()
    assert (found.stage, found.proposals, found.evidence) == (Stage.NO_RUNBOOK, (), ())


def test_the_same_query_is_asked_once_for_many_alerts(book: AlertBook) -> None:
    """A storm of alerts is no storm of queries."""
    play = start(book, Mode.APPROVE)
    book.receive(parse_payload(payload(*[alert(number) for number in range(2, 500)]))[0], 0.0)
    play.look()
    assert len(play.asked) == 1
    assert {each.stage for each in book.open_alerts()} == {Stage.PROPOSED}


def test_without_a_prometheus_the_evidence_says_so() -> None:
    """And names the setting."""
    with pytest.raises(QueryError, match=r"set alerts\.prometheus"):
        no_prometheus("up")


def test_an_alert_that_always_fires_asks_nothing_of_anybody(book: AlertBook) -> None:
    """Severity none: it shows that alerts arrive."""
    front = FRONT.replace("\n  - action: admit_gang\n    why: It starts the gang.", " []")
    for number, (severity, words) in enumerate((("none", "nobody has to act"), ("warning", "a person must act"))):
        fired = alert(number)
        fired["labels"]["severity"] = severity
        book.receive(parse_payload(payload(fired))[0], float(number))
        play = Play(book, Mode.AUTO, front=front)
        assert play.look().reason == f"the runbook asks for no action of the controller: {words}"
