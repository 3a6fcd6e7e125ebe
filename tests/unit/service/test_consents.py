"""Owners approve by annotation what touches their work alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from autopilot.core.effects.pipeline import PipelineChange
from autopilot.core.model.approvals import seen_of
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.modes import Mode, Modes
from autopilot.core.model.objects import SubjectKind, Victim
from autopilot.core.model.records import Command, CommandKind
from autopilot.service.consents import Consents, consent
from autopilot.service.inbox import SqliteInbox
from autopilot.service.published import Published
from autopilot.service.record import Record
from tests.kits.core_world import AUTO, Item, decide, observe, snapshot, started, waits

ASKS = replace(AUTO, modes=Modes(*[Mode.APPROVE] * len(Modes.__dataclass_fields__)))


@dataclass
class Owned:
    """A controller that asks for approvals, on two nodes of 4 GPUs, and the owners who give some."""

    folder: Path
    owners: dict[str, str]
    tick: int = 0
    memory: ControllerMemory = field(default_factory=lambda: replace(ControllerMemory(), fence=1))
    commands: list[Command] = field(default_factory=list)
    woken: int = 0

    def __post_init__(self) -> None:
        self.inbox, self.record = SqliteInbox(self.folder / "inbox.db", lambda: ""), Record(self.folder / "audit")
        self.consents = Consents(lambda: self.owners, self.inbox, self.record, self.wake)

    def wake(self) -> None:
        self.woken += 1

    def step(self, *items: Item, halted: str = "") -> Step:
        """One tick, and the look after it."""
        now_s = 100.0 + 10.0 * self.tick
        read = self.inbox.drain(now_s)
        self.commands += read
        seen = observe(snapshot("2x4", items), now_s, tick=self.tick, commands=read)
        made = decide(seen, ASKS, self.memory)
        self.memory, self.tick = made.memory, self.tick + 1
        decision = replace(made.decision, halted=halted) if halted else made.decision
        self.consents(Published(seen, decision, made.memory, ASKS, made.wake_at_s, 0.0))
        return made


@pytest.fixture
def owned(tmp_path: Path) -> Owned:
    """Work `mine` is approved by its owner."""
    return Owned(tmp_path, {"mine": "annotation of mine"})


def test_what_its_owner_approves_starts_and_other_work_waits(owned: Owned) -> None:
    """One command, in the name of the annotation, on the state that was proposed."""
    work = waits("mine", 4), waits("theirs", 4)
    shown = {each.subject.name: each for each in owned.step(*work).decision.plan.proposals}
    assert list(started(owned.step(*work))) == ["mine"]
    (command,) = owned.commands
    assert (command.kind, command.who) == (CommandKind.APPROVE, "annotation of mine")
    assert (command.subject, command.seen) == (shown["mine"].recommendation, seen_of(shown["mine"]))
    assert owned.woken == 1


def test_the_approval_is_in_the_audit_log(owned: Owned) -> None:
    """With the owner's role, before it is stored."""
    owned.step(waits("mine", 4))
    lines = "".join(each.read_text() for each in (owned.folder / "audit").iterdir() if each.is_file())
    assert '"who":"annotation of mine"' in lines.replace(": ", ":")
    assert '"role":"owner"' in lines.replace(": ", ":")


def test_who_makes_room_for_it_has_to_approve_too(owned: Owned) -> None:
    """A preemption needs the owners of all work that it touches."""
    (start,) = owned.step(waits("mine", 4)).decision.plan.proposals
    victims = tuple(Victim(each, 0, 4, 0.0, contract=False, uid=each) for each in ("theirs", "its"))
    taking = replace(start, change=PipelineChange(slots=start.slots, victims=victims))
    namespace = "annotation of namespace team"
    assert consent(start, owned.owners) == "annotation of mine"
    assert consent(taking, owned.owners) == ""
    assert consent(taking, owned.owners | {"theirs": namespace}) == ""
    assert consent(taking, owned.owners | {"theirs": namespace, "its": namespace}) == f"annotation of mine, {namespace}"
    assert consent(taking, {"theirs": namespace, "its": namespace}) == ""


def test_what_is_no_work_has_no_owner(owned: Owned) -> None:
    """Nodes and services are approved by an approver."""
    (start,) = owned.step(waits("mine", 4)).decision.plan.proposals
    node = replace(start, subject=replace(start.subject, kind=SubjectKind.NODE))
    assert consent(node, owned.owners) == ""


def test_a_rejection_by_a_person_wins(owned: Owned) -> None:
    """The annotation does not speak against it."""
    (shown,) = owned.step(waits("mine", 4)).decision.plan.proposals
    owned.inbox.drain(0.0)
    owned.inbox.receive(Command(CommandKind.REJECT, "ann", 100.0, shown.recommendation, seen=seen_of(shown)))
    assert not started(owned.step(waits("mine", 4)))
    assert not started(owned.step(waits("mine", 4)))
    assert [each.kind for each in owned.commands] == [CommandKind.REJECT]


def test_nothing_is_approved_while_nothing_acts_or_without_owners(owned: Owned) -> None:
    """A halted decision, and a cluster in which nobody approves."""
    owned.step(waits("mine", 4), halted="no view of the cluster")
    owned.owners = {}
    owned.step(waits("mine", 4))
    assert owned.inbox.drain(0.0) == ()


def test_what_cannot_be_recorded_is_not_approved(owned: Owned) -> None:
    """The log is closed: nothing reaches the inbox, and the tick is not lost."""
    owned.record.close()
    owned.step(waits("mine", 4))
    assert owned.inbox.drain(0.0) == ()
