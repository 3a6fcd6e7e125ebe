"""What others declare on pods and nodes: leave them where they run, give them no work."""

from __future__ import annotations

import re

import pytest
import yaml

from autopilot.contract import node_conditions
from autopilot.explain.view import explain_proposal, view_of
from autopilot.service.settings import Kubernetes
from collectors.kubernetes.nodes import BY_MIG_MANAGER
from tests.kits.field_kit import FOLDER, Json, Played, made, objects_of, play, play_objects

NONE = FOLDER / "22-no-evict" / "none.yaml"


def _taken(played: Played) -> bool:
    """Whether a proposal with victims is accepted."""
    found = [each for _, _, decision in played.ticks for each in decision.plan.proposals]
    return any(each.accepted and each.victims for each in found)


@pytest.mark.parametrize("objects", ["safe-to-evict.yaml", "do-not-disrupt.yaml"])
def test_what_its_owner_marked_is_not_preempted(objects: str) -> None:
    """kubernetes/autoscaler#7269, run-house/kubetorch#2052."""
    played = play("22-no-evict", objects)
    assert not _taken(played)


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [
        ("karpenter.sh/do-not-evict", "true", False),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "False", False),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "true", True),
        ("karpenter.sh/do-not-disrupt", "false", True),
        ("example.com/safe-to-evict", "false", True),
        ("", "", True),
    ],
)
def test_only_the_words_for_staying_protect(key: str, value: str, taken: bool) -> None:
    """Other values and other annotations leave the pod as it is."""
    objects = objects_of(NONE)
    (train,) = [each for each in objects if each["metadata"]["name"] == "train"]
    train["metadata"]["annotations"] |= {key: value} if key else {}
    assert _taken(play_objects(objects)) == taken


@pytest.mark.parametrize(
    ("where", "key", "value", "taken"),
    [
        ("annotations", "karpenter.sh/do-not-disrupt", "2h", False),
        ("annotations", "descheduler.alpha.kubernetes.io/prefer-no-eviction", "", False),
        ("annotations", "descheduler.alpha.kubernetes.io/prefer-no-eviction", "false", False),
        ("annotations", "volcano.sh/preemptable", "false", False),
        ("annotations", "volcano.sh/preemptable", "F", False),
        ("labels", "volcano.sh/preemptable", "false", False),
        ("labels", "volcano.sh/preemptable", "true", True),
        ("labels", "kai.scheduler/preemptibility", "non-preemptible", False),
        ("labels", "kai.scheduler/preemptibility", "preemptible", True),
        ("labels", "quota.scheduling.koordinator.sh/preemptible", "false", False),
        ("annotations", "scheduling.koordinator.sh/eviction-cost", "2147483647", False),
        ("annotations", "scheduling.koordinator.sh/eviction-cost", "100", True),
        ("labels", "nvidia.com/gpu-driver-upgrade-drain.skip", "true", False),
    ],
)
def test_words_for_other_schedulers_protect(where: str, key: str, value: str, *, taken: bool) -> None:
    """Schedulers and the descheduler have words of their own, as labels or annotations."""
    objects = objects_of(NONE)
    (train,) = [each for each in objects if each["metadata"]["name"] == "train"]
    train["metadata"][where] = train["metadata"].get(where, {}) | {key: value}
    assert _taken(play_objects(objects)) == taken


def test_a_stop_against_the_owners_words_names_them() -> None:
    """On a GPU that fell off the bus nothing goes on; the explanation says that the work was not to be preempted."""
    objects = objects_of(FOLDER / "14-xid-154" / "objects.yaml")
    objects[2]["metadata"]["annotations"] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    spec = yaml.safe_load((FOLDER / "14-xid-154" / "code79.yaml").read_text("utf-8"))
    played = play_objects(objects, spec, ticks=4)
    (_, stop), *_ = played.accepted("evict", "team/train-0")
    words = explain_proposal(view_of(stop, played.ticks[-1][2]))
    assert any(re.search("guard protected: waived, not_preemptible", line) for line in words)


@pytest.mark.parametrize(
    ("condition", "status", "closed"),
    [
        ("AcceleratedHardwareReady", "False", True),
        ("AcceleratedHardwareReady", "True", False),
        ("AcceleratedHardwareReady", "Unknown", False),
        ("GPUMissing", "True", True),
        ("GPUMissing", "False", False),
        ("GpuNvlinkWatch", "True", True),
        ("KernelDeadlock", "True", True),
        ("SomethingElse", "True", False),
    ],
)
def test_a_node_that_an_agent_calls_broken_gets_no_new_work(condition: str, status: str, *, closed: bool) -> None:
    """Its work stays, and a gap names the condition."""
    bad = {"type": condition, "status": status, "reason": "Seen"}
    node = {"node": "n-0", "gpus": 8, "product": "NVIDIA-H100-80GB-HBM3", "conditions": [bad]}
    played = play_objects(made(node, {"pod": "team/runs", "at": "n-0"}, {"pod": "team/next"}))
    assert bool(played.snapshot.nodes.cordoned[0]) == closed
    assert bool(played.accepted("admit", "team/next")) != closed
    assert played.said(f"n-0 condition .*{condition} is {status}") == closed
    assert not played.accepted("evict")


@pytest.mark.parametrize(
    ("kind", "reason", "message", "closed"),
    [
        ("AcceleratedHardwareReady=False", "DCGMError", "connection to DCGM was lost", False),
        ("AcceleratedHardwareReady=False", "NvidiaXID79Error", "XID 79", True),
        ("XIDErrors=True", "XIDErrorsPresent", "GPU Xid errors detected: NVRM: Xid (PCI:0001:00:00): 63, pid=1", False),
        ("XIDErrors=True", "XIDErrorsPresent", "XID 43 and XID 31", False),
        (
            "XIDErrors=True",
            "XIDErrorsPresent",
            "Xid (PCI:0001:00:00): 63, pid=1; Xid (PCI:0002:00:00): 79, pid=1",
            True,
        ),
        ("XIDErrors=True", "XIDErrorsPresent", "XID errors present in kernel log. FaultCode: NHC2001", True),
        (
            "SysLogsXIDError=True",
            "SysLogsXIDErrorIsNotHealthy",
            "ErrorCode:31 GPU:0 Recommended Action=RESTART_VM",
            True,
        ),
    ],
)
def test_a_condition_that_only_reports_closes_no_node(kind: str, reason: str, message: str, *, closed: bool) -> None:
    """A monitor that cannot reach DCGM, and errors that need no repair; a gap names them nevertheless."""
    name, _, status = kind.partition("=")
    told = {"type": name, "status": status, "reason": reason, "message": message}
    node = {"node": "n-0", "gpus": 8, "product": "NVIDIA-H100-80GB-HBM3", "conditions": [told]}
    played = play_objects(made(node), ticks=1)
    assert bool(played.snapshot.nodes.cordoned[0]) == closed
    assert played.said(f"n-0 .*its condition {name} is {status}")


WRITTEN = """
AcceleratedHardwareReady=False ContainerRuntimeReady=False KernelReady=False NetworkingReady=False
StorageReady=False GPUMissing=True XIDErrors=True NVLinkStatusInactive=True IBLinkFlapping=True
UnhealthyNvidiaDevicePlugin=True FilesystemCorruptionProblem=True KubeletProblem=True ContainerRuntimeProblem=True
KernelDeadlock=True ReadonlyFilesystem=True CperHardwareErrorFatal=True XfsShutdown=True KubeletUnhealthy=True
ContainerRuntimeUnhealthy=True GpuDriverWatch=True GpuInforomWatch=True GpuMemWatch=True GpuNvlinkWatch=True
GpuNvswitchFatalWatch=True
GpuPcieWatch=True GpuPowerWatch=True GpuSmWatch=True GpuThermalWatch=True SysLogsGPUFallenOff=True
SysLogsSXIDError=True SysLogsXIDError=True NebiusBootDiskIOError=True NebiusGPUError=True
"""
"""Conditions as agents write them where they see a fault."""


def test_every_condition_of_the_default_closes_its_node() -> None:
    """One node for each."""
    found = [each.partition("=") for each in WRITTEN.split()]
    assert set(WRITTEN.split()) == set(node_conditions.KNOWN)
    nodes = [
        {"node": f"n-{number:02}", "gpus": 8, "conditions": [{"type": kind, "status": status, "reason": "Seen"}]}
        for number, (kind, _, status) in enumerate(found)
    ]
    assert play_objects(made(*nodes), ticks=1).snapshot.nodes.cordoned.all()


def test_conditions_are_a_setting() -> None:
    """An operator may leave out a condition and name others."""
    text = ("GPUMissing=True", "ExampleBroken=True")
    assert node_conditions.pairs(text) == {("GPUMissing", "True"), ("ExampleBroken", "True")}
    assert Kubernetes(node_conditions=text).node_conditions == text
    with pytest.raises(ValueError, match="node_conditions"):
        Kubernetes(node_conditions=("GPUMissing",))


def test_no_geometry_is_changed_on_a_node_that_its_owner_protects() -> None:
    """The annotation for Karpenter on a node keeps it from being drained for a cut."""
    labels = {"nvidia.com/mig.capable": "true", "nvidia.com/mig.strategy": "mixed"}
    node: Json = {"node": "n-0", "gpus": 8, "product": "NVIDIA-H100-80GB-HBM3", "labels": labels}
    plain = play_objects(made(dict(node)))
    kept = play_objects(made({**node, "annotations": {"karpenter.sh/do-not-disrupt": "true"}}))
    assert (plain.snapshot.nodes.mig_scopes.tolist(), kept.snapshot.nodes.mig_scopes.tolist()) == (
        [BY_MIG_MANAGER],
        [0],
    )


@pytest.mark.parametrize("key", ["karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler"])
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_node_that_another_controller_takes_gets_no_new_work(key: str, effect: str) -> None:
    """Also where the work tolerates the taint."""
    node = {"node": "n-0", "gpus": 8, "taints": [{"key": key, "effect": effect}]}
    spec = {"tolerations": [{"operator": "Exists"}]}
    played = play_objects(made(node, {"pod": "team/next", "spec": spec}))
    assert played.snapshot.nodes.cordoned.all()
    assert not played.accepted("admit", "team/next")


def test_a_node_out_of_service_gets_no_new_work() -> None:
    """A person says that the machine is off."""
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    played = play_objects(made({"node": "n-0", "gpus": 8, "taints": [taint]}, {"pod": "team/next"}))
    assert played.snapshot.nodes.cordoned.all()
