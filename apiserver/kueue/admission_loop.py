"""The scheduler at work: cycles while there are heads, admissions, preemptions, and batches of second tries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apiserver.kueue import conditions, workloads
from apiserver.kueue.context import Context
from apiserver.kueue.elastic import REPLACED, replaces
from apiserver.kueue.ends import finish
from apiserver.kueue.flavors import Assignment, resource_requests
from apiserver.kueue.info import Info, Key, info_of
from apiserver.kueue.names import (
    JOB_UID_LABEL,
    LOCAL_QUEUES,
    NODES,
    PODS,
    TOPOLOGIES,
    WORKLOAD_ANNOTATION,
    annotations_of,
    key_of,
    labels_of,
    pod_sets_of,
    spec_of,
    target_of,
)
from apiserver.kueue.pending import PendingQueue
from apiserver.kueue.preemption import Target, message
from apiserver.kueue.queue_state import Queue
from apiserver.kueue.scheduler import Cycle, Entry
from apiserver.kueue.topology import Tree, domains_of, free_on
from apiserver.kueue.workqueue import WorkQueue
from apiserver.pod_requests import pod_requests
from apiserver.selectors import matches_labels

Obj = dict[str, Any]
SCHEDULER = "kueue-admission"
IDLE_CYCLES = 2  # repeats while victims leave and nothing else changes: enough for what a client can see


class AdmissionLoop:
    """Runs cycles of the scheduler."""

    def __init__(self, context: Context) -> None:
        self.context = context
        delays = context.config.delays
        self._cycles: WorkQueue[str] = WorkQueue(context.timeline, delays.cycle_s, lambda _: self.cycle())
        self._retries: WorkQueue[str] = WorkQueue(context.timeline, delays.retry_s, self._retry)
        self._idle = 0
        self._trees: dict[str, Tree] = {}
        self._blocked: list[Entry] = []  # of a cycle that stands until all admitted work is ready

    def clear(self) -> None:
        """Stop."""
        self._cycles.clear()
        self._retries.clear()
        self._blocked.clear()

    def counted(self) -> None:
        """The counted use has changed: a blocked cycle may go on."""
        if self._blocked:
            self.wake()

    def wake(self) -> None:
        """Something may be admitted now."""
        self._idle = 0
        self._cycles.add("")

    def offer(self, workload: Obj) -> None:
        """A workload waits, or has changed while it waits."""
        context = self.context
        if not workloads.is_admissible(workload):
            return
        queue = context.local_queue(workload)
        if queue is None or queue["metadata"].get("deletionTimestamp"):
            self.withdraw(key_of(workload))
            return
        if spec_of(queue).get("stopPolicy", "None") != "None":
            self.withdraw(key_of(workload))
            return
        name = target_of(queue)
        if name not in context.state.queues:
            return
        info = info_of(workload, boosts=context.config.priority_boost)
        info.cluster_queue = name
        self.pending(name).offer(info, context.now)
        self.wake()

    def withdraw(self, key: Key) -> None:
        """A workload waits no longer."""
        for queue in self._queues_of(key):
            queue.forget(key)

    def _queues_of(self, key: Key) -> Iterable[PendingQueue]:
        local = self.context.queue_of.get(key)
        found = self.context.store.get(LOCAL_QUEUES, *local) if local else None
        name = target_of(found) if found else None
        queue = self.context.pending.get(name) if name else None
        return self.context.pending.values() if queue is None else (queue,)

    def pending(self, name: str) -> PendingQueue:
        """The waiting workloads of a ClusterQueue."""
        queue = self.context.pending.get(name)
        if queue is None:
            queue = self.context.pending[name] = PendingQueue(name)
        found = self.context.state.queues.get(name)
        if found is not None:
            queue.strategy = found.spec.get("queueingStrategy", queue.strategy)
        return queue

    def retry_later(self, queue: str) -> None:
        """Quota may be free: try again the workloads put aside in a queue and its cohort, in a batch."""
        self._retries.add(queue)

    def _retry(self, name: str) -> None:
        context = self.context
        queue = context.state.queues.get(name)
        if queue is None:
            return
        names = [name]
        if queue.node.parent is not None and not queue.node.in_cycle():
            names = [each.name for each in context.state.in_tree(queue.node.root())]
        moved = [self.pending(each).retry(context.now) for each in names]
        if any(moved):
            self.wake()

    def cycle(self) -> None:
        """One cycle; another follows while heads may move."""
        stood, entries = bool(self._blocked), self._blocked or self._decided()
        if not entries:
            return
        admitted = False
        for number, entry in enumerate(entries):
            if entry.outcome == "assumed" and self._unready():
                if not stood or number:
                    self._wait(entry)
                self._blocked = entries[number:]
                return
            admitted = self._conclude(entry) or admitted
        self._blocked = []
        self._idle = 0 if admitted else self._idle + 1
        waiting = any(self.context.pending[entry.info.cluster_queue].waiting for entry in entries)
        stuck = all(entry.outcome == "preempting" for entry in entries)
        if stood or (waiting and not (stuck and self._idle > IDLE_CYCLES)):
            self._cycles.add("")

    def _decided(self) -> list[Entry]:
        """The heads of the queues, with their outcomes."""
        context = self.context
        heads = []
        for name in sorted(context.pending):
            if not context.pending[name].waiting or not context.state.is_active(name):
                continue
            info = context.pending[name].pop()
            if info is not None and self._current(info):
                heads.append(info)
        self._trees = {}
        return Cycle(context.state, context.now, self.place, self._refusal).run(heads) if heads else []

    def _current(self, info: Info) -> bool:
        """True if a head still waits; takes its stored state."""
        stored = self.context.workload(info.key)
        queue = self.context.pending[info.cluster_queue]
        if stored is None or not workloads.is_admissible(stored) or info.key in self.context.state.where:
            queue.forget(info.key)
            return False
        info.obj = stored
        return True

    def _refusal(self, info: Info) -> str:
        queue = self.context.state.queues[info.cluster_queue]
        namespace = self.context.store.get("namespaces", "", info.key[0])
        if namespace is None:
            return f'workload namespace "{info.key[0]}" does not exist'
        selector = queue.spec.get("namespaceSelector")
        if selector is None or not matches_labels(selector, namespace["metadata"].get("labels")):
            return "workload namespace doesn't match ClusterQueue selector"
        return ""

    def _conclude(self, entry: Entry) -> bool:
        """Write the decision of a cycle; True if the workload was admitted."""
        if entry.outcome == "assumed" and entry.queue is not None:
            return self._admit(entry, entry.queue)
        if entry.outcome == "preempting":
            for target in entry.targets:
                self._preempt(entry, target)
        self.context.pending[entry.info.cluster_queue].put_back(entry.info, entry.requeue, self.context.now)
        self._tell(entry)
        return False

    def _unready(self) -> bool:
        """True, with blockAdmission, if a workload with quota is not ready yet."""
        waits = self.context.config.wait_for_pods_ready
        if waits is None or not waits.block_admission:
            return False
        return any(
            not conditions.is_true(each.obj, workloads.PODS_READY)
            for queue in self.context.state.queues.values()
            for each in queue.workloads.values()
        )

    def _wait(self, entry: Entry) -> None:
        """State on the next workload the reason of its wait."""
        text, generation = "waiting for all admitted workloads to be in PodsReady condition", workloads.generation
        self.context.edit(
            entry.info.obj,
            lambda status: workloads.unset_reservation(
                status, "Waiting", text, self.context.now, generation(entry.info.obj)
            ),
        )

    def _admit(self, entry: Entry, queue: Queue) -> bool:
        context, info, now = self.context, entry.info, self.context.now
        admission = {
            "clusterQueue": queue.name,
            "podSetAssignments": [each.entry() for each in entry.assignment.pod_sets],
        }
        generation = workloads.generation(info.obj)
        waited = workloads.whole_seconds(workloads.waited_s(info.obj, now))

        def change(status: Obj) -> bool:
            workloads.reserve(status, admission, now, generation)
            held = {each["name"] for each in status.get("admissionChecks") or []}
            if held >= set(queue.checks_for(admission)):
                workloads.sync_admitted(status, now, generation)
            return True

        before = info.obj
        written = context.edit(before, change)
        if written is None:
            context.pending[queue.name].forget(info.key)
            return False
        context.pending[queue.name].forget(info.key)
        context.state.count(info_of(written, boosts=context.config.priority_boost))
        considered = entry.assignment.considered()
        text = f"Quota reserved in ClusterQueue {queue.name}, wait time since queued was {waited}s"
        if considered:
            text += f"; Flavors considered: {considered}"
        context.recorder.event(written, "Normal", "QuotaReserved", text, SCHEDULER)
        if workloads.is_admitted(written):
            text = f"Admitted by ClusterQueue {queue.name}, wait time since reservation was 0s"
            context.recorder.event(written, "Normal", "Admitted", text, SCHEDULER)
        self._replace(written, queue)
        return True

    def _replace(self, workload: Obj, queue: Queue) -> None:
        """A slice of an elastic Job with quota ends the one before."""
        key = replaces(workload)
        before = self.context.workload(key) if key in queue.workloads and key is not None else None
        if before is None:
            return
        text = (
            f"Replaced to accommodate a workload (UID: {workload['metadata']['uid']}, "
            f"JobUID: {labels_of(workload).get(JOB_UID_LABEL, '')}) due to workload slice aggregation"
        )
        finish(self.context, before, REPLACED[0], text)
        self.context.recorder.event(before, "Normal", REPLACED[0], text, SCHEDULER, "Replaced")

    def _tell(self, entry: Entry) -> None:
        """Write the reason of a workload's wait."""
        context, info = self.context, entry.info
        requests = resource_requests(info.pod_sets)
        told = entry.outcome != "assumed"

        def change(status: Obj) -> bool:
            generation = workloads.generation(info.obj)
            changed = workloads.unset_reservation(status, "Pending", entry.message, context.now, generation)
            if status.get("resourceRequests") != requests:
                status["resourceRequests"] = requests
                changed = True
            return changed

        if told:
            context.edit(info.obj, change)
            context.recorder.event(info.obj, "Warning", "Pending", entry.message, SCHEDULER)

    def _preempt(self, entry: Entry, target: Target) -> None:
        context, now = self.context, self.context.now
        victim = context.workload(target.info.key)
        if victim is None or workloads.is_evicted(victim) or entry.queue is None:
            return
        preemptor, path = entry.info, entry.queue.node.full_path()
        text = message(preemptor, labels_of(preemptor.obj).get(JOB_UID_LABEL, ""), target, path)
        generation = workloads.generation(victim)

        def change(status: Obj) -> bool:
            conditions.put(status, workloads.PREEMPTED, True, target.reason, text, now)
            workloads.evict(status, "Preempted", text, "", now, generation)
            return True

        written = context.edit(victim, change)
        if written is None:
            return
        context.recorder.event(written, "Normal", "EvictedDueToPreempted", text, SCHEDULER)
        shown = f"preemptor {_priority(preemptor)}; preemptee {_priority(target.info)}"
        context.recorder.event(victim, "Normal", "Preempted", f"{text}; {shown}", SCHEDULER)
        text = (
            f"Preempted workload {'/'.join(target.info.key)} (UID: {target.info.uid}) in ClusterQueue "
            f"{target.queue.name}; {shown}"
        )
        context.recorder.event(preemptor.obj, "Normal", "PreemptedWorkload", text, SCHEDULER)

    def place(
        self, info: Info, assignment: Assignment, targets: Iterable[Target], _empty: bool
    ) -> tuple[int, str] | None:
        """Place each pod set with a topology in its flavor; the number of the first unplaced one, and the reason."""
        for number, each in enumerate(assignment.pod_sets):
            for flavor in dict.fromkeys(each.flavors.values()):
                topology = spec_of(self.context.state.flavors[flavor]).get("topologyName")
                if not topology:
                    continue
                tree = self._tree(flavor, topology)
                found, why = tree.place(pod_sets_of(info.obj)[number], each.count)
                if found is None:
                    return number, why
                each.topology = found
        return None

    def _tree(self, flavor: str, topology: str) -> Tree:
        """The nodes of a flavor, less the use of pods outside of the topology and of workloads in it."""
        if flavor in self._trees:
            return self._trees[flavor]
        context = self.context
        spec = (context.store.get(TOPOLOGIES, "", topology) or {"spec": {"levels": []}})["spec"]
        levels = [level["nodeLabel"] for level in spec["levels"]]
        tree = Tree(topology, levels, spec_of(context.state.flavors[flavor]))
        inside = []
        placed: set[str] = set()
        for queue in context.state.queues.values():
            for info in queue.workloads.values():
                for row in (workloads.status_of(info.obj).get("admission") or {}).get("podSetAssignments") or []:
                    if row.get("topologyAssignment") and flavor in (row.get("flavors") or {}).values():
                        inside.append((info, row))
                        placed.add(info.obj["metadata"]["name"])
        others = [
            pod for pod in context.store.objects(PODS) if annotations_of(pod).get(WORKLOAD_ANNOTATION) not in placed
        ]
        for node, free in free_on(context.store.objects(NODES), others):
            tree.add_node(node, free)
        for info, row in inside:
            single = next(each for each in pod_sets_of(info.obj) if each["name"] == row["name"])
            for values, count in domains_of(row["topologyAssignment"]):
                tree.take(values, pod_requests(single["template"]["spec"]), count)
        self._trees[flavor] = tree
        return tree


def _priority(info: Info) -> str:
    base = workloads.priority(info.obj)
    return f"effective priority: {info.priority} (base: {base}, boost: {info.priority - base})"
