"""What must hold after every step in the hostile world. Facts alone are judged: what was sent, on what view, by what
policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.objects import Slot
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Instruction, Proposal
from autopilot.core.model.snapshot import GPU_MILLI, SLO_CLASS_NAMES, ClusterSnapshot
from autopilot.core.model.stops import StopReason
from autopilot.core.model.work import entry_milli
from tests.hostile.ports import Ports, Sent

LIE_S = 60.0
"""Three complete lists at least 30 s apart take at least this long."""
LEAST_LISTED = 20
"""A source with fewer objects is never suspected."""


@dataclass(frozen=True)
class Approval:
    """What a person approved: the proposal as shown, and when (true time).

    `plans`: the loss and the GPUs of each plan that was carried out under it.
    """

    proposal: Proposal
    true_s: float
    plans: dict[str, tuple[float, float]] = field(default_factory=dict)


def for_an_owner(snapshot: ClusterSnapshot, entry: InFlight) -> bool:
    """True where a contract takes back work of a queue that holds more than its guarantee, on some level."""
    if not entry.contract or entry.instruction.operation.takes not in {StopReason.RECLAIM, StopReason.RECLAIM_MOVE}:
        return False
    held, queues = snapshot.placements, snapshot.queues
    use = np.bincount(
        snapshot.workloads.queue[held.workload], entry_milli(held) * ~held.leaving, minlength=len(queues.id)
    )
    for queue in range(len(use) - 1, 0, -1):
        use[queues.parent[queue]] += use[queue]
    rows = np.flatnonzero(snapshot.workloads.uid == entry.instruction.subject.uid)
    queue, above = int(snapshot.workloads.queue[rows[0]]) if len(rows) else 0, False
    while queue > 0:
        above = above or bool(use[queue] > queues.guarantee[queue].sum() * GPU_MILLI)
        queue = int(queues.parent[queue])
    return above


@dataclass
class Watch:
    """Judges each new instruction once; `problems` are sentences."""

    ports: Ports
    approvals: dict[str, Approval] = field(default_factory=dict)
    stopped_by: str = ""  # kill or pause of a person that no resume has ended
    confirmed_s: float = float("-inf")
    disrupted: dict[str, tuple[float, str]] = field(default_factory=dict)  # instruction id -> (true time, tenant)
    judged: int = 0

    def problems(self) -> list[str]:
        """What is wrong about all that was sent since the last call."""
        found = list(self.ports.cluster.problems)
        for sent in self.ports.sent[self.judged :]:
            order = sent.instruction
            entry = sent.memory.effects.in_flight[order.id]
            wrong = [
                *self._view(sent),
                *self._fence(sent),
                *self._identity(sent),
                *self._victim(sent, entry),
                *self._mode(sent, entry),
                *self._people(),
                *self._contract(sent, entry),
                *self._size(sent),
                *self._needed(sent),
            ]
            found += [f"{order.id} ({order.kind} {order.subject.name}, {entry.action}): {what}" for what in wrong]
            self._count(sent, entry)
        self.judged = len(self.ports.sent)
        return [*found, *self._budgets()]

    def _view(self, sent: Sent) -> list[str]:
        if not sent.clear:
            return ["sent without a fresh and complete view"]
        since_s = sent.true_s - sent.lied_s
        listed = len(self.ports.cluster.gangs)
        if since_s < LIE_S and self.confirmed_s < sent.lied_s and listed >= LEAST_LISTED:
            return [f"sent {since_s:g} s after the list shrank to a third"]
        return []

    def _fence(self, sent: Sent) -> list[str]:
        return [] if sent.instruction.fence == sent.fence else [f"fence {sent.instruction.fence}, not {sent.fence}"]

    def _identity(self, sent: Sent) -> list[str]:
        """The object is in the view, under the uid that the instruction names."""
        row = row_of(sent, sent.instruction)
        if row is None:
            return ["its object is not in the view"]
        uid = sent.observation.snapshot.workloads.uid[row]
        return (
            []
            if uid == sent.instruction.subject.uid
            else [f"names uid {sent.instruction.subject.uid}, the view has {uid}"]
        )

    def _victim(self, sent: Sent, entry: InFlight) -> list[str]:
        row = row_of(sent, sent.instruction)
        work = sent.observation.snapshot.workloads
        if row is None or for_an_owner(sent.observation.snapshot, entry):
            return []
        if work.excluded[row]:
            return ["opted out"]
        if not targets(sent.instruction):
            return []
        if SLO_CLASS_NAMES[int(work.slo_class[row])] in sent.policy.protection.classes:
            return ["its class is protected"]
        if not work.preemptible[row] and not work.backfilled[row] and entry.action != "recover":
            return ["not preemptible"]
        return []

    def _mode(self, sent: Sent, entry: InFlight) -> list[str]:
        mode = getattr(sent.policy.modes, entry.action)
        if mode == Mode.AUTO:
            return []
        if mode != Mode.APPROVE:
            return [f"the mode of {entry.action} is {mode}"]
        made = {proposal.id: proposal for proposal in sent.decision.plan.proposals if proposal.accepted}
        now = made.get(sent.instruction.proposal_id)
        if now is None:
            return []  # sent again, or a start that waited: approved when it was first sent
        return self._approved(now, sent)

    def _approved(self, now: Proposal, sent: Sent) -> list[str]:
        """Its cover, told by the facts of this world and not by what the core remembers."""
        start = now.kind == "admit"
        alike = [
            each
            for name, each in self.approvals.items()
            if name == now.recommendation or (start and each.proposal.subject.uid == now.subject.uid)
        ]
        found = [self._outside(given, now, sent) for given in alike]
        return min(found, key=len, default=["nobody approved it"])

    def _outside(self, given: Approval, now: Proposal, sent: Sent) -> list[str]:
        shown = given.proposal
        if (shown.subject.uid, shown.subject.revision) != (now.subject.uid, now.subject.revision):
            return ["approved for another object"]
        if sent.true_s - given.true_s > sent.policy.approval.valid_s:
            return ["the approval expired"]
        given.plans.setdefault(now.id, (now.cost_gpu_s, float(sum(each.gpus for each in now.victims))))
        cost_gpu_s, gpus = (sum(each[at] for each in given.plans.values()) for at in (0, 1))
        if cost_gpu_s > max(1.2 * shown.cost_gpu_s, shown.cost_gpu_s + 360.0) + 1e-6:
            return ["costs more than was approved"]
        if gpus > sum(each.gpus for each in shown.victims) or len(now.slots) > len(shown.slots):
            return ["takes more GPUs than was approved"]
        kinds, approved = ({(each.queue, each.slo_class) for each in one.victims} for one in (now, shown))
        queues, classes = ({each[at] for each in kinds} - {each[at] for each in approved} for at in (0, 1))
        return ["stops other work than was approved"] if queues or classes else []

    def _people(self) -> list[str]:
        if self.ports.killed:
            return ["the kill switch is on"]
        return [f"sent after {self.stopped_by}"] if self.stopped_by else []

    def _contract(self, sent: Sent, entry: InFlight) -> list[str]:
        """In this world no gang is ever half broken: nothing that `recover` stops is contract."""
        hung = entry.action == "recover" and targets(sent.instruction) and entry.contract
        return ["recover waives the guards for a gang that is whole"] if hung else []

    def _size(self, sent: Sent) -> list[str]:
        row = row_of(sent, sent.instruction)
        if row is None or sent.instruction.kind not in {"admit", "resize"}:
            return []
        work, got = sent.observation.snapshot.workloads, len(sent.instruction.operation.slots)
        if not int(work.min_gpus[row]) <= got <= int(work.gpus[row]):
            return [f"{got} GPUs for a gang of {int(work.min_gpus[row])} to {int(work.gpus[row])}"]
        return []

    def _needed(self, sent: Sent) -> list[str]:
        """Nothing is stopped for a start that fits without it, on what leaves and is booked for no other start."""
        name = sent.instruction.proposal_id
        made = next((each for each in sent.decision.plan.proposals if each.id == name and each.accepted), None)
        if made is None or made.kind != "pipeline" or any(victim.how == "move" for victim in made.victims):
            return []
        view, mine = sent.observation.snapshot, {victim.workload for victim in made.victims}
        booked = {
            slot.gpu
            for start in sent.memory.starts.pipelined_starts
            if start.proposal_id != name
            for part in start.parts
            for slot in part.slots
        }
        booked |= {
            slot.gpu for entry in sent.memory.effects.in_flight.values() for slot in entry.instruction.operation.slots
        }
        usable = view.nodes.ready[view.gpus.node] & ~np.isin(view.gpus.uuid, sorted(booked))
        held, names = view.placements, view.workloads.id[view.placements.workload]
        others = held.leaving | np.isin(names, sorted(mine - {sent.instruction.subject.name}))
        enough = len(np.unique(held.gpu[others & usable[held.gpu]]))
        return [f"{enough} of the {len(made.slots)} GPUs that it is for leave without it"] * (enough >= len(made.slots))

    def _count(self, sent: Sent, entry: InFlight) -> None:
        if targets(sent.instruction) and not entry.contract:
            gang = self.ports.cluster.gangs.get(sent.instruction.subject.name)
            tenant = str(gang.columns.get("tenant", 0)) if gang is not None else ""
            self.disrupted[sent.instruction.id] = (sent.true_s, tenant)

    def _budgets(self) -> list[str]:
        rules = self.ports.policy.budget
        times = np.sort([at_s for at_s, _ in self.disrupted.values()])
        for at_s in times.tolist():
            within = [tenant for t, tenant in self.disrupted.values() if at_s - rules.window_s < t <= at_s]
            worst = max(Counter(within).values(), default=0)
            if len(within) > rules.per_cluster or worst > rules.per_tenant:
                return [f"{len(within)} disruptions, {worst} of one tenant, in the window before {at_s:g} s"]
        return []


def row_of(sent: Sent, order: Instruction) -> int | None:
    """The row of an instruction's object in the view that it was sent on."""
    rows = np.flatnonzero(sent.observation.snapshot.workloads.id == order.subject.name)
    return int(rows[0]) if len(rows) else None


def targets(order: Instruction) -> bool:
    """True for what takes GPUs from running work."""
    return order.operation.takes is not None


def held(slots: Sequence[Slot]) -> dict[str, tuple[int, int]]:
    """GPUs and thousandths of GPUs by node, in the order of names."""
    found: dict[str, tuple[int, int]] = {}
    for slot in sorted(slots, key=lambda each: each.node):
        gpus, milli = found.get(slot.node, (0, 0))
        found[slot.node] = gpus + 1, milli + slot.milli
    return found
