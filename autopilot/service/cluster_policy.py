"""A policy kept in the cluster: in a ConfigMap, or as an AutopilotPolicy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autopilot.contract.notes import failure_text
from autopilot.core.model.errors import InputError
from autopilot.core.model.modes import LATEST_EDITION
from autopilot.core.model.policy import Policy
from autopilot.files import replace_file
from autopilot.kube.cluster_api import Answer
from autopilot.service.capping import Capped
from autopilot.service.config_maps import Get, MapName
from autopilot.settings import API_VERSION, KIND, parse_policy, shipped_policy

POLICY_KEY = "policy.yaml"
EVERY_S = 5.0
"""A policy is read at most this often."""


@dataclass(frozen=True, slots=True)
class PolicyText:
    """The text of a policy. `generation` is that of its object; 0 for none."""

    text: str
    generation: int = 0


class PolicyPlace(Protocol):
    """Place of a policy. Its text is its name in messages."""

    @property
    def name(self) -> str:
        """Name of a policy without a name of its own."""
        ...

    def policy(self, get: Get) -> PolicyText:
        """The present text. Raises `InputError` with the reason for a missing one, and the fix."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyMap:
    """The key `policy.yaml` of a ConfigMap."""

    place: MapName

    def __str__(self) -> str:
        return str(self.place)

    @property
    def name(self) -> str:
        """The name of the map."""
        return self.place.name

    def policy(self, get: Get) -> PolicyText:
        """The text under the key."""
        return PolicyText(self.place.value(get, POLICY_KEY))


@dataclass(frozen=True, slots=True)
class PolicyObject:
    """An AutopilotPolicy; it belongs to no namespace."""

    name: str

    def __str__(self) -> str:
        return f"{KIND} {self.name}"

    @property
    def path(self) -> str:
        """Its path on the API server."""
        return f"/apis/{API_VERSION}/autopilotpolicies/{self.name}"

    def policy(self, get: Get) -> PolicyText:
        """Its name and spec."""
        answer = get(self.path)
        if answer.status != 200:
            raise InputError(f"{self}: {_why_unread(answer)}")
        found = answer.document
        metadata, spec = found.get("metadata") or {}, found.get("spec")
        bare = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": self.name}, "spec": spec}
        return PolicyText(json.dumps(bare, ensure_ascii=False), int(metadata.get("generation") or 0))


def _why_unread(answer: Answer) -> str:
    if answer.status == 0:
        return f"the API server does not answer: {answer.text}"
    if answer.status == 404:
        named = (answer.document.get("details") or {}).get("name")
        return "it does not exist; create it" if named else "the cluster does not know this kind; apply deploy/crds/"
    return f"it cannot be read: {answer.reason}; apply deploy/crds/roles.yaml"


class ClusterPolicySource:
    """The policy of a place in the cluster (port `PolicySource`).

    While it is gone or invalid, the last valid policy stays in force with every mode at most `recommend`, and `problem`
    gives the reason. The last valid text is kept in the file `last`, so that a restart does not lose it. Without any,
    the shipped policy `recommend` is in force.
    """

    def __init__(
        self, get: Get, place: PolicyPlace, last: Path, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.place = place
        self.problem: str | None = None
        self.read_generation = 0  # of the last read text
        self.generation = 0  # of the policy in force; 0 while it came from the file, or from no object
        self._get, self._last, self._monotonic_s = get, last, monotonic_s
        self._edition = LATEST_EDITION
        self._text: str | None = None
        self._policy = self._kept()
        self._capped = Capped()
        self._read_s = float("-inf")

    def current(self) -> Policy:
        """The policy in force; the same object while nothing changed."""
        now_s = self._monotonic_s()
        if now_s - self._read_s >= EVERY_S:
            self._read_s = now_s
            self._read()
        return self._capped.of(self._policy) if self.problem else self._policy

    def installed(self, edition: int) -> None:
        """The installation began with this edition of the shipped policies."""
        if edition != self._edition:
            self._edition, self._text, self._policy, self._read_s = edition, None, self._kept(), float("-inf")

    def newest(self) -> Policy:
        """The same in a fresh installation."""
        if self._text is None:
            return self._policy
        return parse_policy(self._text, str(self.place), self.place.name)

    @property
    def written(self) -> Policy:
        """The last valid policy as it is written."""
        return self._policy

    def _kept(self) -> Policy:
        try:
            return parse_policy(self._last.read_text("utf-8"), str(self._last), self.place.name, self._edition)
        except (OSError, UnicodeDecodeError, InputError):
            return shipped_policy("recommend")

    def _read(self) -> None:
        try:
            found = self.place.policy(self._get)
            self.read_generation = found.generation
            if found.text != self._text:
                self._take(found.text)
            self.generation, self.problem = found.generation, None
        except InputError as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001 - whatever an object says, the ticks go on
            self.problem = f"{self.place}: it cannot be read: {failure_text(error)}"

    def _take(self, text: str) -> None:
        policy = parse_policy(text, str(self.place), self.place.name, self._edition)
        replace_file(self._last, lambda path: path.write_text(text, encoding="utf-8"))
        self._text = text
        if policy != self._policy:
            self._policy = policy
