"""What the policies of the fields refuse. Every other test of this folder acts with them in force, so what must pass is
told there; here are the ways in which a stolen token would use the rights of RBAC.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from actuators.kubernetes.field_policy import NAME, WATCHDOG_NAME, field_policies
from actuators.kubernetes.levers import LEVERS
from apiserver.cel.program import compiled
from apiserver.cluster import cluster
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import User, service_account
from autopilot.contract.annotations import APPROVE, CHECK, CONDEMNED, CONTROLLER, PLACEMENT
from autopilot.contract.tree import PREFIX
from scripts.generate_act import FIELDS, fields
from tests.kits.apiserver_kit import START, Asker
from tests.kits.autoscaler_kit import CRDS, crd
from tests.unit.actuators import refused_steps as steps
from tests.unit.actuators import refused_writes as given

DEPLOY = Path(__file__).parents[3] / "deploy"
OURS = service_account("gpu-autopilot", "gpu-autopilot")
DOG = service_account("gpu-autopilot", "gpu-autopilot-watchdog")
POD: Mapping[str, Any] = {"containers": [{"name": "main", "image": "app:1"}]}
JOB_POD = {**POD, "restartPolicy": "Never"}


def path_of(server: Server, each: Mapping[str, Any]) -> str:
    """Where an object of a manifest is created."""
    kind = server.kinds.of(each["apiVersion"], each["kind"])
    assert kind is not None
    root = f"/api/{each['apiVersion']}" if "/" not in each["apiVersion"] else f"/apis/{each['apiVersion']}"
    space = each["metadata"].get("namespace")
    return f"{root}/{f'namespaces/{space}/' if space else ''}{kind.plural}"


def installed(*acts: str) -> Server:
    """A cluster with what docs/install.md applies, from the committed files, with the rights of these kinds."""
    made = cluster(Timeline(START), random.Random(1), kueue=True)
    ask = Asker(made)
    ask("POST", CRDS, crd())
    made.timeline.run_for(5.0)
    names = ("crds/recommendations", "crds/epochs", "crds/roles", "observe", "lead", "watchdog")
    for name in (*names, *(f"act/{act}" for act in acts), "fields"):
        for each in yaml.safe_load_all((DEPLOY / f"{name}.yaml").read_text("utf-8")):
            ask("POST", path_of(made, each), each)
    made.timeline.run_for(1.0)
    return made


def furnish(ask: Asker) -> None:
    """The objects of `refused_writes`, by an administrator."""
    ask("POST", "/api/v1/nodes", {"metadata": {"name": "n1", "labels": {"pool": "cheap"}}})
    ask("PATCH", given.NODE, {"spec": {"taints": [{"key": "example.com/kept", "effect": "NoSchedule"}]}})
    for space in ("team", "gpu-operator"):
        ask("POST", "/api/v1/namespaces", {"metadata": {"name": space}})
    checks = {"admissionChecks": [{"name": CHECK}, {"name": "budget"}]}
    spec: dict[str, Any] = {"namespaceSelector": {}, "admissionChecksStrategy": checks}
    ask("POST", f"{given.KUEUE}/clusterqueues", {"metadata": {"name": "q"}, "spec": spec})
    for space in ("team", "kube-system"):
        gated = {**POD, "schedulingGates": given.GATES}
        ask(
            "POST",
            f"/api/v1/namespaces/{space}/pods",
            {"metadata": {"name": "p", "labels": {"app": "a"}}, "spec": gated},
        )
        jobs, apps = f"{given.BATCH}/namespaces/{space}/jobs", f"{given.APPS}/namespaces/{space}"
        place = {"nodeSelector": {"pool": "cheap", given.HOST: "n2"}}
        meta = {
            "name": "j",
            "labels": {f"{PREFIX}manage": "true"},
            "annotations": {
                f"{PREFIX}members": "4",
                f"{PREFIX}min-members": "2",
                given.GATED_BY: f"{CONTROLLER},example.com/other",
            },
        }
        spec = {"suspend": True, "parallelism": 2, "template": {"spec": {**JOB_POD, **place}}}
        ask("POST", jobs, {"metadata": meta, "spec": spec})
        labels = {"matchLabels": {"app": "s"}}
        service = {"replicas": 1, "selector": labels, "template": {"metadata": {"labels": {"app": "s"}}, "spec": POD}}
        ask("POST", f"{apps}/deployments", {"metadata": {"name": "s"}, "spec": service})
        ask("POST", f"{apps}/statefulsets", {"metadata": {"name": "s"}, "spec": {**service, "serviceName": "s"}})
    for name, suspend in (("lone", True), ("running", False)):
        spec = {"suspend": suspend, "template": {"spec": JOB_POD}}
        ask("POST", f"{given.BATCH}/namespaces/team/jobs", {"metadata": {"name": name}, "spec": spec})
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
    }
    aim = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "s"}
    spec = {"scaleTargetRef": aim, "minReplicas": 1, "maxReplicas": 4, "metrics": [metric]}
    path = given.AUTOSCALER.rpartition("/")[0]
    ask("POST", path, {"metadata": {"name": "s"}, "spec": spec})
    pods = {"name": "main", "count": 1, "template": {"spec": JOB_POD}}
    path = given.WORKLOAD.rpartition("/")[0]
    ask("POST", path, {"metadata": {"name": "w"}, "spec": {"queueName": "none", "podSets": [pods]}})
    states = [given.check_state("Pending"), given.check_state("Pending", "budget")]
    ask("PATCH", f"{given.WORKLOAD}/status", {"status": {"admissionChecks": states}})
    path, data = given.MIG_MAP.rpartition("/")[0], {"config.yaml": "a", "theirs.yaml": "b"}
    ask("POST", path, {"metadata": {"name": "gpu-autopilot-mig"}, "data": data})
    spec = {"provisioningClassName": "c", "podSets": [{"count": 1, "podTemplateRef": {"name": "t"}}]}
    ask(
        "POST", f"{given.REQUESTS}/namespaces/team/provisioningrequests", {"metadata": {"name": "theirs"}, "spec": spec}
    )


def furnish_steps(ask: Asker) -> None:
    """The objects that only `refused_steps` names."""
    ask("POST", "/api/v1/nodes", {"metadata": {"name": "closed"}, "spec": {"unschedulable": True}})
    jobs, elastic = given.JOB.rpartition("/")[0], {f"{PREFIX}members": "4", f"{PREFIX}min-members": "1"}
    for name, suspend, wide, notes in (
        ("j-wide", False, 2, {}),
        ("j-elastic", False, 2, elastic),
        ("j-marked", True, 1, steps.MARK),
    ):
        spec: dict[str, Any] = {"suspend": suspend, "parallelism": wide, "template": {"spec": JOB_POD}}
        ask("POST", jobs, {"metadata": {"name": name, "annotations": notes}, "spec": spec})
    pods = {"name": "main", "count": 1, "template": {"spec": JOB_POD}}
    spec = {"queueName": "none", "podSets": [pods], "active": False}
    ask("POST", given.WORKLOAD.rpartition("/")[0], {"metadata": {"name": "halted"}, "spec": spec})
    for name, notes in (("known", {}), ("asked", {APPROVE: "yes"})):
        made = steps.advice()
        ask("POST", steps.ADVICE, {**made, "metadata": {"name": name, "annotations": notes}})


@pytest.fixture(scope="module")
def world() -> Server:
    """All kinds of instructions are enabled."""
    made = installed(*sorted(path.stem for path in (DEPLOY / "act").glob("*.yaml")))
    furnish(Asker(made))
    furnish_steps(Asker(made))
    return made


def response(server: Server, write: given.Write, user: User) -> tuple[int, str]:
    """Code and text of the answer to a dry run."""
    body = write.body
    if write.method == "DELETE":
        body = {**body, "dryRun": ["All"]}
    answer = Asker(server, user).response(write.method, write.path, body, media=write.media, dryRun="All")
    plain = answer.plain()
    return answer.status, str(plain.get("message", "")) if isinstance(plain, dict) else str(plain)


@pytest.mark.parametrize("write", [*given.REFUSED, *steps.STEPS], ids=lambda write: write.does)
def test_a_write_that_no_action_needs_is_refused(world: Server, write: given.Write) -> None:
    """With every right of RBAC that ships, by the policy and by nothing else."""
    code, said = response(world, write, OURS if write.ours else DOG)
    assert code in {403, 422}, said
    assert f"ValidatingAdmissionPolicy '{NAME if write.ours else WATCHDOG_NAME}'" in said


def test_there_are_many_of_them() -> None:
    """Each by a name of its own."""
    names = [write.does for write in given.REFUSED]
    assert len(names) == len(set(names)) >= 80


def test_an_administrator_is_not_asked(world: Server) -> None:
    """The same writes are theirs, as far as the server takes them."""
    ask = Asker(world)
    patches = [write for write in given.REFUSED if write.method == "PATCH"]
    found = [ask.response("PATCH", each.path, each.body, media=each.media, dryRun="All") for each in patches]
    taken = [answer.status < 300 for answer in found]
    assert sum(taken) > 80


PLACE = [{"name": "main", "nodeSelector": {given.HOST: "n1"}}]


def states(ours: Mapping[str, Any]) -> dict[str, Any]:
    """A patch of the checks of a Workload."""
    return {"status": {"admissionChecks": [ours, given.check_state("Pending", "budget")]}}


ONE_KIND = {
    "a start": ("evict", given.JOB, {"spec": {"suspend": False}}),
    "a gate": ("evict", given.POD, {"spec": {"schedulingGates": [given.GATES[1]]}}),
    "a width": ("evict", given.JOB, {"spec": {"parallelism": 1}}),
    "a request for a checkpoint": ("admit", given.POD, given.notes(gpu_autopilot_io__checkpoint_request="{}")),
    "an offer": ("cordon", given.NODE, given.notes(gpu_autopilot_io__offered_back="now")),
    "a geometry": ("cordon", given.NODE, given.meta(labels={"nvidia.com/mig.config": "all-1g.10gb"})),
    "a placement": ("cordon", given.NODE, given.meta(labels={f"{PLACEMENT}0123456789": "true"})),
    "a cordon": ("admit", given.NODE, {"spec": {"unschedulable": True}}),
    "a taint": ("recut", given.NODE, {"spec": {"taints": [{"key": CONDEMNED, "effect": "NoSchedule"}]}}),
    "a stop": ("admit", given.RUNNING, {"spec": {"suspend": True}}),
    "a deactivation": ("admit", given.WORKLOAD, {"spec": {"active": False}}),
    "a Ready": ("evict", f"{given.WORKLOAD}/status", states(given.check_state("Ready"))),
    "a Ready with a place": ("resize", f"{given.WORKLOAD}/status", states(given.check_state(podSetUpdates=PLACE))),
    "a Retry": ("resize", f"{given.WORKLOAD}/status", states(given.check_state("Retry"))),
    "a width of what waits": ("resize", given.JOB, {"spec": {"parallelism": 3}}),
    "a width of what runs": ("admit", f"{given.JOB}-elastic", {"spec": {"parallelism": 3}}),
    "a floor": ("ceiling", given.SERVICE, given.notes(gpu_autopilot_io__floor="{}")),
}


@pytest.fixture(scope="module", params=sorted({kind for kind, _, _ in ONE_KIND.values()}))
def one_kind(request: pytest.FixtureRequest) -> tuple[str, Server]:
    """A cluster in which one kind of instruction is enabled."""
    made = installed(request.param)
    furnish(Asker(made))
    furnish_steps(Asker(made))
    return request.param, made


def test_a_kind_that_is_off_changes_nothing_with_the_rights_of_another(one_kind: tuple[str, Server]) -> None:
    """RBAC grants the patch of the object to the kind that is on."""
    enabled, server = one_kind
    for does, (kind, path, body) in ONE_KIND.items():
        if kind == enabled:
            code, said = response(server, given.Write(does, path, body), OURS)
            assert (code, f"'{NAME}'" in said) == (403, True), (does, said)


def test_the_committed_file_is_generated() -> None:
    """`python scripts/generate_act.py` writes it."""
    assert FIELDS.read_text("utf-8") == fields(), "run: python scripts/generate_act.py"


def test_every_lever_states_what_it_changes() -> None:
    """A right to patch without a list would let nothing pass."""
    assert not [
        (lever.name, rule) for lever in LEVERS for rule in lever.rules if "patch" in rule.verbs and not rule.changes
    ]


def test_the_expressions_are_such_that_the_api_server_takes_them() -> None:
    """Conditions and validations are boolean by their outermost operator; names are read only where they are stated."""
    boolean = {"conditionalor", "conditionaland", "relation", "unary"}
    for policy in field_policies()[::2]:
        spec = policy["spec"]
        stated = {each["name"] for each in spec["variables"]}
        for each in (*spec["matchConditions"], *spec["validations"]):
            tree = compiled(each["expression"]).tree
            while len(tree.children) == 1 and hasattr(tree.children[0], "data"):
                tree = tree.children[0]
            assert tree.data in boolean, each["expression"]
            assert set(re.findall(r"variables\.(\w+)", each["expression"])) <= stated
        assert len(spec["validations"]) < 100
        assert all(len(each["expression"]) < 4000 for each in spec["validations"])
