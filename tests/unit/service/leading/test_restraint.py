"""A leader that is kept at `recommend`: by the mark of the watchdog, and where late writes are not refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autopilot.core.model.modes import Effect, Mode, Modes
from autopilot.core.model.policy import Policy
from autopilot.http.desk import Desk
from autopilot.service.capping import NEEDS
from autopilot.service.leading.restraint import RestrainedPolicy, leader_lines, restrained
from autopilot.service.settings import Kubernetes, LeaseSettings, Role
from autopilot.settings import StaticPolicySource
from tests.kits.core_world import waits, world
from tests.kits.http_kit import client, desk_over, published

POLICY = Policy(modes=replace(Modes(), admit_gang=Mode.AUTO, preempt=Mode.AUTO, regeometry=Mode.APPROVE))


class Beside:
    """What a policy depends on."""

    def __init__(self) -> None:
        self.mark, self.unknown, self.fence, self.now_s, self.asked = "", "", "", 0.0, 0
        self.refused = False
        self.source = RestrainedPolicy(
            StaticPolicySource(POLICY),
            lambda: (self.mark, self.unknown),
            self.probe,
            frozenset({"preempt"}),
            self.rearm,
            lambda: self.now_s,
        )
        self.source.leads = lambda: True

    def probe(self) -> tuple[str, bool]:
        """Why late writes are not refused, and whether our own are."""
        self.asked += 1
        return self.fence, self.refused

    def rearm(self) -> str:
        """Take the mark away."""
        self.mark = ""
        return ""

    def modes(self, after_s: float = 60.0) -> tuple[str, str, str]:
        """Admission, preemption and re-geometry."""
        self.now_s += after_s
        modes = self.source.current().modes
        return modes.admit_gang.value, modes.preempt.value, modes.regeometry.value


def test_the_policy_is_in_force_as_it_is_written_where_nothing_restrains_it() -> None:
    """The same object, at every tick; the questions are not asked at every tick."""
    beside = Beside()
    assert beside.modes() == ("auto", "auto", "approve")
    assert beside.source.current() is POLICY
    assert beside.source.problem is None
    beside.modes(5.0)
    assert beside.asked == 1


def test_the_mark_of_the_watchdog_counts_until_a_person_re_arms() -> None:
    """Every mode is `recommend`, approvals too, and the reason is shown."""
    beside = Beside()
    beside.mark = "nobody renewed the Lease"
    assert beside.modes() == ("recommend", "recommend", "recommend")
    assert "and runs `autopilot rearm`: nobody renewed" in str(beside.source.problem)
    assert beside.modes(3600.0)[0] == "recommend"
    assert beside.source.rearm() == ""
    assert beside.modes(0.0) == ("auto", "auto", "approve")


def test_a_mark_that_cannot_be_read_counts_as_one() -> None:
    """Nothing acts on doubt, unless this leader has read before that there is none."""
    beside = Beside()
    beside.unknown = "the API server does not answer"
    assert beside.modes()[0] == "recommend"
    assert "cannot be read" in str(beside.source.problem)
    beside.unknown = ""
    assert beside.modes()[0] == "auto"
    beside.unknown = "the API server does not answer"
    assert beside.modes()[0] == "auto"
    beside.source.leads = lambda: False
    beside.modes()
    beside.source.leads = lambda: True
    assert beside.modes()[0] == "recommend"


def test_without_the_fence_auto_is_refused_where_a_write_carries_no_version() -> None:
    """Approvals stay, and the problem names the actions."""
    beside = Beside()
    beside.fence = "the policy is not in force"
    assert beside.modes() == ("auto", "recommend", "approve")
    assert str(beside.source.problem).endswith("`auto` counts as recommend for preempt")
    beside.fence = ""
    assert beside.modes() == ("auto", "auto", "approve")


def test_where_the_fence_refuses_this_leader_nothing_acts_and_it_is_asked_again_soon() -> None:
    """Approved effects would fail too; a fence that is in order again counts after seconds."""
    beside = Beside()
    beside.fence, beside.refused = "our epoch is refused; restart the API servers", True
    assert beside.modes() == ("recommend", "recommend", "recommend")
    assert str(beside.source.problem).endswith("restart the API servers; every mode counts as recommend")
    beside.fence, beside.refused = "", False
    assert beside.modes(5.0) == ("auto", "auto", "approve")


def test_without_an_election_nothing_restrains_the_policy() -> None:
    """There is no Lease that a watchdog could watch."""
    source = StaticPolicySource(POLICY)
    assert restrained(None, None, source) is source


def desk(folder: Path, **over: object) -> Desk:
    """A desk after a tick."""
    return replace(desk_over(folder, published(world("1x8", [waits("w", 8)], 1000.0))), **over)  # type: ignore[arg-type]


def test_a_person_re_arms_over_the_api(tmp_path: Path) -> None:
    """An admin, at the leader."""
    beside = Beside()
    beside.mark = "nobody renewed the Lease"
    armed = desk(tmp_path, rearm=beside.source.rearm)
    assert client(armed, Role.APPROVER).post("/api/v1/rearm").status_code == 403
    assert client(armed, Role.ADMIN).post("/api/v1/rearm").json()["result"] == "obeyed"
    assert beside.mark == ""
    assert client(desk(tmp_path), Role.ADMIN).post("/api/v1/rearm").status_code == 409
    waiting = desk(tmp_path, rearm=beside.source.rearm, waiting=lambda: "another controller leads")
    assert client(waiting, Role.ADMIN).post("/api/v1/rearm").status_code == 503
    assert client(waiting).get("/readyz").json() == {"status": "stands by: another controller leads"}


def test_every_effect_states_its_kinds_of_instructions() -> None:
    """One that is missing would stop a controller at its start."""
    assert NEEDS.keys() == set(Effect)


def test_the_check_of_the_settings_names_what_depends_on_the_fence() -> None:
    """Actions that evict or create; those whose writes carry a version are not named."""
    led, fence = leader_lines(Kubernetes(act=True, lease=LeaseSettings()))
    assert led.endswith("elected by Lease gpu-autopilot/gpu-autopilot")
    assert {"preempt", "request_capacity", "resize"} <= set(fence.partition(" for: ")[2].split(", "))
    assert "admit_gang" not in fence
    assert len(leader_lines(Kubernetes(lease=LeaseSettings()))) == 1
    assert "kubernetes.lease" in leader_lines(Kubernetes(act=True))[0]
