"""Ask the autoscaler of the cluster for the nodes of a waiting gang. It is done once the gang has started."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.model.objects import Subject
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import ClusterSnapshot, State
from autopilot.core.model.units import counted
from autopilot.core.model.verb import Deed, World

KIND: Final = "provision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision(Deed):
    """Ask for nodes for a gang. It has no place yet, and waits on."""

    asks_nodes: ClassVar[bool] = True
    leaves_alone: ClassVar[bool] = True
    planned_anew: ClassVar[bool] = True

    pool: str
    nodes: int  # that it needs beside those that there are
    provisioning_class: str  # of the request
    kind: Literal["provision"] = field(default=KIND, init=False)

    @property
    def size(self) -> float:
        """Its nodes."""
        return float(self.nodes)

    @property
    def asked_nodes(self) -> tuple[str, int]:
        """Its pool and its nodes."""
        return self.pool, self.nodes

    def deadline_s(self, policy: Policy) -> float:
        """Nodes take their time to come."""
        return policy.capacity.deadline_s

    def shown(self, row: int, snapshot: ClusterSnapshot) -> str:
        """The number of nodes and their pool."""
        return f"||+{self.nodes} {self.pool}"

    def seen(self, subject: Subject, world: World) -> bool:
        """The gang has started, or is gone."""
        row, work = world.rows.get(subject.uid), world.snapshot.workloads
        return row is None or int(work.state[row]) != State.PENDING or int(work.incarnation[row]) != subject.revision

    def told(self, place: str) -> str:
        """The request and its object."""
        return f"ask the autoscaler for {counted(self.nodes, 'node')} of pool {self.pool}"
