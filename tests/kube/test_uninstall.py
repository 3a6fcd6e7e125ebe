"""`autopilot uninstall` where docs/install.md is not walked: a release of Helm, an earlier fence, objects of others."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autopilot.core.model.errors import InputError
from autopilot.kube.access import Access, Address
from autopilot.kube.cluster_api import ClusterApi
from autopilot.operate.uninstall.run import Uninstall
from autopilot.readiness.fence import fence_policy
from scripts.generate_chart import CHART
from tests.kits.acting_kit import PODS, Acting, pod_spec

Obj = dict[str, Any]
SPACE = "/api/v1/namespaces/gpu-autopilot"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": f"{SPACE}/serviceaccounts",
    "ConfigMap": f"{SPACE}/configmaps",
    "Secret": f"{SPACE}/secrets",
    "Service": f"{SPACE}/services",
    "Deployment": "/apis/apps/v1/namespaces/gpu-autopilot/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/gpu-autopilot/statefulsets",
    "PersistentVolumeClaim": f"{SPACE}/persistentvolumeclaims",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/gpu-autopilot/poddisruptionbudgets",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/gpu-autopilot/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/gpu-autopilot/rolebindings",
    "ValidatingAdmissionPolicy": f"{REGISTRATION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{REGISTRATION}/validatingadmissionpolicybindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "AutopilotPolicy": "/apis/gpu-autopilot.io/v1alpha1/autopilotpolicies",
}
OF_CLUSTER = [each for each in PATHS.values() if "/namespaces/" not in each and "gpu-autopilot.io" not in each]


class Site:
    """A cluster of the simulator, and the command of its administrator."""

    def __init__(self, acting: Acting) -> None:
        self.acting, self.ask = acting, acting.ask
        self.lines: list[str] = []
        access = Access(Address(acting.kubeconfig))
        self.job = Uninstall(ClusterApi(access), "gpu-autopilot", self.lines.append, sleep=acting.run)

    def apply(self, objects: list[Obj]) -> None:
        """Create objects whose kinds the simulator serves."""
        for each in sorted(objects, key=lambda found: found["kind"] != "CustomResourceDefinition"):
            if each["kind"] in PATHS:
                self.ask("POST", PATHS[each["kind"]], each)
            if each["kind"] == "CustomResourceDefinition":
                self.acting.run(5)

    def names(self) -> set[str]:
        """What of the cluster is ours by its name."""
        found = {each["metadata"]["name"] for path in OF_CLUSTER for each in self.ask("GET", path)["items"]}
        return {name for name in found if "gpu-autopilot" in name}

    def run(self) -> tuple[int, list[str]]:
        """Status and lines of a run."""
        self.lines.clear()
        return self.job.run(), [*self.lines]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Nothing of ours; a namespace, as `helm install --create-namespace` makes it."""
    acting = Acting(tmp_path, nodes=1, fresh=True)
    acting.release()
    found = Site(acting)
    found.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "gpu-autopilot"}})
    yield found
    acting.close()


def release_secret(chart: str) -> Obj:
    """What Helm keeps of a release."""
    packed = gzip.compress(json.dumps({"chart": {"metadata": {"name": chart}}}).encode())
    data = base64.b64encode(base64.b64encode(packed)).decode()
    name = f"sh.helm.release.v1.{chart}.v1"
    return {"kind": "Secret", "metadata": {"name": name}, "type": "helm.sh/release.v1", "data": {"release": data}}


@pytest.fixture(scope="module")
def chart(require_tool: Callable[[str], str]) -> list[Obj]:
    """The objects of the chart, with every kind of instruction and names of the site."""
    command = [require_tool("helm"), "template", "mine", str(CHART), "--namespace", "gpu-autopilot", "--include-crds"]
    command += ["--kube-version", "1.36", "--set", "act.admit=true,act.evict=true,fullnameOverride=pilot"]
    command += ["--set", "approvers[0].kind=Group,approvers[0].name=gpu-oncall"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]


def test_a_release_of_helm_goes_and_can_be_installed_again(site: Site, chart: list[Obj]) -> None:
    """With names of the site, approvers and the record of the release; the Secret of another chart stays."""
    for _ in range(2):
        site.apply([*chart, release_secret("gpu-autopilot")])
        assert len(site.names()) > 10
        status, lines = site.run()
        assert (status, site.names()) == (0, set()), lines
        order = [line.split()[1] for line in lines]
        first, rights, fence = (order.index(kind) for kind in ("Deployment", "ClusterRoleBinding", "Namespace"))
        assert lines[first].endswith("pilot-watchdog")
        assert first < order.index("Deployment", first + 1) < rights < fence < len(order) - 1
        assert lines[-1].endswith("ValidatingAdmissionPolicyBinding gpu-autopilot-fence")
        site.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "gpu-autopilot"}})


def test_a_namespace_with_objects_of_others_stays(site: Site, chart: list[Obj]) -> None:
    """It is named with the first of them, and so are volumes; nothing of others is deleted."""
    claim = {"metadata": {"name": "state-pilot-0"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    claim["spec"] |= {"resources": {"requests": {"storage": "1Gi"}}}  # type: ignore[operator]
    site.apply([*chart, release_secret("gpu-autopilot"), release_secret("another")])
    site.ask("POST", PATHS["PersistentVolumeClaim"], claim)
    status, lines = site.run()
    assert (status, site.names()) == (0, {"gpu-autopilot"}), lines
    stays = [line for line in lines if line.startswith("stays")]
    assert len(stays) == 2
    assert stays[0].startswith("stays      PersistentVolumeClaim gpu-autopilot/state-pilot-0: ")
    assert "Namespace gpu-autopilot: Secret gpu-autopilot/sh.helm.release.v1.another.v1 is there" in stays[1]
    assert len(site.ask("GET", PATHS["Secret"])["items"]) == 1


def test_a_fence_with_a_parameter_of_a_built_in_kind_keeps_policy_and_binding(site: Site) -> None:
    """Without the last binding the API server loses sight of the kind until it restarts (decision 0011)."""
    policy, binding = fence_policy()
    policy["spec"]["paramKind"] = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    site.apply([policy, binding])
    status, lines = site.run()
    assert (status, site.names()) == (0, {"gpu-autopilot-fence"})
    (line,) = [each for each in lines if each.startswith("stays")]
    assert (
        "ValidatingAdmissionPolicy gpu-autopilot-fence and its binding: its parameter is the built-in kind Lease"
        in line
    )


def test_what_cannot_be_given_back_keeps_the_rest(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights and fence stay while an effect stands, and the command can be repeated."""
    site.apply(fence_policy())
    site.acting.pod("gated", gates=("gpu-autopilot.io/admission",))
    send = site.job.api.patch
    with monkeypatch.context() as broken:
        broken.setattr(site.job.api, "patch", lambda path, _: send(path, {"metadata": {"uid": "other"}}))
        status, lines = site.run()
    assert status == 1
    assert any(line.startswith("failed ") and "Pod default/gated" in line for line in lines), lines
    assert lines[-1].startswith("not complete")
    assert site.names() >= {"gpu-autopilot-fence"}
    status, lines = site.run()
    assert (status, site.names()) == (0, set()), lines


def test_only_an_administrator_may(site: Site, tmp_path: Path) -> None:
    """The refusal says what is missing."""
    site.job.may()
    site.ask("POST", PATHS["ServiceAccount"], {"metadata": {"name": "ada"}})
    spec = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    token = site.ask("POST", f"{PATHS['ServiceAccount']}/ada/token", spec)["status"]["token"]
    config = yaml.safe_load(site.acting.kubeconfig.read_text("utf-8"))
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "ada"
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match="no administrator of the cluster"):
        Uninstall(ClusterApi(Access(Address(path))), "gpu-autopilot", site.lines.append).may()


def test_a_label_that_unfinished_work_selects_stays(site: Site) -> None:
    """Its pods would not start without it; a closed node stays closed, with its cure."""
    used, free = "placement.gpu-autopilot.io/0123456789", "placement.gpu-autopilot.io/abcdef0123"
    taint = {"key": "gpu-autopilot.io/condemned", "value": "true", "effect": "NoSchedule"}
    patch = {"metadata": {"labels": {used: "true", free: "true"}}, "spec": {"unschedulable": True, "taints": [taint]}}
    site.ask("PATCH", "/api/v1/nodes/n1", patch)
    pod = {"metadata": {"name": "waits"}, "spec": {**pod_spec(8), "nodeSelector": {used: "true"}}}
    site.ask("POST", PODS, pod)
    status, lines = site.run()
    node = site.ask("GET", "/api/v1/nodes/n1")
    assert (status, [each for each in node["metadata"]["labels"] if "autopilot" in each]) == (0, [used])
    assert node["spec"]["unschedulable"] is True
    assert [line.split(": ")[1].split(";")[0] for line in lines if line.startswith("stays")] == [
        f"label {used}, for Pod default/waits",
        "closed by the controller",
    ]


def test_the_label_of_a_shared_node_goes_once_no_pod_holds_its_gpus(site: Site) -> None:
    """Without it the device plugin starts anew; one that a person has changed is left alone."""
    label, mark = "nvidia.com/device-plugin.config", "gpu-autopilot.io/sharing-config"
    site.acting.add_node("theirs")
    for node, value in (("n1", "mps-2"), ("theirs", "time-slicing-4")):
        meta = {"labels": {label: value}, "annotations": {mark: "mps-2"}}
        site.ask("PATCH", f"/api/v1/nodes/{node}", {"metadata": meta})
    pod = {"metadata": {"name": "shares"}, "spec": {**pod_spec(1), "nodeName": "n1"}}
    site.ask("POST", PODS, pod)
    site.acting.run(5)
    for stays in (True, False):
        status, lines = site.run()
        found = {name: site.ask("GET", f"/api/v1/nodes/{name}")["metadata"] for name in ("n1", "theirs")}
        held = {name: (each["labels"].get(label), each["annotations"].get(mark)) for name, each in found.items()}
        ours = ("mps-2", "mps-2") if stays else (None, None)
        assert (status, held) == (0, {"n1": ours, "theirs": ("time-slicing-4", None)}), lines
        if stays:
            assert any("for Pod default/shares; repeat the command" in line for line in lines)
            site.ask("DELETE", f"{PODS}/shares")
            site.acting.run(60)


def deployment(name: str, account: str) -> Obj:
    """A Deployment without pods, as a person writes one for our accounts."""
    pod = {"serviceAccountName": account, "containers": [{"name": "main", "image": "app:1"}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def test_the_watchdog_ends_first_and_what_is_not_ours_stays(site: Site) -> None:
    """It would take the end of the controller for an absence. A Deployment of others keeps its namespace."""
    accounts = {"a-controller": "gpu-autopilot", "b-watchdog": "gpu-autopilot-watchdog", "theirs": "default"}
    site.apply([deployment(name, account) for name, account in accounts.items()])
    status, lines = site.run()
    assert status == 0, lines
    assert [line.split("/")[1] for line in lines if line.startswith("delete     Deployment")] == [
        "b-watchdog",
        "a-controller",
    ]
    assert [each["metadata"]["name"] for each in site.ask("GET", PATHS["Deployment"])["items"]] == ["theirs"]
    (stays,) = [line for line in lines if line.startswith("stays")]
    assert "Namespace gpu-autopilot: Deployment gpu-autopilot/theirs is there" in stays
    assert site.names() == {"gpu-autopilot"}
