"""The volumes of the downward API: a kubelet actor that writes annotations of pods into files, late as a real one."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apiserver.actors.base import Actor
from apiserver.server import Server
from apiserver.users import User

REFRESH_S = 60.0  # syncFrequency of a kubelet
SHORT = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}


def quoted(text: str) -> str:
    """A text as Go's %q writes it."""
    made = []
    for letter in text:
        code = ord(letter)
        if letter in '"\\':
            made.append(f"\\{letter}")
        elif letter in SHORT:
            made.append(SHORT[letter])
        elif letter.isprintable():
            made.append(letter)
        else:
            made.append(f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(made)}"'


def annotations_text(annotations: dict[str, str]) -> str:
    """The file of `metadata.annotations`: sorted, without a newline at its end."""
    return "\n".join(f"{key}={quoted(annotations[key])}" for key in sorted(annotations))


def write_volume(folder: Path, files: dict[str, str]) -> None:
    """Replace the files of a volume as a kubelet does: a new folder, then one rename of the link to it."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    for name, text in files.items():
        (fresh / name).write_text(text, encoding="utf-8")
    link = folder / "..data"
    old = link.resolve() if link.exists() else None
    made = folder / "..data_tmp"
    made.symlink_to(fresh.name)
    made.replace(link)
    for name in files:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    if old is not None:
        shutil.rmtree(old)


class PodInfo(Actor):
    """Writes the annotations of each pod on a node into `folder`/NAME/annotations, once in `REFRESH_S` of its time."""

    user = User("system:node", ("system:nodes", "system:authenticated"))
    manager = "kubelet"

    def __init__(self, server: Server, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, dict[str, str]] = {}
        super().__init__(server)

    def start(self) -> None:
        """Look at once, then once in `REFRESH_S`."""
        self.server.timeline.at(REFRESH_S, self._refresh)

    def path(self, pod: str) -> Path:
        """The file of a pod."""
        return self._folder / pod / "annotations"

    def _refresh(self) -> None:
        for pod in self._running():
            name, annotations = pod["metadata"]["name"], dict(pod["metadata"].get("annotations") or {})
            if self._written.get(name) != annotations:
                self._written[name] = annotations
                write_volume(self._folder / name, {"annotations": annotations_text(annotations)})
        self.server.timeline.at(REFRESH_S, self._refresh)

    def _running(self) -> Iterator[dict[str, Any]]:
        return (pod for pod in self.client.list("pods") if pod["spec"].get("nodeName"))


def request_text(name: str, deadline_s: float) -> str:
    """The value of the annotation that asks for a checkpoint."""
    return json.dumps({"id": name, "deadline": deadline_s})
