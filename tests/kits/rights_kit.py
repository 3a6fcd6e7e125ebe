"""An account for each kind of instruction, with exactly the rights of the kind, and what each account asks for.

The policies of the fields are in force for these accounts, so every test of a lever is one of the policies too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.field_policy import field_policies
from actuators.kubernetes.levers import ACTIONS, GROUP, rules_for
from actuators.kubernetes.rights import NAME, NAMESPACE, RBAC, kinds, manifest, probe_manifest
from apiserver.errors import StatusError
from apiserver.http.serve import Running
from apiserver.kinds.base import Call
from apiserver.server import Server
from autopilot.core.model.records import Instruction, Outcome
from autopilot.kube.access import Access, Address
from tests.kits.apiserver_kit import Asker
from tests.kits.fence_kit import install_fields

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}-"
ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"


class Right(NamedTuple):
    """One verb on one resource; `name` where only one object may be meant."""

    group: str
    resource: str
    verb: str
    name: str = ""


class Rights:
    """Accounts in front of a server. `used` and `refused`: what was asked for, by kind of instruction.

    `unversioned`: writes that do not name the resourceVersion of what was read, Events left aside.
    """

    def __init__(self, server: Server, running: Running, folder: Path) -> None:
        """`folder`: for the kubeconfigs."""
        ask = Asker(server)
        meta = {"name": NAMESPACE}
        ask("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        self._accesses = {kind: Access(Address(_kubeconfig(ask, running, folder, kind))) for kind in kinds()}
        # the admission policy asks for the first one, in the name of the account
        self.used = {kind: {Right(GROUP, ACTIONS, "use", kind)} for kind in kinds()}
        self.refused: dict[str, set[Right]] = {kind: set() for kind in kinds()}
        self.unversioned: dict[str, set[Right]] = {kind: set() for kind in kinds()}
        install_fields(server, field_policies(NAMESPACE, [_account(kind) for kind in kinds()]))
        self._authorize, server.authorize = server.authorize, self._record

    def access(self, kind: str) -> Access:
        """The account of a kind of instruction."""
        return self._accesses[kind]

    def _record(self, call: Call) -> None:
        """Decide as before, and note it."""
        kind = call.user.name.removeprefix(ACCOUNT).replace("-", "_")
        resource = f"{call.kind.plural}/{call.subresource}" if call.subresource else call.kind.plural
        right = Right(call.kind.group, resource, call.verb, call.name)
        try:
            self._authorize(call)
        except StatusError:
            self.refused.get(kind, set()).add(right)
            raise
        self.used.get(kind, set()).add(right)
        writes = call.verb in {"create", "patch", "delete"} and right.resource != "events"
        if kind in self.unversioned and writes and not _names_version(call):
            self.unversioned[kind].add(right)


def _names_version(call: Call) -> bool:
    """Whether the server refuses a write where its object was written since it was read."""
    body = json.loads(call.request.body)
    given = body.get("preconditions" if call.verb == "delete" else "metadata") or {}
    return "resourceVersion" in given


def _account(kind: str) -> str:
    return f"{NAME}-{kind.replace('_', '-')}"


def _kubeconfig(ask: Asker, running: Running, folder: Path, kind: str) -> Path:
    """The file of a new account."""
    name = _account(kind)
    ask("POST", ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    for each in (*manifest(kind), *(probe_manifest() if kind == "set_sharing" else ())):
        for subject in each.get("subjects") or ():
            subject["name"] = name
        space = f"/namespaces/{NAMESPACE}" if "namespace" in each["metadata"] else ""
        ask("POST", f"/apis/{RBAC}/v1{space}/{each['kind'].lower()}s", each)
    token = ask("POST", f"{ACCOUNTS}/{name}/token", {"spec": {"expirationSeconds": 86400}})["status"]["token"]
    path = folder / f"{kind}.kubeconfig"
    path.write_text(running.kubeconfig(token), "utf-8")
    return path


def granted(kind: str) -> set[Right]:
    """What instructions of a kind may do."""
    return {
        Right(rule.group, rule.resource, verb, name)
        for rule in rules_for([kind])
        for verb in rule.verbs
        for name in rule.names or ("",)
    }


def without_names(rights: set[Right], kind: str) -> set[Right]:
    """The same, with a name only where the rights of the kind have one."""
    named = {(right.group, right.resource) for right in granted(kind) if right.name}
    return {right if right[:2] in named else right._replace(name="") for right in rights}


class ByKind:
    """An actuator that carries out each kind of instruction with the account of the kind."""

    def __init__(self, make: Callable[[str], KubernetesActuator]) -> None:
        """`make`: an actuator with the account of a kind."""
        self._parts = {kind: make(kind) for kind in kinds()}

    def of(self, kind: str) -> Any:
        """The actuator of a kind."""
        return self._parts[kind]

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Carry out."""
        return self._parts[instruction.kind].apply(instruction, now_s)

    def advance(self, now_s: float, fence: int | None, under_way: Sequence[Instruction]) -> tuple[Outcome, ...]:
        """Go on with everything."""
        return tuple(
            outcome
            for kind, part in self._parts.items()
            for outcome in part.advance(now_s, fence, [each for each in under_way if each.kind == kind])
        )
