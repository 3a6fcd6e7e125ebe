"""A site: its nodes, settings, accounts, switches and reservations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.baselines.slurm.accounts import Accounts
from simulator.baselines.slurm.config import Config, Partition
from simulator.baselines.slurm.hostlist import expand
from simulator.baselines.slurm.model import Job, Node, node_set
from simulator.baselines.slurm.reservations import Reservation
from simulator.baselines.slurm.topology import Tree

UNLIMITED_S = 365 * 86_400.0
"""What Slurm takes for a job without a limit."""


@dataclass(slots=True)
class Site:
    """`up` is the bit set of nodes open to work; `clock_s` is the wall clock at time 0, in seconds of its minute."""

    nodes: tuple[Node, ...]
    config: Config = field(default_factory=Config)
    accounts: Accounts = field(default_factory=Accounts)
    tree: Tree | None = None
    reservations: Sequence[Reservation] = ()
    up: int = -1
    clock_s: int = 0
    _bits: dict[str, int] = field(default_factory=dict)

    def partition(self, name: str) -> Partition:
        """The partition of this name, with the defaults if the site does not know it."""
        return self.config.partitions.get(name, Partition(name))

    def partition_nodes(self, name: str) -> int:
        """Its nodes as a bit set; none while it is down."""
        if name not in self._bits:
            each = self.partition(name)
            every = (1 << len(self.nodes)) - 1
            self._bits[name] = 0 if not each.up else every if each.nodes.upper() == "ALL" else self.named(each.nodes)
        return self._bits[name]

    def named(self, hosts: str) -> int:
        """The nodes of a host list as a bit set; names outside this site are left out."""
        place = {node.name: k for k, node in enumerate(self.nodes)}
        return node_set(place[name] for name in expand(hosts) if name in place)

    def limit_s(self, job: Job) -> float:
        """The limit of a job: its own, else the partition's default, and never more than the partition's."""
        each = self.partition(job.partition)
        own = job.limit_s
        if own == float("inf") and each.default_time_s is not None:
            own = each.default_time_s
        return min(own, each.max_time_s, UNLIMITED_S)
