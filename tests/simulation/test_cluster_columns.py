"""What a cluster file says of queues binds the shipped controller under each rule set, from the file to the end of the
run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autopilot.core.model.policy import RuleSetName
from autopilot.core.model.records import About
from tests.simulation.kit import AUTOPILOT, Ran, Setup, run, scenario

CLUSTER = """
name: columns
horizon: 2h
cluster:
  pools:
    - {{name: new, nodes: 2, gpus_per_node: 4, gpu_model: H100-80GB}}
    - {{name: old, nodes: 1, gpus_per_node: 4, gpu_model: A100-80GB}}
  queues: {queues}
jobs:
  groups: {groups}
physics: ideal
telemetry: "off"
durations: exact
"""

LENDER = "{kind: train, count: 1, tenants: [owner], gpus: [4], duration: 10m, spread: 0, from: 30m, to: 30m}"
BORROWERS = "{kind: train, count: 3, tenants: [guest], gpus: [4], duration: 1h, spread: 0, from: 0h, to: 0h}"


def played(folder: Path, queues: str, groups: str, rules: RuleSetName) -> Ran:
    """One run under a rule set; every checker is silent."""
    policy = replace(AUTOPILOT, rules=rules, preemption=replace(AUTOPILOT.preemption, time_sharing=False))
    ran = run(scenario(CLUSTER.format(queues=queues, groups=groups), folder), Setup(policy=policy))
    assert ran.simulated.found.violations == ()
    return ran


def first_waits_s(ran: Ran, tenant: str) -> list[float]:
    """Time to the first start of each job of a tenant, the shortest first."""
    jobs = ran.cluster.jobs
    rows = [row for row in range(len(jobs)) if jobs.tenants[jobs.tenant[row]] == tenant]
    return sorted(ran.cluster.first_start_s[row] - jobs.submit_s[row] for row in rows)


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        pytest.param("", True, id="as Kueue recommends"),
        pytest.param(", reclaim: never", False, id="reclaim never"),
    ],
)
def test_reclaim_in_a_cohort_is_as_the_file_says(tmp_path: Path, settings: str, *, waits: bool) -> None:
    """The guest borrows all; the owner has its four back at once, unless its queue never reclaims."""
    queues = (
        "[{name: all, guarantee: {H100-80GB: 8, A100-80GB: 4}},"
        f" {{name: owner, parent: all, guarantee: {{H100-80GB: 4, A100-80GB: 4}}{settings}}},"
        " {name: guest, parent: all, guarantee: {H100-80GB: 4}}]"
    )
    ran = played(tmp_path, queues, f"[{LENDER}, {BORROWERS}]", RuleSetName.COHORT_CLASSIC)
    assert (first_waits_s(ran, "owner") == [0.0]) is waits
    assert (ran.simulated.accounts.preemptions > 0) is waits


def test_what_a_queue_does_not_lend_stays_idle(tmp_path: Path) -> None:
    """The owner lends one node of its two: the third gang of the guest waits for the end of another."""
    queues = (
        "[{name: all, guarantee: {H100-80GB: 8, A100-80GB: 4}},"
        " {name: owner, parent: all, guarantee: {H100-80GB: 8}, lend_limit: 4},"
        " {name: guest, parent: all, guarantee: {A100-80GB: 4}}]"
    )
    ran = played(tmp_path, queues, f"[{BORROWERS}]", RuleSetName.COHORT_CLASSIC)
    waits_s = first_waits_s(ran, "guest")
    assert waits_s[:2] == [0.0, 0.0]
    assert waits_s[2] > 600.0


@pytest.mark.parametrize("rules", list(RuleSetName))
def test_a_limit_of_one_model_holds_under_every_rule_set(tmp_path: Path, rules: RuleSetName) -> None:
    """One node of H100 is the most for the guest: its third gang waits, though a node of H100 idles."""
    queues = (
        "[{name: all, guarantee: {H100-80GB: 8, A100-80GB: 4}},"
        " {name: guest, parent: all, guarantee: {H100-80GB: 4, A100-80GB: 4}, limit: {H100-80GB: 4}},"
        " {name: owner, parent: all, guarantee: {H100-80GB: 4}}]"
    )
    if rules is RuleSetName.ELASTIC_QUOTA:  # teams stand under the root
        queues = "[{name: guest, guarantee: {H100-80GB: 8, A100-80GB: 4}, limit: {H100-80GB: 8}}]".replace(
            "limit: {H100-80GB: 8}", "limit: {H100-80GB: 8, A100-80GB: 4}"
        )
    ran = played(tmp_path, queues, f"[{BORROWERS}]", rules)
    waits_s = first_waits_s(ran, "guest")
    assert waits_s[:2] == [0.0, 0.0]
    assert (waits_s[2] > 600.0) is (rules is not RuleSetName.ELASTIC_QUOTA)


RESERVED = """
name: reserved
horizon: 6h
cluster:
  pools: [{name: new, nodes: 4, gpus_per_node: 4, gpu_model: H100-80GB}]
  queues: [{name: launch}, {name: guest}]
  reservations: [{name: demo, queue: launch, gpu_model: H100-80GB, gpus: 8, from: 2h, grace: 20m}]
jobs:
  groups:
    - {kind: train, count: 30, tenants: [guest], gpus: [1, 2, 4], duration: 30m, spread: 0.6, from: 0h, to: 4h}
    - {kind: train, count: 8, tenants: [guest], gpus: [4], duration: 90m, spread: 0.2, from: 0h, to: 2h}
    - {kind: train, count: 2, tenants: [launch], gpus: [4], duration: 1h, spread: 0, from: FROM, to: FROM}
physics: ideal
telemetry: "off"
durations: exact
"""


@pytest.mark.parametrize(("come", "waits_s"), [("125m", 0.0), ("3h", None)], ids=["in time", "too late"])
def test_reserved_gpus_are_there_at_their_time_and_go_when_nobody_comes(
    tmp_path: Path, come: str, waits_s: float | None
) -> None:
    """A busy cluster drains half of its nodes for two o'clock: who comes within the grace starts at once."""
    world = scenario(RESERVED.replace("FROM", come), tmp_path, seed=3)
    ran = run(world, Setup(policy=AUTOPILOT))
    assert ran.simulated.found.violations == ()
    assert ran.simulated.found.checked > 0
    waits = first_waits_s(ran, "launch")
    if waits_s is not None:
        assert waits == [waits_s, waits_s]
    free_s = [
        moment.observation.now_s
        for moment in ran.tape.moments
        if any((note.about, note.subject) == (About.RESERVATION, "demo") for note in moment.decision.notes)
    ]
    assert min(free_s) >= 7200.0
    assert max(free_s) < 8400.0


def test_without_the_reservation_the_owner_waits(tmp_path: Path) -> None:
    """The same cluster, nothing reserved: it is the reservation that made the room."""
    text = RESERVED.replace("FROM", "125m").replace("reservations: [{name: demo", "UNUSED").splitlines()
    kept = "\n".join(line for line in text if "UNUSED" not in line)
    plain = replace(AUTOPILOT, preemption=replace(AUTOPILOT.preemption, time_sharing=False))
    ran = run(scenario(kept, tmp_path, seed=3), Setup(policy=plain))
    assert max(first_waits_s(ran, "launch")) > 0.0
