"""The terms of sharing a GPU by software: consent, count, a clean end, memory and rates.

One function answers for the search of a seat, for the guard and for the choice of nodes to turn. Unknown values bar a
share, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from autopilot.core.model.codes import Code
from autopilot.core.model.colocation import MECHANISMS
from autopilot.core.model.kinds import kind_of
from autopilot.core.model.objects import Share, Sharing, Trust
from autopilot.core.model.snapshot import Bools, ClusterSnapshot, SloClass, State, Topology
from autopilot.core.model.work import whole_gpus
from autopilot.core.planning.context import Context
from autopilot.core.planning.pairs import APART_RATIO, kept_apart, pair_key
from autopilot.core.sharing.colocation import (
    ADMIT_LOAD,
    ADMIT_RATE,
    MEMORY_RATIO,
    Abstention,
    Part,
    Prediction,
    Sharer,
    predicted_rates,
    profile_of,
)
from autopilot.core.sharing.follow import WIDEST_GPUS

MOST = {Share.DEV: 4, Share.PAIR: 2}
"""Workloads of each class on one GPU (study of sharing, section 7). Development work may be beside batch work."""

ALONE = Prediction((1.0,), 0.0, float("nan"))
"""Of work that has a time-sliced GPU to itself, whatever memory it needs."""


@dataclass(frozen=True, slots=True)
class Way:
    """How software shares the GPUs of a node. `memory_mib`: of one GPU, NaN unknown."""

    sharing: Sharing
    replicas: int
    gpu_model: str
    memory_mib: float

    @property
    def part(self) -> Part:
        """What a client has at most: under the device plugin's MPS an equal part of threads and memory."""
        part = 1.0 / self.replicas if self.sharing is Sharing.MPS else 1.0
        return Part(part, part)


@dataclass(frozen=True, slots=True)
class Barred:
    """Why work may not share: the number that failed, and words about the work."""

    code: Code
    value: float
    unit: str
    threshold: float
    why: str
    at_least: bool = False


@dataclass(slots=True)
class Terms:
    """The terms of one tick. Answers are kept: work of one kind is alike."""

    ctx: Context
    may: Bools  # [workloads]: it may share with some other work
    _kinds: dict[int, str] = field(default_factory=dict)
    _could: dict[tuple[str, Way], bool] = field(default_factory=dict)
    _rates: dict[tuple[Way, tuple[str, ...]], Prediction | Abstention] = field(default_factory=dict)

    def kind(self, row: int) -> str:
        """The kind of the work of a row."""
        if row not in self._kinds:
            self._kinds[row] = kind_of(self.ctx.observation.snapshot, row)
        return self._kinds[row]

    def together(self, rows: Sequence[int], way: Way) -> Prediction | Barred:
        """The predicted rates of the work of these rows on one GPU, or why it may not share.

        Work alone on a time-sliced GPU runs as on a whole one, whatever is known of it.
        """
        if len(rows) == 1 and way.sharing is Sharing.TIME_SLICING and self.may[rows[0]]:
            return ALONE
        barred = self._consent(rows, way) if len(rows) > 1 else None
        if barred is not None:
            return barred
        found = self.rates(rows, way)
        if isinstance(found, Abstention):
            return Barred(Code.SHARE_UNKNOWN, 1.0, "workloads that cannot be predicted", 0.0, found.words)
        if not found.fits:
            why = "the peaks of their memory do not fit"
            return Barred(
                Code.SHARE_MEMORY, found.memory_ratio, "of the GPU's memory at their peaks", MEMORY_RATIO, why
            )
        if len(rows) > 1 and found.load_ratio > ADMIT_LOAD:
            return Barred(
                Code.SHARE_LOAD, found.load_ratio, "GPUs of use in sum", ADMIT_LOAD, "they use too much of it"
            )
        rate = min(found.rates)
        if rate < ADMIT_RATE:
            why = "one of them would run too slowly"
            return Barred(Code.SHARE_RATE, rate, "of the rate alone, the slowest", ADMIT_RATE, why, at_least=True)
        return self._remembered(rows, way, found) or found

    def _remembered(self, rows: Sequence[int], way: Way, found: Prediction) -> Barred | None:
        """The worst pair of them that confirmations keep apart."""
        memory = self.ctx.memory.neighbours
        if not memory.pairs:
            return None
        worst = None
        for (at, victim), (_, neighbour) in permutations(enumerate(rows), 2):
            key = pair_key(self.kind(victim), self.kind(neighbour), MECHANISMS[way.sharing], way.gpu_model)
            harm = kept_apart(memory, key, found.rates[at], self.ctx.now_s)
            if harm is not None and (worst is None or harm > worst.value):
                count, name = memory.pairs[key].confirmed, self.ctx.observation.snapshot.workloads.id
                why = f"{name[neighbour]} is like work that slowed work like {name[victim]} there {count} times"
                worst = Barred(Code.SHARE_PAIR, harm, "probability of harm", APART_RATIO, why)
        return worst

    def rates(self, rows: Sequence[int], way: Way) -> Prediction | Abstention:
        """The predicted rates of the work of these rows on one GPU, in their order."""
        kinds = tuple(self.kind(row) for row in rows)
        if (way, kinds) not in self._rates:
            ctx = self.ctx
            known = ctx.memory.profiles
            sharers = [Sharer(each, profile_of(known, way.gpu_model, each, ctx.now_s), way.part) for each in kinds]
            mechanism = MECHANISMS[way.sharing]
            self._rates[way, kinds] = predicted_rates(
                sharers, mechanism, way.gpu_model, way.memory_mib, ctx.observation.forecasts.colocation
            )
        return self._rates[way, kinds]

    def could_share(self, row: int, way: Way) -> bool:
        """Whether some other work that is here could be beside this on a GPU."""
        kind = self.kind(row), way
        if isinstance(self.rates((row,), way), Abstention):
            return way.sharing is Sharing.TIME_SLICING  # what it does alone there is learned
        if kind not in self._could:
            ctx = self.ctx
            present = np.flatnonzero(self.may & (ctx.observation.snapshot.workloads.state < State.SUCCEEDED)).tolist()
            others = {self.kind(each): each for each in present if each != row}
            found = (self.together((row, each), way) for each in others.values())
            self._could[kind] = any(isinstance(each, Prediction) for each in found)
        return self._could[kind]

    def _consent(self, rows: Sequence[int], way: Way) -> Barred | None:
        """The first declaration that bars these workloads from one GPU."""
        work = self.ctx.observation.snapshot.workloads
        against = [row for row in rows if not self.may[row]]
        if against:
            why = f"{work.id[against[0]]} does not allow it"
            return Barred(Code.SHARE_CONSENT, float(len(against)), "workloads without consent", 0.0, why)
        of_class = Counter(Share(int(work.share[row])) for row in rows)
        counts = [(count, MOST[each], f"{each.name.lower()} workloads on one GPU") for each, count in of_class.items()]
        for count, most, unit in (*counts, (len(rows), way.replicas, "workloads on one GPU")):
            if count > most:
                return Barred(Code.SHARE_COUNT, float(count), unit, float(most), "there is too much work on it")
        tenants = {int(work.tenant[row]) for row in rows}
        if len(tenants) > 1 and min(int(work.trust[row]) for row in rows) < Trust.ACROSS:
            why = "they are of tenants that do not both allow it"
            return Barred(Code.SHARE_CONSENT, float(len(tenants)), "tenants", 1.0, why)
        ended = [row for row in rows if not work.checkpoint_on_request[row]]
        if way.sharing is Sharing.MPS and ended:
            why = f"{work.id[ended[0]]} is ended by a signal, which may end all clients of the MPS server"
            return Barred(Code.SHARE_END, float(len(ended)), "workloads without a clean end", 0.0, why)
        return None


def terms_of(ctx: Context) -> Terms:
    """The terms of the tick."""
    return ctx.once(Terms, lambda: Terms(ctx, may_share(ctx.observation.snapshot)))


def may_share(snapshot: ClusterSnapshot) -> Bools:
    """Work that may share a GPU by software: it says so, is trusted by its own tenant, and is narrow. [workloads]."""
    return np.asarray(~np.logical_or.reduce([mask for _, mask in barring(snapshot)]))


def barring(snapshot: ClusterSnapshot) -> tuple[tuple[str, Bools], ...]:
    """What keeps work from sharing with any other, in words about it, each with a mask [workloads].

    Only work that requests whole GPUs, all of them in one pod, shares: latency-critical work and replicas of services,
    gangs of several members or with an island, and elastic ones do not.
    """
    work = snapshot.workloads
    return (
        ("it requests no whole GPUs", ~whole_gpus(work)),
        ("it is a replica of a service", work.service >= 0),
        ("it is latency-critical", work.slo_class == SloClass.LATENCY_CRITICAL),
        (f"it requests more than {WIDEST_GPUS} GPUs", work.gpus > WIDEST_GPUS),
        ("its GPUs are in several pods", work.gpus_per_member < work.gpus),
        ("it is elastic", work.min_gpus != work.gpus),
        ("it needs an island", work.topology == Topology.ISLAND),
        ("its share is never", work.share == Share.NEVER),
        ("it is untrusted", work.trust == Trust.UNTRUSTED),
    )


def way_of(ctx: Context, node: int) -> Way | None:
    """How the GPUs of a node (row) are shared; None where no mechanism is proven."""
    nodes = ctx.observation.snapshot.nodes
    sharing = Sharing(int(nodes.sharing[node]))
    return way_on(ctx, node, sharing, int(nodes.replicas[node])) if sharing in MECHANISMS else None


def way_on(ctx: Context, node: int, sharing: Sharing, replicas: int) -> Way:
    """A way to share the GPUs of a node."""
    code = int(ctx.observation.snapshot.nodes.gpu_model[node])
    models = ctx.observation.snapshot.names.gpu_models
    known = 0 <= code < len(models)
    memory_mib = float(ctx.gpu_memory_mib[code]) if known else float("nan")
    return Way(sharing, replicas, models[code] if known else "", memory_mib)
