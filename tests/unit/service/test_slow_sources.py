"""A source of telemetry that is slow costs its own numbers, and no tick waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autopilot.core.model.errors import InvariantError
from autopilot.core.model.ports import Beginning, Recalling
from autopilot.core.model.records import Batch
from autopilot.service.beside import BesideCollector
from autopilot.service.published import WatchedCollector
from collectors.prometheus import PrometheusCollector
from collectors.slo.collector import SloCollector
from tests.kits.slow_peers import WAYS, SlowPeer, slow_peer


class Source:
    """Answers when it is told to. `began` counts its reads."""

    name = "source"

    def __init__(self) -> None:
        self.began, self.goes, self.error = 0, threading.Semaphore(0), Exception()

    def collect(self, now_s: float) -> Batch:
        self.began += 1
        self.goes.acquire(timeout=60.0)
        if type(self.error) is not Exception:
            raise self.error
        return Batch(self.name, now_s)


class Clock:
    """A monotonic clock that stands unless it is set."""

    at_s = 0.0

    def __call__(self) -> float:
        return self.at_s


@contextmanager
def ended(collector: BesideCollector) -> Iterator[None]:
    """Until the read that ends inside has been taken."""
    yield
    with collector._news:
        assert collector._news.wait_for(lambda: collector._began_s is None, 30.0)


def read(collector: BesideCollector, now_s: float) -> Batch:
    """One tick."""
    collector.begin(now_s)
    return collector.collect(now_s)


def reasons(batch: Batch) -> str:
    """The gaps in words."""
    return "; ".join(gap.reason for gap in batch.gaps)


def test_an_answer_in_time_is_taken_at_once() -> None:
    """The tick that asked has it."""
    source = Source()
    source.goes.release()
    collector = BesideCollector(source, wait_s=30.0)
    assert read(collector, 7.0) == Batch("source", 7.0)


def test_a_tick_takes_the_last_whole_answer_of_a_slow_source_and_asks_it_once() -> None:
    """It is as old as it is: `collected_s` is the time of the tick that asked."""
    source, clock = Source(), Clock()
    collector = BesideCollector(source, read_s=5.0, wait_s=0.0, monotonic_s=clock)
    assert "has not answered yet" in reasons(read(collector, 1.0))
    with ended(collector):
        source.goes.release()
    assert read(collector, 2.0).collected_s == 1.0
    assert read(collector, 3.0).collected_s == 1.0
    assert source.began == 2
    with ended(collector):
        source.goes.release()


def test_a_late_answer_is_a_gap_until_its_read_has_ended() -> None:
    """Also where nothing can cut it: a driver that hangs, a name that is resolved slowly. It is not asked again."""
    source, clock = Source(), Clock()
    collector = BesideCollector(source, read_s=5.0, wait_s=0.0, monotonic_s=clock)
    read(collector, 1.0)
    clock.at_s = 5.0
    for tick in range(3):
        late = read(collector, 10.0 + tick)
        assert late.telemetry is None
        assert "no whole answer within 5 s" in reasons(late)
    assert source.began == 1
    with ended(collector):
        source.goes.release()
    source.goes.release()
    read(collector, 20.0)
    assert source.began == 2


def test_a_tick_waits_for_no_source_that_kept_the_last_one_waiting() -> None:
    """Otherwise each tick would be longer by the wait."""
    source = Source()
    collector = BesideCollector(source, wait_s=0.05)
    read(collector, 1.0)
    assert not collector._prompt
    with ended(collector):
        source.goes.release()
    collector.begin(2.0)
    assert not collector._waits
    collector.collect(2.0)
    with ended(collector):
        source.goes.release()


@pytest.mark.parametrize("error", [InvariantError("planted"), ValueError("planted")])
def test_an_exception_of_a_source_is_that_of_its_tick(error: Exception) -> None:
    """The controller tells a defect from a source that fails, as without a thread."""
    source = Source()
    source.error = error
    source.goes.release()
    with pytest.raises(type(error), match="planted"):
        read(BesideCollector(source, wait_s=30.0), 1.0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [PrometheusCollector, SloCollector])
def test_the_connections_of_a_late_read_are_closed(way: str, kind: type[PrometheusCollector | SloCollector]) -> None:
    """The read ends by that, and the source may be asked again, although the query itself might take a minute."""

    def collector(peer: SlowPeer) -> BesideCollector:
        return BesideCollector(kind(peer.url, timeout_s=60.0), read_s=0.2, wait_s=0.0)

    with slow_peer(way) as peer:
        late = collector(peer)
        with ended(late):
            read(late, 1.0)
        assert peer.gone.wait(10.0)
        assert "no whole answer within 0.2 s" in reasons(late.collect(2.0))


def test_the_controller_sees_every_port_of_a_watched_source() -> None:
    """It asks the wrapper whether a source lists the cluster, counts restarts, or is read beside the tick."""
    seen: list[str] = []

    class Whole(Source):
        lists = False

        def recall(self, _under_way: object) -> None:
            seen.append("recall")

        def begin(self, _now_s: float) -> None:
            seen.append("begin")

    shown = WatchedCollector(Whole(), lambda: 0.0)
    assert isinstance(shown, Recalling)
    assert isinstance(shown, Beginning)
    shown.recall([])
    shown.begin(1.0)
    assert (seen, shown.lists, BesideCollector(Whole()).lists) == (["recall", "begin"], False, False)
