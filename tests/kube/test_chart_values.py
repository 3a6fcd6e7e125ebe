"""Values that a user of charts expects, and what the rendered objects make of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.generate_chart import CHART

Obj = dict[str, Any]
Render = Callable[..., list[Obj]]
DIGEST = "sha256:" + "0a" * 32
FIRST = """
image: {repository: r, tag: "", pullPolicy: IfNotPresent}
imagePullSecrets: []
replicas: 2
fence: {enabled: true}
watchdog: {enabled: true, absence: 10m}
act: {admit: true}
policy: {create: true, name: gpu-autopilot, spec: {base: recommend}}
recommendations: 300
approvers: []
prometheus: {url: ""}
settings: {}
resources: {}
nodeSelector: {}
tolerations: []
priorityClassName: ""
podAnnotations: {}
serviceAccount: {annotations: {}}
networkPolicy: {enabled: true, from: []}
podDisruptionBudget: {enabled: true}
serviceMonitor: {enabled: false, interval: 30s, labels: {}}
prometheusRule: {enabled: false}
dashboards: {enabled: false}
"""
"""All values of the first chart: `helm upgrade --reuse-values` knows no others."""


@pytest.fixture(scope="module")
def helm(require_tool: Callable[[str], str]) -> Callable[..., str]:
    """What `helm template` prints for a chart with these values, as JSON."""
    binary = require_tool("helm")

    def run(values: Obj | None = None, **more: Any) -> str:
        return cached(json.dumps(values or {}), **more)

    @cache
    def cached(
        given: str,
        name: str = "release",
        chart: Path = CHART,
        command: str = "template",
        namespace: str = "elsewhere",
    ) -> str:
        words = [binary, command, name, str(chart), "--namespace", namespace]
        words += ["--dry-run=client"] if command == "install" else ["--kube-version", "1.36"]
        done = subprocess.run(
            [*words, "--values", "-"], input=given, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise ValueError(done.stderr)
        return done.stdout

    return run


@pytest.fixture(scope="module")
def render(helm: Callable[..., str]) -> Render:
    """The rendered objects."""
    return lambda *given, **more: [each for each in yaml.load_all(helm(*given, **more), yaml.CSafeLoader) if each]


def named(objects: list[Obj], kind: str, name: str = "gpu-autopilot") -> Obj:
    """One object."""
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pods(objects: list[Obj]) -> list[Obj]:
    """The pod templates of the controller and of the watchdog."""
    return [
        named(objects, "Deployment", name)["spec"]["template"] for name in ("gpu-autopilot", "gpu-autopilot-watchdog")
    ]


def test_a_namespace_of_digits_stays_text(render: Render) -> None:
    """YAML reads digits without quotes as a number, and the API server refuses that."""
    objects = render({"serviceMonitor": {"enabled": True}}, namespace="1234")
    placed = [each["metadata"]["namespace"] for each in objects if "namespace" in each["metadata"]]
    assert set(placed) == {"1234"}
    subjects = [subject for each in objects for subject in each.get("subjects", ()) if "namespace" in subject]
    assert {subject["namespace"] for subject in subjects} == {"1234"}
    references = [each["spec"]["paramRef"] for each in objects if "paramRef" in each.get("spec", ())]
    assert {reference["namespace"] for reference in references} == {"1234"}
    (container,) = named(objects, "Deployment", "gpu-autopilot-watchdog")["spec"]["template"]["spec"]["containers"]
    assert "1234" in container["args"]


def test_an_image_is_pinned_by_its_digest(render: Render) -> None:
    """In both Deployments; the tag does not count then."""
    for pod in pods(render({"image": {"digest": DIGEST, "tag": "other"}})):
        assert pod["spec"]["containers"][0]["image"] == f"gpu-autopilot@{DIGEST}"
    assert pods(render())[0]["spec"]["containers"][0]["image"] == "gpu-autopilot:0.1.0"


def test_both_pods_go_where_the_values_say(render: Render) -> None:
    """Node selector, tolerations, priority, pull secrets, labels and annotations are for all pods of the release."""
    spec = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
        "imagePullSecrets": [{"name": "registry"}],
    }
    for pod in pods(render({**spec, "podLabels": {"team": "ml"}, "podAnnotations": {"mesh": "off"}})):
        assert {key: pod["spec"][key] for key in spec} == spec
        assert pod["metadata"]["labels"]["team"] == "ml"
        assert pod["metadata"]["annotations"]["mesh"] == "off"


def test_what_the_settings_name_can_be_mounted(render: Render) -> None:
    """Tokens and certificates are files, so they need a volume; a proxy needs a variable."""
    given: Obj = {
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraVolumes": [{"name": "tokens", "secret": {"secretName": "autopilot-tokens"}}],
        "extraVolumeMounts": [{"name": "tokens", "mountPath": "/etc/autopilot", "readOnly": True}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    }
    spec = pods(render(given))[0]["spec"]
    (container,) = spec["containers"]
    assert container["env"][-1:] == given["env"]
    assert container["volumeMounts"][-1:] == given["extraVolumeMounts"]
    assert spec["volumes"][-1:] == given["extraVolumes"]
    assert [spec[key] for key in ("affinity", "topologySpreadConstraints")] == [
        given[key] for key in ("affinity", "topologySpreadConstraints")
    ]
    assert "podAntiAffinity" in pods(render())[0]["spec"]["affinity"]


def test_an_account_that_exists_gets_the_rights_and_the_fence(render: Render) -> None:
    """Every binding, the pods and the condition of the admission policy name the same account."""
    objects = render({"serviceAccount": {"create": False, "name": "mine"}, "act": {"evict": True}})
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    assert accounts == {"gpu-autopilot-watchdog"}
    bound = {
        (each["name"], each["namespace"])
        for found in objects
        if found["kind"].endswith("Binding") and found["metadata"]["name"] != "gpu-autopilot-watchdog"
        for each in found.get("subjects") or ()
    }
    assert bound == {("mine", "elsewhere")}
    assert pods(objects)[0]["spec"]["serviceAccountName"] == "mine"
    (condition, *_) = named(objects, "ValidatingAdmissionPolicy", "gpu-autopilot-fence")["spec"]["matchConditions"]
    assert condition["expression"].endswith("'system:serviceaccount:elsewhere:mine'")
    for name, account in (("", "mine"), ("-watchdog", "gpu-autopilot-watchdog")):
        spec = named(objects, "ValidatingAdmissionPolicy", f"gpu-autopilot-fields{name}")["spec"]
        assert spec["matchConditions"][0]["expression"].endswith(f"['system:serviceaccount:elsewhere:{account}']")
        assert "release-namespace" not in str(spec)


def test_the_namespaces_that_are_protected_are_those_of_the_values(render: Render) -> None:
    """`kube-system` by default; both accounts write in none of them."""
    for given, listed in (({}, "kube-system"), ({"fields": {"protectedNamespaces": ["a", "b-c"]}}, "a,b-c")):
        objects = render(given)
        for name in ("gpu-autopilot-fields", "gpu-autopilot-fields-watchdog"):
            first = named(objects, "ValidatingAdmissionPolicy", name)["spec"]["validations"][0]["expression"]
            assert f"'{listed}'.split(',')" in first


def test_a_release_may_have_a_number_for_a_name(render: Render) -> None:
    """Labels are texts, also where YAML would read a number."""
    for each in render(name="123"):
        labels = each["metadata"].get("labels") or {}
        assert labels.get("app.kubernetes.io/instance", "123") == "123"


def test_the_scaler_of_keda_is_reached_at_the_service(render: Render) -> None:
    """docs/scaling.md names the address; without the setting there is no such port."""
    objects = render({"settings": {"scale": {"keda": {"listen": "0.0.0.0:9473"}}}})
    assert {"name": "keda", "port": 9473, "targetPort": "keda"} in named(objects, "Service")["spec"]["ports"]
    assert {"name": "keda", "containerPort": 9473} in pods(objects)[0]["spec"]["containers"][0]["ports"]
    assert {"port": "keda", "protocol": "TCP"} in named(objects, "NetworkPolicy")["spec"]["ingress"][0]["ports"]
    assert len(named(render(), "Service")["spec"]["ports"]) == 2


def test_nobody_calls_the_watchdog(render: Render) -> None:
    """It calls DNS and the API server alone where egress is limited."""
    policy = named(render(), "NetworkPolicy", "gpu-autopilot-watchdog")["spec"]
    labels = pods(render())[1]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert (policy["policyTypes"], policy.get("ingress")) == (["Ingress"], None)
    limited = {"networkPolicy": {"egress": {"enabled": True}}, "prometheus": {"url": "http://p:9090"}}
    policy = named(render(limited), "NetworkPolicy", "gpu-autopilot-watchdog")["spec"]
    assert [[each["port"] for each in rule["ports"]] for rule in policy["egress"]] == [[53, 53], [443, 6443]]


def test_the_values_of_an_earlier_chart_still_render(render: Render, tmp_path: Path) -> None:
    """`helm upgrade --reuse-values` gives the templates no value that came later, not even its default."""
    for path in CHART.rglob("*"):
        if path.is_file() and path.parent.name != "dashboards":
            place = tmp_path / path.relative_to(CHART)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(path.read_text("utf-8"), "utf-8")
    (tmp_path / "values.yaml").write_text(FIRST, "utf-8")
    objects = render(chart=tmp_path)
    assert named(objects, "ServiceAccount")
    assert pods(objects)[0]["spec"]["containers"][0]["image"] == "r:0.1.0"


@pytest.mark.parametrize(
    "given",
    [
        {"image": {"digest": "sha256:short"}},
        {"image": {"digest": DIGEST[7:]}},
        {"nameOveride": "mine"},
        {"serviceAccount": {"name": "Mine"}},
        {"env": {"A": "b"}},
        {"watchdog": {"absence": "10 minutes"}},
    ],
)
def test_a_wrong_value_is_refused_by_its_name(helm: Callable[..., str], given: Obj) -> None:
    """By the schema of the values."""
    (name,) = given
    with pytest.raises(ValueError, match=name):
        helm(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ("rollout status", "In force must be True", "No Prometheus is named", "docs/install.md")),
        ({"act": {"evict": True}, "fence": {"enabled": False}}, ("The fence is off",)),
        ({"act": {"evict": True}, "fields": {"enabled": False}}, ("The policies of the fields are off",)),
    ],
)
def test_the_notes_say_what_comes_next(helm: Callable[..., str], given: Obj, said: tuple[str, ...]) -> None:
    """What to look at, what is missing, and how to stop it."""
    notes = helm(given, command="install").partition("NOTES:")[2]
    for each in (*said, '"kill":"on"'):
        assert each in notes
