"""Requests end at their deadline, whatever the other end does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3

from autopilot.deadline import carried, watched, within
from collectors.exporter import get_limited, http_session
from tests.kits.slow_peers import WAYS, slow_peer


@pytest.mark.parametrize("way", WAYS)
def test_a_request_ends_at_its_deadline_and_its_connection_is_closed(way: str) -> None:
    """The timeout of the socket alone never ends it: each byte comes in time."""
    with slow_peer(way) as peer, http_session(1, None) as session:
        with pytest.raises(TimeoutError, match=r"no whole answer within 0\.2 s"):
            get_limited(session, peer.url, 0.2, 1 << 20)
        assert peer.gone.wait(10.0)


def test_the_deadline_of_several_requests_ends_those_of_other_threads() -> None:
    """A collector asks from a pool of threads; what carries the limit is cut with it."""
    pools = watched(urllib3.PoolManager())

    def ask(url: str) -> str:
        try:
            pools.request("GET", url, retries=False, timeout=60.0)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return type(error).__name__
        return ""

    with slow_peer("drips its body") as peer, ThreadPoolExecutor(2) as pool:

        def both() -> list[str]:
            with within(0.2):
                asked = [pool.submit(carried(ask, peer.url)) for _ in range(2)]
                return [each.result(30.0) for each in asked]

        with pytest.raises(TimeoutError):
            both()
        assert len(peer.asked) == 2


def test_no_request_begins_after_the_deadline() -> None:
    """One that does would outlast the read it belongs to."""
    pools = watched(urllib3.PoolManager())

    def late(url: str) -> None:
        with within(60.0) as limit:
            limit.cut()
            pools.request("GET", url, retries=False, timeout=60.0)

    with slow_peer("silent") as peer:
        with pytest.raises(TimeoutError):
            late(peer.url)
        assert not peer.asked


def test_a_connection_that_is_used_again_has_the_deadline_of_its_new_request() -> None:
    """The end of the first request leaves it open, and the second one closes it."""
    with slow_peer("drips its body") as peer:
        pool = watched(urllib3.PoolManager()).connection_from_url(peer.url)
        connection = pool._new_conn()
        with within(60.0):
            connection.connect()

        def again() -> bytes:
            with within(0.2):
                connection.request("GET", "/")
                return connection.getresponse().read()

        with pytest.raises(TimeoutError):
            again()
        assert peer.gone.wait(10.0)
        connection.close()


def test_a_request_in_time_is_left_alone() -> None:
    """Its deadline is forgotten with it."""
    done = threading.Event()
    with within(0.05) as limit:
        done.set()
    assert done.is_set()
    limit.cut()
    assert not limit.over
