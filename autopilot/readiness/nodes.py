"""Nodes: their GPUs, and the labels that name them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from autopilot.contract.annotations import SHARING_CONFIG
from autopilot.contract.sharing_engines import PLUGIN_CONFIG
from autopilot.core.model.objects import Sharing, SharingConfig
from autopilot.readiness.line import Asked, Line, Status, condition, items, labels_of, name_of, some

GPU, MIG_PREFIX = "nvidia.com/gpu", "nvidia.com/mig-"
PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"
REPLICAS = "nvidia.com/gpu.replicas"
CAPABLE, STRATEGY, STATE = "nvidia.com/mig.capable", "nvidia.com/mig.strategy", "nvidia.com/mig.config.state"
PAGE = 500


def all_of(asked: Asked, path: str) -> tuple[list[dict[str, Any]], str]:
    """Every object of a list, page by page, and the reason for an incomplete list ("" for none)."""
    found: list[dict[str, Any]] = []
    more = ""
    while True:
        answer = asked.cluster.get(path, {"limit": str(PAGE), **({"continue": more} if more else {})})
        if answer.status != 200:
            return found, answer.reason
        found += items(answer)
        more = str((answer.document.get("metadata") or {}).get("continue") or "")
        if not more:
            return found, ""


def _amount(given: Any) -> int:
    return int(given) if str(given or "").isdigit() else 0


def gpus_of(node: dict[str, Any], where: str) -> dict[str, int]:
    """GPU resources of a node, `where` = capacity or allocatable, without those of 0."""
    stated = (node.get("status") or {}).get(where) or {}
    return {
        name: _amount(value)
        for name, value in stated.items()
        if (name == GPU or name.startswith(MIG_PREFIX)) and _amount(value)
    }


def gpu_nodes(asked: Asked) -> Iterator[Line]:
    """GPUs of nodes, and the labels needed to tell them apart."""
    nodes, problem = all_of(asked, "/api/v1/nodes")
    if problem:
        yield Line("nodes", "list", Status.FAILED, f"nodes cannot be listed: {problem}", "apply deploy/observe.yaml")
        return
    having = [node for node in nodes if gpus_of(node, "capacity")]
    if not having:
        fix = "install the NVIDIA GPU operator or device plugin, and check its pods on the GPU nodes"
        yield Line("nodes", "GPUs", Status.FAILED, f"none of {len(nodes):,} nodes offers {GPU}", fix)
        return
    sums: Counter[str] = Counter()
    for node in having:
        sums.update(gpus_of(node, "capacity"))
    shown = ", ".join(f"{count:,} x {name}" for name, count in sorted(sums.items()))
    yield Line("nodes", "GPUs", Status.OK, f"{len(having):,} of {len(nodes):,} nodes offer {shown}")
    yield from _labels(having)
    yield from _health(having)
    yield from _mig(having)
    yield from _sharing(having, asked.sharing)


def _sharing(nodes: list[dict[str, Any]], configs: Sequence[SharingConfig]) -> Iterator[Line]:
    """Configurations of sharing that the settings state, against the nodes."""
    if not configs:
        return
    keys = {each.key for each in configs}
    other = [name_of(node) for node in nodes if labels_of(node).get(PLUGIN_CONFIG, "") not in {"", _ours(node)}]
    if other:
        fix = f"remove the label {PLUGIN_CONFIG} where they may be turned"
        yield Line("sharing", PLUGIN_CONFIG, Status.WARNING, f"somebody else has set it on {some(other)}", fix)
    if Sharing.WHOLE not in {each.sharing for each in configs}:
        fix = "add an entry without sharing to the ConfigMap, and to kubernetes.sharing_configs as whole"
        yield Line("sharing", "whole", Status.WARNING, "no entry is whole: a node cannot be turned back", fix)
    mixed = [name_of(node) for node in nodes if labels_of(node).get(STRATEGY) == "mixed"]
    if mixed and Sharing.MPS in {each.sharing for each in configs}:
        text = f"the device plugin refuses MPS with the MIG strategy mixed: not on {some(mixed)}"
        yield Line("sharing", "MPS", Status.WARNING, text, "use time slicing, or the MIG strategy none")
    yield Line("sharing", "configurations", Status.OK, f"nodes may be turned to {', '.join(sorted(keys))}")


def _ours(node: dict[str, Any]) -> str:
    return str(((node.get("metadata") or {}).get("annotations") or {}).get(SHARING_CONFIG, ""))


def _labels(nodes: list[dict[str, Any]]) -> Iterator[Line]:
    for label, lost in ((PRODUCT, "their GPU model is unknown"), (MEMORY, "GPU memory is read from the model's name")):
        bare = [name_of(node) for node in nodes if not labels_of(node).get(label)]
        if not bare:
            yield Line("labels", label, Status.OK, "on every GPU node")
            continue
        status = Status.FAILED if label == PRODUCT else Status.WARNING
        fix = "enable GPU feature discovery (gpu-feature-discovery) on these nodes"
        yield Line("labels", label, status, f"missing on {some(bare)}: {lost}", fix)
    shared = [name_of(node) for node in nodes if _amount(labels_of(node).get(REPLICAS)) > 1]
    if shared:
        text = f"GPUs of {some(shared)} are shared: use by workload is estimated there"
        yield Line("labels", REPLICAS, Status.WARNING, text, "none needed; MIG gives exact figures")


def _health(nodes: list[dict[str, Any]]) -> Iterator[Line]:
    down = [name_of(node) for node in nodes if condition(node, "Ready")[0] != "True"]
    if down:
        text = f"not ready: {some(down)}; their capacity does not count"
        yield Line("nodes", "Ready", Status.WARNING, text, "look at their conditions with kubectl describe node")
    short = [
        f"{name_of(node)} ({sum(gpus_of(node, 'allocatable').values())} of {sum(gpus_of(node, 'capacity').values())})"
        for node in nodes
        if sum(gpus_of(node, "allocatable").values()) < sum(gpus_of(node, "capacity").values())
    ]
    if short:
        fix = "look for XID errors and at the device plugin's log on these nodes"
        yield Line("nodes", "allocatable", Status.WARNING, f"fewer GPUs allocatable than present: {some(short)}", fix)


def _mig(nodes: list[dict[str, Any]]) -> Iterator[Line]:
    capable = [node for node in nodes if labels_of(node).get(CAPABLE) == "true"]
    if not capable:
        yield Line("mig", "strategy", Status.SKIPPED, "no node says that its GPUs support MIG")
        return
    strategies = Counter(labels_of(node).get(STRATEGY, "none") for node in capable)
    shown = ", ".join(f"{strategy} on {count:,}" for strategy, count in sorted(strategies.items()))
    if len(strategies) > 1:
        fix = "set one migStrategy for the cluster (ClusterPolicy mig.strategy), best mixed"
        yield Line("mig", "strategy", Status.WARNING, f"the nodes differ: {shown}", fix)
    else:
        yield Line("mig", "strategy", Status.OK, f"{shown} nodes")
    for state, status in (("failed", Status.WARNING), ("pending", Status.WARNING), ("rebooting", Status.WARNING)):
        in_it = [name_of(node) for node in capable if labels_of(node).get(STATE) == state]
        if in_it:
            fix = "read the log of nvidia-mig-manager there; to try again, set another value of nvidia.com/mig.config"
            yield Line("mig", STATE, status, f"{state}: {some(in_it)}", fix)
