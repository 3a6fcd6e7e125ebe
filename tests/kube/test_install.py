"""docs/install.md from its first step to its last, on a fresh cluster: with kubectl, the commands of the page in their
order, and the service as a process.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from autopilot.contract.annotations import CONDEMNED, CONTROLLER, EPOCH, MANAGER, PLACEMENT, STOPPED
from autopilot.contract.marks import MARKS
from autopilot.contract.scaling import FLOOR, Floor, Way
from autopilot.contract.tree import PREFIX
from autopilot.kube.access import Access, Address
from autopilot.kube.cluster_api import ClusterApi
from autopilot.service.leading.epoch import ClusterEpoch
from tests.kits.acting_kit import PODS, Acting
from tests.kits.autoscaler_kit import CRDS, GROUP, crd
from tests.kits.autoscaler_kit import ROOT as REQUESTS
from tests.kits.install_kit import PROMETHEUS, Desk, blocks, placed, removal, scraped
from tests.kits.kueue_kit import JOBS, SPACE
from tests.kits.lead_kit import NAME as LEASE
from tests.kits.mig_kit import GROUP as GPU_OPERATOR
from tests.kits.mig_kit import OPEN
from tests.kits.scaling_kit import APPS, HPAS, Scaling
from tests.service.kit import Running, poll, start

Obj = dict[str, Any]
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
OURS = "kubectl --kubeconfig observe.kubeconfig"
MANAGED = {f"{PREFIX}manage": "true"}
NODES = "/api/v1/nodes"
PATHS = {
    "Node": NODES,
    "Deployment": f"{APPS}/deployments",
    "StatefulSet": f"{APPS}/statefulsets",
    "HorizontalPodAutoscaler": HPAS,
    "Job": JOBS,
    "Workload": f"{SPACE}/workloads",
    "Pod": PODS,
}
FLOORS = {"StatefulSet": Floor("1/s/f", 5, 9e9, Way.SCALE, 2, 5), "Deployment": Floor("1/s/f", 3, 9e9, Way.HPA, 1, 3)}
STOPPED_BY_US = '{"uid": "UID", "id": "1/p/w", "reason": "move", "returns": true}'


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Acting]:
    """Three nodes, Kueue with a queue, the GPU operator; nothing of ours."""
    found = Acting(tmp_path, start=datetime.now(UTC), tls=True, fresh=True)
    found.kueue.queue("team", 24)
    gpu_operator(found)
    hook: Obj = {"name": "mjob.kb.io", "admissionReviewVersions": ["v1"], "sideEffects": "None"}
    hook["clientConfig"] = {"url": "https://kueue.example", "caBundle": "Zm9v"}
    found.ask("POST", HOOKS, {"metadata": {"name": "kueue-mutating-webhook-configuration"}, "webhooks": [hook]})
    yield found
    found.close()


def gpu_operator(cluster: Acting) -> None:
    """What the commands of the page find of it."""
    ask, space = cluster.ask, "gpu-operator"
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": OPEN}}
    spec = {**GPU_OPERATOR, "scope": "Cluster", "versions": [version]}
    ask("POST", CRDS, {"metadata": {"name": "clusterpolicies.nvidia.com"}, "spec": spec})
    ask("POST", CRDS, crd())
    ask("POST", "/api/v1/namespaces", {"metadata": {"name": space}})
    data = {"config.yaml": "version: v1\nmig-configs: {}\n"}
    maps = f"/api/v1/namespaces/{space}/configmaps"
    ask("POST", maps, {"metadata": {"name": "default-mig-parted-config"}, "data": data})
    cluster.run(5)
    ask("POST", "/apis/nvidia.com/v1/clusterpolicies", {"metadata": {"name": "cluster-policy"}, "spec": {}})


class Walk:
    """An operator with this page alone."""

    def __init__(self, cluster: Acting, desk: Desk, prometheus: str, stack: ExitStack) -> None:
        self.cluster, self.desk, self._prometheus, self._stack = cluster, desk, prometheus, stack
        self.settings: Obj = {}
        self.service: Running | None = None

    def autopilot(self, line: str) -> tuple[int, str]:
        """A command of ours, with the address of this Prometheus."""
        return self.desk.autopilot(line.replace(PROMETHEUS, self._prometheus))

    def write(self, begins: str) -> None:
        """Add the next block of the page to service.yaml."""
        for name, part in yaml.safe_load(self.desk.take(begins).replace(PROMETHEUS, self._prometheus)).items():
            self.settings[name] = {**self.settings.get(name, {}), **part}
        (self.desk.folder / "service.yaml").write_text(yaml.safe_dump(self.settings), "utf-8")

    def run(self) -> Running:
        """`autopilot run --config service.yaml`, again where it runs; on a free port, and without runbooks and fits."""
        if self.service is not None:
            assert self.service.end() == 0
        (self.desk.folder / "runbooks").mkdir(exist_ok=True)
        brief = {
            "state": str(self.desk.folder / "gpu-autopilot" / "service"),
            "alerts": {"runbooks": "runbooks"},
            "http": {"listen": "127.0.0.1:0", **self.settings.get("http", {})},
            "metrics": {"listen": None},
            "forecasting": {"durations": "last-two", "fit": False, "registry": False},
        }
        self.service = start(self.desk.folder, {**self.settings, **brief})
        self._stack.callback(self._end, self.service)
        return self.service

    @staticmethod
    def _end(service: Running) -> None:
        if service.process.poll() is None:
            service.end()

    def recommended(self, name: str) -> str:
        """The id of the recommendation for a Job, as the command prints it."""

        def found() -> str:
            rows = self.autopilot("autopilot recommendations")[1].splitlines()
            return next((row.split()[0] for row in rows if f"default/{name}" in row), "")

        return poll(found, f"{name} is not recommended")

    def started(self, name: str, pods: int) -> None:
        """Wait until a Job runs with all its pods."""

        def runs() -> bool:
            return sum(bool(each["spec"].get("nodeName")) for each in self.cluster.pods(name)) == pods

        assert self.service is not None
        try:
            poll(runs, f"{name} does not start")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.service.log.read_text('utf-8')[-3000:]}") from error
        poll(lambda: [each for each in self.cluster.events(name) if each[0] == "AdmitBegun"], f"no Event on {name}")


@pytest.fixture
def walk(
    cluster: Acting, tmp_path: Path, require_tool: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Walk]:
    """At an empty desk, beside a cluster whose time is real."""
    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    desk = Desk(folder, cluster.kubeconfig, require_tool("kubectl"))
    cluster.release()
    with ExitStack() as stack:
        yield Walk(cluster, desk, stack.enter_context(scraped(time.time)), stack)


@pytest.mark.parametrize("recommends", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_page_leads_from_an_empty_cluster_to_effects_and_back(walk: Walk, recommends: bool) -> None:
    """Each step has the outcome that it names. At the end nothing of ours is left, and it can be installed again.

    `recommends`: the service also runs before effects are enabled, as in `tests/service/test_kubernetes_service.py`.
    """
    look(walk, recommends=recommends)
    act(walk)
    the_fields_are_in_force(walk)
    remove(walk)
    install_again(walk)


def look(walk: Walk, *, recommends: bool) -> None:
    """Steps 1 to 4: the service recommends, and nothing more."""
    desk = walk.desk
    desk.follow("kubectl apply -f deploy/observe.yaml")
    desk.follow("TOKEN=")
    kubeconfig = desk.folder / "observe.kubeconfig"
    (user,) = yaml.safe_load(kubeconfig.read_text("utf-8"))["users"]
    assert (user["name"], kubeconfig.stat().st_mode & 0o077) == ("gpu-autopilot", 0)
    assert "cannot create" in desk.refused(f"{OURS} create configmap any --namespace gpu-autopilot")
    desk.follow("kubectl --namespace gpu-operator create configmap dcgm-counters")
    status, said = walk.autopilot(desk.take("autopilot check"))
    assert status == 0, said
    assert "system:serviceaccount:gpu-autopilot:gpu-autopilot" in said
    assert "admission " not in said, "no effects are enabled"
    walk.write("# service.yaml")
    valid, run, recommendations = desk.take("autopilot run --check").splitlines()
    status, said = walk.autopilot(valid)
    assert (status, "the settings are valid" in said) == (0, True), said
    assert run == "autopilot run --config service.yaml"
    assert recommendations.startswith("autopilot recommendations ")
    if recommends:
        walk.cluster.plain_job("plain", suspend=True, labels=MANAGED)
        walk.run()
        walk.recommended("plain")
        assert walk.cluster.job("plain")["spec"]["suspend"], "it only recommends"
        desk.shell("kubectl delete job plain")
    desk.follow("kubectl apply -f deploy/grafana/")
    walk.write("http:")
    assert "oidc:" in desk.take("http:"), "tests/service/test_page.py signs in at a provider"
    assert "--set" in desk.take("docker build"), "tests/kube/test_chart.py renders and applies the chart"


def act(walk: Walk) -> None:
    """From recommend to auto: a gang starts when it is approved, and the next one by itself."""
    cluster, desk = walk.cluster, walk.desk
    desk.follow("kubectl --namespace gpu-operator get configmap default-mig-parted-config")
    desk.follow("kubectl apply -f deploy/crds/epochs.yaml")
    walk.write("# service.yaml, beside what is there")
    desk.follow("kubectl --namespace gpu-autopilot patch configmap gpu-autopilot-policy")
    desk.follow("kubectl apply -f - <<'END'")
    valid, run, check = desk.take("autopilot run --check").splitlines()
    assert "lever " in walk.autopilot(valid)[1]
    assert run == "autopilot run --config service.yaml"
    service = walk.run()
    poll(lambda: service.tick() > 1, "no tick")
    status, said = walk.autopilot(check)
    assert status == 0, said
    for name in ("gpu-autopilot-fields", "gpu-autopilot-fence"):
        assert re.search(rf"^ok +admission +{name} +in force; ", said, re.MULTILINE), said
    assert "condition met" in desk.follow("kubectl wait --for=condition=Active", QUEUE="team")
    cluster.kueue.job("wide", "team", 8, 2)
    first, approve, describe = desk.take("autopilot recommendations").splitlines()
    assert first == "autopilot recommendations"
    status, said = walk.autopilot(placed(approve, {"ID": walk.recommended("wide")}))
    assert status == 0, said
    walk.started("wide", 2)
    (state,) = cluster.workload("wide")["status"]["admissionChecks"]
    assert "placed on" in state["message"]
    assert "AdmitBegun" in desk.shell(placed(describe, {"NAME": "wide"}))
    desk.follow("kubectl --namespace gpu-autopilot patch configmap gpu-autopilot-policy")
    cluster.kueue.job("next", "team", 8)
    walk.started("next", 1)


def the_fields_are_in_force(walk: Walk) -> None:
    """With the token of the service, all rights of RBAC and the epoch of the leader: what a kind of instruction needs
    passes, and nothing else does.
    """
    desk, shell = walk.desk, walk.desk.shell
    shell("kubectl apply -f deploy/act/")  # as an operator who has enabled every action
    shell("kubectl --namespace kube-system create deployment dns --image dns:1")
    pod = walk.cluster.pods("next")[0]["metadata"]["name"]
    service = Scaling(walk.cluster).service()
    epoch = int(shell("kubectl --namespace gpu-autopilot get epochs gpu-autopilot -o jsonpath={.spec.epoch}"))

    def patch(what: str, spec: Obj | None = None, said: int = epoch, labels: Obj | None = None) -> str:
        meta = {"annotations": {EPOCH: str(said)}, "labels": labels or {}}
        body = json.dumps({"metadata": meta, **({"spec": spec} if spec else {})})
        return f"{OURS} patch {what} --patch '{body}'"

    image = {"containers": [{"name": "main", "image": "evil:1"}]}
    away = {"taints": [{"key": "example.com/away", "effect": "NoExecute"}]}
    shell(patch("node n3", labels={f"{PLACEMENT}0123456789": "true"}))
    for forbidden in (
        patch(f"pod {pod}", image),
        patch(f"pod {pod}", labels={"app": "other"}),
        patch(f"deployment {service}", {"template": {"spec": image}}),
        patch("node n1", away),
        patch("--namespace kube-system deployment dns"),
    ):
        said = desk.refused(forbidden)
        assert "ValidatingAdmissionPolicy 'gpu-autopilot-fields'" in said, (forbidden, said)
    late = desk.refused(patch(f"pod {pod}", said=epoch - 1))
    assert "ValidatingAdmissionPolicy 'gpu-autopilot-fence'" in late


def written_on(walk: Walk) -> dict[str, str]:
    """Whatever can be applied, and an object of each kind with all that the controller writes; their names."""
    cluster, shell = walk.cluster, walk.desk.shell
    shell("kubectl apply -f deploy/crds/ -f deploy/watchdog.yaml")
    shell("kubectl create clusterrolebinding gpu-approvers --clusterrole gpu-autopilot-approver --group gpu-oncall")
    scaling = Scaling(cluster)
    names = {"Deployment": scaling.service(), "StatefulSet": scaling.service(plural="statefulsets"), "Node": "n1"}
    scaling.autoscaler(names["Deployment"])
    cluster.plain_job("plain")
    cluster.waiting_job("queued", 8, queue="team", gate=CONTROLLER)
    cluster.pod("gated", gates=(CONTROLLER, "example.com/other"))
    names |= {"HorizontalPodAutoscaler": names["Deployment"], "Job": "plain", "Pod": "gated"}
    names["Workload"] = cluster.workload("queued")["metadata"]["name"]
    request = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ProvisioningRequest",
        "metadata": {"name": "r", "labels": {f"{PREFIX}capacity-request": "true"}},
        "spec": {"provisioningClassName": "c", "podSets": [{"count": 1, "podTemplateRef": {"name": "t"}}]},
    }
    cluster.ask("POST", REQUESTS, request)
    template = {"spec": {"nodeSelector": {f"{PLACEMENT}0123456789": "true"}}}
    taint = {"key": CONDEMNED, "value": "true", "effect": "NoSchedule"}
    ours: Obj = {"fieldManager": MANAGER}
    cluster.ask("PATCH", f"{JOBS}/plain", {"spec": {"suspend": True}}, **ours)
    cluster.run(5)
    cluster.ask("PATCH", f"{JOBS}/plain", {"spec": {"template": template}})
    cluster.ask("PATCH", f"{SPACE}/workloads/{names['Workload']}", {"spec": {"active": False}}, **ours)
    cluster.ask("PATCH", f"{PATHS['StatefulSet']}/{names['StatefulSet']}", {"spec": {"replicas": 5}}, **ours)
    cluster.ask("PATCH", f"{HPAS}/{names['Deployment']}", {"spec": {"minReplicas": 3}}, **ours)
    cluster.ask("PATCH", f"{NODES}/n1", {"spec": {"unschedulable": True, "taints": [taint]}})
    for node, gangs in {"n1": ("0123456789", "abcdef0123"), "n2": ("0123456789",)}.items():
        labels = {f"{PLACEMENT}{gang}": "true" for gang in gangs}
        cluster.ask("PATCH", f"{NODES}/{node}", {"metadata": {"labels": labels}})
    assert names.keys() == MARKS.keys() == PATHS.keys()
    for kind, marks in MARKS.items():
        uid = cluster.ask("GET", f"{PATHS[kind]}/{names[kind]}")["metadata"]["uid"]
        notes = {mark: STOPPED_BY_US.replace("UID", uid) if mark == STOPPED else "1" for mark in marks}
        if kind in FLOORS:
            notes[PREFIX + FLOOR] = FLOORS[kind].text()
        cluster.ask("PATCH", f"{PATHS[kind]}/{names[kind]}", {"metadata": {"annotations": notes}})
    return names


def remove(walk: Walk) -> None:
    """Its commands leave nothing of ours on a cluster with everything that we write and apply, but what they name."""
    cluster, desk = walk.cluster, walk.desk
    first, dry, wet = removal()
    desk.shell(first)
    assert walk.service is not None
    admin = f" --kubeconfig {cluster.kubeconfig}"
    status, said = desk.autopilot(f"{wet} --yes{admin}")
    assert (status, "stop `autopilot run` there" in said) == (2, True), said
    assert walk.service.end() == 0
    desk.shell("kubectl delete job wide")
    names = written_on(walk)
    before = desk.shell("kubectl get nodes,jobs,crds,clusterroles -A -o name")
    status, planned = desk.autopilot(dry + admin)
    assert (status, before) == (0, desk.shell("kubectl get nodes,jobs,crds,clusterroles -A -o name")), planned
    status, said = desk.autopilot(f"{wet} --yes{admin}")
    assert status == 0, said
    done = [line for line in said.splitlines() if not line.startswith("stays")]
    planned_too = {tuple(line.split()[:4]) for line in planned.splitlines()}
    assert {tuple(line.split()[:4]) for line in done} <= planned_too
    assert len(done) == len(set(done)), "one line for each object"
    assert done[-1].endswith("ValidatingAdmissionPolicyBinding gpu-autopilot-fence")
    stays = [line.split()[1:3] for line in said.splitlines() if line.startswith("stays")]
    assert stays == [["Node", "n1:"], *([["Node", f"{name}:"] for name in placed_nodes(walk)])], said
    (cure,) = re.findall(r"repaired: (kubectl .*)$", said, re.MULTILINE)
    desk.shell(cure)
    desk.shell("kubectl delete job next")
    cluster.run(5)
    status, said = desk.autopilot(f"{wet} --yes{admin}")
    assert status == 0, said
    nothing_of_ours_is_left(desk)
    job = cluster.job("plain")["spec"]
    assert (job["suspend"], job["template"]["spec"].get("nodeSelector")) == (False, None)
    owned = [(HPAS, "Deployment", "minReplicas"), (PATHS["StatefulSet"], "StatefulSet", "replicas")]
    assert [cluster.ask("GET", f"{path}/{names[kind]}")["spec"][field] for path, kind, field in owned] == [1, 2]
    gates = cluster.ask("GET", "/api/v1/namespaces/default/pods/gated")["spec"]["schedulingGates"]
    assert [each["name"] for each in gates] == ["example.com/other"]
    assert cluster.ask("GET", f"{SPACE}/workloads/{names['Workload']}")["spec"]["active"] is True


def placed_nodes(walk: Walk) -> list[str]:
    """Nodes with a label that the Job `next` still selects."""
    selected = walk.cluster.job("next")["spec"]["template"]["spec"].get("nodeSelector") or {}
    nodes = walk.cluster.ask("GET", NODES)["items"]
    return [
        each["metadata"]["name"]
        for each in nodes
        if selected.keys() & each["metadata"]["labels"].keys() & {k for k in selected if k.startswith(PLACEMENT)}
    ]


def nothing_of_ours_is_left(desk: Desk) -> None:
    """On objects of others, and of objects of our own."""
    kinds = ",".join(each.lower() for each in MARKS if each != "Workload")
    kinds += ",workloads.kueue.x-k8s.io,clusterqueues,provisioningrequests"
    for each in json.loads(desk.shell(f"kubectl get {kinds} -A -o json"))["items"]:
        meta = each["metadata"]
        found = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
        assert not [key for key in found if "gpu-autopilot" in key], meta["name"]
        assert "gpu-autopilot" not in json.dumps(each.get("spec")), meta["name"]
    whole = "crds,namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies"
    whole += ",validatingadmissionpolicybindings,admissionchecks,leases,configmaps,serviceaccounts"
    left = [each for each in desk.shell(f"kubectl get {whole} -A -o name").split() if "gpu-autopilot" in each]
    assert left == ["configmap/gpu-autopilot-mig"], "the MIG manager reads it"


def install_again(walk: Walk) -> None:
    """The same commands once more: the fence compares with the new Epoch, and the fields are in force."""
    desk = walk.desk
    again = [each for each in blocks() if each.startswith(("TOKEN=", "kubectl apply -f deploy/"))]
    desk.shell("\n".join(each for each in again if "grafana" not in each))
    api = ClusterApi(Access(Address(Path("observe.kubeconfig"))))
    leader = ClusterEpoch(api, LEASE)
    lines = (
        "gpu-autopilot-fence    in force; the present epoch is 1",
        "gpu-autopilot-fields   in force; nothing is written in kube-system",
    )

    def in_force() -> bool:  # the server takes a moment to serve the kind, and to see a new policy
        assert leader.claim(1) == ""
        if not leader.known():
            return False
        status, said = walk.autopilot("autopilot check --config service.yaml")
        return status == 0 and all(line in said for line in lines)

    poll(in_force, "the policies are not in force again")
