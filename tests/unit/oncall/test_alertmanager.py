"""Alerts that an Alertmanager has no more end here; one that knows too little ends none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from autopilot.core.model.errors import InputError
from autopilot.oncall import follow as follow_module
from autopilot.oncall.alertmanager import Listed
from autopilot.oncall.book import AlertBook, Stage
from autopilot.oncall.follow import Follower
from autopilot.oncall.payload import parse_payload
from autopilot.oncall.queries import no_prometheus
from autopilot.service.published import Publisher
from tests.unit.oncall.test_alerts import alert, payload


@pytest.fixture
def book(tmp_path: Path) -> Iterator[AlertBook]:
    """An empty book."""
    opened = AlertBook(tmp_path / "alerts.db")
    yield opened
    opened.close()


class Listing:
    """An Alertmanager of recorded answers: the alerts that it has, or why it does not answer."""

    def __init__(self, numbers: Sequence[int], *, whole: bool = True) -> None:
        self.numbers, self.whole, self.problem = numbers, whole, ""

    def __call__(self) -> Listed:
        if self.problem:
            raise InputError(self.problem)
        alerts = parse_payload(payload(*[alert(number) for number in self.numbers])).alerts
        return Listed(alerts, frozenset(each.key for each in alerts), self.whole)


def listing_play(book: AlertBook, numbers: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> tuple[Follower, Listing]:
    """A follower that asks an Alertmanager at each call."""
    monkeypatch.setattr(follow_module, "ASKS_AGAIN_S", 0.0)
    fires = Listing(numbers)
    return Follower(book, {}, no_prometheus, Publisher().wait_for_next, fires=fires), fires


def test_an_alert_that_alertmanager_has_no_more_ends(book: AlertBook, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that it had: those of other senders go on, and a repeated delivery revives none."""
    book.receive(parse_payload(payload(alert(1), alert(2), alert(9)))[0], 0.0)
    follower, fires = listing_play(book, [1, 2], monkeypatch)
    follower.catch_up(5.0)
    assert len(book.open_alerts()) == 3
    fires.numbers = [2]
    follower.catch_up(10.0)
    assert {int(each.fingerprint, 16) for each in book.open_alerts()} == {2, 9}
    ended = book.recent(5)[-1]
    assert (ended.firing, ended.stage) == (False, Stage.ENDED)
    assert ended.reason == "the alert resolved without an action; Alertmanager has it no more"
    book.receive(parse_payload(payload(alert(1)))[0], 11.0)
    assert len(book.open_alerts()) == 2


def test_an_alert_that_ended_while_the_service_was_down_ends_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Alertmanager had is on disk."""
    for numbers, left in (([1], 1), ([], 0)):
        book = AlertBook(tmp_path / "alerts.db")
        follower, _ = listing_play(book, numbers, monkeypatch)
        follower.catch_up(5.0)
        assert len(book.open_alerts()) == left
        follower.close()


def test_an_alertmanager_that_knows_too_little_ends_nothing(book: AlertBook, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer, and one that has just started and may lack alerts."""
    follower, fires = listing_play(book, [1, 2], monkeypatch)
    follower.catch_up(5.0)
    fires.numbers, fires.problem = [], "HTTP 503"
    follower.catch_up(10.0)
    fires.problem, fires.whole = "", False
    follower.catch_up(15.0)
    assert [each.firing for each in book.open_alerts()] == [True, True]
    fires.whole = True
    follower.catch_up(20.0)
    assert book.open_alerts() == []
