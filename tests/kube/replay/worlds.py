"""What existed before a topic and between its steps, written by hand: `worlds/TOPIC.yaml`.

A file holds a list of requests: `before` (the name of a step; absent: before the topic) or `after`, `method` (POST if
absent), and for a POST the object; otherwise `kind`, `apiVersion`, `namespace`, `name`, `subresource` and `body`.
`shift_s` moves a request in time, by default 2 ms before or after its step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kube.replay.recording import Recording

Obj = dict[str, Any]
FOLDER = Path(__file__).parent / "worlds"
NEAR_S = 0.002


@dataclass(frozen=True)
class PreparedWrite:
    """A request of the topic's script that the recording does not hold."""

    t_s: float
    method: str
    obj: Obj  # what a POST creates; else kind, apiVersion and metadata of what is written
    body: Any = None
    subresource: str = ""


@dataclass
class Prepared:
    """All that a world file says about one recording."""

    writes: list[PreparedWrite] = field(default_factory=list)

    def names(self, kind: str) -> set[str]:
        """The names of what it creates of a kind."""
        return {
            each.obj["metadata"]["name"]
            for each in self.writes
            if each.method == "POST" and each.obj["kind"] == kind and not each.subresource
        }


def world_text(topic: str) -> str:
    """The file of a topic; empty if there is none."""
    path = FOLDER / f"{topic}.yaml"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def prepared(recording: Recording, raw: list[Obj]) -> Prepared:
    """What the content of a world file says about a recording."""
    found = Prepared()
    at = {step.name: step for step in recording.steps}
    for place, entry in enumerate(raw):
        t_s = -8.0 + 0.001 * place
        near = entry.get("before") or entry.get("after")
        if near is not None and near not in at:
            continue  # a recording of another day may lack the step
        if "before" in entry:
            t_s = at[entry["before"]].t_s - entry.get("shift_s", NEAR_S)
        elif "after" in entry:
            step = at[entry["after"]]
            t_s = step.t_s + entry.get("shift_s", NEAR_S)
        found.writes.append(_write(t_s, entry))
    return found


def _write(t_s: float, entry: Obj) -> PreparedWrite:
    if "object" in entry:
        return PreparedWrite(t_s, entry.get("method", "POST"), entry["object"])
    metadata = {"name": entry["name"], "namespace": entry.get("namespace", "")}
    obj = {"kind": entry["kind"], "apiVersion": entry["apiVersion"], "metadata": metadata}
    return PreparedWrite(t_s, entry["method"], obj, entry.get("body"), entry.get("subresource", ""))
