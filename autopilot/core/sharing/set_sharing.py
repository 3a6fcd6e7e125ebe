"""Turn an empty node to another way of sharing its GPUs. Work is never turned from whole to shared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

import numpy as np

from autopilot.core.effects.draft import VerbDraft
from autopilot.core.model.objects import Sharing, SharingConfig, Subject, SubjectKind, Victim
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Proposal
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.verb import Deed, World
from autopilot.core.planning.context import Context

KIND: Final = "set_sharing"

TURN_S: Final = 600.0
"""A device plugin starts anew in 10 to 30 s, one whose MPS daemon is late tries again every 30 s, and a changed
configuration takes two minutes to its node. A node that is not turned after this long is turned back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSharing(Deed):
    """A node with its sharing before and after. Its actuator closes it, waits until it is empty, and opens it."""

    about: ClassVar[SubjectKind] = SubjectKind.NODE
    exact: ClassVar[bool] = True
    planned_anew: ClassVar[bool] = True  # where it fails, what there is then decides

    config: str  # its name in the engine (`Names.sharing_configs`)
    sharing: int  # objects.Sharing
    replicas: int  # shares of each GPU; 1: whole
    single: bool  # pods that request more than one GPU fail there
    was_sharing: int  # precondition: the present ones
    was_replicas: int
    kind: Literal["set_sharing"] = field(default=KIND, init=False)

    @property
    def wish(self) -> str:
        """To share a node and to turn it back are two wishes."""
        return "unshare" if self.sharing == Sharing.WHOLE else "share"

    def deadline_s(self, policy: Policy) -> float:
        """A change takes its time."""
        return max(policy.limits.deadline_s, TURN_S)

    def whose(self, subject: Subject) -> str:
        """The node with its present sharing."""
        return f"node {subject.name}, now {sharing_words(self.was_sharing, self.was_replicas)}"

    def shown(self, row: int, snapshot: ClusterSnapshot) -> str:
        """The sharing before and after."""
        before = sharing_words(self.was_sharing, self.was_replicas)
        return f"|{before}>{sharing_words(self.sharing, self.replicas)}"

    def seen(self, subject: Subject, world: World) -> bool:
        """The node shows the new sharing, or is gone."""
        nodes = world.snapshot.nodes
        rows = np.flatnonzero(nodes.id == subject.uid)
        return bool(((nodes.sharing[rows] == self.sharing) & (nodes.replicas[rows] == self.replicas)).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDraft(VerbDraft):
    """The change of a node; nothing starts there from now on."""

    def stand(self, ctx: Context, proposal: Proposal, *, accepted: bool) -> tuple[Victim, ...]:
        """Its GPUs are set aside."""
        if accepted:
            gpus = ctx.observation.snapshot.gpus.node
            ctx.whatif.set_aside(np.flatnonzero(gpus == self.row).astype(np.int32))
        return ()


def turned(row: int, to: SharingConfig, snapshot: ClusterSnapshot) -> SetSharing:
    """The change of the node of `row` to a configuration."""
    nodes = snapshot.nodes
    was_sharing, was_replicas = int(nodes.sharing[row]), int(nodes.replicas[row])
    return SetSharing(
        config=to.key,
        sharing=int(to.sharing),
        replicas=to.replicas,
        single=to.single,
        was_sharing=was_sharing,
        was_replicas=was_replicas,
    )


def sharing_words(sharing: int, replicas: int) -> str:
    """A way of sharing: `whole`, `time-slicing-4`, `mps-2`."""
    return "whole" if sharing == Sharing.WHOLE else f"{Sharing(sharing).name.lower().replace('_', '-')}-{replicas}"
