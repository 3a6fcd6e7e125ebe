"""Generated names: which of ours stands for which recorded one.

The server draws the suffix of a generated name, and hashes of templates and uids go into some. Objects of one family
(the same namespace, and the same name but for these parts) are matched in the order of their creation.
"""

from __future__ import annotations

import re
from collections import defaultdict

from apiserver.server import Server
from apiserver.store import Event
from tests.kube.replay.kueue_seen import workloads_in
from tests.kube.replay.recording import Recording, owners, sightings

DRAWN = re.compile(
    r"(?<=-)[bcdfghjklmnpqrstvwxz2456789]{5}$"  # a drawn suffix
    r"|(?<=-)[bcdfghjklmnpqrstvwxz0-9]{8,10}(?=-|$)"  # the hash of a template
    r"|(?<=-)[0-9a-f]{5}$"  # the start of a sha1
    r"|(?<=\.)[0-9a-f]{14,16}$"  # the time in the name of an Event
)
Family = tuple[str, str]  # namespace, and the name without its drawn parts


def family_of(namespace: str, name: str) -> Family | None:
    """The family of a generated name; None for a name that a client gave."""
    plain, found = DRAWN.subn("*", name)
    return (namespace, plain) if found else None


class Aliases(dict[str, str]):
    """Recorded name: ours. Fills itself from what the server creates."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._waiting: dict[Family, list[str]] = defaultdict(list)
        self._matched: set[str] = set()  # our names: an object may be made anew under one
        given = _given_names(recording)
        for each in sightings(recording):
            family = family_of(*each.key[1:])
            if family is not None and each.key[2] not in given and each.key[2] not in self._waiting[family]:
                self._waiting[family].append(each.key[2])
        for key in [*(each[1:] for each, _ in owners(recording)), *workloads_in(recording)]:
            family = family_of(*key)
            if family is not None and key[1] not in self._waiting[family]:
                self._waiting[family].append(key[1])

    def attach(self, server: Server) -> None:
        """Learn from every creation."""
        for storage in {kind.storage for kind in server.kinds.all()}:
            server.store.listen(storage, self._on_change)

    def learn(self, recorded: str, ours: str) -> None:
        """Two names that stand at the same place; the first such finding counts."""
        if recorded not in self and ours not in self.values():
            self[recorded] = ours

    def _on_change(self, event: Event) -> None:
        if event.type != "ADDED":
            return
        metadata = event.obj["metadata"]
        name = metadata["name"]
        family = family_of(metadata.get("namespace", ""), name)
        waiting = self._waiting.get(family) if family is not None else None
        if not waiting or name in self._matched:
            return
        recorded = name if name in waiting else waiting[0]
        if event.obj.get("kind") == "Pod":  # the replay ends the names of pods as recorded: see world.Suffixes
            same = [each for each in waiting if each.rpartition("-")[2] == name.rpartition("-")[2]]
            if not same:
                return
            recorded = same[0]
        waiting.remove(recorded)
        self._matched.add(name)
        if recorded != name:
            self[recorded] = name


def _given_names(recording: Recording) -> set[str]:
    """Names that the requests give to objects."""
    found = set()
    for step in recording.steps:
        body = step.request.get("body")
        creates = step.request.get("method") == "POST" or step.status == 201  # an apply that creates
        if creates and isinstance(body, dict):
            name = (body.get("metadata") or {}).get("name")
            if name and "/eviction" not in step.request["path"] and "/binding" not in step.request["path"]:
                found.add(name)
    return found
