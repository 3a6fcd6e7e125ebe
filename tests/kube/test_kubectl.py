"""kubectl, as people use it, against the server over HTTPS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kits.kubectl_kit import Kubectl

MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {{name: {name}, namespace: default}}
data: {{stop: "{stop}"}}
"""
NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {gpu: h100}}
status:
  capacity: {cpu: "64", nvidia.com/gpu: "8", pods: "110"}
  allocatable: {cpu: "64", nvidia.com/gpu: "8", pods: "110"}
"""
WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, required: [size], properties: {size: {type: integer, minimum: 1}}}}
"""


def test_objects_are_created_from_protobuf_listed_as_tables_and_deleted(kubectl: Kubectl) -> None:
    """`create` sends protobuf, `get` asks for a Table, `delete` waits until the object is gone."""
    assert kubectl.done("create", "namespace", "team-a") == "namespace/team-a created\n"
    assert kubectl.done("-n", "team-a", "create", "configmap", "plan", "--from-literal=x=y").endswith("created\n")
    lines = kubectl.done("-n", "team-a", "get", "cm", "plan").splitlines()
    assert [line.split()[:2] for line in lines] == [["NAME", "DATA"], ["plan", "1"]]
    assert json.loads(kubectl.done("-n", "team-a", "get", "cm", "plan", "-o", "json"))["data"] == {"x": "y"}
    assert kubectl.done("-n", "team-a", "delete", "cm", "plan").startswith('configmap "plan" deleted')
    assert 'configmaps "plan" not found' in kubectl.refused("-n", "team-a", "get", "cm", "plan")


def test_a_job_from_the_command_line_keeps_what_was_asked(kubectl: Kubectl) -> None:
    """The pod template of `create job` arrives whole through protobuf."""
    kubectl.done("create", "job", "train", "--image=app:1", "--", "python", "train.py")
    job = json.loads(kubectl.done("get", "job", "train", "-o", "json"))
    template = job["spec"]["template"]["spec"]
    assert template["containers"][0]["command"] == ["python", "train.py"]
    assert template["restartPolicy"] == "Never"
    header, row = kubectl.done("get", "jobs", "train").splitlines()
    assert header.split() == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert row.split()[0] == "train"


def test_describe_shows_nodes_and_pods(kubectl: Kubectl) -> None:
    """GPUs of a node, conditions of a pod; no part of the output is missing."""
    kubectl.done("create", "-f", "-", stdin=NODE)
    node = kubectl.done("describe", "node", "n1")
    assert "nvidia.com/gpu:  8" in node
    assert "Non-terminated Pods:" in node
    kubectl.done("run", "p", "--image=app:1")
    pod = kubectl.done("describe", "pod", "p")
    assert "Image:" in pod
    assert "app:1" in pod
    header = kubectl.done("get", "pods", "-o", "wide").splitlines()[0]
    assert header.split("  ")[0] == "NAME"
    assert "NOMINATED NODE" in header


def test_logs_and_exec_are_refused_with_the_reason(kubectl: Kubectl) -> None:
    """No container runs; the message says what to look at instead."""
    kubectl.done("run", "quiet", "--image=app:1")
    assert "no container runs in it" in kubectl.refused("logs", "quiet")
    assert "kubectl describe pod quiet" in kubectl.refused("exec", "quiet", "--", "ls")
    assert 'pods "ghost" not found' in kubectl.refused("logs", "ghost")


def test_client_side_apply_creates_changes_and_leaves_alone(kubectl: Kubectl) -> None:
    """With validation by the server, and a diff before the change."""
    assert kubectl.done("apply", "-f", "-", stdin=MAP.format(name="kill", stop="no")).endswith("created\n")
    assert kubectl.done("apply", "-f", "-", stdin=MAP.format(name="kill", stop="no")).endswith("unchanged\n")
    different = kubectl("diff", "-f", "-", stdin=MAP.format(name="kill", stop="yes"))
    assert different.returncode == 1
    assert "+  stop: " in different.stdout
    assert kubectl.done("apply", "-f", "-", stdin=MAP.format(name="kill", stop="yes")).endswith("configured\n")
    wrong = MAP.format(name="wrong", stop="no") + "colour: red\n"
    assert 'unknown field "colour"' in kubectl.refused("apply", "-f", "-", stdin=wrong)


def test_server_side_apply_names_the_other_owner(kubectl: Kubectl) -> None:
    """A conflict names manager and field; force takes the field over."""
    own = ("apply", "--server-side", "-f", "-")
    kubectl.done(*own, "--field-manager=alice", stdin=MAP.format(name="owned", stop="no"))
    text = kubectl.refused(*own, "--field-manager=bob", stdin=MAP.format(name="owned", stop="yes"))
    assert 'conflict with "alice": .data.stop' in text
    kubectl.done(*own, "--field-manager=bob", "--force-conflicts", stdin=MAP.format(name="owned", stop="yes"))
    assert kubectl.done("get", "cm", "owned", "-o", "jsonpath={.data.stop}") == "yes"


def test_small_changes_go_through_patches(kubectl: Kubectl) -> None:
    """annotate, label, cordon, taint, scale and patch, and what each leaves behind."""
    kubectl.done("create", "-f", "-", stdin=NODE.replace("n1", "n2"))
    for arguments in (
        ("annotate", "node", "n2", "a=b"),
        ("label", "node", "n2", "pool=x"),
        ("cordon", "n2"),
        ("taint", "node", "n2", "k=v:NoSchedule"),
    ):
        kubectl.done(*arguments)
    node = json.loads(kubectl.done("get", "node", "n2", "-o", "json"))
    assert node["metadata"]["annotations"]["a"] == "b"
    assert node["metadata"]["labels"]["pool"] == "x"
    assert node["spec"]["unschedulable"] is True
    assert {"key": "k", "value": "v", "effect": "NoSchedule"} in node["spec"]["taints"]
    assert "SchedulingDisabled" in kubectl.done("get", "node", "n2")
    kubectl.done("create", "deployment", "web", "--image=app:1")
    kubectl.done("scale", "deployment", "web", "--replicas=3")
    assert kubectl.done("get", "deployment", "web", "-o", "jsonpath={.spec.replicas}") == "3"
    kubectl.done("autoscale", "deployment", "web", "--min=1", "--max=3", "--cpu=50%")
    assert (
        kubectl.done("get", "hpa", "web", "-o", "jsonpath={.spec.metrics[0].resource.target.averageUtilization}")
        == "50"
    )


def test_a_custom_resource_is_defined_waited_for_and_listed(kubectl: Kubectl) -> None:
    """`wait` sees the condition, short names work at once, columns are those of the definition."""
    kubectl.done("apply", "-f", "-", stdin=WIDGETS)
    kubectl.done("wait", "--for=condition=Established", "crd/widgets.example.org", "--timeout=10s")
    widget = "apiVersion: example.org/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: 3}\n"
    kubectl.done("apply", "-f", "-", stdin=widget)
    lines = kubectl.done("get", "wd").splitlines()
    assert [line.split()[:2] for line in lines] == [["NAME", "SIZE"], ["w", "3"]]
    text = kubectl.refused("apply", "-f", "-", stdin=widget.replace("3", "0"))
    assert "spec.size in body should be greater than or equal to 1" in text
    kubectl.done("delete", "crd", "widgets.example.org")
    assert "could not find the requested resource" in kubectl.refused("get", "widgets")


def test_rights_are_asked_and_enforced(kubectl: Kubectl) -> None:
    """can-i by impersonation, and a real request with the token of a service account."""
    kubectl.done("create", "serviceaccount", "bot")
    kubectl.done("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    kubectl.done("create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:bot")
    bot = "--as=system:serviceaccount:default:bot"
    assert kubectl.done("auth", "can-i", "list", "configmaps", bot) == "yes\n"
    assert kubectl("auth", "can-i", "delete", "configmaps", bot).stdout == "no\n"
    assert "admin" in kubectl.done("auth", "whoami")
    token = kubectl.done("create", "token", "bot").strip()
    kubectl.done("--token", token, "get", "configmaps")
    text = kubectl.refused("--token", token, "get", "secrets")
    assert 'User "system:serviceaccount:default:bot" cannot list resource "secrets"' in text
    assert "Unauthorized" in kubectl.refused("--token", "wrong", "get", "configmaps")


def test_a_watch_prints_what_happens(kubectl: Kubectl) -> None:
    """`get -w` shows the object again when it changes, as a table without a second header."""
    kubectl.done("create", "configmap", "watched")
    with kubectl.lines("get", "configmap", "watched", "-w") as lines:
        assert next(lines).split()[:2] == ["NAME", "DATA"]
        assert next(lines).split()[:2] == ["watched", "0"]
        kubectl.done("patch", "configmap", "watched", "--type=merge", "-p", '{"data":{"a":"1"}}')
        assert next(lines).split()[:2] == ["watched", "1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("get", "ghosts"), "the server doesn't have a resource type"),
        (("get", "pod", "ghost"), 'pods "ghost" not found'),
        (("top", "nodes"), "Metrics API not available"),
    ],
)
def test_what_is_not_there_is_said_as_by_a_real_server(
    kubectl: Kubectl, arguments: tuple[str, ...], words: str
) -> None:
    """The text that a person sees."""
    assert words in kubectl.refused(*arguments)


def test_the_server_answers_about_itself(kubectl: Kubectl) -> None:
    """Version, health and the list of resources."""
    assert "Server Version: v1.36" in kubectl.done("version")
    assert kubectl.done("get", "--raw", "/readyz?verbose").endswith("readyz check passed\n")
    listed = kubectl.done("api-resources", "--api-group=batch", "--no-headers").split("\n")
    assert [line.split()[0] for line in listed if line] == ["cronjobs", "jobs"]


def test_the_dashboards_are_applied_as_a_folder(kubectl: Kubectl) -> None:
    """`kubectl apply -f deploy/grafana/`, as dashboards/README.md says, and again."""
    kubectl("create", "namespace", "gpu-autopilot")
    folder = str(Path(__file__).parents[2] / "deploy" / "grafana")
    assert kubectl.done("apply", "-f", folder).count("created") == 7
    assert kubectl.done("apply", "-f", folder).count("unchanged") == 7


def test_a_list_is_applied_and_its_items_are_checked(kubectl: Kubectl) -> None:
    """What `get -o yaml` prints can be applied; an item with an unknown field is refused, and the others are taken."""
    items = "apiVersion: v1\nkind: List\nitems:\n"
    for name in ("first", "second"):
        items += f"- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: default}}}}\n"
    for verb, does in (("create", "created"), ("apply", "configured"), ("apply", "unchanged")):
        said = kubectl.done(verb, "-f", "-", stdin=items)
        assert said.splitlines() == [f"configmap/first {does}", f"configmap/second {does}"]
    listed = kubectl.done("get", "configmaps", "first", "second", "-o", "yaml")
    assert kubectl.done("replace", "-f", "-", stdin=listed).count("replaced") == 2
    wrong = f"{items}- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: third}}, colour: red}}\n"
    assert 'unknown field "colour"' in kubectl.refused("apply", "-f", "-", stdin=wrong)
    kubectl.done("delete", "-f", "-", stdin=items)
