"""Change the MIG geometry of a GPU. Instances in use are never destroyed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

import numpy as np

from autopilot.core.effects.draft import Cutting, Gain, Outlook, VerbDraft
from autopilot.core.geometry.cuttable import node_rows
from autopilot.core.geometry.follow import begun, shows_geometry
from autopilot.core.model.memory.geometry import RecutRecord
from autopilot.core.model.objects import Geometry, PlannedCut, Subject, SubjectKind, Victim
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Proposal
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.verb import Deed, World
from autopilot.core.planning.context import Context
from autopilot.core.planning.shown import shown_cut

KIND: Final = "recut"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecutGpu(Deed):
    """One GPU with its geometry before and after. None stands for MIG mode off."""

    about: ClassVar[SubjectKind] = SubjectKind.GPU
    cuts_gpu: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    planned_anew: ClassVar[bool] = True

    pool: str
    before: Geometry | None = field()  # precondition: the present geometry
    after: Geometry | None = field()
    scope: str = field()  # instance | gpu | node: where nothing may run meanwhile
    node: str = field()
    index: int = field()  # of the GPU on its node
    kind: Literal["recut"] = field(default=KIND, init=False)

    def deadline_s(self, policy: Policy) -> float:
        """A change takes its time."""
        return policy.regeometry.deadline_s

    def recorded(
        self, recuts: Mapping[str, RecutRecord], uid: str, now_s: float, deadline_s: float
    ) -> Mapping[str, RecutRecord]:
        """With this change."""
        record = RecutRecord(self.pool, self.before, self.after, now_s, deadline_s, scope=self.scope)
        return begun(recuts, uid, record)

    def whose(self, subject: Subject) -> str:
        """The GPU with its present geometry."""
        return f"GPU {subject.uid} of pool {self.pool}, now {_words(self.before)}"

    def shown(self, row: int, snapshot: ClusterSnapshot) -> str:
        """The geometry before and after."""
        return f"{shown_cut(self.before)}>{shown_cut(self.after)}"

    def seen(self, subject: Subject, world: World) -> bool:
        """The GPU has the new geometry, and no change is under way."""
        return shows_geometry(world.snapshot, subject.uid, self.after, self.scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecutDraft(VerbDraft):
    """A change, and the waiting work served by it."""

    verb: RecutGpu
    serves: tuple[tuple[int, float], ...] = ()  # row, and the part of a GPU of each of its instances

    def cutting(self, snapshot: ClusterSnapshot) -> Cutting:
        """The GPU."""
        cut = PlannedCut(str(snapshot.gpus.uuid[self.row]), self.verb.before, self.verb.after)
        return Cutting(self.verb.pool, self.verb.scope, (self.row,), (cut,))

    def stand(self, ctx: Context, proposal: Proposal, *, accepted: bool) -> tuple[Victim, ...]:
        """The GPU takes no work until it is cut. A mere recommendation leaves it to others."""
        if accepted:
            ctx.whatif.set_aside(np.array([self.row], np.int32))
            ctx.plan.recut(self.verb.pool)
            if self.verb.scope == "node":  # its engine stops the others too
                ctx.whatif.set_aside(node_rows(ctx, self.row))
        return ()

    def gains(self, outlook: Outlook) -> tuple[list[Gain], str]:
        """The use of the work served by it."""
        return outlook.of_instances(self.serves)


def recut_of(
    ctx: Context, row: int, pool: str, scope: str, *, before: Geometry | None, after: Geometry | None
) -> RecutGpu:
    """The change of the GPU of `row`."""
    snapshot = ctx.observation.snapshot
    node, index = str(snapshot.nodes.id[snapshot.gpus.node[row]]), int(snapshot.gpus.index[row])
    return RecutGpu(pool=pool, before=before, after=after, scope=scope, node=node, index=index)


def _words(geometry: Geometry | None) -> str:
    """Instances with their first slices: `3g.40gb@0 1g.10gb@4`."""
    if geometry is None:
        return "not in MIG mode"
    return " ".join(f"{profile}@{start}" for profile, start in geometry) or "without instances"
