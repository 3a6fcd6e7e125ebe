"""Work on GPUs shared by software: its pace, its faults, and the change of a node from one way of sharing to another.

Rates are those of simulator/world/interference. What fails for lack of memory: under MPS a client over its part,
under time slicing one of those on the GPU, mostly the newcomer. A fatal fault of a client of an MPS server takes all
clients on its GPUs, and so may, with `SERVER_DIES`, one that is ended by a signal while it works (NVIDIA: the server
is left "in an undefined state"). A program that saves its progress and exits ends cleanly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from autopilot.core.model.objects import Sharing
from autopilot.core.model.snapshot import State
from simulator.world.facts import Paced, Stopped, Turned, Why
from simulator.world.gains import END, Gaining
from simulator.world.hardware import Held, Refusal
from simulator.world.interference.rates import Sharer, active_parts, draw, rates_of
from simulator.world.physics import TICKS_PER_S, up_to_grid

TURN = 7
"""Kind of the event that a node has changed its way of sharing, for the engine; its subject is a node."""
TURNS_S = (10.0, 30.0)
"""Time of the restart of the device plugin, drawn uniformly [assumed]."""
SERVER_DIES = 0.5
"""Chance that an MPS server dies with a working client that is ended by a signal [assumed]."""
NEWCOMER_FAILS = 0.7
"""Chance that it is the newcomer who lacks memory on a time-sliced GPU [assumed]."""
COMPUTES = 0.8
"""Part of a step in which a rank computes, of work without a pipeline [assumed]."""
_CLEAN = (Why.END, Why.CUT, Why.RESIZE)
_FAULTS = (Why.FAULT, Why.FAIL)


class Loads(Protocol):
    """What work does and holds on its GPUs when it is alone."""

    def sharer(self, job: int) -> Sharer:
        """Its activity while it works."""
        ...

    def footprint_mib(self, job: int, gpu_model: str) -> float:
        """The most memory that it holds on each of its GPUs."""
        ...

    def memory_mib(self, gpu_model: str) -> float:
        """The usable memory of a GPU."""
        ...

    @property
    def slow(self) -> Mapping[int, float]:
        """GPUs that compute slowly: busy times there over those on others."""
        ...


class Unknown:
    """Loads of a cluster without behaviours: half active, without memory."""

    def sharer(self, job: int) -> Sharer:
        """The same for all."""
        return Sharer(f"job-{job}", 0.5, 0.7)

    def footprint_mib(self, _job: int, _gpu_model: str) -> float:
        """Nothing."""
        return 0.0

    def memory_mib(self, _gpu_model: str) -> float:
        """No limit."""
        return inf

    @property
    def slow(self) -> Mapping[int, float]:
        """None."""
        return {}


@dataclass(slots=True)
class _Pace:
    fact: Paced
    since_s: float
    gained_s: float  # progress of the incarnation up to then

    def at(self, time_s: float) -> float:
        """Progress of the incarnation up to a time."""
        return self.gained_s + max(time_s - self.since_s, 0.0) * self.fact.rate


class Sharings:
    """The shared nodes of one cluster and the work on them."""

    def __init__(self, cluster: Gaining) -> None:
        """As the inventory states it; nobody is away."""
        self._cluster = cluster
        nodes, names = cluster.hardware.inventory.nodes, cluster.hardware.inventory.names
        self.kind: list[Sharing] = [Sharing(code) for code in nodes.sharing.tolist()]
        self._offers = [
            [(each.sharing, each.replicas) for at, each in enumerate(names.sharing_configs) if offers >> at & 1]
            for offers in nodes.sharing_offers.tolist()
        ]
        self.loads: Loads = Unknown()
        self.away: set[int] = set()
        self._paces: dict[int, _Pace] = {}
        self._turns: dict[int, tuple[int, Sharing, int, str]] = {}
        self._count = 0
        self._contained = False  # the failures under way take no neighbours

    # --- nodes ----------------------------------------------------------------------------

    def replicas(self) -> list[int]:
        """Shares of each GPU, by node; 1: whole."""
        shares = self._cluster.hardware.split.shares
        return [shares.get(node, 1) for node in range(len(self.kind))]

    def turning(self, node: int) -> bool:
        """Whether a node is being turned."""
        return node in self._turns

    def begin(self, node: int, sharing: Sharing, replicas: int, now_s: float, effect: str) -> Refusal | None:
        """Begin to turn a node without work; nothing starts on it until `end`."""
        hardware = self._cluster.hardware
        gpus = range(hardware.first_gpu[node], hardware.first_gpu[node] + hardware.node_gpus[node])
        if (sharing, replicas) not in self._offers[node]:
            return Refusal.NO_OFFER
        if node in self._turns:
            return Refusal.OTHER_SHARING
        if any(hardware.mig[gpu] or gpu in hardware.stopped for gpu in gpus):
            return Refusal.GPU_CUT
        if hardware.node_holders(node):
            return Refusal.NOT_IDLE
        self._count += 1
        self._turns[node] = (self._count, sharing, replicas, effect)
        hardware.closed |= set(gpus)
        self._cluster.publish(Turned(now_s, node, True, sharing, replicas, effect))
        low, high = TURNS_S
        took_s = low + (high - low) * draw(f"turn/{hardware.inventory.nodes.id[node]}/{now_s}")
        self._cluster.schedule(up_to_grid(now_s + took_s), TURN, node, self._count)
        return None

    def end(self, node: int, now_s: float, number: int) -> bool:
        """The change of a node is done; False if it was already."""
        turn = self._turns.get(node)
        if turn is None or turn[0] != number:
            return False
        _, sharing, replicas, effect = self._turns.pop(node)
        hardware = self._cluster.hardware
        hardware.closed -= set(range(hardware.first_gpu[node], hardware.first_gpu[node] + hardware.node_gpus[node]))
        hardware.split.set(node, replicas)
        self.kind[node] = sharing
        self._cluster.publish(Turned(now_s, node, False, sharing, replicas, effect))
        return True

    # --- pace -----------------------------------------------------------------------------

    def gained_s(self, job: int, halt_s: float) -> float | None:
        """Progress of the present incarnation of a job up to a time; None without a pace."""
        pace = self._paces.get(job)
        return None if pace is None else pace.at(halt_s)

    def goes_on(self, job: int, left_s: float, now_s: float) -> bool:
        """True if a job on shared GPUs has not made this much progress yet: its end comes later."""
        pace = self._paces.get(job)
        return pace is not None and pace.at(now_s) < left_s - 2 / TICKS_PER_S

    def joined(self, job: int, held: Held, now_s: float) -> None:
        """Work took its GPUs."""
        if self._cluster.hardware.split.concerns(held.gpus):
            self._pace(held.gpus, now_s)
            if self._cluster.state[job] == State.RUNNING:
                self.loaded(job, now_s)
        elif any(gpu in self.loads.slow for gpu in held.gpus):
            self._hold_up(job, held, now_s)

    def _hold_up(self, job: int, held: Held, now_s: float) -> None:
        """Work with a slow GPU: all its members wait for the one there."""
        cluster, longest = self._cluster, max(self.loads.slow.get(gpu, 1.0) for gpu in held.gpus)
        rate, begin_s = 1.0 / (1.0 + COMPUTES * (longest - 1.0)), max(now_s, cluster.ready_s[job])
        fact = Paced(now_s, job, rate, self.loads.sharer(job).level * rate * len(held.gpus), float(len(held.gpus)))
        self._paces[job] = _Pace(fact, begin_s, 0.0)
        cluster.publish(fact)
        left_s = cluster.jobs.duration_s[job] - cluster.served_s[job]
        if left_s < inf:
            cluster.schedule(up_to_grid(begin_s + max(left_s, 0.0) / rate), END, job, cluster.incarnation[job])

    def loaded(self, job: int, now_s: float) -> None:
        """Its start-up is over: it needs its memory, and works."""
        held = self._cluster.held[job]
        if held is None or job not in self._paces or not self._cluster.hardware.split.concerns(held.gpus):
            return
        for gpu in held.gpus:
            for loser in self._short_of_memory(gpu, job):
                self._contained = True
                self._cluster.fail(loser, now_s)
                self._contained = False
        if self._cluster.held[job] is held:
            self._pace(held.gpus, now_s)

    def halted(self, job: int, now_s: float) -> None:
        """It holds its GPUs and works no more."""
        held = self._cluster.held[job]
        if held is not None and job in self._paces and self._cluster.hardware.split.concerns(held.gpus):
            self._pace(held.gpus, now_s)

    def left(self, fact: Stopped, held: Held, clean: bool) -> None:
        """Work left its GPUs: those beside it go on, or fail with it."""
        if self._paces.pop(fact.job, None) is None:
            return
        beside = self._beside(held.gpus)
        if clean or self._contained:
            self._pace(held.gpus, fact.at_s)
            return
        self._contained = True
        for job in beside:
            self._cluster.fail(job, fact.at_s)
        self._contained = False

    def on_owner(self, job: int, now_s: float, away: bool) -> None:
        """The owner of a job left or came back."""
        (self.away.add if away else self.away.discard)(job)
        self.halted(job, now_s)

    def _pace(self, gpus: Iterable[int], now_s: float) -> None:
        """Set the pace of all work on these GPUs anew."""
        cluster, on = self._cluster, self._cluster.hardware.split.on
        found: dict[int, dict[int, tuple[float, float]]] = {}
        for job in self._beside(gpus):
            held = cluster.held[job]
            if held is None:
                continue
            for gpu in held.gpus:
                if gpu not in found:
                    found[gpu] = self._rates(gpu)
            halted = job in cluster.leaving or job in cluster.stale or job in cluster.paused
            rate = 0.0 if halted else min(found[gpu][job][0] for gpu in held.gpus)
            active = sum(found[gpu][job][1] for gpu in held.gpus)
            part = sum(1.0 / len(on[gpu]) for gpu in held.gpus)
            fact = Paced(now_s, job, rate, active, part)
            was = self._paces.get(job)
            if was is not None and was.fact[2:] == fact[2:]:
                continue
            begin_s = max(now_s, cluster.ready_s[job])
            self._paces[job] = _Pace(fact, begin_s, was.at(begin_s) if was is not None else 0.0)
            cluster.publish(fact)
            left_s = cluster.jobs.duration_s[job] - cluster.served_s[job] - self._paces[job].gained_s
            if rate > 0 and left_s < inf:
                end_s = up_to_grid(begin_s + max(left_s, 0.0) / rate)
                cluster.schedule(end_s, END, job, cluster.incarnation[job])

    def _rates(self, gpu: int) -> dict[int, tuple[float, float]]:
        """(rate, SM activity due to it) of each job on a GPU."""
        hardware = self._cluster.hardware
        node, jobs = hardware.node_of[gpu], hardware.split.on[gpu]
        sharers = [self._present(job) for job in jobs]
        sharing = self.kind[node]
        rates = rates_of(sharers, sharing, hardware.split.shares[node], self._model(gpu))
        return dict(zip(jobs, zip(rates, active_parts(sharers, rates, sharing), strict=True), strict=True))

    def _present(self, job: int) -> Sharer:
        """What a job does now."""
        cluster, alone = self._cluster, self.loads.sharer(job)
        works = cluster.state[job] == State.RUNNING and job not in cluster.stale and job not in cluster.leaving
        works = works and job not in cluster.paused
        return alone if works and job not in self.away else Sharer(alone.program, 0.0, 0.0)

    def _beside(self, gpus: Iterable[int]) -> list[int]:
        """All jobs on these GPUs."""
        on = self._cluster.hardware.split.on
        return sorted({job for gpu in gpus for job in on.get(gpu, ())})

    # --- faults ---------------------------------------------------------------------------

    def is_client(self, job: int) -> bool:
        """True for work on a GPU of an MPS server."""
        held = self._cluster.held[job]
        if held is None or job not in self._paces:
            return False
        return self.kind[self._cluster.hardware.node_of[held.gpus[0]]] is Sharing.MPS

    def ends_cleanly(self, job: int, why: Why, now_s: float) -> bool:
        """True if its end takes no work beside it along."""
        if why in _CLEAN or not self.is_client(job):
            return True
        if why in _FAULTS:
            return False
        cluster, leaving = self._cluster, self._cluster.leaving.get(job)
        idle = job in self.away or cluster.state[job] == State.STARTING
        saved = leaving is not None and cluster.checkpoints.keeps(job, leaving.write)
        return idle or saved or draw(f"mps/{cluster.jobs.id[job]}/{now_s}") >= SERVER_DIES

    def struck(self, gpu: int, now_s: float) -> list[int]:
        """The work hit by an error of its GPU that does not break it: one job where contexts are apart."""
        hardware = self._cluster.hardware
        jobs = hardware.holders(gpu)
        if len(jobs) > 1 and self.kind[hardware.node_of[gpu]] is Sharing.TIME_SLICING:
            return [jobs[int(draw(f"struck/{gpu}/{now_s}") * len(jobs))]]
        return jobs

    def _short_of_memory(self, gpu: int, newcomer: int) -> list[int]:
        """The work that fails for lack of memory when a newcomer has loaded."""
        hardware, model = self._cluster.hardware, self._model(gpu)
        room = self.loads.memory_mib(model)
        if newcomer not in hardware.split.on[gpu]:
            return []
        if self.kind[hardware.node_of[gpu]] is Sharing.MPS:
            most = room / hardware.split.shares[hardware.node_of[gpu]]
            return [newcomer] if self.loads.footprint_mib(newcomer, model) > most else []
        there = [job for job in hardware.split.on[gpu] if self._cluster.state[job] != State.STARTING]
        losers: list[int] = []
        while there and sum(self.loads.footprint_mib(job, model) for job in there) > room:
            others = [job for job in there if job != newcomer]
            chance = draw(f"memory/{gpu}/{self._cluster.jobs.id[newcomer]}/{len(there)}")
            rest = (chance - NEWCOMER_FAILS) / (1.0 - NEWCOMER_FAILS)
            takes = newcomer in there and (chance < NEWCOMER_FAILS or not others)
            losers.append(newcomer if takes else others[min(int(max(rest, 0.0) * len(others)), len(others) - 1)])
            there.remove(losers[-1])
        return losers

    def _model(self, gpu: int) -> str:
        hardware = self._cluster.hardware
        return hardware.inventory.names.gpu_models[hardware.model_of[hardware.node_of[gpu]]]
