"""The rights of the watchdog, of leading and of our resources are those that are used: none is missing or left over."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apiserver.cluster import cluster
from apiserver.errors import StatusError
from apiserver.http.faults import QUIET, Faults
from apiserver.http.serve import serve
from apiserver.kinds.base import Call
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN, User, service_account
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.trust import Touched, TrustMemory
from autopilot.core.model.records import Command, CommandKind
from autopilot.crds.definitions import policy_definition, recommendation_definition
from autopilot.crds.keeper import KIND
from autopilot.crds.names import collection, path
from autopilot.crds.other_policies import OtherPolicies
from autopilot.crds.planning import KEPT_S
from autopilot.crds.policy_status import PolicyStatus
from autopilot.crds.roles import SERVICE_RULES, roles
from autopilot.operate.check_policies import shipped_policies
from autopilot.readiness.checks import run_checks
from autopilot.readiness.line import Asked
from autopilot.readiness.manifest import MEMORY_PARTS, POLICY_MAP, RBAC, SWITCH_MAP, leading_rules, observe, rules
from autopilot.readiness.watchdog import watchdog_own_rules, watchdog_rules
from autopilot.records.memory import InMemoryStore
from autopilot.service.cluster_policy import ClusterPolicySource, PolicyMap, PolicyObject
from autopilot.service.config_maps import MapName, MapSwitch
from autopilot.service.leading import memory as memory_module
from autopilot.service.leading.epoch import ClusterEpoch
from autopilot.service.leading.inbox import ClusterInbox
from autopilot.service.leading.lease import Terms
from autopilot.service.leading.memory import ClusterMemory
from autopilot.service.settings import Kubernetes
from autopilot.service.watchdog.marker import Marker
from collectors.kubernetes.reflector import Timing
from collectors.kubernetes.source import Cluster
from collectors.kubernetes.transport import ApiError, Transport
from tests.hostile.api_wire import Stream, Wire
from tests.kits.apiserver_kit import START, Asker
from tests.kits.core_world import waits
from tests.kits.fence_kit import install_fence, install_fields
from tests.kits.lead_kit import NAME, Candidate, InProcess, with_namespace
from tests.kits.recommendations_kit import Desk
from tests.kits.rights_kit import Right
from tests.unit.service.watchdog import test_watchdog

OURS = service_account(NAME.namespace, "gpu-autopilot")
MAPS = f"/api/v1/namespaces/{NAME.namespace}/configmaps"

REVIEWS = {"authentication.k8s.io", "authorization.k8s.io"}


def _definition(group: str, version: str, kind: str, scope: str) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object"}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "scope": scope,
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


DEFINITIONS = (
    _definition("scheduling.run.ai", "v2", "Queue", "Cluster"),
    _definition("gateway.networking.k8s.io", "v1", "HTTPRoute", "Namespaced"),
    _definition("gateway.networking.k8s.io", "v1", "GRPCRoute", "Namespaced"),
    _definition("inference.networking.k8s.io", "v1", "InferencePool", "Namespaced"),
    _definition("inference.networking.x-k8s.io", "v1alpha2", "InferencePool", "Namespaced"),
)
"""Kinds that are read and that neither Kubernetes nor Kueue has."""


class Older(Wire):
    """The way to a server that does not stream lists."""

    def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> Stream:
        """Refused where it asks for the objects that are there."""
        if "sendInitialEvents" in query:
            raise ApiError(422, "sendInitialEvents is forbidden")
        return super().watch(path, query, silence_s)


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

    def check(self, granting: Iterable[Mapping[str, Any]]) -> None:
        """Each right was used, and nothing was asked for without one."""
        rights = {
            Right(group, resource, verb, name)
            for rule in granting
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for name in rule.get("resourceNames") or ("",)
        }
        used = {right if right in rights else right._replace(name="") for right in self.rights}
        assert self.refused == set()
        assert rights - used == set(), "no story uses it: remove the right"
        assert used - rights == set()


def granted(server: Server, granting: list[dict[str, Any]]) -> Used:
    """What our account asks for from now on; it has exactly these rights in its namespace."""
    ask, parent = Asker(server), f"/apis/{RBAC}/v1/namespaces/{NAME.namespace}"
    account = {"kind": "ServiceAccount", "name": "gpu-autopilot", "namespace": NAME.namespace}
    role = {"apiGroup": RBAC, "kind": "Role", "name": "ours"}
    ask("POST", f"{parent}/roles", {"metadata": {"name": "ours"}, "rules": granting})
    ask("POST", f"{parent}/rolebindings", {"metadata": {"name": "ours"}, "roleRef": role, "subjects": [account]})
    return Used(server, OURS)


def empty() -> Server:
    """A cluster with our namespace."""
    return with_namespace(cluster(Timeline(START), random.Random(1)))


def test_looking_at_a_cluster_uses_each_of_its_rights() -> None:
    """The collector with every kind that it knows, and `autopilot check`, with exactly what deploy/observe.yaml grants.

    Reviews are left aside: `check` asks what everybody may ask, and the sign-in with tokens has tests of its own.
    """
    timeline = Timeline(START)
    server = with_namespace(cluster(timeline, random.Random(1), kueue=True))
    for each in DEFINITIONS:
        server.client(ADMIN, "test").create("customresourcedefinitions.apiextensions.k8s.io", each)
    timeline.run_for(5.0)
    ask, parent = Asker(server), f"/apis/{RBAC}/v1"
    for each in observe():
        if each["kind"] in {"ClusterRole", "ClusterRoleBinding"}:
            ask("POST", f"{parent}/{each['kind'].lower()}s", each)
    used = Used(server, OURS)
    for wire in (Wire, Older):
        source = Cluster(wire(server, OURS, Faults(QUIET), lambda _write: None), START.timestamp, rng=random.Random(1))
        for _ in range(3):
            source.step_all()
    policies = shipped_policies(Kubernetes(in_cluster=True, act=True))
    assert list(run_checks(Asked(InProcess(server, OURS), None, START.timestamp, NAME.namespace, policies=policies)))
    used.rights = {each for each in used.rights if each.group not in REVIEWS}
    used.check([rule for rule in rules(False) if not REVIEWS & {*rule["apiGroups"]}])


def test_the_watchdog_uses_each_of_its_rights() -> None:
    """Its stories, told once more; its account has exactly these rights."""
    used = set[Right]()
    for story in (
        test_watchdog.test_it_acts_after_an_absence_with_a_healthy_server,
        test_watchdog.test_it_removes_our_gates_and_leaves_those_of_others,
        test_watchdog.test_it_starts_again_only_what_the_controller_stopped,
        test_watchdog.test_it_stops_where_the_controller_returns_meanwhile,
        test_watchdog.test_idle_services_have_the_replicas_of_their_owners_again,
    ):
        server = test_watchdog.watched()
        seen = Used(server, test_watchdog.DOG)
        story(server)
        used = seen.rights = seen.rights | used
    seen.check([*watchdog_rules(), *watchdog_own_rules()])


def test_leading_uses_each_of_its_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Election, memory, commands and takeover, the fence, and the mark of the watchdog that a person takes away."""
    server = empty()
    install_fence(server)
    install_fields(server)
    server.timeline.run_for(1.0)
    seen, api = granted(server, leading_rules()), InProcess(server, OURS)
    Marker(InProcess(server), NAME.namespace).write("removed", "now", "it was away", {})
    monkeypatch.setattr(memory_module, "SHARD_BYTES", 1500)
    for leader in (1, 2):
        candidate = Candidate(server, f"c{leader}", Terms(), user=OURS)
        for _ in range(10):
            candidate.elector.step()
            server.timeline.run_for(1.5)
        fence = candidate.elector.fence()
        assert fence == leader
        epoch = ClusterEpoch(api, NAME)
        assert epoch.claim(fence) == ""
        epoch.settle(fence)
        _lead(server, api, fence)
        assert epoch.probe(fence) == ("", False)
        if leader == 2:
            candidate.elector.release()
    mark = Marker(api, NAME.namespace)
    assert mark.read()[0] != ""
    assert mark.clear() == ""
    seen.check(leading_rules())


def _lead(server: Server, api: InProcess, fence: int) -> None:
    """One term: the memory in all of its ConfigMaps, and a command."""
    memory = ClusterMemory(api, NAME.namespace, InMemoryStore(), lambda: server.timeline.now_s)
    assert memory.claim(fence) == ""
    loaded = memory.load()
    assert (loaded.tick if loaded is not None else 0) == 3 * (fence - 1)
    for turn in (1, 2, 3):
        rng = random.Random(turn)
        touched = tuple(Touched("preempt", f"{rng.getrandbits(128):032x}", 1.0) for _ in range(1080))
        memory.save(ControllerMemory(tick=3 * (fence - 1) + turn, fence=fence, trust=TrustMemory(touched=touched)))
        assert memory.problem == ""
        assert memory.bytes > (MEMORY_PARTS - 1) * memory_module.SHARD_BYTES
    inbox = ClusterInbox(api, NAME.namespace, lambda: "", lambda: "")
    assert inbox.claim(fence, -1) == ""
    inbox.receive(Command(CommandKind.PAUSE, "pat", 1.0), f"here {fence}")


@pytest.mark.parametrize("name", [POLICY_MAP, SWITCH_MAP, "gpu-autopilot-watchdog"])
def test_a_leader_cannot_change_its_policy_its_kill_switch_or_the_mark(name: str) -> None:
    """The role cannot change the policy or the kill switch, so a stolen token cannot turn them off."""
    server = empty()
    granted(server, leading_rules())
    found = Asker(server)("POST", MAPS, {"metadata": {"name": name}, "data": {"kill": "on"}})
    ours = Asker(server, OURS)
    assert "forbidden" in ours.refused(403, "PUT", f"{MAPS}/{name}", {**found, "data": {"kill": "off"}})
    assert "forbidden" in ours.refused(403, "PATCH", f"{MAPS}/{name}", {"data": {"kill": "off"}})


def test_the_settings_in_config_maps_use_their_right(tmp_path: Path) -> None:
    """Policy and kill switch are read by name; they are neither listed nor watched."""
    server = empty()
    seen, api = granted(server, rules(own_namespace=True)), InProcess(server, OURS)
    for name, data in ((POLICY_MAP, {"policy.yaml": "base: recommend"}), (SWITCH_MAP, {"kill": "off"})):
        Asker(server)("POST", MAPS, {"metadata": {"name": name}, "data": data})
    source = ClusterPolicySource(api.get, PolicyMap(MapName(NAME.namespace, POLICY_MAP)), tmp_path / "last")
    source.current()
    assert source.problem is None
    assert MapSwitch(api.get, MapName(NAME.namespace, SWITCH_MAP)).reason() == ""
    seen.check(rules(own_namespace=True))


@pytest.fixture
def desk(tmp_path: Path) -> Iterable[tuple[Desk, Used]]:
    """A controller beside a cluster over HTTP, with the rights for our resources and no others."""
    server = with_namespace(cluster(Timeline(datetime.now(UTC)), random.Random(1)))
    ask = Asker(server)
    for each in (policy_definition(), recommendation_definition()):
        ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", each)
    for each in roles():
        ask("POST", f"/apis/{RBAC}/v1/{each['kind'].lower()}s", each)
    install_fields(server)
    accounts = f"/api/v1/namespaces/{NAME.namespace}/serviceaccounts"
    ask("POST", accounts, {"metadata": {"name": "gpu-autopilot"}})
    token = ask("POST", f"{accounts}/gpu-autopilot/token", {"spec": {"expirationSeconds": 86400}})["status"]["token"]
    server.timeline.run_for(5.0)
    seen = Used(server, OURS)
    with serve(server) as running:
        (tmp_path / "kubeconfig").write_text(running.kubeconfig(token), "utf-8")
        made = Desk(running, tmp_path / "kubeconfig", tmp_path)
        yield made, seen
        made.close()


def test_our_resources_use_each_of_their_rights(desk: tuple[Desk, Used], locked: Callable[..., Any]) -> None:
    """A recommendation is made, approved, ended and removed; the policy is read, and its status written."""
    made, seen = desk
    listing = Cluster(
        Transport(made.accesses[0], made.now_s), made.now_s, kinds=(KIND,), urgent=(KIND,), timing=Timing(watch_s=30)
    )
    listing.start()
    assert listing.wait_synced(20.0)
    listing.close()
    locked(made, "POST", collection("autopilotpolicies"), {"metadata": {"name": "rules"}, "spec": {}})
    source = ClusterPolicySource(made.api.get, PolicyObject("rules"), made.folder / "last")
    source.current()
    made.tick(waits("a", 4))
    assert made.publisher.latest is not None
    assert PolicyStatus(source, made.api.get, made.api.send, lambda: 0.0)(made.publisher.latest) == ""
    assert OtherPolicies(source.place, made.api.get, made.api.send, lambda: 0.0)(made.publisher.latest) == ""
    target = path("recommendations", made.proposal)
    locked(made, "PATCH", target, {"metadata": {"annotations": {"gpu-autopilot.io/approve": "yes"}}})
    made.tick(waits("a", 4))
    made.tick()
    made.steady_s += KEPT_S
    made.tick()
    assert made.api.get(collection("recommendations")).document["items"] == []
    seen.check(SERVICE_RULES)


@pytest.fixture
def locked() -> Callable[..., Any]:
    """A request of a person while the clock of the cluster is held."""

    def ask(desk: Desk, method: str, target: str, body: dict[str, Any]) -> Any:
        with desk.running.clock.lock:
            return Asker(desk.running.shell.server)(method, target, body)

    return ask
