"""Join of GPU exporters with nodes and pods: the UUIDs of a node's GPUs, and the GPUs held by each pod.

An exporter names the node in a label, in the spelling of the node or not. Otherwise a pod on one of its GPUs shows the
node. The pod label of an exporter may outlive the pod, so only pods known to the API count. Rows are joined by
namespace, pod and container: containers of one pod may share a GPU. A row that contradicts the API is named and not
believed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig_profiles import find_gpu_model, find_profile_name
from collectors.attribution import Sighting, Sightings
from collectors.kubernetes.devices import Gpu, Part

Pods = Mapping[tuple[str, str], tuple[str, str]]
"""(namespace, name) -> (uid, node) of every pod with GPUs."""

Ids = dict[str, str]
"""Entity as a driver's slices have it -> the same one as an exporter numbers it."""

Held = tuple[str, ...]
"""The ids of the GPUs and instances of a pod."""

Problem = tuple[str, str]
"""A pod, and its contradiction of the API."""


def gpus_by_node(found: Sightings, models: Mapping[str, str], pods: Pods) -> dict[str, tuple[Gpu, ...]]:
    """The GPUs of each node. `models` has the GPU model of each known node."""
    node_of = _nodes_of_hosts(found, models.keys(), pods)
    boards: dict[str, dict[str, list[Sighting]]] = defaultdict(dict)
    now = {each.uuid for each in found.seen if each.now}
    named = {each.uuid: each.model for each in found.seen if each.model}
    for each in found.seen:
        node = node_of.get(each.host)
        if node is not None:
            parts = boards[node].setdefault(each.uuid, [])
            if each.gi_id and all(each.gi_id != known.gi_id for known in parts):  # two jobs may name the host otherwise
                parts.append(each)
    return {
        node: tuple(
            Gpu(uuid, index, bool(parts), _laid_out(parts, models[node]), seen=uuid in now, model=named.get(uuid, ""))
            for index, (uuid, parts) in enumerate(known.items())
        )
        for node, known in boards.items()
        if node in models
    }


def instance_ids(found: Sightings, gpus: Mapping[str, tuple[Gpu, ...]], held: Mapping[str, Held], pods: Pods) -> Ids:
    """The exporter's id of each instance of `gpus`, if only one can be meant.

    An exporter numbers instances without their place; a driver states their place without their number. The pods of
    both name the same instance if a pod has one of a profile. The only instance of its profile on its GPU is the same
    one, too.
    """
    ours = {
        f"{gpu.uuid}/{part.gi_id}": (gpu.uuid, part.profile)
        for each in gpus.values()
        for gpu in each
        for part in gpu.parts
    }
    if not ours:
        return {}
    theirs = {f"{each.uuid}/{each.gi_id}": (each.uuid, each.profile) for each in found.seen if each.gi_id.isdecimal()}
    shown: dict[str, set[str]] = defaultdict(set)
    for row in found.attributions:
        if row.entity_id in theirs and (row.namespace, row.pod) in pods:
            shown[pods[row.namespace, row.pod][0]].add(row.entity_id)
    same: dict[str, str] = {}
    taken: set[str] = set()
    for mine, seen in (*((held.get(uid, ()), entities) for uid, entities in shown.items()), (ours, theirs)):
        left: dict[tuple[str, str], list[str]] = defaultdict(list)
        other: dict[tuple[str, str], list[str]] = defaultdict(list)
        for each in mine:
            if each in ours and each not in same:
                left[ours[each]].append(each)
        for each in seen:
            if each not in taken:
                other[theirs[each]].append(each)
        for kind, found_here in left.items():
            if len(found_here) == len(other[kind]) == 1:
                same[found_here[0]] = other[kind][0]
                taken.add(other[kind][0])
    return same


def pins(found: Sightings, nodes: Collection[str], pods: Pods) -> tuple[dict[str, dict[str, Held]], list[Problem]]:
    """Node -> uid of a pod -> the entities held by its containers; and rows that contradict the API.

    An entity stands once for each of its containers: two containers of a pod may share a GPU.
    """
    node_of = _nodes_of_hosts(found, nodes, pods)
    place = {each.uuid: node_of[each.host] for each in found.seen if each.host in node_of}
    rows = {
        (each.namespace, each.pod, each.container, each.entity_id): pods[each.namespace, each.pod]
        for each in found.attributions
        if (each.namespace, each.pod) in pods
    }
    held: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    problems: list[Problem] = []
    for (namespace, pod, _, entity), (uid, node) in sorted(rows.items()):
        seen_on = place.get(entity.partition("/")[0], node)
        if seen_on != node:
            text = f"an exporter shows it on {entity} of node {seen_on}, and the API on node {node}"
            problems.append((f"{namespace}/{pod}", f"{text}: the label is not believed; check the relabelling"))
            continue
        held[node][uid].append(entity)
    return {node: {uid: tuple(sorted(ids)) for uid, ids in pods.items()} for node, pods in held.items()}, problems


def unlabelled(found: Sightings, nodes: Collection[str], pods: Pods) -> list[Problem]:
    """Problem of a source that sees GPUs with pods, and names none of these pods."""
    seen_on = set(_nodes_of_hosts(found, nodes, pods).values())
    if found.attributions or not any(node in seen_on for _, node in pods.values()):
        return []
    text = (
        "the telemetry names no pods, so which GPUs of a node each of them holds is assumed, and what its work does is "
        "unknown unless it holds all of them; scrape an exporter that labels pods (DCGM_EXPORTER_KUBERNETES=true)"
    )
    return [("", text)]


def _nodes_of_hosts(found: Sightings, nodes: Collection[str], pods: Pods) -> dict[str, str]:
    """Host label -> node: the same name, its first part, or the node of the pods on its GPUs."""
    hosts = dict.fromkeys(each.host for each in found.seen)
    short = {name.partition(".")[0]: name for name in nodes}
    node_of = {}
    for host in hosts:
        node = host if host in nodes else short.get(host.partition(".")[0])
        if host and node is not None:
            node_of[host] = node
    missing = {each.uuid: each.host for each in found.seen if each.host and each.host not in node_of}
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for attributed in found.attributions if missing else ():
        voter = missing.get(attributed.entity_id.partition("/")[0])
        pod = pods.get((attributed.namespace, attributed.pod))
        if voter is not None and pod is not None:
            votes[voter][pod[1]] += 1
    return node_of | {host: count.most_common(1)[0][0] for host, count in votes.items()}


def _laid_out(parts: list[Sighting], model: str) -> tuple[Part, ...]:
    """Instances with slices, if they fit: exporters name the instances and not their slices."""
    ordered = sorted((each for each in parts if each.gi_id.isdecimal()), key=lambda each: int(each.gi_id))
    found = [find_profile_name(each.profile) for each in ordered]
    profiles = ["" if each is None else str(each) for each in found]
    facts = find_gpu_model(model)
    places = mig.fits(facts, (), profiles) if facts is not None else None
    starts = [-1] * len(ordered) if places is None else [each.start for each in places]
    return tuple(
        Part(int(each.gi_id), name, start) for each, name, start in zip(ordered, profiles, starts, strict=True)
    )
