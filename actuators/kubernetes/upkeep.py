"""Upkeep of the actuator beside the effects: our check, labels of placements, abandoned effects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Protocol

from actuators.kubernetes import placement
from actuators.kubernetes.api import Listed, Obj, Ref
from actuators.kubernetes.effects import id_in
from actuators.kubernetes.levers import (
    mig_config,
    mig_record,
    offer_back,
    provisioning,
    service_ceiling,
    sharing_config,
)
from actuators.kubernetes.levers.base import Ended, Tools
from actuators.kubernetes.objects import Target, annotation, conditions, refs_of
from actuators.kubernetes.writing import CHECK_MANAGER, Stop
from autopilot.contract.annotations import CHECK, CONTROLLER, EFFECT, REQUEST
from autopilot.contract.notes import failure_text
from autopilot.contract.scaling import read_ceiling
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.objects import SubjectKind
from autopilot.core.model.records import OutcomeKind

EVERY_S = 60.0
"""Time between two looks."""
MOST_EVENTS = 20
"""Most Events written in one look."""
GONE_S = 120.0
"""A label of a placement is removed once its gang was not in the view for this long."""


@contextmanager
def _contained(tools: Tools, ref: Ref, now_s: float) -> Iterator[None]:
    """An error from one object does not stop the upkeep of the others: an Event on it states the failure."""
    try:
        yield
    except InvariantError:
        raise
    except Exception as error:  # noqa: BLE001 - an object that is not what the API promises
        text = failure_text(error)
        tools.events.say(ref, "UpkeepFailed", "Upkeep", text, now_s, effect=f"upkeep/{text}", warning=True)


@dataclass(slots=True)
class ActiveCheck:
    """Sets the condition Active of our AdmissionCheck: without it Kueue stops the queues that use the check."""

    _due_s: float = -inf

    def run(self, tools: Tools, epoch: int, now_s: float, _under_way: Collection[str] = ()) -> None:
        """State that the check is served. A cluster without Kueue or without the check is left alone."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S

        def decide(found: Obj) -> Obj | Stop:
            if found.get("spec", {}).get("controllerName") != CONTROLLER:
                return Stop("the check belongs to another controller", done=True)
            if conditions(found).get("Active", {}).get("status") == "True":
                return Stop("it is active", done=True)
            return {"conditions": [_active(epoch, now_s)]}

        tools.writer.apply_status(Ref("AdmissionCheck", "", CHECK), decide, CHECK_MANAGER)


def _active(epoch: int, now_s: float) -> Obj:
    stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": f"epoch {epoch}: gpu-autopilot answers this check",
        "lastTransitionTime": stamp,
    }


@dataclass(slots=True)
class OldPlacements:
    """Removes labels of placements of gangs that are gone."""

    _due_s: float = -inf
    _gone_since_s: dict[str, float] = field(default_factory=dict)

    def run(self, tools: Tools, epoch: int, now_s: float, _under_way: Collection[str] = ()) -> None:
        """Look at the nodes of the view; a gang must be missing for `GONE_S`."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        carried = list(tools.objects.placed())
        if not carried:
            self._gone_since_s = {}
            return
        needed = {placement.label_of(uid) for uid in tools.objects.uids()}
        self._gone_since_s = {key: self._gone_since_s.get(key, now_s) for _, _, key in carried if key not in needed}
        for name, uid, key in carried:
            if now_s - self._gone_since_s.get(key, inf) >= GONE_S:
                placement.set_label(tools.writer, Ref("Node", "", name, uid), key, None, epoch)


class Dated(Protocol):
    """The record of a change on a node."""

    @property
    def deadline(self) -> float:
        """Its end in seconds since 1970."""


@dataclass(slots=True)
class Abandoned:
    """Opens nodes left cordoned by a change without an instruction any more.

    A controller stopped between the last instruction and its undoing leaves such a node, and so does a write that fails
    at the deadline. A change that has come about is finished; any other is taken back.
    """

    unclaimed: Callable[[str, Collection[str]], Dated | None]  # the record of such a change, from the mark on its node
    settle: Callable[..., Ended | None]
    done: str  # reasons of the event
    left: str
    action: str
    _due_s: float = -inf

    def run(self, tools: Tools, epoch: int, now_s: float, under_way: Collection[str]) -> None:
        """Look at the nodes of the view; a change gets `GONE_S` after its deadline."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        for node, text in tools.objects.changing():
            record = self.unclaimed(text, under_way)
            if record is None:
                continue
            ref = Ref(node.kind, node.namespace, node.name, node.uid)
            with _contained(tools, ref, now_s):
                ended = self.settle(tools, ref, epoch, now_s=now_s, late=now_s - GONE_S >= record.deadline)
                if ended is not None:
                    done = ended.kind == OutcomeKind.DONE
                    reason = self.done if done else self.left
                    tools.events.say(ref, reason, self.action, ended.reason, now_s, effect=text, warning=not done)


AbandonedRecuts = partial(Abandoned, mig_record.unclaimed, mig_config.settle, "RecutDone", "RecutAbandoned", "Recut")
AbandonedTurns = partial(
    Abandoned, sharing_config.unclaimed, sharing_config.settle, "SharingSettled", "SharingAbandoned", "SetSharing"
)


@dataclass(slots=True)
class OldOffers:
    """Takes offers of idle nodes back once `offer_idle` does not act any more: nobody would end them."""

    _due_s: float = -inf

    def run(self, tools: Tools, epoch: int, now_s: float, _under_way: Collection[str] = ()) -> None:
        """Look at the nodes of the view."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        offered = list(tools.objects.offered())
        if not offered or tools.acts("offer_idle"):
            return
        for node in offered:
            ref = Ref(node.kind, node.namespace, node.name, node.uid)
            with _contained(tools, ref, now_s):
                if offer_back.withdraw(tools, ref, epoch):
                    note, effect = "its offer is taken back: offer_idle does not act any more", f"{epoch}/{now_s:.0f}"
                    tools.events.say(ref, "OfferWithdrawn", "Offer", note, now_s, effect=f"withdrawn/{effect}")


@dataclass(slots=True)
class OldCeilings:
    """Gives services their replicas back after their ceiling, and all of them once `shrink_idle` does not act.

    A ceiling is renewed well before its end, so nobody decides on an ended one any more.
    """

    _due_s: float = -inf

    def run(self, tools: Tools, epoch: int, now_s: float, _under_way: Collection[str] = ()) -> None:
        """Look at the services of the view."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        for service, text in tools.objects.ceiled():
            record = read_ceiling(text)
            ended = record is None or record.until_s <= now_s
            if not ended and tools.acts("shrink_idle"):
                continue
            ref = Ref(service.kind, service.namespace, service.name, service.uid)
            with _contained(tools, ref, now_s):
                answer = service_ceiling.give_back(tools, ref, epoch)
                why = "it ended and was not renewed" if ended else "shrink_idle does not act any more"
                if answer.ok:
                    note = f"{answer.message}: {why}"
                    tools.events.say(ref, "CeilingWithdrawn", "Ceiling", note, now_s, effect=f"withdrawn/{text}")


@dataclass(slots=True)
class OldRequests:
    """Removes requests for nodes without an instruction, such as those of a process that ended."""

    _due_s: float = -inf

    def run(self, tools: Tools, epoch: int, now_s: float, under_way: Collection[str]) -> None:
        """Look at our requests. A cluster without the kind has none."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        found = tools.api.list("ProvisioningRequest", query={"labelSelector": f"{REQUEST}=true"})
        for each in found.items if isinstance(found, Listed) else ():
            if id_in(annotation(each, EFFECT)) not in under_way:
                provisioning.remove(tools, each)


@dataclass(slots=True)
class LentWork:
    """Tells owners by an Event, once for each incarnation, that their protection holds until others want their GPUs."""

    _untold: dict[tuple[str, int], str] = field(default_factory=dict)

    def tell(self, uid: str, incarnation: int, text: str) -> None:
        """An Event on this workload is due. `text` has no changing number, so repeats are one Event."""
        self._untold[uid, incarnation] = text

    def run(self, tools: Tools, _epoch: int, now_s: float, _under_way: Collection[str] = ()) -> None:
        """Write due Events, a few at each tick; refused ones come later."""
        for (uid, incarnation), text in list(self._untold.items())[:MOST_EVENTS]:
            found = tools.objects.find(SubjectKind.WORKLOAD.value, uid)
            about = Target(uid, incarnation, refs_of(found)).main if found is not None else None
            if about is not None:
                effect = f"lent/{incarnation}"
                said = tools.events.say(about, "ProtectionLent", "Protect", text, now_s, effect=effect, warning=True)
                if said.retryable:
                    return
            del self._untold[uid, incarnation]
