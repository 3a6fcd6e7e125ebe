"""What docs/install.md says about removing the autopilot, on the server."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from autopilot.contract.annotations import CONDEMNED, CONTROLLER, PLACEMENT, STOPPED
from autopilot.contract.tree import PREFIX
from tests.kits.acting_kit import CHECKED, Acting
from tests.kits.autoscaler_kit import CRDS, GROUP, ROOT, crd
from tests.kits.marks import MARKS, unnamed
from tests.kits.scaling_kit import Scaling

ROOT_FOLDER = Path(__file__).parents[3]
INSTALL = ROOT_FOLDER / "docs" / "install.md"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Acting]:
    """Three nodes, for kubectl."""
    found = Acting(tmp_path, tls=True)
    yield found
    found.close()


def labels(cluster: Acting, name: str) -> dict[str, str]:
    """The labels of a node."""
    found: dict[str, str] = cluster.ask("GET", f"/api/v1/nodes/{name}")["metadata"]["labels"]
    return found


def test_one_command_removes_the_labels_of_placements(cluster: Acting, require_tool: Callable[[str], str]) -> None:
    """Those of every gang on every node, and no other label."""
    before = {name: labels(cluster, name) for name in ("n1", "n2", "n3")}
    for name, gangs in {"n1": ("0123456789", "abcdef0123"), "n2": ("0123456789",)}.items():
        marks = {f"{PLACEMENT}{gang}": "true" for gang in gangs}
        cluster.ask("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": marks}})
    (command,) = (line.strip() for line in INSTALL.read_text("utf-8").splitlines() if "kubectl label node" in line)
    path = f"{Path(require_tool('kubectl')).parent}:{os.environ['PATH']}"
    home = str(cluster.kubeconfig.parent)
    environment = {"PATH": path, "HOME": home, "KUBECONFIG": str(cluster.kubeconfig)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {name: labels(cluster, name) for name in before} == before


def section() -> str:
    """What docs/install.md says about removing it."""
    return INSTALL.read_text("utf-8").partition("\n## Removing it\n")[2]


def commands() -> list[str]:
    """The commands of its blocks, in order."""
    blocks = re.findall(r"^ *```\n(.*?)^ *```$", section(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in dedent(block).splitlines()]


Shell = Callable[[str], str]


@pytest.fixture
def shell(cluster: Acting, require_tool: Callable[[str], str]) -> Shell:
    """Runs a command of a person in the checkout; what it printed. It must succeed."""
    path = f"{Path(require_tool('kubectl')).parent}:{os.environ['PATH']}"
    home = {"PATH": path, "HOME": str(cluster.kubeconfig.parent), "KUBECONFIG": str(cluster.kubeconfig)}

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], env=home, cwd=ROOT_FOLDER, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    return run


STOPPED_JOB = '{"uid": "UID", "id": "1/p/w", "reason": "move", "returns": true}'
GIVEN: dict[str, tuple[dict[str, str], ...]] = {
    "patch clusterqueue QUEUE": ({"QUEUE": "a"},),
    "patch job NAME": ({"NAMESPACE": "default", "NAME": "plain", "NUMBER": "0123456789"},),
    "patch workload NAME": ({"NAMESPACE": "default", "NAME": "WORKLOAD"},),
    "patch pod NAME": ({"NAMESPACE": "default", "NAME": "gated"},),
    "annotate job NAME": ({"NAMESPACE": "default", "NAME": "queued"},),
    "uncordon NAME": ({"NAME": "n1"},),
    "taint nodes NAME": ({"NAME": "n1"},),
}
"""What a person puts in place of the capital words of a command, by a part of the command."""


def written_on(cluster: Acting, shell: Shell) -> dict[str, str]:
    """A cluster with everything that is applied, and an object of each kind with all that the controller writes."""
    scaling, kueue = Scaling(cluster), cluster.kueue
    cluster.ask("POST", CRDS, crd())
    cluster.add_check()
    kueue.queue("a", 24, admissionChecksStrategy=CHECKED)
    shell("kubectl apply -f deploy/observe.yaml && kubectl create -f deploy/settings.yaml")
    shell(
        "kubectl apply -f deploy/crds/ -f deploy/act/ -f deploy/fence.yaml -f deploy/fields.yaml -f deploy/lead.yaml"
        " -f deploy/watchdog.yaml"
    )
    shell("kubectl create clusterrolebinding gpu-approvers --clusterrole gpu-autopilot-approver --group gpu-oncall")
    names = {"Deployment": scaling.service(), "StatefulSet": scaling.service(plural="statefulsets"), "Node": "n1"}
    scaling.autoscaler(names["Deployment"])
    cluster.plain_job("plain", suspend=True)
    cluster.waiting_job("queued", 8, gate=CONTROLLER)
    cluster.pod("gated", gates=(CONTROLLER, "example.com/other"))
    names |= {"HorizontalPodAutoscaler": names["Deployment"], "Job": "plain", "Pod": "gated"}
    names["Workload"] = cluster.workload("queued")["metadata"]["name"]
    selector = json.dumps({"spec": {"template": {"spec": {"nodeSelector": {f"{PLACEMENT}0123456789": "true"}}}}})
    shell(f"kubectl patch job plain --type merge --patch '{selector}'")
    shell(
        'kubectl patch workloads.kueue.x-k8s.io --type merge --patch \'{"spec":{"active":false}}\' ' + names["Workload"]
    )
    shell(f"kubectl label node n1 {PLACEMENT}0123456789=true")
    shell(f"kubectl cordon n1; kubectl taint nodes n1 {CONDEMNED}=true:NoSchedule")
    request = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ProvisioningRequest",
        "metadata": {"name": "r", "labels": {f"{PREFIX}capacity-request": "true"}},
        "spec": {"provisioningClassName": "c", "podSets": [{"count": 1, "podTemplateRef": {"name": "t"}}]},
    }
    cluster.ask("POST", ROOT, request)
    assert names.keys() == MARKS.keys()
    for kind, marks in MARKS.items():
        notes = " ".join(f"'{mark}={STOPPED_JOB if mark == STOPPED else 1}'" for mark in sorted(marks))
        shell(f"kubectl annotate {kind.lower()} {names[kind]} {notes}")
    return names


def test_its_commands_leave_nothing_of_ours(cluster: Acting, shell: Shell) -> None:
    """Run as they stand, in their order, on a cluster with everything that we write and apply."""
    names = written_on(cluster, shell)
    cluster.release()  # kubectl waits for the end of what it deletes
    for command in commands():
        cases = next((each for part, each in GIVEN.items() if part in command), ({},))
        for case in cases:
            made = command
            for word, name in case.items():
                made = made.replace(word, name.replace("WORKLOAD", names["Workload"]))
            assert not re.search(r"\b[A-Z]{4,}\b", made.replace("NAME", "")) or not case, made
            said = shell(made)
            if command.startswith("kubectl get jobs,workloads"):
                assert [line.split()[:3] for line in said.splitlines()] == [
                    ["Job", "default", "plain"],
                    ["Workload", "default", names["Workload"]],
                ]
    cluster.run(30)
    kinds = ",".join(each.lower() for each in MARKS if each != "Workload")
    left = json.loads(
        shell(f"kubectl get {kinds},workloads.kueue.x-k8s.io,clusterqueues,provisioningrequests -A -o json")
    )
    for each in left["items"]:
        meta = each["metadata"]
        found = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
        assert not [key for key in found if "gpu-autopilot" in key], meta["name"]
        text = json.dumps({"spec": each.get("spec"), "status": {}})
        assert "gpu-autopilot" not in text, meta["name"]
    whole = "crds,namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies"
    whole += ",validatingadmissionpolicybindings,admissionchecks,leases,configmaps,serviceaccounts"
    assert "gpu-autopilot" not in shell(f"kubectl get {whole} -A -o name")
    job = cluster.job("plain")["spec"]
    assert (job["suspend"], job["template"]["spec"].get("nodeSelector")) == (False, None)
    assert [
        each["name"] for each in cluster.ask("GET", "/api/v1/namespaces/default/pods/gated")["spec"]["schedulingGates"]
    ] == ["example.com/other"]


def test_every_mark_has_its_command() -> None:
    """By kind, in the `kubectl annotate` of the section; none names a mark that is not written."""
    plurals = {"Node": "nodes", "Job": "jobs", "Pod": "pods", "Workload": "workloads.kueue.x-k8s.io"}
    plurals |= {"Deployment": "deployments", "StatefulSet": "statefulsets"}
    plurals["HorizontalPodAutoscaler"] = "horizontalpodautoscalers"
    removed: dict[str, set[str]] = {}
    for command in commands():
        if command.startswith("kubectl annotate") and " --all " in command:
            what, keys = command.split()[2], {word[:-1] for word in command.split() if word.endswith("-")}
            for plural in what.split(","):
                removed.setdefault(plural, set()).update(keys)
    assert {plural: removed[plural] >= MARKS[kind] for kind, plural in plurals.items()} == dict.fromkeys(removed, True)
    assert set().union(*removed.values()) == set().union(*MARKS.values())


def test_a_mark_that_no_command_removes_is_found() -> None:
    """The look at what the levers write can fail."""
    sent: list[tuple[str, dict[str, Any]]] = [
        ("Job", {"metadata": {"annotations": {f"{PREFIX}new": "1", f"{PREFIX}gone": None}}}),
        ("Service", {"metadata": {"labels": {f"{PREFIX}effect": "1"}}}),
    ]
    assert unnamed(sent) == [
        "annotation gpu-autopilot.io/new on a Job",
        "label gpu-autopilot.io/effect on a Service",
    ]
