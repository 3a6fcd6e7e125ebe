"""Nodes, waiting and running jobs, to the scheduler. Nodes are numbers in order; sets of nodes are bit sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its name, CPUs, and the type of each of its GPUs by index ("" if untyped)."""

    name: str
    cpus: int
    gpu_types: tuple[str, ...] = ()

    def mask(self, gpu_type: str) -> int:
        """The GPUs of a type as a bit set; all with ""."""
        return sum(1 << k for k, each in enumerate(self.gpu_types) if not gpu_type or each == gpu_type)


@dataclass(frozen=True, slots=True)
class Job:
    """The request of a job. `gpus` and `cpus` are of each node. Jobs are ordered by (number, index).

    `key` is unique; `array` is the common key of all elements of an array, "" for other jobs, and `array_running` the
    most elements that may run together (0: no limit). `limit_s` is inf if unlimited. `depends` is in Slurm's words.
    """

    key: str
    number: int
    submit_s: float = 0.0
    index: int = 0
    name: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    partition: str = ""
    nodes: int = 1
    gpus: int = 0
    cpus: int = 1
    gpu_type: str = ""
    limit_s: float = inf
    exclusive: bool = False
    nice: int = 0
    begin_s: float = 0.0
    depends: str = ""
    reservation: str = ""
    switches: int = 0
    switch_wait_s: float = 0.0
    array: str = ""
    array_running: int = 0
    only: int = -1  # nodes that it may use, -1 for all

    @property
    def shape(self) -> tuple[int, int, int, str, bool]:
        """The fields deciding its fit on nodes."""
        return self.nodes, self.gpus, self.cpus, self.gpu_type, self.exclusive

    @property
    def order(self) -> tuple[int, int]:
        """Place among jobs of equal priority."""
        return self.number, self.index


@dataclass(slots=True)
class Running:
    """A job on its nodes; `masks` are its GPUs on each. `end_s` is the latest end: start and limit, or its grace."""

    job: Job
    start_s: int
    end_s: float
    nodes: tuple[int, ...]
    masks: tuple[int, ...]
    told_s: float | None = None  # since when it has to go, by preemption
    bits: int = 0  # its nodes as a bit set

    def __post_init__(self) -> None:
        """The set follows from the nodes."""
        self.bits = node_set(self.nodes)


def node_set(nodes: Iterable[int]) -> int:
    """Numbers of nodes as a bit set."""
    found = 0
    for node in nodes:
        found |= 1 << node
    return found


def members(bits: int) -> Iterator[int]:
    """The numbers in a bit set, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


@dataclass(slots=True)
class Books:
    """Free GPUs (bit sets by index) and free CPUs of each node."""

    nodes: tuple[Node, ...]
    free: list[int] = field(default_factory=list)
    cpus: list[int] = field(default_factory=list)
    _masks: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Everything is free."""
        if not self.free:
            self.free = [node.mask("") for node in self.nodes]
            self.cpus = [node.cpus for node in self.nodes]

    def copy(self) -> Books:
        """Books to try things on."""
        return Books(self.nodes, list(self.free), list(self.cpus), self._masks)

    def mask(self, node: int, gpu_type: str) -> int:
        """The GPUs of this type on this node, free or not."""
        key = (node, gpu_type)
        if key not in self._masks:
            self._masks[key] = self.nodes[node].mask(gpu_type)
        return self._masks[key]

    def fits(self, job: Job, node: int) -> bool:
        """True if one node's part of the job fits there now."""
        if job.exclusive:
            whole = self.mask(node, "")
            enough = self.mask(node, job.gpu_type).bit_count() >= job.gpus and self.nodes[node].cpus >= job.cpus
            return enough and self.cpus[node] == self.nodes[node].cpus and self.free[node] == whole
        if self.cpus[node] < job.cpus:
            return False
        return not job.gpus or (self.free[node] & self.mask(node, job.gpu_type)).bit_count() >= job.gpus

    def fitting(self, job: Job, allowed: int) -> list[int]:
        """The allowed nodes fitting one node's part of the job, ascending."""
        return [node for node in members(allowed) if self.fits(job, node)]

    def take(self, job: Job, nodes: Iterable[int]) -> tuple[int, ...]:
        """Give the job its part on each node, the free GPUs of lowest index; returns them."""
        masks = []
        for node in nodes:
            left = self.free[node] & (self.mask(node, "") if job.exclusive else self.mask(node, job.gpu_type))
            taken, count = 0, left.bit_count() if job.exclusive else job.gpus
            for _ in range(count):
                low = left & -left
                taken |= low
                left ^= low
            self.free[node] &= ~taken
            self.cpus[node] -= self.nodes[node].cpus if job.exclusive else job.cpus
            masks.append(taken)
        return tuple(masks)

    def pause(self, run: Running) -> None:
        """A suspended job keeps its GPUs and gives its CPUs back."""
        for node in run.nodes:
            self.cpus[node] += self.nodes[node].cpus if run.job.exclusive else run.job.cpus

    def give(self, run: Running) -> None:
        """Take back the resources of a job."""
        for node, mask in zip(run.nodes, run.masks, strict=True):
            self.free[node] |= mask
            self.cpus[node] += self.nodes[node].cpus if run.job.exclusive else run.job.cpus
