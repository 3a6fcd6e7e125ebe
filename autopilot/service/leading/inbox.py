"""The commands of people in a ConfigMap, so that the next leader obeys commands accepted by this one (port `Inbox`).

A command is in the cluster before it is confirmed. Only the leader accepts commands. Those unknown to its memory are
delivered to the next leader, in their order.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Command
from autopilot.kube.cluster_api import Answer
from autopilot.readiness.manifest import INBOX_MAP
from autopilot.service.inbox import command_text, read_command
from autopilot.service.leading.elector import Requests
from autopilot.service.leading.lease import LABELS, text_in

NAME = INBOX_MAP
EPOCH = "gpu-autopilot.io/epoch"
MOST = 1000
"""Commands waiting for a tick. People send single ones."""
KEPT = 100
"""Commands obeyed by a tick, kept to tell their senders that they were taken."""
NOT_FOUND = 404


class ClusterInbox:
    """Numbers commands on receipt, over all leaders."""

    def __init__(self, api: Requests, namespace: str, kill_switch: Callable[[], str], leads: Callable[[], str]) -> None:
        """`leads` names the reason against commands to this controller, "" while it leads."""
        self._api, self._kill_switch, self._leads = api, kill_switch, leads
        self._parent = f"/api/v1/namespaces/{namespace}/configmaps"
        self._namespace, self._shown = namespace, f"ConfigMap {namespace}/{NAME}"
        self._lock = threading.Lock()
        self._waiting: list[Command] = []  # in the cluster, by number; the first ones were obeyed
        self._origins: dict[int, str] = {}  # by number
        self._delivered = -1  # the last drained number
        self._known = -1  # the last number known to a saved memory
        self._next, self._version, self._fence = 0, "", 0

    def claim(self, fence: int, known: int) -> str:
        """Take the inbox over for a term. `known`: the last number known to the memory.

        Returns the reason for a failure, "" for a success. Raises `InputError` for a ConfigMap that is no inbox.
        """
        with self._lock:
            self._fence = 0
            answer = self._api.get(f"{self._parent}/{NAME}")
            waiting: list[Command] = []
            following, version = known + 1, ""
            if answer.status == 200:
                version = _version(answer)
                following, waiting = self._read(answer.document)
            elif answer.status != NOT_FOUND:
                return f"{self._shown}: {answer.reason}"
            self._known = known
            waiting = self._kept(waiting)
            following = max(following, known + 1)
            written = self._write(waiting, following, fence, version)
            if written.status not in {200, 201}:
                return f"{self._shown}: it cannot be written: {written.reason}"
            self._waiting, self._next, self._version = waiting, following, _version(written)
            self._delivered = known
            self._fence = fence
            return ""

    def receive(self, command: Command, origin: str = "") -> Command:
        """Store a command and return it with its number. Raises `InputError` if it cannot be stored."""
        reason = self._leads()
        if reason:
            raise InputError(f"the command was not accepted: {reason}")
        with self._lock:
            numbered = replace(command, sequence=self._next)
            waiting = [*self._kept(self._waiting), numbered]
            self._origins[self._next] = origin
            if len(waiting) > MOST:
                raise InputError(f"{MOST} commands wait for a tick already; see why no tick ends, and send it again")
            answer = self._write(waiting, self._next + 1, self._fence, self._version)
            if answer.status not in {200, 201}:
                raise InputError(
                    f"the command was not accepted: {self._shown} cannot be written: {answer.reason}; send it again"
                )
            self._waiting, self._next, self._version = waiting, self._next + 1, _version(answer)
            return numbered

    def received(self, origin: str) -> Command | None:
        """The command from this origin, if there is one and it is still kept."""
        with self._lock:
            found = (each for each in reversed(self._waiting) if self._origins.get(each.sequence) == origin)
            return next(found, None)

    def drain(self, now_s: float) -> tuple[Command, ...]:
        """Commands received since the last call, by number."""
        with self._lock:
            found = tuple(each for each in self._waiting if each.sequence > self._delivered)
            if found:
                self._delivered = found[-1].sequence
            return found

    def decided(self, number: int) -> None:
        """The memory in the cluster knows the commands up to this number."""
        self._known = number

    def kill_switch(self) -> bool:
        """True for a switch that is on or unreadable."""
        return bool(self._kill_switch())

    def close(self) -> None:
        """Nothing is kept open."""

    def _kept(self, waiting: list[Command]) -> list[Command]:
        """Those not obeyed by a tick yet, and the last others."""
        obeyed = [each for each in waiting if each.sequence <= self._known]
        kept = [*obeyed[-KEPT:], *waiting[len(obeyed) :]]
        self._origins = (
            {number: origin for number, origin in self._origins.items() if number >= kept[0].sequence} if kept else {}
        )
        return kept

    def _read(self, document: Mapping[str, Any]) -> tuple[int, list[Command]]:
        try:
            content = json.loads((document.get("data") or {})["commands.json"])
            found = [read_command(each["command"]) for each in content["commands"]]
            origins = [str(each["origin"]) for each in content["commands"]]
            self._origins = {each.sequence: origin for each, origin in zip(found, origins, strict=True)}
            return int(content["next"]), found
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
            raise InputError(
                f"{self._shown}: it is no inbox of commands ({error}); restore it, or delete it: commands that no tick "
                "has obeyed yet are lost then"
            ) from error

    def _write(self, waiting: list[Command], following: int, fence: int, version: str) -> Answer:
        metadata: dict[str, Any] = {
            "name": NAME,
            "namespace": self._namespace,
            "labels": LABELS,
            "annotations": {EPOCH: str(fence)},
        }
        commands = [{"origin": self._origins.get(each.sequence, ""), "command": command_text(each)} for each in waiting]
        content = json.dumps({"next": following, "commands": commands})
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"commands.json": content}}
        if not version:
            return self._api.post(self._parent, body)
        metadata["resourceVersion"] = version
        answer = self._api.put(f"{self._parent}/{NAME}", body)
        if answer.status == NOT_FOUND:  # somebody deleted it
            del metadata["resourceVersion"]
            return self._api.post(self._parent, body)
        return answer


def _version(answer: Answer) -> str:
    return text_in(answer.document, "resourceVersion")
