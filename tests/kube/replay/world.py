"""The server of one replay: its clock, its actors, its uids, and who is who."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from datetime import timedelta
from typing import Any

from apiserver.actors.kubelet import KubeletOptions
from apiserver.cluster import cluster
from apiserver.kinds.base import Kind
from apiserver.kueue.install import install
from apiserver.kueue.manager import Kueue
from apiserver.requests import Request
from apiserver.server import Server
from apiserver.timeline import Timeline
from tests.kube.replay.aliases import family_of
from tests.kube.replay.kueue_settings import settings_of
from tests.kube.replay.people import People, asked_by
from tests.kube.replay.recording import Recording, Step, owners, sightings, start_of

BEFORE_S = 30.0  # the clock starts this long before the topic, for what was there already
SUFFIX = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]{5}")
ASSIGNED = re.compile(r"Successfully assigned (\S+) to ([\w.-]+)")
DELETED = re.compile(r"Deleted pod: ([\w.-]+)")  # such a pod came before those that a later answer shows
POD_PATH = re.compile(r"/namespaces/[^/]+/pods/([^/]+)")
EARLY_S = 0.7  # an object of the replay may be made this long before the recorded one
KUBELET_LABEL = "example.com/fakelet"
Obj = dict[str, Any]


class Uids:
    """Gives a new object the uid that the recording shows for its kind and name, in order of creation.

    So hashes that are made of uids come out alike; a name that the recording does not show gets a random uid.
    """

    def __init__(self, recording: Recording, rng: random.Random) -> None:
        self._rng = rng
        self._waiting: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for each in sightings(recording):
            uid = each.obj["metadata"].get("uid")
            if uid and uid not in self._waiting[each.key]:
                self._waiting[each.key].append(uid)
        for each in sightings(recording):
            self._of_reference(each.obj.get("involvedObject") or {})
        for key, uid in owners(recording):
            if uid not in self._waiting[key]:
                self._waiting[key].append(uid)
        for step in recording.steps:
            self._of_request(step)

    def _of_reference(self, about: Obj) -> None:
        """A uid that only an Event shows."""
        waiting = self._waiting[about.get("kind", ""), about.get("namespace", ""), about.get("name", "")]
        if about.get("uid") and about["uid"] not in waiting:
            waiting.append(about["uid"])

    def _of_request(self, step: Step) -> None:
        """A uid that only the body of a request shows: the step would have failed with another."""
        body, path = step.request.get("body"), step.request.get("path", "").split("/")
        metadata = body.get("metadata") if isinstance(body, dict) else None
        if path[-1] == "eviction" and isinstance(body, dict) and step.status in {201, 429}:
            metadata, path = (body.get("deleteOptions") or {}).get("preconditions"), path[:-1]
            waiting = self._waiting["Pod", path[path.index("namespaces") + 1], path[-1]]
            if metadata and metadata.get("uid") and not waiting:
                waiting.append(metadata["uid"])
            return
        if step.status >= 300 or not isinstance(metadata, dict) or not metadata.get("uid") or "namespaces" not in path:
            return
        kinds = [key[0] for key in self._waiting if key[1:] == (path[path.index("namespaces") + 1], path[-1])]
        kind = (
            kinds[0]
            if kinds
            else {"pods": "Pod", "jobs": "Job", "workloads": "Workload"}.get(path[path.index("namespaces") + 2], "")
        )
        waiting = self._waiting[kind, path[path.index("namespaces") + 1], path[-1]]
        if metadata["uid"] not in waiting:
            waiting.append(metadata["uid"])

    def _of_family(self, kind: str, namespace: str, name: str) -> list[str]:
        """The uids of the first recorded object that a generated name may stand for."""
        family = family_of(namespace, name)
        for key, waiting in self._waiting.items() if family is not None else ():
            if waiting and key[0] == kind and family_of(*key[1:]) == family:
                return waiting
        return []

    def __call__(self, kind: Kind, namespace: str, name: str) -> str:
        waiting = self._waiting.get((kind.kind, namespace, name)) or self._of_family(kind.kind, namespace, name)
        if waiting:
            return waiting.pop(0)
        return f"{self._rng.getrandbits(32):08x}-0000-4000-8000-{self._rng.getrandbits(48):012x}"


def named_elsewhere(recording: Recording) -> list[str]:
    """The names of pods that only Events about them, requests to them, or what they own, show."""
    paths = [step.request.get("path", "") for step in recording.steps if step.status != 404]
    asked = [found[1] for path in paths if (found := POD_PATH.search(path))]
    about = [each.obj.get("involvedObject") or {} for each in sightings(recording)]
    for step in recording.steps:  # the items of a cut list of Events have no name of their own
        items = step.body.get("items") if isinstance(step.body, dict) else None
        rows = [each for each in items or () if isinstance(each, dict)] if isinstance(items, list) else []
        about += [each.get("involvedObject") or {} for each in rows]
    return [each["name"] for each in about if each.get("kind") == "Pod" and each.get("name")] + [
        *asked,
        *(key[2] for key, _ in owners(recording) if key[0] == "Pod"),
    ]


class Suffixes:
    """Ends a generated name as the recording does, for names of one prefix in order of appearance.

    So lists come in the same order. A name that a watch shows to be new is not given away long before. The hash of a
    template in the prefix is another one than the recorded.
    """

    def __init__(self, recording: Recording, timeline: Timeline) -> None:
        self._timeline = timeline
        self._waiting: dict[str, list[tuple[float, str]]] = defaultdict(list)
        begin_s = start_of(recording).timestamp()
        for each in sightings(recording):
            prefix, dash, suffix = each.key[2].rpartition("-")
            waiting = self._waiting[prefix + dash]
            if SUFFIX.fullmatch(suffix) and suffix not in (known for _, known in waiting):
                since_s = begin_s + each.t_s - EARLY_S if each.change == "ADDED" else 0.0
                waiting.append((since_s, suffix))
        gone = set(DELETED.findall(json.dumps([step.body for step in recording.steps])))
        for name in named_elsewhere(recording):
            prefix, dash, suffix = name.rpartition("-")
            waiting = self._waiting[prefix + dash]
            if SUFFIX.fullmatch(suffix) and suffix not in (known for _, known in waiting):
                waiting.insert(0 if name in gone else len(waiting), (0.0, suffix))

    def __call__(self, prefix: str) -> str:
        waiting = self._waiting.get(prefix)
        if waiting is None:
            stem = prefix.rstrip("-").rpartition("-")[0]
            for recorded, found in list(self._waiting.items()):
                if stem and found and recorded.rstrip("-").rpartition("-")[0] == stem:
                    waiting = self._waiting[prefix] = found
                    break
        if not waiting or waiting[0][0] > self._timeline.now_s:
            return ""
        return waiting.pop(0)[1]


class Placements:
    """Gives a pod the node that the recording shows, among those that the scheduler finds alike."""

    def __init__(self, recording: Recording) -> None:
        self._nodes: dict[str, str] = {}
        for each in sightings(recording):
            node = (each.obj.get("spec") or {}).get("nodeName") if isinstance(each.obj.get("spec"), dict) else None
            if node:
                self._nodes.setdefault("/".join(each.key[1:]), node)
        for found in ASSIGNED.finditer(json.dumps([step.body for step in recording.steps])):
            self._nodes.setdefault(found[1], found[2])

    def __call__(self, pod: Obj, nodes: list[str]) -> str:
        wanted = self._nodes.get(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        return wanted if wanted in nodes else nodes[0]


def world(recording: Recording, seed: int = 1) -> Server:
    """A cluster shortly before the topic began."""
    timeline = Timeline(start_of(recording) - timedelta(seconds=BEFORE_S))
    rng = random.Random(seed)
    versions = [int(each.obj["metadata"].get("resourceVersion") or 0) for each in sightings(recording)]
    first = min((version for version in versions if version > 0), default=200)
    return cluster(
        timeline,
        rng,
        first_version=max(first - 100, 2),
        new_uid=Uids(recording, rng),
        new_suffix=Suffixes(recording, timeline),
        pick=Placements(recording),
        kubelets=KubeletOptions(has_kubelet, "example.com", "fake-kubelet"),
    )


def has_kubelet(node: Obj) -> bool:
    """The recorder's kubelet served the nodes with a label of its own."""
    return (node["metadata"].get("labels") or {}).get(KUBELET_LABEL) == "true"


def uses_kueue(recording: Recording) -> bool:
    """Whether Kueue was installed when the topic was recorded: one of its resources answered."""
    return any(
        "kueue.x-k8s.io" in step.request.get("path", "") and step.status not in {0, 404} for step in recording.steps
    )


def kueue_of(server: Server, recording: Recording) -> Kueue | None:
    """Kueue on the server, if the topic used it; with the configuration that the topic needs."""
    if not uses_kueue(recording):
        return None
    return install(server, settings_of(recording))


def send(people: People, request: Obj) -> Request:
    """A recorded request as one for the server, with a token of its user."""
    request = people.with_tokens(request)
    headers = {name.lower(): value for name, value in (request.get("headers") or {}).items()}
    headers |= people.headers(asked_by(request))
    headers.setdefault("user-agent", "recorder/1.0")
    query = {name: str(value) for name, value in (request.get("query") or {}).items()}
    return Request(request["method"], request["path"], query, headers, request.get("body"))
