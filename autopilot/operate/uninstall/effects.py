"""The controller's effects on objects of others, given back.

Holds on work go first, as the watchdog removes them. A closed node stays closed: only a person knows of its repair. A
placement label stays while unfinished work selects it: its pods would not start without it. The label of a shared node
stays while pods hold its GPUs: without it the device plugin starts anew, and their GPUs are given out again.
"""

from __future__ import annotations

from collections.abc import Iterator

from actuators.kubernetes.mig_node import holds_gpu
from actuators.kubernetes.objects import annotation, label
from autopilot.contract.annotations import CONDEMNED, CONTROLLER, PLACEMENT, REQUEST, SHARING_CONFIG
from autopilot.contract.marks import MARKS
from autopilot.contract.scaling import FLOOR, Floor, Way, read_floor
from autopilot.contract.sharing_engines import PLUGIN_CONFIG
from autopilot.contract.tree import PREFIX
from autopilot.contract.written import MIN_REPLICAS, ours
from autopilot.operate.uninstall.deed import STAYS, Cluster, Deed, Obj, meta_of, shown
from autopilot.service.watchdog.removal import APPS, BATCH, KUEUE, STEPS, WORK, in_namespace, scale_of

CHECKS = f"{KUEUE}/admissionchecks"
NODES, HPAS = "/api/v1/nodes", "/apis/autoscaling/v2"
REQUESTS = "/apis/autoscaling.x-k8s.io/v1"
SERVICES = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
ENDED = frozenset({"Succeeded", "Failed"})
LISTS = {
    "Node": NODES,
    "Deployment": f"{APPS}/deployments",
    "StatefulSet": f"{APPS}/statefulsets",
    "HorizontalPodAutoscaler": f"{HPAS}/horizontalpodautoscalers",
    "Job": f"{BATCH}/jobs",
    "Workload": WORK,
    "Pod": "/api/v1/pods",
}


def effects(cluster: Cluster) -> Iterator[Deed]:
    """The effects to give back, in order. Each list is read when its turn comes."""
    for what, kind, path, query, patch_of, place in STEPS:
        for found in cluster.objects(path, kind, query):
            patch = patch_of(found)
            if patch is not None:
                yield cluster.change(kind, place(found), found, patch, what)
    for found in cluster.objects(CHECKS, "AdmissionCheck"):
        if (found.get("spec") or {}).get("controllerName") == CONTROLLER:
            yield cluster.delete("AdmissionCheck", f"{CHECKS}/{meta_of(found)['name']}", found)
    yield from _floors(cluster)
    for plural, kind, group in (
        ("provisioningrequests", "ProvisioningRequest", REQUESTS),
        ("podtemplates", "PodTemplate", "/api/v1"),
    ):
        for found in cluster.objects(f"{group}/{plural}", kind, {"labelSelector": f"{REQUEST}=true"}):
            yield cluster.delete(kind, in_namespace(group, plural)(found), found)
    yield from _placements(cluster)
    yield from _nodes(cluster)
    yield from _shared(cluster)
    yield from _marks(cluster)


def _floors(cluster: Cluster) -> Iterator[Deed]:
    """The replicas of the owner, if the present number is ours."""
    floors: dict[tuple[str, str, str], Floor] = {}
    for kind, plural in SERVICES.items():
        for found in cluster.objects(LISTS[kind], kind):
            floor, meta = read_floor(annotation(found, PREFIX + FLOOR)), meta_of(found)
            if floor is None or floor.owner is None or floor.owner == floor.ours:
                continue
            floors[meta["namespace"], kind, meta["name"]] = floor
            if floor.way == Way.SCALE and (found.get("spec") or {}).get("replicas") == floor.ours:
                patch: Obj = {"spec": {"replicas": floor.owner}}
                yield cluster.change(kind, scale_of(plural)(found), found, patch, f"{floor.owner} replicas, as before")
    for found in cluster.objects(LISTS["HorizontalPodAutoscaler"], "HorizontalPodAutoscaler") if floors else ():
        spec, meta = found.get("spec") or {}, meta_of(found)
        target = spec.get("scaleTargetRef") or {}
        floor = floors.get((meta["namespace"], str(target.get("kind")), str(target.get("name"))))
        raised = floor is not None and floor.way == Way.HPA and spec.get("minReplicas") == floor.ours
        if floor is not None and raised and ours(meta.get("managedFields") or (), MIN_REPLICAS):
            place = in_namespace(HPAS, "horizontalpodautoscalers")(found)
            patch = {"spec": {"minReplicas": floor.owner}}
            yield cluster.change(
                "HorizontalPodAutoscaler", place, found, patch, f"minReplicas {floor.owner}, as before"
            )


def _selected(spec: Obj) -> dict[str, None]:
    return {key: None for key in spec.get("nodeSelector") or {} if key.startswith(PLACEMENT)}


def _template(job: Obj) -> Obj:
    return dict((((job.get("spec") or {}).get("template")) or {}).get("spec") or {})


def _placements(cluster: Cluster) -> Iterator[Deed]:
    """Selectors of suspended Jobs; those of others cannot change."""
    for job in cluster.objects(LISTS["Job"], "Job"):
        gone = _selected(_template(job))
        if gone and (job.get("spec") or {}).get("suspend"):
            patch = {"spec": {"template": {"spec": {"nodeSelector": gone}}}}
            yield cluster.change("Job", in_namespace(BATCH, "jobs")(job), job, patch, "node selector of its last place")


def _users(cluster: Cluster) -> dict[str, str]:
    """Placement label -> unfinished work with it in its selector."""
    found: dict[str, str] = {}
    for pod in cluster.objects(LISTS["Pod"], "Pod"):
        if (pod.get("status") or {}).get("phase") not in ENDED:
            found |= dict.fromkeys(_selected(pod.get("spec") or {}), shown("Pod", pod))
    for job in cluster.objects(LISTS["Job"], "Job"):
        conditions = (job.get("status") or {}).get("conditions") or ()
        over = any(each.get("type") in {"Complete", "Failed"} and each.get("status") == "True" for each in conditions)
        if not over and not (job.get("spec") or {}).get("suspend"):
            found |= dict.fromkeys(_selected(_template(job)), shown("Job", job))
    return found


def _nodes(cluster: Cluster) -> Iterator[Deed]:
    users = _users(cluster)
    for node in cluster.objects(NODES, "Node"):
        meta, spec = meta_of(node), node.get("spec") or {}
        placed = [key for key in meta.get("labels") or {} if key.startswith(PLACEMENT)]
        gone = {key: None for key in placed if key not in users}
        if gone:
            what = f"label {', '.join(gone)}"
            yield cluster.change("Node", f"{NODES}/{meta['name']}", node, {"metadata": {"labels": gone}}, what)
        for key in placed:
            if key in users:
                yield Deed(
                    STAYS, shown("Node", node), f"label {key}, for {users[key]}; repeat the command when that has ended"
                )
        if any(each.get("key") == CONDEMNED for each in spec.get("taints") or ()):
            cure = f"kubectl uncordon {meta['name']}; kubectl taint nodes {meta['name']} {CONDEMNED}-"
            yield Deed(STAYS, shown("Node", node), f"closed by the controller; open it once it is repaired: {cure}")


def _turned(node: Obj) -> bool:
    """Whether its configuration of the device plugin is the one that we set."""
    return label(node, PLUGIN_CONFIG) == annotation(node, SHARING_CONFIG) != ""


def _shared(cluster: Cluster) -> Iterator[Deed]:
    """The labels of the device plugin that we set."""
    turned = [each for each in cluster.objects(NODES, "Node") if _turned(each)]
    pods = cluster.objects(LISTS["Pod"], "Pod") if turned else ()
    users = {str(each["spec"].get("nodeName", "")): shown("Pod", each) for each in pods if holds_gpu(each)}
    for node in turned:
        name, what = meta_of(node)["name"], f"label {PLUGIN_CONFIG}={label(node, PLUGIN_CONFIG)}"
        if name in users:
            why = f"{what}, for {users[name]}; repeat the command when its pods with GPUs have ended"
            yield Deed(STAYS, shown("Node", node), why)
        else:
            patch = {"metadata": {"labels": {PLUGIN_CONFIG: None}, "annotations": {SHARING_CONFIG: None}}}
            yield cluster.change("Node", f"{NODES}/{name}", node, patch, what)


def _marks(cluster: Cluster) -> Iterator[Deed]:
    """Our annotations; they have no effect without the controller."""
    for kind, marks in MARKS.items():
        group, _, plural = LISTS[kind].rpartition("/")
        for found in cluster.objects(LISTS[kind], kind):
            held = sorted(marks & (meta_of(found).get("annotations") or {}).keys())
            if kind == "Node" and _turned(found):
                held.remove(SHARING_CONFIG)
            if held:
                place = f"{NODES}/{meta_of(found)['name']}" if kind == "Node" else in_namespace(group, plural)(found)
                patch = {"metadata": {"annotations": dict.fromkeys(held)}}
                yield cluster.change(kind, place, found, patch, f"annotations {', '.join(held)}")
