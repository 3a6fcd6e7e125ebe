"""The work of the cluster as tables: gangs, their placements, services and queues. Only changes are read again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autopilot.contract.notes import failure_text
from autopilot.core.model.records import Gap, Work
from autopilot.core.model.snapshot import PlacementTable, State, WorkloadTable
from collectors.kubernetes import kinds
from collectors.kubernetes.cache import Changes
from collectors.kubernetes.claims import Claims
from collectors.kubernetes.fronts import Fronts
from collectors.kubernetes.gang_life import End, end_of, incarnation_of
from collectors.kubernetes.gang_rows import Cluster, GangRow, row_of
from collectors.kubernetes.gangs import Gang, PodFacts, alias_of, aliases_of, pod_facts, uid_of, workload_key
from collectors.kubernetes.held_rows import held_values
from collectors.kubernetes.inventory import Nodes
from collectors.kubernetes.job_wire import Job
from collectors.kubernetes.pace import with_beat
from collectors.kubernetes.placed import Holdings
from collectors.kubernetes.queue_tree import QueueTree
from collectors.kubernetes.rank_times import RankTime, rank_table
from collectors.kubernetes.rows import RowTable, member_table
from collectors.kubernetes.service_work import Services
from collectors.kubernetes.sharing import apart, why_alone
from collectors.kubernetes.unread import Unread
from collectors.kubernetes.unreadable import Alone, Unreadable
from collectors.kubernetes.wire import Pod
from collectors.kueue import state as kueue
from collectors.kueue.wire import Workload

SHOWN_ENDED_S = 60.0
"""Ended work is shown for this long, so that its run time is learned."""

MOST_UNUSED = 256
"""Selectors of past work, beside as many of the present work, before they are forgotten."""


@dataclass(slots=True)
class Gangs:
    """Every gang of the cluster, with the row of each gang requesting GPUs."""

    source: str
    nodes: Nodes
    cluster: Cluster
    gangs: dict[str, Gang] = field(default_factory=dict)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    tenants: dict[str, int] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    dirty: set[str] = field(default_factory=set)
    claims: Claims = field(default_factory=Claims)
    served: Services = field(init=False)
    fronts: Fronts = field(default_factory=Fronts)
    held: Holdings = field(init=False)
    unreadable: Unreadable = field(default_factory=Unreadable)
    alone_now: Alone = field(default_factory=Alone)
    queue_left: Callable[[Gang], str] = lambda _: ""  # reason against new decisions on the queue of a gang
    version: int = 0
    _alone_version: int = 0
    _most_selectors: int = 0  # see `forget_constraints`
    _aliases: dict[tuple[str, str], str] = field(default_factory=dict)  # Workload -> key of its gang
    _named: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    _recalled: dict[str, tuple[int, bool]] = field(default_factory=dict)  # see `recall`
    _members: dict[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    _problems: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    _approved: dict[str, str] = field(default_factory=dict)
    _again: dict[str, float] = field(default_factory=dict)  # times of changes of rows by time alone
    _ended: dict[str, float] = field(default_factory=dict)  # key -> time of its hiding
    _ids: dict[str, str] = field(default_factory=dict)
    _rows: Any = None
    _built: tuple[Any, Work] | None = None
    _placed: tuple[Any, PlacementTable] | None = None

    def __post_init__(self) -> None:
        """Connect the inputs of rows."""
        self._rows = RowTable(WorkloadTable, {"cpu_milli": 0, "memory_mib": 0})
        self.cluster.claimed = self.claims.of_template
        self.cluster.on_demand = lambda profile: profile in self.claims.nodes.on_demand
        self.cluster.placed = lambda profile: profile in self.claims.nodes.placed
        self.served = Services(self.unreadable, self.claims, self.cluster.opt_outs)
        self.cluster.left = self._left
        self.held = Holdings(self.nodes, self.pods)
        self.cluster.shared = lambda gang: why_alone(gang.pods.values(), self.nodes.barred, self.held.lent)
        self.cluster.apart = lambda gang: apart(gang.pods.values(), self.held.lent)
        self.cluster.tenant = self._tenant
        self.cluster.service = lambda namespace, name: self.served.rows.get((namespace, name), -1)
        self.cluster.budget = self.served.budgeted
        self.cluster.share = self.nodes.share
        self.cluster.as_profile = lambda node: (
            slots.facts.instances_as_gpus if (slots := self.nodes.slots.get(node)) else ""
        )

    # --- changes --------------------------------------------------------------------------

    def update_pods(self, changes: Changes) -> None:
        """Take in pods that came, changed or went."""
        reported = set(changes.deleted)
        for found in changes.gone:
            self._drop_pod(found.metadata.uid, reported=found.metadata.uid in reported)
        for found in changes.there:
            if isinstance(found, Pod):
                with self.unreadable.net(kinds.PODS, found):
                    self._put_pod(pod_facts(found, self.claims.of_pod(found)))

    def read_claims(self) -> None:
        """Resource claims changed: look again at the pods, gangs and services with any."""
        self.unreadable.version += any(
            True for _ in self.unreadable.of(kinds.CLAIMS)
        )  # their pools may have other nodes
        for uid in sorted(uid for uid, each in self.pods.items() if each.pod.spec.resource_claims):
            claimed = self.claims.of_pod(self.pods[uid].pod)
            if claimed != self.pods[uid].claimed:
                with self.unreadable.net(kinds.PODS, self.pods[uid].pod):
                    self._put_pod(pod_facts(self.pods[uid].pod, claimed))
        self.dirty |= {key for key, gang in self.gangs.items() if _may_claim(gang)}
        self.served.read_claims()

    def recall(self, counts: Mapping[str, tuple[int, bool]]) -> None:
        """Number of stops of work seen by an earlier process, by uid; True if the work held GPUs then."""
        self._recalled = dict(counts)
        self.dirty |= {gang.key for gang in self.gangs.values() if uid_of(gang) in counts}

    def update_jobs(self, changes: Changes) -> None:
        """Jobs; a JobSet's are only read through their pods."""
        reported = set(changes.deleted)
        for found in changes.gone:
            gang = self.gangs.get(f"uid/{found.metadata.uid}")
            if gang is not None and gang.job is not None:
                gang.job = None
                self._touch(gang, reported=found.metadata.uid in reported)
        for found in changes.there:
            owner = found.metadata.owner
            if isinstance(found, Job) and not (owner is not None and owner.kind == "JobSet"):
                gang = self._gang(f"uid/{found.metadata.uid}", found.metadata.namespace, found.metadata.name)
                gang.job = found
                self.dirty.add(gang.key)

    def update_workloads(self, changes: Changes) -> None:
        """Workloads of Kueue."""
        reported = set(changes.deleted)
        for found in changes.gone:
            if isinstance(found, Workload):
                name = (found.metadata.namespace, found.metadata.name)
                gang = self.gangs.get(self._aliases.get(name, ""))
                if gang is not None and gang.workload is not None and gang.workload.metadata.uid == found.metadata.uid:
                    gang.workload = None
                    for alias in aliases_of(found.metadata):
                        self._aliases.pop(alias, None)
                    self._touch(gang, reported=found.metadata.uid in reported)
        for found in changes.there:
            if isinstance(found, Workload):
                with self.unreadable.net(kinds.WORKLOADS, found):
                    self._put_workload(found)

    def update_services(self, changes: Changes, listed: kinds.Kind) -> None:
        """Deployments or StatefulSets with GPUs."""
        self.deleted += self.served.update(changes, listed)

    def update_fronts(self, changes: Iterable[Changes]) -> None:
        """Services, routes and pools: mark the pods that receive requests from now on, or no longer."""
        spaces = self.fronts.update(changes)
        for found in self.pods.values() if spaces else ():
            meta = found.pod.metadata
            if meta.namespace in spaces and found.fronted != self.fronts.lead_to(meta.namespace, meta.labels):
                found.fronted = not found.fronted
                self.dirty.add(found.key)

    def update_budgets(self, changes: Changes) -> None:
        """PodDisruptionBudgets: the work of their namespaces is looked at again."""
        spaces = self.served.update_budgets(changes)
        self.dirty |= {each.key for each in self.gangs.values() if each.namespace in spaces} if spaces else set()

    def update_opt_outs(self, changes: Changes, now_s: float) -> None:
        """Take in namespaces, and the windows opened or closed since."""
        rules = self.cluster.opt_outs
        spaces, moved = rules.update(changes), rules.at(now_s)
        if spaces or moved:
            self.dirty |= {each.key for each in self.gangs.values() if moved or each.namespace in spaces}
            self.served.table = None

    def leave_alone(self) -> None:
        """Look again at everything left alone because of unreadable objects, and at everything left alone no longer."""
        if self._alone_version == self.unreadable.version:
            return
        before, self._alone_version = self.alone_now, self.unreadable.version
        now = self.alone_now = self.unreadable.alone(self._key_of, self.pods.__contains__, self.claims.nodes_in_doubt)
        self.nodes.leave_alone(now.nodes)
        self.served.table = None
        keys, spaces = before.changed(now)
        every = before.queues != now.queues
        self.dirty |= {key for key, each in self.gangs.items() if every or each.namespace in spaces}
        self.dirty |= keys

    def _key_of(self, kind: kinds.Kind, found: Unread) -> str:
        """The gang of an unreadable pod, Job or Workload, as far as that is known."""
        meta = found.metadata
        if kind is kinds.JOBS:
            return f"uid/{meta.uid}"
        if kind is kinds.WORKLOADS:
            return self._aliases.get((meta.namespace, meta.name)) or workload_key(meta)[0]
        known = self.pods.get(meta.uid)
        made = self._aliases.get(alias_of(meta))
        return known.key if known is not None else made or pod_facts(Pod(meta)).key

    def _left(self, gang: Gang) -> str:
        """Reason for leaving a gang alone because of an unreadable object; "" for none."""
        service = next((each.service for each in gang.pods.values() if each.service), "")
        return self.alone_now.why(gang.key, gang.namespace, service) or self.queue_left(gang)

    def forget_constraints(self) -> None:
        """Forget the selectors of work that is gone, once they outnumber those of the present work."""
        known = self.cluster.constraints
        if len(known.selectors) > max(self._most_selectors, MOST_UNUSED):
            live = len(set(self._rows.freeze().selector.tolist())) + sum(map(len, self._members.values()))
            self._most_selectors = 2 * live + MOST_UNUSED
            if len(known.selectors) > self._most_selectors:
                known.clear()
                self.touch_all()

    def touch_all(self) -> None:
        """A common input of all rows changed: models, queues, constraints."""
        self.cluster.stated.clear()
        self.dirty |= self.gangs.keys()

    # --- pods and gangs -------------------------------------------------------------------

    def _put_pod(self, found: PodFacts) -> None:
        uid = found.pod.metadata.uid
        found.fronted = self.fronts.lead_to(found.pod.metadata.namespace, found.pod.metadata.labels)
        name = alias_of(found.pod.metadata)
        key = found.key
        if name[1]:
            self._named[name].add(uid)
            key = self._aliases.get(name, key)
        before = self.pods.get(uid)
        if before is not None and before.key != key:
            self._leave(before)
        found.key = key
        found.beats = with_beat(before.beats if before is not None else (), found.noted.beat_s, found.noted.step)
        self.pods[uid] = found
        gang = self._gang(key, name[0], found.name)
        gang.pods[uid] = found
        self.dirty.add(key)
        self.dirty |= self.held.put(found)
        self.served.put_pod(found)

    def _drop_pod(self, uid: str, *, reported: bool) -> None:
        found = self.pods.pop(uid, None)
        if found is None:
            return
        self.dirty |= self.held.drop(uid)
        self.served.drop_pod(uid)
        name = alias_of(found.pod.metadata)
        if name[1]:
            self._named[name].discard(uid)
            if not self._named[name]:
                del self._named[name]
        gang = self.gangs.get(found.key)
        if gang is not None:
            gang.drop(uid)
            self._touch(gang, reported=reported)

    def _leave(self, before: PodFacts) -> None:
        gang = self.gangs.get(before.key)
        if gang is not None:
            gang.pods.pop(before.pod.metadata.uid, None)
            self._touch(gang, reported=True)

    def _put_workload(self, found: Workload) -> None:
        key, name = workload_key(found.metadata)
        new = [alias for alias in aliases_of(found.metadata) if self._aliases.get(alias) != key]
        moved = [uid for alias in new for uid in self._named.get(alias, ()) if self.pods[uid].key != key]
        for uid in moved:
            self._leave(self.pods[uid])  # and the gang of their owner gives its name back
        gang = self._gang(key, found.metadata.namespace, name)
        if gang.workload is None or not kueue.replaced(found, gang.workload):
            gang.workload = found
        self.dirty.add(key)
        self._aliases |= dict.fromkeys(new, key)
        for uid in moved:
            self._put_pod(self.pods[uid])

    def _gang(self, key: str, namespace: str, name: str) -> Gang:
        gang = self.gangs.get(key)
        if gang is None:
            shown, owner = f"{namespace}/{name}", self._ids.get(f"{namespace}/{name}")
            if owner is not None and owner != key:  # a Job and a pod of one name
                name = f"{name}~{key[-5:]}"
                shown = f"{namespace}/{name}"
            self._ids[shown] = key
            gang = self.gangs[key] = Gang(key, namespace, name)
        return gang

    def _touch(self, gang: Gang, *, reported: bool) -> None:
        """Something of a gang is gone; a gang of nothing is gone itself."""
        self.dirty.add(gang.key)
        if gang.pods or gang.job is not None or gang.workload is not None:
            return
        row = self._rows.row(gang.key)
        if reported and row >= 0:
            self.deleted.append(str(self._rows.freeze().uid[row]))
        del self.gangs[gang.key]
        self._ids.pop(f"{gang.namespace}/{gang.name}", None)

    def _tenant(self, namespace: str) -> int:
        return self.tenants.setdefault(namespace, len(self.tenants))

    # --- tables ---------------------------------------------------------------------------

    def tables(self, tree: QueueTree, now_s: float) -> Work:
        """The work as it is now; the same object as long as nothing changes."""
        self._forget_ended(now_s)
        self.dirty.update(self.cluster.heartbeats.grown_old(now_s))
        self.dirty.update(key for key, at_s in self._again.items() if at_s <= now_s)
        if self.served.table is None:
            if self.served.make(tree.rows, self.alone_now):  # rows of services moved
                self.dirty |= {each.key for each in self.pods.values() if each.service}
            self.leave_alone()
        for key in sorted(self.dirty):
            self._refresh(key, now_s)
        if self.dirty:
            self.version += 1
        self.dirty = set()
        built_from = (self.version, self.nodes.version, self.nodes.given, id(tree), id(self.served.table))
        if self._built is None or self._built[0] != built_from:
            assert self.served.table is not None  # noqa: S101 - made above
            work = Work(
                tuple(self.tenants),
                self._rows.freeze(),
                self._placements(),
                self.served.table,
                tree.table,
                member_table(self._members, self._rows.row),
                ranks=rank_table(self._told_ranks(), now_s),
            )
            self._built, self.served.work = (built_from, work), work
        return self._built[1]

    def place(self, uid: str) -> tuple[Gang, int] | None:
        """The gang with this uid, and its incarnation; None: unknown."""
        gang = self.gangs.get(f"uid/{uid}") or self.gangs.get(uid)
        if gang is None:
            gang = next((each for each in self.gangs.values() if uid_of(each) == uid), None)
        return (gang, incarnation_of(gang)) if gang is not None else None

    def alone(self, key: str) -> bool:
        """True if a gang is left alone by its row; a gang without a row is."""
        return bool(self._rows.value(key, "excluded", unknown=True))

    def approved(self) -> dict[str, str]:
        """The annotation that approves actions on it alone, by the uid of the work."""
        return {uid_of(self.gangs[key]): words for key, words in self._approved.items() if key in self.gangs}

    def gaps(self) -> Iterable[Gap]:
        """Reasons for gangs and services left alone."""
        yield from self.unreadable.gaps(self.source)
        yield from self.served.gaps(self.source)
        yield from self.cluster.opt_outs.gaps(self.source)
        for key, problems in self._problems.items():
            gang = self.gangs[key]
            for signal, reason in problems:
                yield Gap(self.source, f"{gang.namespace}/{gang.name}", signal, reason)

    def _refresh(self, key: str, now_s: float) -> None:
        gang = self.gangs.get(key)
        row: GangRow | None = None
        if gang is not None:
            holding = [each for each in gang.pods.values() if each.holds]
            end = end_of(gang)
            done = end.at_s is not None and not holding
            if (known := self._recalled.pop(uid_of(gang), None)) is not None:
                gang.incarnation, gang.held = max(gang.incarnation, known[0]), gang.held or known[1]
            if gang.held and not holding and not done:
                gang.incarnation += 1
            gang.held = bool(holding)
            if not done:
                gang.over_since_s = None
                self._ended.pop(key, None)
            elif gang.over_since_s is None:
                gang.over_since_s = now_s
                self._ended[key] = now_s + SHOWN_ENDED_S
            if (not done or key in self._ended) and not (self.held.lent.known and self.held.lent.only(gang.pods)):
                row = self._row(gang, holding, end, now_s)
            self._mark_stops(gang, row)
        _keep(self._members, key, row.members if row is not None else ())
        _keep(self._approved, key, row.approved if row is not None else "")
        _keep(self._again, key, row.again_s if row is not None else 0.0)
        _keep(self._problems, key, (*row.problems, *row.notes) if row is not None else ())
        if row is not None and row.values:
            self._rows.put(key, row.values)
        else:
            self._rows.drop(key)
            self.cluster.hints.prefer(key, ())

    def _row(self, gang: Gang, holding: list[PodFacts], end: End, now_s: float) -> GangRow | None:
        """The row of a gang. Work without a possible row is left out while it waits, and is kept while it runs."""
        try:
            return row_of(gang, self.cluster, holding, end, now_s)
        except Exception as error:  # noqa: BLE001 - whatever an object says, the others are read
            problem = ("unreadable", f"it cannot be read ({failure_text(error)}); it is left alone")
            values = held_values(gang, self.cluster, holding, self._rows.values(gang.key)) if holding else {}
            return GangRow(values, problems=(problem,))

    def _mark_stops(self, gang: Gang, row: GangRow | None) -> None:
        """Note that all pods of a gang are to go: their GPUs are leaving, also before they stop."""
        stops = row is not None and row.values.get("state") == State.CHECKPOINTING
        if stops != gang.stops:
            gang.stops, self._placed = stops, None

    def _forget_ended(self, now_s: float) -> None:
        for key in [key for key, until_s in self._ended.items() if not now_s < until_s]:
            del self._ended[key]
            self.dirty.add(key)

    def _placements(self) -> PlacementTable:
        """One row for each GPU, share or instance held by a pod; built again only after a change of these."""
        key = (self._rows.layout, self.nodes.version, self.nodes.given)
        if self._placed is None or self._placed[0] != key:
            stopping = {key for key, gang in self.gangs.items() if gang.stops}
            self._placed = (key, self.held.table(stopping, self._rows.row))
        return self._placed[1]

    def _told_ranks(self) -> Iterator[tuple[RankTime, float, list[str]]]:
        """Reports of pods on GPUs, with the UUIDs of these."""
        for uid, each in self.pods.items():
            told, slots = each.noted.rank, self.nodes.slots.get(each.pod.spec.node_name)
            if each.holds and slots is not None and told.busy_s == told.busy_s and each.noted.beat_s is not None:
                held = slots.held.get(uid) or ()
                yield told, each.noted.beat_s, [slots.gpus[at].uuid for at, part, _ in held if part < 0]


def _may_claim(gang: Gang) -> bool:
    """True if its future pods request devices by resource claims."""
    if gang.workload is not None:
        return any(each.template.spec.resource_claims for each in gang.workload.spec.pod_sets or ())
    return gang.job is not None and bool(gang.job.spec.template.spec.resource_claims)


def _keep(kept: dict[str, Any], key: str, value: Any) -> None:
    if value:
        kept[key] = value
    else:
        kept.pop(key, None)
