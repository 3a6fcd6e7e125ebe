"""The gang of each pod: one gang for each object admitted as a unit.

Owner references and the labels of the frameworks decide. A pod of a Deployment or StatefulSet is a gang of its own, a
replica of a service. The key of a gang is made of the uid of its owner, so it is the same before and after Kueue has
made a Workload for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from autopilot.contract import LAST_CHECKPOINT, PREFIX
from autopilot.contract.annotations import BUSY, CHECKPOINT_PORT, HEARTBEAT, PAUSED, PLACEMENT, STEP
from autopilot.contract.notes import shown
from autopilot.contract.words_to_stay import stays
from autopilot.core.model.objects import Pausing
from collectors.kubernetes.asks import UNCLAIMED, Ask, Claimed, ask_of
from collectors.kubernetes.job_wire import Job
from collectors.kubernetes.pace import Beats
from collectors.kubernetes.parts import NO_PARTS, Parts, parts_of
from collectors.kubernetes.rank_times import NO_RANK, RankTime, rank_time
from collectors.kubernetes.serving import GROUPED, LEADER_SETS, SET_NAME, answers, clique_set_of, serves
from collectors.kubernetes.wire import NOTHING, Meta, Pod, PodSpec, noted_s, seconds_of
from collectors.kueue.wire import Workload

KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
KUEUE_TOTAL = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_WORKLOAD = "kueue.x-k8s.io/workload"
SET_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
SET_SIZE = "leaderworkerset.sigs.k8s.io/size"
JOBSET_UID, JOBSET_NAME = "jobset.sigs.k8s.io/jobset-uid", "jobset.sigs.k8s.io/jobset-name"
"""Labels of the pods of a JobSet; before its version 0.9 the name alone."""
PODGANG = ("grove.io/podgang", "grove.io/podgang-name")
"""Label with the name of the PodGang of Grove, whose cliques start and stop together; the second before it had the
first.
"""
OTHER_GROUPS = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/group-name",
    "pod-group-name",
)
"""Labels or annotations with the name of a pod group: coscheduling (the second before 0.25, and of Koordinator),
Volcano, KAI.
"""
HASH = "pod-template-hash"
OVER = ("Succeeded", "Failed")
SAVED = PREFIX + LAST_CHECKPOINT
CLASS = PREFIX + "slo-class"


class Noted(NamedTuple):
    """Reports of a pod by annotation, times in seconds since 1970; None: not reported."""

    saved_s: float | None = None  # it completed its newest checkpoint
    beat_s: float | None = None  # it last made progress
    step: float | None = None  # number of its step then; None also while it pauses
    pausing: int = Pausing.NONE
    rank: RankTime = NO_RANK
    unread: tuple[tuple[str, str], ...] = ()  # annotations with an unreadable time, as notes


SILENT = Noted()


@dataclass(slots=True)
class PodFacts:
    """The facts used of a pod, taken from it once."""

    pod: Pod
    key: str  # of its gang
    name: str  # of its gang, without the namespace
    ask: Ask
    service: str  # "Kind/name" of the Deployment or StatefulSet, or of the set of its group; "" for none
    serves: bool  # it answers requests, and idles while none come
    daemon: bool  # of a DaemonSet
    over: bool  # its containers have ended: its GPUs are free
    holds: bool  # it holds GPUs of its node, also while it stops
    leaving: bool  # it stops
    ready: bool  # it runs and is ready
    bound_s: float  # start of its hold on GPUs: its binding, else its start
    noted: Noted
    stays: bool  # its owner asks for no eviction
    claimed: Claimed = UNCLAIMED  # the part of `ask` by resource claims
    parts: Parts = NO_PARTS  # the parts of GPUs in `ask`, by a layer that shares them
    fronted: bool = False  # a Service, a route or a pool leads requests to it
    beats: Beats = ()  # its heartbeats with a step, for its pace


@dataclass(slots=True)
class Gang:
    """One gang: its pods by uid, and the objects describing it."""

    key: str
    namespace: str
    name: str
    pods: dict[str, PodFacts] = field(default_factory=dict)
    job: Job | None = None
    workload: Workload | None = None
    incarnation: int = 0
    held: bool = False  # it held GPUs at the last look
    stops: bool = False  # all its pods are to go
    whole: bool = False  # it had all its members since it last began to hold GPUs
    lost: bool = False  # a member was taken from it while it was whole: evicted, deleted, or gone with its node
    short_since_s: float | None = None  # start of its lack of members for that reason
    over_since_s: float | None = None  # first sight of its end

    def drop(self, uid: str) -> None:
        """A pod is gone. One that had not ended by itself was taken from the gang."""
        found = self.pods.pop(uid, None)
        self.lost |= found is not None and (found.leaving or not found.over)


def pod_facts(pod: Pod, claimed: Claimed = UNCLAIMED) -> PodFacts:
    """The gang of a pod, its request and its service. `claimed`: its devices or its requests by resource claims."""
    meta = pod.metadata
    namespace, owner, labels = meta.namespace, meta.owner, meta.labels or NOTHING
    ask, parts = ask_of(pod.spec).beside(claimed), parts_of(meta)
    if parts is not NO_PARTS:
        ask = parts.beside(ask, bound=bool(pod.spec.node_name))
    key, name, service, daemon = f"uid/{meta.uid}", meta.name, "", False
    group = labels.get(KUEUE_GROUP, "")
    if labels.get(SET_NAME, ""):
        name = f"{labels.get(SET_NAME, '')}-{labels.get(SET_INDEX, '') or '0'}"
        key, service = f"set/{namespace}/{name}", LEADER_SETS + labels.get(SET_NAME, "")
    elif group:
        key, name = f"group/{namespace}/{group}", group
    elif labels.get(JOBSET_NAME, ""):
        name, uid = labels.get(JOBSET_NAME, ""), labels.get(JOBSET_UID, "")
        key = f"uid/{uid}" if uid else f"set/{namespace}/jobset/{name}"
    elif gang := labels.get(PODGANG[0]) or labels.get(PODGANG[1]):
        key, name, service = f"set/{namespace}/podgang/{gang}", gang, clique_set_of(meta, gang)
    elif owner is None:
        found = next((value for each in OTHER_GROUPS if (value := labels.get(each, "") or meta.note(each))), "")
        native = pod.spec.scheduling_group
        found = found or (native.pod_group_name or "" if native is not None else "")
        if found:
            key, name = f"group/{namespace}/{found}", found
    elif owner.kind == "ReplicaSet":
        service = f"Deployment/{owner.name.removesuffix('-' + labels.get(HASH, ''))}"
    elif owner.kind == "StatefulSet":
        service = f"StatefulSet/{owner.name}"
    elif owner.kind == "DaemonSet":
        daemon = True
    else:
        key, name = f"uid/{owner.uid}", owner.name
        service = clique_set_of(meta, name) if owner.kind == "PodClique" else ""
    if service.startswith(GROUPED) and "batch" in {labels.get(CLASS), meta.note(CLASS)}:
        service = ""  # training in such a set
    over = pod.status.phase in OVER
    ready, bound_s = False, 0.0
    for each in pod.status.conditions or ():
        if each.type == "Ready":
            ready = each.status == "True" and pod.status.phase == "Running"
        elif each.type == "PodScheduled" and each.status == "True":
            bound_s = seconds_of(each.last_transition_time)
    holds = bool(pod.spec.node_name) and not over
    bound_s = bound_s or seconds_of(pod.status.start_time or meta.creation_timestamp)
    leaving = meta.deletion_timestamp is not None
    noted = _noted(meta) if meta.annotations else SILENT
    return PodFacts(
        pod,
        key,
        name,
        ask,
        service,
        serves(meta) or answers(pod.spec.containers or ()),
        daemon,
        over,
        holds,
        leaving,
        ready,
        bound_s,
        noted,
        stays(meta.annotations, labels),
        claimed,
        parts,
    )


def _noted(meta: Meta) -> Noted:
    """The times in the annotations of a pod. A checkpoint is of after 1970."""
    saved, beat, waits = meta.note(SAVED), meta.note(HEARTBEAT), meta.note(PAUSED) == "true"
    pausing = Pausing.NONE if not meta.note(CHECKPOINT_PORT) else Pausing.PAUSED if waits else Pausing.ABLE
    if not saved and not beat:
        return Noted(pausing=pausing) if pausing else SILENT
    saved_s, beat_s = noted_s(saved), noted_s(beat)
    step = None if waits else noted_s(meta.note(STEP))
    unread = tuple(
        (name.partition("/")[2], f"{name}={shown(text)} is no time in seconds since 1970; it does not count")
        for name, text, at_s in ((HEARTBEAT, beat, beat_s), (SAVED, saved, saved_s))
        if text and at_s is None
    )
    rank = rank_time(meta.note(BUSY)) if step is not None else NO_RANK
    return Noted(saved_s if saved_s is not None and saved_s > 0 else None, beat_s, step, pausing, rank, unread)


def uid_of(gang: Gang) -> str:
    """The uid of a gang in the snapshot: that of the owner of its pods, of its Workload, or the key of its group."""
    kind, _, rest = gang.key.partition("/")
    if kind == "group" and gang.workload is not None:
        return gang.workload.metadata.uid
    return rest if kind == "uid" else gang.key


def lost_job(gang: Gang) -> bool:
    """True if its Workload is of a deleted Job: Kueue keeps such a Workload for a while."""
    if gang.job is not None or gang.workload is None:
        return False
    owner = gang.workload.metadata.owner
    return owner is not None and owner.kind == "Job"


def serves_apart(gang: Gang, service_row: Callable[[str, str], int]) -> bool:
    """True if it serves, and is no replica of a known Deployment or StatefulSet: those have rules of their own."""
    for each in gang.pods.values():
        if each.serves or each.fronted:
            break
    else:
        return False
    first = next(iter(gang.pods.values()))
    return not is_replica(first) or service_row(gang.namespace, first.service) < 0


def is_replica(found: PodFacts) -> bool:
    """True for a pod that is a replica by itself: of a Deployment or StatefulSet."""
    return bool(found.service) and not found.service.startswith(GROUPED)


def workload_key(meta: Meta) -> tuple[str, str]:
    """The key and the name of the gang of a Workload by its metadata: those of its owner."""
    owners = meta.owner_references or []
    owner = meta.owner
    if owner is not None and owner.kind != "StatefulSet":
        return f"uid/{owner.uid}", owner.name
    if owners and any(each.kind == "Pod" for each in owners):
        return f"group/{meta.namespace}/{meta.name}", meta.name
    if owner is not None:
        return f"uid/{owner.uid}", owner.name
    return f"uid/{meta.uid}", meta.name


def aliases_of(workload: Meta) -> tuple[tuple[str, str], ...]:
    """The names of a Workload for its pods, besides the uid of its owner: see `alias_of`."""
    owner = workload.owner
    named = f"jobset/{owner.name}" if owner is not None and owner.kind == "JobSet" else ""
    return tuple((workload.namespace, each) for each in (workload.name, named) if each)


def alias_of(pod: Meta) -> tuple[str, str]:
    """The pod's reference to its Workload: Kueue's annotation, else a JobSet without uid. Namespace, and name or ""."""
    labels, name = pod.labels or NOTHING, pod.note(KUEUE_WORKLOAD) if pod.annotations else ""
    if not name and (jobset := labels.get(JOBSET_NAME)) and not labels.get(JOBSET_UID):
        name = f"jobset/{jobset}"
    return pod.namespace, name


def placed_by_us(job: Job) -> dict[str, str]:
    """The autopilot's node selector in the template of a started Job: labels of its own only.

    A record on the Job is not believed: a forged one would hide a selector set by others.
    """
    held = job.spec.template.spec.node_selector or {}
    return {key: value for key, value in held.items() if key.startswith(PLACEMENT)}


def unplaced(job: Job) -> PodSpec:
    """The pods of a Job without the autopilot's place in its template: it may choose another one."""
    spec, placed = job.spec.template.spec, placed_by_us(job)
    if not placed:
        return spec
    own = {key: value for key, value in (spec.node_selector or {}).items() if key not in placed}
    return msgspec.structs.replace(spec, node_selector=own)


def declarations(*sources: Meta | None) -> dict[str, str]:
    """The declarations of the workload contract on these objects; later ones count more."""
    return {
        name: value
        for meta in sources
        if meta is not None
        for values in (meta.labels, meta.annotations)
        if values
        for name, value in values.items()
        if name.startswith(PREFIX)
    }
