"""Election by a Lease: one leader at a time, with a fence that only rises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from apiserver.server import Server
from apiserver.users import ADMIN
from autopilot.core.model.errors import InputError
from autopilot.service.leading.lease import Terms, micro_time
from tests.kits.apiserver_kit import small_cluster
from tests.kits.lead_kit import NAME, Candidate, with_namespace

TERMS = Terms(10.0, 6.0, 1.5)


@pytest.fixture
def server() -> Server:
    """A cluster with the namespace of the service."""
    return with_namespace(small_cluster())


def lease(server: Server) -> dict[str, object]:
    """What the Lease says."""
    found = server.store.get("leases.coordination.k8s.io", NAME.namespace, NAME.name)
    assert found is not None
    return dict(found["spec"])


def run(server: Server, candidates: list[Candidate], seconds: float, done: Callable[[], bool] = lambda: False) -> float:
    """Step each candidate every 1.5 s; the seconds until `done`."""
    passed_s = 0.0
    while passed_s < seconds and not done():
        for each in candidates:
            each.elector.step()
        assert sum(each.elector.fence() is not None for each in candidates) <= 1
        server.timeline.run_for(TERMS.retry_s)
        passed_s += TERMS.retry_s
    return passed_s


def test_the_first_leads_at_once_and_the_second_waits(server: Server) -> None:
    """The Lease names who leads, and its times have exactly six digits."""
    one, two = (Candidate(server, name, TERMS) for name in ("one", "two"))
    run(server, [one, two], 60)
    assert (one.elector.fence(), two.elector.fence()) == (1, None)
    assert two.elector.holder == one.elector.identity
    assert one.elector.still(1)
    assert not one.elector.still(2)
    spec = lease(server)
    assert spec["leaseTransitions"] == 1
    assert len(str(spec["renewTime"]).partition(".")[2]) == len("000000Z")


def test_a_leader_that_ends_hands_over_at_the_next_turn(server: Server) -> None:
    """A holder that gives its Lease back is not waited for."""
    one, two = (Candidate(server, name, TERMS) for name in ("one", "two"))
    run(server, [one, two], 15)
    one.elector.release()
    assert (one.elector.fence(), lease(server)["holderIdentity"]) == (None, "")
    took_s = run(server, [two], 60, lambda: two.elector.fence() is not None)
    assert took_s <= TERMS.retry_s
    assert two.elector.fence() == 2


def test_a_leader_that_dies_is_followed_within_15_s(server: Server) -> None:
    """The lease, one turn to see its last change, and one to take it."""
    one, two = (Candidate(server, name, TERMS) for name in ("one", "two"))
    run(server, [one, two], 15)
    took_s = run(server, [two], 60, lambda: two.elector.fence() is not None)
    assert TERMS.duration_s <= took_s <= 13.0


def test_a_leader_without_the_server_stops_before_its_lease_can_expire(server: Server) -> None:
    """Between the end of its term and the next one, nobody leads."""
    one, two = (Candidate(server, name, TERMS) for name in ("one", "two"))
    run(server, [one, two], 15)
    one.cut()
    run(server, [one, two], 3)
    assert one.elector.fence() == 1
    run(server, [one, two], 3)
    assert (one.elector.fence(), two.elector.fence()) == (None, None)
    run(server, [one, two], 12)
    assert (one.elector.fence(), two.elector.fence()) == (None, 2)


def test_a_leader_that_hangs_renews_nothing_and_is_followed(server: Server) -> None:
    """Its term lapses by itself, and it takes the Lease no more, also when nobody else does."""
    one, two = (Candidate(server, name, TERMS) for name in ("one", "two"))
    run(server, [one], 15)
    one.elector.halted = lambda: "the loop hangs"
    run(server, [one], 30)
    assert (one.elector.fence(), one.elector.problem) == (None, "the loop hangs")
    run(server, [one, two], 15)
    assert two.elector.fence() == 2


def test_a_fence_that_lapsed_never_comes_back(server: Server) -> None:
    """Nobody else led meanwhile, but writes of the lapsed term may still be on their way."""
    one = Candidate(server, "one", TERMS)
    run(server, [one], 3)
    server.timeline.run_for(7.0)
    assert one.elector.fence() is None
    run(server, [one], 1.5)
    assert one.elector.fence() == 2


def test_a_renewal_whose_answer_was_lost_counts_from_when_it_was_sent(server: Server) -> None:
    """It may have arrived, and it did."""
    one = Candidate(server, "one", TERMS)
    run(server, [one], 3)
    one.cut(fate="answer lost")
    run(server, [one], 3)
    one.join()
    run(server, [one], 30)
    assert one.elector.fence() == 1


def test_a_lost_takeover_is_found_again(server: Server) -> None:
    """The term whose beginning nobody answered for is skipped."""
    one = Candidate(server, "one", TERMS)
    one.elector.step()
    one.elector.release()
    two = Candidate(server, "two", TERMS)
    two.api.fate = lambda method, _path: "answer lost" if method == "PUT" else ""
    two.elector.step()
    assert two.elector.fence() is None
    two.join()
    two.elector.step()
    assert two.elector.fence() == 3


def test_two_controllers_with_one_identity_never_lead_together(server: Server) -> None:
    """A copied machine: each finds renewals that it did not write, takes a new identity, and waits."""
    names = iter(["same", "one"]), iter(["same", "two"])
    one = Candidate(server, "one", TERMS, identity=lambda: next(names[0]))
    two = Candidate(server, "two", TERMS, identity=lambda: next(names[1]))
    run(server, [one], 6)
    run(server, [one, two], 60)
    leading = [each for each in (one, two) if each.elector.fence() is not None]
    assert [each.elector.identity for each in leading] in (["same"], ["one"], ["two"])
    assert two.elector.identity == "two"


def test_a_foreign_renewal_of_our_own_lease_ends_the_term(server: Server) -> None:
    """A record that this process did not write is not its own, whatever name it has."""
    names = iter(["one", "one-again"])
    one = Candidate(server, "one", TERMS, identity=lambda: next(names))
    run(server, [one], 3)
    client = server.client(ADMIN, "test")
    client.patch("leases.coordination.k8s.io", NAME.namespace, NAME.name, {"spec": {"renewTime": micro_time(0.0)}})
    one.elector.step()
    assert (one.elector.fence(), one.elector.identity) == (None, "one-again")
    assert one.elector.counts() == {"identity_conflicts_total": {(): 1.0}}
    lease = client.get("leases.coordination.k8s.io", NAME.namespace, NAME.name)
    said = {each["reason"]: each for each in client.list("events", NAME.namespace)}
    assert set(said) == {"LeaderElection", "IdentityConflict"}
    conflict = said["IdentityConflict"]
    assert lease is not None
    assert (conflict["type"], conflict["involvedObject"]["uid"]) == ("Warning", lease["metadata"]["uid"])
    assert "another process renews the Lease as one; this one stopped acting" in conflict["message"]


@pytest.mark.parametrize("again", [False, True])
def test_the_fence_does_not_go_back_when_the_lease_is_deleted(server: Server, again: bool) -> None:
    """Also where somebody creates it anew by hand, and where the next leader never saw the old one."""
    one = Candidate(server, "one", TERMS)
    run(server, [one], 3)
    client = server.client(ADMIN, "test")
    client.delete("leases.coordination.k8s.io", NAME.namespace, NAME.name)
    if again:
        body: dict[str, object] = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        body["metadata"] = {"name": NAME.name, "namespace": NAME.namespace}
        client.create("leases.coordination.k8s.io", body)
    two = Candidate(server, "two", TERMS, known_fence=lambda: 7)
    run(server, [two], 6)
    assert two.elector.fence() is None
    run(server, [one, two], 9)
    assert one.elector.fence() is None
    assert two.elector.fence() == 8


def test_a_missing_lease_is_not_taken_while_its_holder_may_still_act(server: Server) -> None:
    """Who deletes the Lease does not make two leaders."""
    one, two = (Candidate(server, name, TERMS) for name in ("one", "two"))
    run(server, [one, two], 6)
    server.client(ADMIN, "test").delete("leases.coordination.k8s.io", NAME.namespace, NAME.name)
    two.elector.step()
    assert (one.elector.fence(), two.elector.fence()) == (1, None)
    run(server, [one, two], 20)
    assert {one.elector.fence(), two.elector.fence()} == {None, 2}


def test_without_the_memory_of_the_cluster_nobody_begins_to_lead(server: Server) -> None:
    """Its fence bounds the next one from below."""

    def unreadable() -> int:
        """No answer."""
        raise OSError("the API server does not answer")

    one = Candidate(server, "one", TERMS, known_fence=unreadable)
    run(server, [one], 6)
    assert one.elector.fence() is None
    assert "cannot be read" in one.elector.problem


def test_clocks_that_differ_change_nothing(server: Server) -> None:
    """The wall clocks are an hour apart, and one monotonic clock runs 10 % fast."""
    one = Candidate(server, "one", TERMS, wall_off_s=3600.0)
    two = Candidate(server, "two", TERMS, wall_off_s=-3600.0, rate=1.1)
    run(server, [one, two], 120)
    assert (one.elector.fence(), two.elector.fence()) == (1, None)


@pytest.mark.parametrize("terms", [(10.0, 10.0, 1.0), (10.0, 1.0, 2.0), (2.5, 2.0, 1.0), (10.0, 6.0, 0.0)])
def test_terms_that_let_two_leaders_overlap_are_refused(terms: tuple[float, float, float]) -> None:
    """The error names the settings."""
    with pytest.raises(InputError, match="not allowed"):
        Terms(*terms)


def test_a_lease_that_a_person_empties_is_not_taken_while_its_holder_may_still_act(server: Server) -> None:
    """Only a holder that gives it back says so by its duration."""
    one, two = (Candidate(server, name, TERMS) for name in ("one", "two"))
    run(server, [one, two], 6)
    patch = {"spec": {"holderIdentity": ""}}
    server.client(ADMIN, "test").patch("leases.coordination.k8s.io", NAME.namespace, NAME.name, patch)
    two.elector.step()
    assert (one.elector.fence(), two.elector.fence()) == (1, None)
    run(server, [one, two], 20)
    assert {one.elector.fence(), two.elector.fence()} == {None, 2}
