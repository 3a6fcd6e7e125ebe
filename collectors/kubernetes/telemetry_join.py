"""Join what GPU exporters see with nodes and pods: the UUIDs of a node's GPUs, and which of them each pod holds.

An exporter names the node in a label, in the spelling of the node or not. Where it does not, a pod on one of its GPUs
shows which node it is. The pod label of an exporter may outlive the pod, so only pods that the API knows count. Rows
are joined by namespace, pod and container: containers of one pod may share a GPU. A row that contradicts the API is
named and not believed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig_profiles import find_gpu_model
from collectors.attribution import Sighting, Sightings
from collectors.kubernetes.devices import Gpu, Part

Pods = Mapping[tuple[str, str], tuple[str, str]]
"""(namespace, name) -> (uid, node) of every pod that holds GPUs."""

Held = tuple[str, ...]
"""The ids of the GPUs and instances that a pod holds."""

Problem = tuple[str, str]
"""A pod, and what contradicts the API."""


def gpus_by_node(found: Sightings, models: Mapping[str, str], pods: Pods) -> dict[str, tuple[Gpu, ...]]:
    """The GPUs of each node. `models` has the GPU model of each known node."""
    node_of = _nodes_of_hosts(found, models.keys(), pods)
    boards: dict[str, dict[str, list[Sighting]]] = defaultdict(dict)
    for each in found.seen:
        node = node_of.get(each.host)
        if node is not None:
            parts = boards[node].setdefault(each.uuid, [])
            if each.gi_id:
                parts.append(each)
    return {
        node: tuple(
            Gpu(uuid, index, bool(parts), _laid_out(parts, models[node]))
            for index, (uuid, parts) in enumerate(known.items())
        )
        for node, known in boards.items()
        if node in models
    }


def pins(found: Sightings, nodes: Collection[str], pods: Pods) -> tuple[dict[str, dict[str, Held]], list[Problem]]:
    """Node -> uid of a pod -> the entities that its containers hold; and rows that contradict the API.

    An entity stands once for each container that holds it: two containers of a pod may share a GPU.
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
    """Instances with slices where they fit: exporters name the instances and not their slices."""
    ordered = sorted(parts, key=lambda each: (len(each.gi_id), each.gi_id))
    facts = find_gpu_model(model)
    places = mig.fits(facts, (), [each.profile for each in ordered]) if facts is not None and parts else None
    if places is None:
        return ()
    return tuple(
        Part(int(each.gi_id), each.profile, place.start)
        for each, place in zip(ordered, places, strict=True)
        if each.gi_id.isdecimal()
    )
