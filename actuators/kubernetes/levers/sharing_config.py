"""Share the GPUs of a node by NVIDIA's device plugin: the label nvidia.com/device-plugin.config of the node.

The label names a key of the ConfigMap of the ClusterPolicy, which is read and never written. The plugin starts anew
with that entry, and its node offers no GPU meanwhile. The kubelet forgets the devices of pods from before, so the node
is cordoned first, and the label is set once no pod holds a GPU there. A key that the map lacks ends the config-manager,
and the node has no GPUs after the next start of its plugin: so the key is checked first. Labels of feature discovery
follow the entry even where the plugin fails, so what the node offers counts too. Where the settings name an image, one
pod tries a share before the node is opened (`sharing_probe.py`); a node is only turned back to whole without it.

A node whose label somebody else has set is left alone. The state of an effect is the annotation
gpu-autopilot.io/effect of the node; gpu-autopilot.io/sharing-config is the value of the label that we set.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf

from actuators.kubernetes.api import Answer, Obj, Ref, Refusal
from actuators.kubernetes.changes import UNSCHEDULABLE
from actuators.kubernetes.gpu_operator import cluster_policy, config_of, space_of
from actuators.kubernetes.levers import node_record
from actuators.kubernetes.levers.base import (
    Effect,
    Ended,
    Lever,
    Progress,
    Rule,
    Tools,
    Waiting,
    changed,
    ended_by,
    gone,
    not_set_up,
)
from actuators.kubernetes.levers.node_record import SPREAD_S
from actuators.kubernetes.levers.sharing_probe import probe
from actuators.kubernetes.mig_node import counts_gpus, gpus_of, offered, shown
from actuators.kubernetes.objects import Target, annotation, label
from actuators.kubernetes.plugin_file import GPU, BadEntryError, Shares, shares_of
from actuators.kubernetes.writing import Stop
from autopilot.contract.annotations import EFFECT, SHARING_CONFIG
from autopilot.contract.sharing_engines import PLUGIN_CONFIG
from autopilot.core.model.objects import Sharing
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.verb import asked
from autopilot.core.sharing.set_sharing import SetSharing, sharing_words

NAME = "sharing-config"
CONFIG_MAP = "gpu-autopilot-sharing"
"""The name in our right to read the ConfigMap; another name needs a right of its own."""
STUCK_S = 300.0
"""A plugin that offers nothing for longer fails at each start: it tries again every 30 s, or within 5 min."""
COUNT, REPLICAS, STRATEGY = f"{GPU}.count", f"{GPU}.replicas", f"{GPU}.sharing-strategy"
WORDS = {Sharing.WHOLE: "none", Sharing.TIME_SLICING: "time-slicing", Sharing.MPS: "mps"}
"""Values of the label of the strategy."""


@dataclass(frozen=True, slots=True)
class Record:
    """A change of a node, as its annotation holds it."""

    id: str
    kind: str
    lever: str
    step: str  # cordoned | set | probed | back
    deadline: float
    epoch: int
    at: float  # start of the step
    config: str  # the requested key
    before: str  # value of the label before
    sharing: int  # requested
    replicas: int
    was_sharing: int
    was_replicas: int
    cordoned: bool  # the node was open before


def record_of(node: Obj) -> Record | None:
    """Our change of the node; None for none, for a record of another lever, and for any other text."""
    found = node_record.read(node, Record, NAME)
    return found if found is not None and {found.sharing, found.was_sharing} <= WORDS.keys() else None


def unclaimed(text: str, under_way: Collection[str]) -> Record | None:
    """The record of a change without an instruction any more; None for every other text."""
    record = record_of({"metadata": {"annotations": {EFFECT: text}}})
    return None if record is None or record.id in under_way else record


def suits(_instruction: Instruction, target: Target) -> str:
    """A node."""
    return "" if target.first("Node") is not None else "it is not a node"


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """Cordon the node, wait until no pod holds a GPU, set the label, and follow what the node offers."""
    operation, ref = asked(effect.instruction.operation, SetSharing), target.first("Node")
    if ref is None:
        return gone("its node is gone")
    read = tools.api.read(ref)
    if not read.ok:
        return ended_by(read, ref.shown)
    if not annotation(read.body, EFFECT):
        return _begin(tools, effect, operation, ref, read.body, now_s)
    record = record_of(read.body)
    if record is None or record.id != effect.id:
        return changed(f"another change of {ref.shown} is under way: {annotation(read.body, EFFECT)[:80]}")
    if record.step == "cordoned":
        return _set(tools, effect, ref, read.body, record, now_s)
    return _follow(tools, effect, ref, read.body, record, now_s)


# --- before the label is set ------------------------------------------------------------------------


def _begin(tools: Tools, effect: Effect, wanted: SetSharing, ref: Ref, node: Obj, now_s: float) -> Progress:
    """Check the ground, and cordon."""
    if _shows(node, wanted.sharing, wanted.replicas):
        return Ended(OutcomeKind.DONE, f"it is {sharing_words(wanted.sharing, wanted.replicas)} already")
    if not _shows(node, wanted.was_sharing, wanted.was_replicas):
        before = sharing_words(wanted.was_sharing, wanted.was_replicas)
        return changed(f"{ref.shown} is not {before} any more: {_seen(node)}")
    against = _unfit(node, wanted) or _of_others(node) or _key(tools, wanted, now_s)
    if against:
        return against
    record = Record(
        id=effect.id,
        kind=effect.instruction.kind,
        lever=NAME,
        step="cordoned",
        deadline=effect.instruction.deadline_s,
        epoch=effect.epoch,
        at=now_s,
        config=wanted.config,
        before=label(node, PLUGIN_CONFIG),
        sharing=wanted.sharing,
        replicas=wanted.replicas,
        was_sharing=wanted.was_sharing,
        was_replicas=wanted.was_replicas,
        cordoned=not node["spec"].get("unschedulable", False),
    )
    return node_record.cordon(tools, effect.epoch, ref, record)


def _unfit(node: Obj, wanted: SetSharing) -> Ended | None:
    """The reason why the device plugin cannot share this node as asked."""
    name = node["metadata"]["name"]
    if not counts_gpus(node) or not gpus_of(node):
        return not_set_up(
            f"node {name} has no resource {GPU} with a label {COUNT}: its GPUs are not those of the device plugin, "
            "or feature discovery does not run there"
        )
    if any(key.startswith("nvidia.com/mig-") for key in offered(node)) or "-MIG-" in label(node, f"{GPU}.product"):
        return not_set_up(f"node {name} offers MIG instances, which are not shared: turn MIG mode off first")
    if wanted.sharing == Sharing.MPS and label(node, "nvidia.com/mig.strategy") == "mixed":
        return not_set_up(
            f"node {name} has the MIG strategy mixed, with which the device plugin refuses MPS: choose time slicing, "
            "or set the strategy of its device plugin to none or single"
        )
    return None


def _of_others(node: Obj) -> Ended | None:
    """The reason to leave the label alone: somebody else has set it."""
    value = label(node, PLUGIN_CONFIG)
    if value in {"", annotation(node, SHARING_CONFIG)}:
        return None
    return changed(
        f"{PLUGIN_CONFIG} of node {node['metadata']['name']} was set to {value!r} by somebody else and is left alone; "
        "remove the label to let the autopilot turn the node"
    )


def _key(tools: Tools, wanted: SetSharing, now_s: float) -> Progress | None:
    """The reason why the key cannot be named: it is missing, new, or shares in another way."""
    policy = cluster_policy(tools.api)
    if isinstance(policy, Answer):
        return ended_by(policy, "ClusterPolicy of the GPU operator")
    name, space = config_of(policy, "devicePlugin"), space_of(policy)
    if not name:
        return not_set_up(
            f"the ClusterPolicy names no configuration of the device plugin, so nothing reads {PLUGIN_CONFIG}: set "
            f"spec.devicePlugin.config.name to {CONFIG_MAP}, a ConfigMap in namespace {space} with the entries in use"
        )
    config_map = Ref("ConfigMap", space, name)
    found = tools.api.read(config_map)
    if found.refusal == Refusal.GONE:
        return not_set_up(f"create {config_map.shown} with the entries of the device plugin that are in use")
    if found.refusal == Refusal.RIGHT:
        return not_set_up(
            f"{config_map.shown} cannot be read: name it {CONFIG_MAP} in spec.devicePlugin.config.name of the "
            f"ClusterPolicy, or give the right to get it: {found.message}"
        )
    if not found.ok:
        return ended_by(found, config_map.shown)
    text = (found.body.get("data") or {}).get(wanted.config)
    if text is None:
        return not_set_up(
            f"{config_map.shown} has no key {wanted.config!r}: the device plugin of a node with that label would end; "
            "add the key, or take it out of kubernetes.sharing_configs"
        )
    try:
        shares = shares_of(text)
    except BadEntryError as error:
        return not_set_up(f"{config_map.shown}: key {wanted.config!r}: {error}")
    asked_for = Shares(Sharing(wanted.sharing), wanted.replicas, wanted.single)
    if shares != asked_for:
        found_as = f"{config_map.shown}: key {wanted.config!r} is {shares.shown}"
        return not_set_up(f"{found_as}, not {asked_for.shown} as kubernetes.sharing_configs says")
    if now_s < _written_s(found.body) + SPREAD_S:
        return Waiting("the device plugins are given time to see the changed ConfigMap")
    return None


def _written_s(found: Obj) -> float:
    """The time of the newest write of an object, as the server keeps it; -inf for none."""
    times = [str(each.get("time")) for each in found["metadata"].get("managedFields") or () if each.get("time")]
    try:
        return max((datetime.fromisoformat(each).timestamp() for each in times), default=-inf)
    except (ValueError, OverflowError):
        return -inf


def _set(tools: Tools, effect: Effect, ref: Ref, node: Obj, record: Record, now_s: float) -> Progress:
    """Set the label once no pod holds a GPU of the node."""
    wanted = asked(effect.instruction.operation, SetSharing)
    if label(node, PLUGIN_CONFIG) != record.before:
        return _left(tools, effect.epoch, ref, record, node)
    if not node["spec"].get("unschedulable"):
        text = f"{ref.shown} was opened by somebody else meanwhile"
        return _end(tools, effect.epoch, ref, record, changed(text))
    against = _unfit(node, wanted) or _key(tools, wanted, now_s)
    if isinstance(against, Ended):
        return _end(tools, effect.epoch, ref, record, against)
    if against:
        return against
    held = node_record.holders(tools, ref)
    if held is not None:
        return held
    now = replace(record, step="set", at=now_s, epoch=effect.epoch)
    notes = {EFFECT: node_record.text_of(now), SHARING_CONFIG: record.config}
    patch = {"metadata": {"annotations": notes, "labels": {PLUGIN_CONFIG: record.config}}}

    def decide(found: Obj) -> Obj | Stop:
        if label(found, PLUGIN_CONFIG) != record.before or not found["spec"].get("unschedulable"):
            return Stop("somebody else changed it meanwhile", refusal=Refusal.CHANGED)
        return patch

    answer = tools.writer.change(ref, decide, effect.epoch)
    return Waiting("the device plugin starts anew") if answer.ok else ended_by(answer, f"label {PLUGIN_CONFIG}")


# --- after it ---------------------------------------------------------------------------------------


def _follow(tools: Tools, effect: Effect, ref: Ref, node: Obj, record: Record, now_s: float) -> Progress:
    """The progress from the label to what the node offers."""
    over = _over(tools, effect.epoch, ref, node, record, now_s)
    if over is not None:
        return over
    if now_s >= record.at + STUCK_S:
        why = f"after {now_s - record.at:.0f} s {_seen(node)}: the device plugin does not run with {record.config!r}"
        return _back(tools, effect.epoch, ref, record, why)
    return Waiting(f"the device plugin: {_seen(node)}")


def _over(tools: Tools, epoch: int, ref: Ref, node: Obj, record: Record, now_s: float) -> Progress | None:
    """The end of a change that has come about, or whose label somebody else has set; None: neither."""
    turned = record.step in {"set", "probed"}
    if label(node, PLUGIN_CONFIG) != (record.config if turned else record.before):
        return _left(tools, epoch, ref, record, node)
    if turned and _shows(node, record.sharing, record.replicas):
        tried = _tried(tools, epoch, ref, node, record, now_s)
        if tried is not None:
            return tried
        done = Ended(OutcomeKind.DONE, f"it is {sharing_words(record.sharing, record.replicas)}")
        return _end(tools, epoch, ref, record, done)
    if record.step == "back" and _shows(node, record.was_sharing, record.was_replicas):
        was = sharing_words(record.was_sharing, record.was_replicas)
        return _end(tools, epoch, ref, record, Ended(OutcomeKind.DONE, f"it is {was} again, and open"))
    return None


def _tried(tools: Tools, epoch: int, ref: Ref, node: Obj, record: Record, now_s: float) -> Progress | None:
    """What the probe of a shared node leads to; None: nothing is left to try."""
    if tools.probe is None or record.sharing == Sharing.WHOLE:
        return None
    if record.step == "set":
        record = replace(record, step="probed", at=now_s, epoch=epoch)
        answer = node_record.write(tools, epoch, ref, record, {})
        if not answer.ok:
            return ended_by(answer, ref.shown)
    found = probe(tools, epoch, node, record.id, record.at, now_s)
    if isinstance(found, str):
        return _back(tools, epoch, ref, record, found) if found else None
    if isinstance(found, Ended):
        return _back(tools, epoch, ref, record, found.reason, found.cause)
    return found


def _left(tools: Tools, epoch: int, ref: Ref, record: Record, node: Obj) -> Progress:
    """Leave the label of somebody else, and open the node."""
    text = f"{PLUGIN_CONFIG} was set to {label(node, PLUGIN_CONFIG)!r} by somebody else meanwhile; it is left alone"
    return _end(tools, epoch, ref, record, changed(text))


def _end(tools: Tools, epoch: int, ref: Ref, record: Record, ended: Ended) -> Progress:
    """Remove the record and our cordon; and the mark of our label, where the label is not ours."""

    def decide(found: Obj) -> Obj | Stop:
        if record_of(found) is None:
            return Stop("ended", done=True)
        ours = label(found, PLUGIN_CONFIG) == annotation(found, SHARING_CONFIG)
        notes = {EFFECT: None} | ({} if ours else {SHARING_CONFIG: None})
        return {"metadata": {"annotations": notes}} | ({"spec": {"unschedulable": None}} if record.cordoned else {})

    answer = tools.writer.change(ref, decide, epoch)
    return ended if answer.ok else ended_by(answer, f"uncordon {ref.shown}")


def _back(tools: Tools, epoch: int, ref: Ref, record: Record, why: str, cause: Cause = Cause.CONFIG) -> Ended:
    """Set the label back. The node is opened once it offers its GPUs as before (`settle`)."""
    if record.step == "cordoned":
        ended = _end(tools, epoch, ref, record, Ended(OutcomeKind.FAILED, f"{why}; nothing was changed", cause=cause))
        return ended if isinstance(ended, Ended) else Ended(OutcomeKind.FAILED, f"{why}; {ended.reason}", True, cause)

    def decide(found: Obj) -> Obj | Stop:
        known = record_of(found)
        if known is None or label(found, PLUGIN_CONFIG) != known.config:
            return Stop("ended", done=True)
        before = known.before or None
        notes = {EFFECT: node_record.text_of(replace(known, step="back", epoch=epoch)), SHARING_CONFIG: before}
        return {"metadata": {"annotations": notes, "labels": {PLUGIN_CONFIG: before}}}

    answer = tools.writer.change(ref, decide, epoch)
    if not answer.ok:
        return Ended(OutcomeKind.FAILED, f"{why}; and {ref.shown} stays cordoned: {answer.message}", True, cause)
    after = f"its label is {record.before or 'removed'} again, and it is opened once it offers its GPUs as before"
    return Ended(OutcomeKind.FAILED, f"{why}; {after}", cause=cause)


def settle(tools: Tools, ref: Ref, epoch: int, *, now_s: float, late: bool) -> Ended | None:
    """End a change without an instruction: finish one that has come about, take a late one back, and open its node.

    None: it is none of these, or its node cannot be read or written now.
    """
    read = tools.api.read(ref)
    record = record_of(read.body) if read.ok else None
    if record is None:
        return None
    ended = _over(tools, epoch, ref, read.body, record, now_s)
    if ended is None and record.step != "back" and late:
        ended = _back(tools, epoch, ref, record, "its change was abandoned", Cause.LATE)
    return ended if isinstance(ended, Ended) else None


def undo(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """Finish a change that has come about; else set the label back, or uncordon a node that was not labelled."""
    ref, why = target.first("Node"), f"not done in time: {effect.waits_for or 'no progress'}"
    read = tools.api.read(ref) if ref is not None else Answer({}, Refusal.GONE, "its node is gone")
    record = record_of(read.body) if read.ok else None
    if ref is None or record is None or record.id != effect.id or record.step == "back":
        return Ended(OutcomeKind.FAILED, why, cause=Cause.LATE)
    over = _over(tools, effect.epoch, ref, read.body, record, now_s)
    return _back(tools, effect.epoch, ref, record, why, Cause.LATE) if over is None else over


# --- reading ----------------------------------------------------------------------------------------


def _shows(node: Obj, sharing: int, replicas: int) -> bool:
    """Whether both the labels and the offer of a node say that its GPUs are shared like this."""
    strategy, count = label(node, STRATEGY), label(node, REPLICAS)
    if sharing == Sharing.WHOLE:
        said = strategy in {"", WORDS[Sharing.WHOLE]} and count in {"", "0", "1"}
    else:
        said = strategy == WORDS[Sharing(sharing)] and count == str(replicas)
    return said and 0 < offered(node)[GPU] == gpus_of(node) * replicas


def _seen(node: Obj) -> str:
    """What a node shows, in words."""
    labels = f"{label(node, STRATEGY) or 'no strategy'}, replicas {label(node, REPLICAS) or 'not stated'}"
    return f"its labels say {labels}, and it offers {shown(offered(node))} for {gpus_of(node)} GPUs"


LEVER = Lever(
    NAME,
    frozenset({"set_sharing"}),
    "set the label nvidia.com/device-plugin.config of a cordoned node without GPU pods, and follow what it offers",
    (
        Rule("", "nodes", ("get", "patch"), changes=(EFFECT, SHARING_CONFIG, PLUGIN_CONFIG, UNSCHEDULABLE)),
        Rule("", "pods", ("list",)),
        Rule("", "configmaps", ("get",), (CONFIG_MAP,)),
        Rule("nvidia.com", "clusterpolicies", ("list",)),
    ),
    suits,
    step,
    undo,
)
