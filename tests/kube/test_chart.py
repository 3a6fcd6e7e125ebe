"""The Helm chart: rendered by helm, checked against the published schemas, and applied to a server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from autopilot.core.model.errors import InputError
from autopilot.kube.cluster_api import Answer
from autopilot.operate.check_policies import shipped_policies
from autopilot.readiness.admission import admission
from autopilot.readiness.line import Asked, Status
from autopilot.service.settings import Kubernetes, Settings
from scripts.generate_chart import CHART, acting_rules, files, kinds, main
from tests.kits.install_kit import blocks
from tests.kits.kubectl_kit import Kubectl

Obj = dict[str, Any]
OBSERVED = {"get", "list", "watch"}
PROMETHEUS_KINDS: Mapping[str, Obj] = {
    # fields of monitoring.coreos.com/v1 that the chart uses, as the Prometheus operator documents them
    "ServiceMonitor": {
        "required": ["selector", "endpoints"],
        "properties": {
            "selector": {"required": ["matchLabels"], "properties": {"matchLabels": {"type": "object"}}},
            "endpoints": {
                "type": "array",
                "items": {
                    "required": ["port"],
                    "additionalProperties": False,
                    "properties": {"port": {"type": "string"}, "interval": {"pattern": "^[0-9]+(ms|s|m)$"}},
                },
            },
        },
        "additionalProperties": False,
    },
    "PrometheusRule": {
        "required": ["groups"],
        "additionalProperties": False,
        "properties": {"groups": {"type": "array", "items": {"required": ["name", "rules"]}}},
    },
}


@pytest.fixture(scope="module")
def render(require_tool: Callable[[str], str]) -> Callable[..., list[Obj]]:
    """The objects that helm renders with `--set` of each argument, or with a file of values."""
    helm = require_tool("helm")

    @lru_cache
    def rendered(*values: str, crds: bool = False, version: str = "1.36") -> list[Obj]:
        command = [helm, "template", "gpu-autopilot", str(CHART), "--namespace", "gpu-autopilot"]
        command += ["--kube-version", version]
        command += [part for each in values for part in ("--values" if each.endswith(".yaml") else "--set", each)]
        command += ["--include-crds"] if crds else []
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise ValueError(done.stderr)
        return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]

    return rendered


@pytest.fixture(scope="module")
def published(shared_data: Path | None) -> Obj:
    """The published schemas of Kubernetes, without room for unknown fields."""
    path = (shared_data or Path()) / "kube" / "openapi-subset-1.36.json"
    if not path.exists():
        pytest.skip(f"{path.name} is not there")
    found: Obj = json.loads(path.read_text("utf-8"))
    for schema in found["components"]["schemas"].values():
        if "properties" in schema and "additionalProperties" not in schema:
            schema["additionalProperties"] = False
    return found


EVERYTHING = (
    "act.admit=true",
    "act.evict=true",
    "act.scale=true",
    "serviceMonitor.enabled=true",
    "prometheusRule.enabled=true",
    "dashboards.enabled=true",
    "prometheus.url=http://prometheus:9090",
    "approvers[0].kind=Group",
    "approvers[0].name=gpu-oncall",
    "networkPolicy.egress.enabled=true",
    "networkPolicy.egress.apiServer[0].ipBlock.cidr=10.0.0.1/32",
    "networkPolicy.egress.checkpointPorts[0]=9401",
    "networkPolicy.egress.more[0].ports[0].port=9400",
)


def _of(objects: list[Obj], kind: str, name: str = "gpu-autopilot") -> Obj:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def _roles(objects: list[Obj]) -> dict[str, list[Obj]]:
    return {each["metadata"]["name"]: each["rules"] for each in objects if each["kind"] in {"ClusterRole", "Role"}}


def test_the_generated_parts_are_those_of_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python scripts/generate_chart.py` writes them; `--check` sees a change."""
    monkeypatch.setattr("scripts.generate_chart.CHART", tmp_path)
    assert main(["--check"]) == 1
    assert main([]) == 0
    (tmp_path / "files" / "old.yaml").write_text("")
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert {path.name for path in (tmp_path / "files").glob("*.yaml")} == {
        name.removeprefix("files/") for name in files() if name.count("/") == 1 and name.startswith("files/")
    }


KEPT = (*EVERYTHING, "persistence.enabled=true", "ingress.enabled=true", "ingress.hosts={a.b}", "dashboards.folder=GPU")


@pytest.mark.parametrize("values", [(), EVERYTHING, KEPT, ("replicas=1",)])
def test_every_object_meets_its_schema(
    render: Callable[..., list[Obj]], published: Obj, values: tuple[str, ...]
) -> None:
    """Those of Kubernetes by its published schemas; those of the Prometheus operator by the fields that are used."""
    for each in render(*values, crds=True):
        version, kind = each["apiVersion"], each["kind"]
        if version == "gpu-autopilot.io/v1alpha1":
            continue  # the server checks it below
        if version == "monitoring.coreos.com/v1":
            jsonschema.validate(each["spec"], PROMETHEUS_KINDS[kind])
            continue
        name = published["kinds"][f"{version}/{kind}"]
        schema = {"$ref": f"#/components/schemas/{name}", "components": published["components"]}
        jsonschema.Draft4Validator(schema).validate(each)


@pytest.mark.parametrize("version", ["1.29", "1.30", "1.36"])
def test_a_second_judge_agrees(render: Callable[..., list[Obj]], version: str) -> None:
    """The strict schemas of kubernetes-validate, for older versions too; custom resources have none there."""
    off = ["fence.enabled=false", "fields.enabled=false"]
    values = [*KEPT, *off] if version == "1.29" else KEPT
    objects = {(each["apiVersion"], each["kind"]): each for each in render(*values, crds=True, version=version)}
    judged = set()
    for (group, kind), each in objects.items():
        if group not in {"gpu-autopilot.io/v1alpha1", "monitoring.coreos.com/v1"}:
            assert kubernetes_validate.validate(each, version, strict=True) == version
            judged.add(kind)
    assert judged >= {
        "Deployment",
        "StatefulSet",
        "Ingress",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "ClusterRole",
        "CustomResourceDefinition",
    }
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "ConfigMap", "dta": {}}, version, strict=True)


def test_a_cluster_that_is_too_old_for_the_fence_is_named(render: Callable[..., list[Obj]]) -> None:
    """The API server would refuse the admission policy, and helm half of the release."""
    with pytest.raises(ValueError, match=r"fence.enabled needs Kubernetes 1\.30"):
        render(version="1.29")


def test_a_field_that_does_not_exist_is_found(published: Obj) -> None:
    """The schemas above are strict."""
    name = published["kinds"]["v1/ConfigMap"]
    schema = {"$ref": f"#/components/schemas/{name}", "components": published["components"]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(schema).validate({"apiVersion": "v1", "kind": "ConfigMap", "dta": {}})


def test_an_action_that_is_off_asks_for_no_right(render: Callable[..., list[Obj]]) -> None:
    """By default the cluster is read; beside it only our own resources and what leading takes are written."""
    roles = _roles(render())
    assert not {f"gpu-autopilot-{kind}" for kind in kinds()} & roles.keys()
    writes = {
        (group, resource)
        for name, rules in roles.items()
        if name != "gpu-autopilot-approver"
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if set(rule["verbs"]) - OBSERVED
    }
    assert writes == {
        ("authentication.k8s.io", "tokenreviews"),
        ("events.k8s.io", "events"),
        ("gpu-autopilot.io", "recommendations"),
        ("gpu-autopilot.io", "recommendations/status"),
        ("gpu-autopilot.io", "autopilotpolicies/status"),
        ("coordination.k8s.io", "leases"),
        ("gpu-autopilot.io", "epochs"),
        ("", "configmaps"),
    }


@pytest.mark.parametrize("kind", kinds())
def test_an_action_that_is_on_gets_the_rights_of_its_levers(render: Callable[..., list[Obj]], kind: str) -> None:
    """Exactly those, and the service is told that it may act."""
    objects = render(f"act.{kind}=true")
    assert _roles(objects)[f"gpu-autopilot-{kind}"] == acting_rules(kind)
    assert not {f"gpu-autopilot-{other}" for other in kinds() if other != kind} & _roles(objects).keys()
    assert _settings(objects)["kubernetes"]["act"] is True


def _settings(objects: list[Obj]) -> Obj:
    found: Obj = yaml.safe_load(_of(objects, "ConfigMap", "gpu-autopilot-settings")["data"]["service.yaml"])
    return found


EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))


@pytest.mark.parametrize(
    "values", [("replicas=1",), ("replicas=2",), ("settings.loop.interval_s=10",), *((str(each),) for each in EXAMPLES)]
)
def test_the_service_understands_its_settings(render: Callable[..., list[Obj]], values: tuple[str, ...]) -> None:
    """Those of the chart, those that an operator adds, and those of the examples."""
    found = _settings(render(*values))
    settings = Settings.model_validate(found)
    assert settings.kubernetes is not None
    assert (settings.kubernetes.in_cluster, settings.kubernetes.policy_object) == (True, "gpu-autopilot")
    assert settings.kubernetes.lease is not None
    if values[0].startswith("settings"):
        assert settings.loop.interval_s == 10.0


def test_the_pods_are_as_restricted_as_they_can_be(render: Callable[..., list[Obj]]) -> None:
    """The level `restricted` of Kubernetes, and a root file system that cannot be written."""
    pod = _of(render(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {next(iter(each.keys() - {"name"})) for each in pod["volumes"]} == {"configMap", "emptyDir"}
    assert container["livenessProbe"]["httpGet"]["path"] != container["readinessProbe"]["httpGet"]["path"]


def test_what_the_service_may_call_is_limited_on_request(render: Callable[..., list[Obj]]) -> None:
    """DNS, the API server, Prometheus where there is one, and what else is named; by default everything."""
    assert _of(render(), "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]
    spec = _of(render(*EVERYTHING), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    dns, server, prometheus, trainers, more = spec["egress"]
    assert trainers == {"ports": [{"port": 9401, "protocol": "TCP"}], "to": [{"namespaceSelector": {}}]}
    assert {each["port"] for each in dns["ports"]} == {53}
    assert {each["port"] for each in server["ports"]} == {443, 6443}
    assert server["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    assert prometheus == {"ports": [{"port": 9090, "protocol": "TCP"}]}
    assert more == {"ports": [{"port": 9400}]}
    without = _of(render("networkPolicy.egress.enabled=true"), "NetworkPolicy")["spec"]["egress"]
    assert len(without) == 2


def test_only_named_namespaces_reach_the_service(render: Callable[..., list[Obj]]) -> None:
    """That of the release and `monitoring`; the scaler adds that of KEDA, and no value opens the port to everybody."""

    def names(*values: str) -> list[str]:
        (rule,) = _of(render(*values), "NetworkPolicy")["spec"]["ingress"]
        own, *others = rule["from"]
        assert own == {"podSelector": {}}
        return [each["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for each in others]

    assert names() == ["monitoring"]
    assert names("networkPolicy.namespaces={prom,ingress}") == ["prom", "ingress"]
    assert names("settings.scale.keda.listen=0.0.0.0:9473") == ["monitoring", "keda"]


def test_one_replica_is_fenced_and_watched_too(render: Callable[..., list[Obj]]) -> None:
    """A pod that is deleted, or lost with its node, may end after its successor starts: the Lease keeps them apart, and
    keeps the memory. No budget holds a drain up.
    """
    objects = render("replicas=1")
    assert "strategy" not in _of(objects, "Deployment")["spec"]
    assert not [each for each in objects if each["kind"] == "PodDisruptionBudget"]
    assert "gpu-autopilot-leading" in _roles(objects)
    assert _of(objects, "Deployment", "gpu-autopilot-watchdog")["spec"]["replicas"] == 1
    assert _of(objects, "ValidatingAdmissionPolicy", "gpu-autopilot-fence")


@pytest.mark.parametrize(
    "value",
    [
        "replicas=0",
        "act.preempt=true",
        "acts.admit=true",
        "prometheus.url=prometheus:9090",
        "networkPolicy.egress.apiServerPorts={}",
        "policy.name=A_b",
    ],
)
def test_values_that_are_wrong_are_refused(render: Callable[..., list[Obj]], value: str) -> None:
    """By the schema of the values, with the name of the value."""
    with pytest.raises(ValueError, match=value.partition(".")[0].partition("=")[0]):
        render(value)


def test_settings_that_are_wrong_are_refused_by_the_service(render: Callable[..., list[Obj]]) -> None:
    """The chart passes them on as they are."""
    with pytest.raises((ValueError, InputError)):
        Settings.model_validate(_settings(render("settings.loop.interval=10")))


def test_the_check_knows_the_policies_of_the_chart(render: Callable[..., list[Obj]]) -> None:
    """With another account and further protected namespaces they are still those of this version."""
    values = ("act.admit=true", "serviceAccount.name=other", "fields.protectedNamespaces={kube-system,prod}")
    objects = render(*values)
    user = {"status": {"userInfo": {"username": "system:serviceaccount:gpu-autopilot:other"}}}

    class Rendered:
        def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
            plural = path.rpartition("/")[2]
            kinds = {"validatingadmissionpolicies": "Policy", "validatingadmissionpolicybindings": "PolicyBinding"}
            kind = f"ValidatingAdmission{kinds.get(plural)}"
            found = [each for each in objects if each["kind"] == kind]
            return Answer(200 if plural in kinds else 404, json.dumps({"items": found}))

        def post(self, path: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None) -> Answer:
            return Answer(201, json.dumps(user)) if path.endswith("selfsubjectreviews") else Answer(403, "no right")

    expected = shipped_policies(Settings.model_validate(_settings(objects)).kubernetes or Kubernetes())
    lines = list(admission(Asked(Rendered(), None, lambda: 0.0, "gpu-autopilot", policies=expected)))
    assert [(line.status, line.text) for line in lines] == [
        (Status.OK, "installed and bound; nothing is written in kube-system, prod"),
        (Status.OK, "installed and bound; nothing is written in kube-system, prod"),
        (Status.OK, "installed and bound; no leader has written its epoch yet"),
    ]


def test_a_server_takes_all_of_it_and_nothing_is_left_of_it(render: Callable[..., list[Obj]], kubectl: Kubectl) -> None:
    """Applied and removed as docs/install.md says; in between the account may do what the roles and the policies of the
    fields say, and no more.
    """
    kubectl.done("create", "namespace", "gpu-autopilot")
    (page,) = (each for each in blocks("With Helm") if "helm install" in each)
    objects = render("act.admit=true", *re.findall(r"--set (\S+)", page), crds=True)
    definitions = [each for each in objects if each["kind"] == "CustomResourceDefinition"]
    kubectl.done("apply", "-f", "-", stdin=yaml.safe_dump_all(definitions))
    kubectl.done("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    rest = [each for each in objects if each not in definitions]
    kubectl.done("apply", "-f", "-", stdin=yaml.safe_dump_all(rest))
    account = "--as=system:serviceaccount:gpu-autopilot:gpu-autopilot"
    for allowed in (
        ("patch", "recommendations"),
        ("patch", "autopilotpolicies", "--subresource=status"),
        ("list", "pods", "--all-namespaces"),
        ("update", "leases/gpu-autopilot", "--namespace=gpu-autopilot"),
        ("update", "configmaps/gpu-autopilot-memory", "--namespace=gpu-autopilot"),
    ):
        assert kubectl("auth", "can-i", *allowed, account).stdout.strip() == "yes", allowed
    for refused in (
        ("patch", "autopilotpolicies"),
        ("update", "configmaps/gpu-autopilot-kill-switch", "--namespace=gpu-autopilot"),
        ("get", "secrets"),
        ("delete", "pods"),
        ("create", "pods/eviction"),
    ):
        assert kubectl("auth", "can-i", *refused, account).stdout.strip() == "no", refused
    assert kubectl.done("get", "autopilotpolicy", "gpu-autopilot", "-o", "jsonpath={.spec.base}") == "recommend"
    made = kubectl("create", "configmap", "any", "--namespace=gpu-autopilot", account)
    assert "ValidatingAdmissionPolicy 'gpu-autopilot-fields'" in made.stderr
    kubectl.done("run", "any", "--image=app:1")
    image = '{"spec": {"containers": [{"name": "any", "image": "evil:1"}]}}'
    said = kubectl.refused("patch", "pod", "any", "--patch", image, account)
    assert "ValidatingAdmissionPolicy 'gpu-autopilot-fields'" in said
    kubectl.done("annotate", "pod", "any", "gpu-autopilot.io/epoch=1", account)
    kubectl.done("delete", "pod", "any", "--force")
    assert "gpu-autopilot" in _left(kubectl)
    kubectl.done("delete", "-f", "-", stdin=yaml.safe_dump_all(rest))
    kubectl.done("delete", "-f", "-", stdin=yaml.safe_dump_all(definitions))
    kubectl.done("delete", "namespace", "gpu-autopilot")
    assert "gpu-autopilot" not in _left(kubectl)


def _left(kubectl: Kubectl) -> str:
    """The names of all objects of kinds that the chart has, but those in its namespace."""
    kinds = (
        "crds,namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
    )
    return kubectl.done("get", kinds, "-o", "name")
