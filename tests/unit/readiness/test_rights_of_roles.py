"""The rights of the watchdog and of leading are those that are used: none is missing, and none is left over."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from apiserver.cluster import cluster
from apiserver.errors import StatusError
from apiserver.requests import Call
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import User, service_account
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.records import Command, CommandKind
from autopilot.memory_store import InMemoryStore
from autopilot.readiness.manifest import LEADING_RULES
from autopilot.readiness.watchdog import watchdog_own_rules, watchdog_rules
from autopilot.service.leading.inbox import ClusterInbox
from autopilot.service.leading.lease import Terms
from autopilot.service.leading.memory import ClusterMemory
from autopilot.service.watchdog.marker import Marker
from tests.kits.apiserver_kit import START, Asker
from tests.kits.lead_kit import NAME, Candidate, InProcess, with_namespace
from tests.kits.rights_kit import Right
from tests.unit.service.watchdog import test_watchdog

LEADER = service_account(NAME.namespace, "gpu-autopilot")
ROLES = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAME.namespace}"


class Used:
    """What a user asks of a server from now on."""

    def __init__(self, server: Server, user: User) -> None:
        self.rights, self.refused, self._user = set[Right](), set[Right](), user.name
        self._authorize, server.authorize = server.authorize, self._record

    def _record(self, call: Call) -> None:
        resource = f"{call.kind.plural}/{call.subresource}" if call.subresource else call.kind.plural
        right = Right(call.kind.group, resource, call.verb, call.name)
        mine = call.user.name == self._user
        try:
            self._authorize(call)
        except StatusError:
            self.refused |= {right} if mine else set()
            raise
        self.rights |= {right} if mine else set()


def granted(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    """The rules of a role, one by one."""
    return {
        Right(group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or ("",)
    }


def unused(used: set[Right], rights: set[Right]) -> set[Right]:
    """Rights that nobody used."""
    plain = {right._replace(name="") for right in used}
    return {right for right in rights if right not in (used if right.name else plain)}


def test_the_watchdog_uses_each_of_its_rights() -> None:
    """Its stories, told once more; its account has exactly these rights, so the server refused nothing."""
    used = set[Right]()
    for story in (
        test_watchdog.test_it_acts_after_an_absence_with_a_healthy_server,
        test_watchdog.test_it_removes_our_gates_and_leaves_those_of_others,
        test_watchdog.test_it_starts_again_only_what_the_controller_stopped,
    ):
        server = test_watchdog.watched()
        seen = Used(server, test_watchdog.DOG)
        story(server)
        assert seen.refused == set()
        used |= seen.rights
    assert unused(used, granted([*watchdog_rules(), *watchdog_own_rules()])) == set()


def test_leading_uses_each_of_its_rights() -> None:
    """Election, memory, commands, and the mark of the watchdog that a person takes away."""
    server = with_namespace(cluster(Timeline(START), random.Random(1)))
    ask = Asker(server)
    account = {"kind": "ServiceAccount", "name": "gpu-autopilot", "namespace": NAME.namespace}
    ask("POST", f"{ROLES}/roles", {"metadata": {"name": "leading"}, "rules": LEADING_RULES})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "leading"}
    ask("POST", f"{ROLES}/rolebindings", {"metadata": {"name": "leading"}, "roleRef": role, "subjects": [account]})
    seen = Used(server, LEADER)
    candidate, api = Candidate(server, "one", Terms(), user=LEADER), InProcess(server, LEADER)
    for _ in range(4):
        candidate.elector.step()
        server.timeline.run_for(1.5)
    fence = candidate.elector.fence()
    assert fence == 1
    memory = ClusterMemory(api, NAME.namespace, InMemoryStore(), lambda: server.timeline.now_s)
    assert memory.claim(fence) == ""
    for tick in (1, 2):
        memory.save(ControllerMemory(tick=tick, fence=fence, last_sequence=tick))
        assert memory.problem == ""
    inbox = ClusterInbox(api, NAME.namespace, lambda: "", lambda: "")
    assert inbox.claim(fence, -1) == ""
    inbox.receive(Command(CommandKind.PAUSE, "pat", 1.0), "here")
    Marker(InProcess(server), NAME.namespace).write("removed", "now", "it was away", {})
    mark = Marker(api, NAME.namespace)
    assert mark.read()[0] != ""
    assert mark.clear() == ""
    candidate.elector.release()
    assert seen.refused == set()
    assert unused(seen.rights, granted(LEADING_RULES)) == set()
