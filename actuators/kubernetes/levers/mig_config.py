"""Change MIG geometries through NVIDIA's MIG manager: the label nvidia.com/mig.config of a node.

The manager acts on a change of the value of the label, stops all GPU clients of the node, and reports by the label
nvidia.com/mig.config.state. So the node is cordoned first, and the label is set once no pod holds a GPU there. The
value names a generated entry in the ConfigMap of the ClusterPolicy; its name is a hash of its content, so that another
geometry is always another value. The other GPUs of the node keep their geometry.

The state of an effect is the annotation gpu-autopilot.io/effect of the node. Changes of several GPUs of one node within
one tick are carried out together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from actuators.kubernetes import mig_file
from actuators.kubernetes.api import Answer, Obj, Ref, Refusal
from actuators.kubernetes.changes import MIG_CLIENTS, MIG_FILE, UNSCHEDULABLE
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
from actuators.kubernetes.levers.mig_record import NAME, Record, back, record_of
from actuators.kubernetes.levers.node_record import SPREAD_S
from actuators.kubernetes.mig_file import BadFileError, Cuts, Layout
from actuators.kubernetes.mig_node import CONFIG, STATE, counts_gpus, cuts_of, gpus_of, offered, paused_clients, shown
from actuators.kubernetes.objects import Target, label
from actuators.kubernetes.writing import Stop
from autopilot.contract.annotations import EFFECT, MIG_GEOMETRY
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.hardware import mig
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.verb import asked

CONFIG_MAP = "gpu-autopilot-mig"
"""Name of the ConfigMap in the namespace of the GPU operator. Its entries may also be those of people."""
STUCK_S = 1200.0
"""`pending` for longer is stuck: the manager waits up to 5 min for each client, and gives up without another state."""


@dataclass(frozen=True, slots=True)
class _Ground:
    """Facts of the MIG manager of a node before anything is written."""

    config_map: Ref
    configs: Obj
    layout: Layout


def suits(instruction: Instruction, target: Target) -> str:
    """A GPU of a node in a pool with the scope `node`."""
    operation = asked(instruction.operation, RecutGpu)
    if target.first("Node") is None:
        return "it is not a GPU of a node"
    if operation.scope != "node":
        return (
            f"the MIG manager stops all GPU clients of a node, and the instruction is for the scope {operation.scope}: "
            "the inventory must state the scope node for this node"
        )
    return ""


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    """Cordon the node, wait until no pod holds a GPU, set the label, and follow the state to its end."""
    operation, ref = asked(effect.instruction.operation, RecutGpu), target.first("Node")
    if ref is None:
        return gone("its node is gone")
    read = tools.api.read(ref)
    if not read.ok:
        return ended_by(read, ref.shown)
    record = record_of(read.body)
    if record is None:
        if effect.waits_for:
            return _after(tools, effect, operation, read.body)
        return _begin(tools, effect, operation, ref, read.body, now_s)
    if effect.id not in record.gpus.values():
        if record.step == "cordoned" and record.epoch == effect.epoch and str(operation.index) not in record.gpus:
            return _join(tools, effect, operation, ref, read.body, record)
        return changed(f"another change of {ref.shown} is under way: {record.id}")
    if record.step == "cordoned":
        return _set(tools, effect, ref, record, now_s)
    return _follow(tools, effect, ref, read.body, record, now_s)


# --- before the label is set ------------------------------------------------------------------------


def _begin(tools: Tools, effect: Effect, operation: RecutGpu, ref: Ref, node: Obj, now_s: float) -> Progress:
    """Check the ground, write the entry, cordon."""
    ground = _ground(tools, node)
    if not isinstance(ground, _Ground):
        return ground
    wanted = _wanted(node, ground.layout, operation)
    if not isinstance(wanted, tuple):
        return wanted
    if wanted == ground.layout:
        return Ended(OutcomeKind.DONE, "its geometry is that already")
    written = _write_entry(tools, effect, ground, wanted)
    if isinstance(written, Ended | Waiting):
        return written
    record = Record(
        effect.id,
        "recut",
        NAME,
        "cordoned",
        effect.instruction.deadline_s,
        effect.epoch,
        now_s if written[1] else now_s - SPREAD_S,
        written[0],
        label(node, CONFIG) or mig_file.entry_of(ground.layout)[0],
        not node["spec"].get("unschedulable", False),
        {str(operation.index): effect.id},
    )
    return node_record.cordon(tools, effect.epoch, ref, record)


def _join(tools: Tools, effect: Effect, operation: RecutGpu, ref: Ref, node: Obj, record: Record) -> Progress:
    """Add a GPU to a change of its node that has not begun."""
    ground = _ground(tools, node)
    if not isinstance(ground, _Ground):
        return ground
    try:
        (layout,) = mig_file.layouts_of(ground.configs, record.config, len(ground.layout))
    except (BadFileError, ValueError) as error:
        return not_set_up(str(error), OutcomeKind.CONFLICT)
    mixed = tuple(each if str(index) in record.gpus else ground.layout[index] for index, each in enumerate(layout))
    wanted = _wanted(node, mixed, operation)
    if not isinstance(wanted, tuple):
        return wanted
    written = _write_entry(tools, effect, ground, wanted)
    if isinstance(written, Ended | Waiting):
        return written
    joined = replace(record, config=written[0], gpus={**record.gpus, str(operation.index): effect.id})
    answer = node_record.write(tools, effect.epoch, ref, joined, {})
    return Waiting("its node is cordoned") if answer.ok else ended_by(answer, f"cordon {ref.shown}")


def _ground(tools: Tools, node: Obj) -> _Ground | Progress:
    """The ConfigMap of the manager and the present geometry; or the reason for no change here."""
    name = node["metadata"]["name"]
    if not counts_gpus(node):
        return not_set_up(
            f"node {name} has no resource nvidia.com/gpu or nvidia.com/mig-*: its GPUs are allocated by claims (DRA), "
            "whose driver makes the instances, so there is nothing to cut; or its device plugin has never run"
        )
    if label(node, "nvidia.com/mig.capable") != "true":
        return not_set_up(f"node {name} is not labelled nvidia.com/mig.capable=true: no MIG manager")
    if label(node, "nvidia.com/mig.strategy") != "mixed":
        return not_set_up(f"node {name}: set the MIG strategy of the ClusterPolicy to mixed")
    policy = cluster_policy(tools.api)
    if isinstance(policy, Answer):
        return ended_by(policy, "ClusterPolicy of the GPU operator")
    named, space = config_of(policy, "migManager"), space_of(policy)
    if named != CONFIG_MAP:
        return not_set_up(
            f"the ClusterPolicy names the MIG configuration {named!r}: set spec.migManager.config.name to "
            f"{CONFIG_MAP}, a ConfigMap in namespace {space} with the entries in use under config.yaml"
        )
    config_map = Ref("ConfigMap", space, CONFIG_MAP)
    found = tools.api.read(config_map)
    if found.refusal == Refusal.GONE:
        return not_set_up(f"create {config_map.shown} with the MIG configurations in use as config.yaml")
    if not found.ok:
        return ended_by(found, config_map.shown)
    state = label(node, STATE)
    if state not in {"success", ""}:
        return not_set_up(f"node {name}: {STATE} is {state}, not success", OutcomeKind.CONFLICT)
    try:
        configs = mig_file.entries_of(str((found.body.get("data") or {}).get("config.yaml", "")))
        layouts = _present(node, configs)
    except BadFileError as error:
        return not_set_up(f"{config_map.shown}: {error}")
    if len(set(map(repr, layouts))) != 1:
        named = label(node, CONFIG) or "no configuration"
        return changed(f"node {name} offers {shown(offered(node))}, which {named} does not give")
    ref = Ref("ConfigMap", space, CONFIG_MAP, found.body["metadata"]["uid"])
    return _Ground(ref, configs, layouts[0])


def _present(node: Obj, configs: Obj) -> list[Layout]:
    """The layouts of the present entry with exactly the node's offer. Raises BadFileError."""
    gpus, name = gpus_of(node), label(node, CONFIG)
    if not gpus:
        raise BadFileError(f"node {node['metadata']['name']} has no label nvidia.com/gpu.count")
    layouts = mig_file.layouts_of(configs, name, gpus) if name else [(Cuts(None),) * gpus]
    return [each for each in layouts if mig_file.resources_of(each) == offered(node)]


def _wanted(node: Obj, layout: Layout, operation: RecutGpu) -> Layout | Ended:
    """The layout with this GPU changed; or the reason against it."""
    index, name = operation.index, node["metadata"]["name"]
    if not 0 <= index < len(layout):
        return changed(f"node {name} has {len(layout)} GPUs, and the change is of GPU {index}")
    before, after = cuts_of(operation.before), cuts_of(operation.after)
    wanted = (*layout[:index], after, *layout[index + 1 :])
    if layout[index] == after:
        return wanted
    if layout[index] != before:
        found = f"GPU {index} of node {name} is {layout[index].shown}, not {before.shown}"
        return changed(f"{found}: it changed since the decision, or its GPUs are not told apart")
    model = mig.find_gpu_model(label(node, "nvidia.com/gpu.product"))
    names = [profile for profile, count in (after.instances or {}).items() for _ in range(count)]
    if model is None or mig.fits(model, (), names) is None:
        return not_set_up(f"the MIG manager cannot make {after.shown} on GPU {index} of node {name}")
    return wanted


def _write_entry(tools: Tools, effect: Effect, ground: _Ground, wanted: Layout) -> tuple[str, bool] | Progress:
    """The name of the entry, and True if it is new in the file. The present geometry gets one too, to return to."""
    name, parts = mig_file.entry_of(wanted)
    back, back_parts = mig_file.entry_of(ground.layout)
    if name in ground.configs and back in ground.configs:
        return name, False
    nodes = tools.api.list("Node", query={"labelSelector": CONFIG})
    if isinstance(nodes, Answer):
        return ended_by(nodes, "nodes with a MIG configuration")
    used = list(ground.configs) if nodes.unread else [label(each, CONFIG) for each in nodes.items]

    def decide(found: Obj) -> Obj | Stop:
        try:
            configs = mig_file.entries_of(str((found.get("data") or {}).get("config.yaml", "")))
        except BadFileError as error:
            return Stop(str(error))
        text = mig_file.with_entries(configs, {name: parts, back: back_parts}, used)
        return {"data": {"config.yaml": text}}

    answer = tools.writer.change(ground.config_map, decide, effect.epoch)
    return (name, name not in ground.configs) if answer.ok else ended_by(answer, ground.config_map.shown)


def _set(tools: Tools, effect: Effect, ref: Ref, record: Record, now_s: float) -> Progress:
    """Set the label once no pod holds a GPU of the node."""
    if now_s < record.at + SPREAD_S:
        return Waiting("the MIG manager is given time to see the new configuration")
    held = node_record.holders(tools, ref)
    if held is not None:
        return held
    now = replace(record, step="set", at=now_s, epoch=effect.epoch)
    labels = {"metadata": {"labels": {CONFIG: record.config, STATE: None}}}
    answer = node_record.write(tools, effect.epoch, ref, now, labels)
    return Waiting("the MIG manager begins") if answer.ok else ended_by(answer, f"label {CONFIG} of {ref.shown}")


# --- after it ---------------------------------------------------------------------------------------


def _follow(tools: Tools, effect: Effect, ref: Ref, node: Obj, record: Record, now_s: float) -> Progress:
    """The progress from the manager's reported state to the node's offer."""
    if label(node, CONFIG) != record.config:
        text = f"{CONFIG} was set to {label(node, CONFIG)!r} by somebody else meanwhile"
        return _end(tools, effect.epoch, ref, record, changed(text))
    state = label(node, STATE)
    if state == "failed":
        return back(tools, effect.epoch, ref, record, "the MIG manager reports that it failed")
    if state in {"pending", "rebooting"} and now_s >= record.at + STUCK_S:
        return back(
            tools, effect.epoch, ref, record, f"{state} for {now_s - record.at:.0f} s: the MIG manager is stuck"
        )
    if state != "success":
        return Waiting(f"the MIG manager: {state or 'not begun'}")
    paused = paused_clients(node)
    if paused:
        return Waiting(f"success, but GPU clients are still paused: {', '.join(paused)}")
    wanted = _asked(tools, node, record)
    if isinstance(wanted, Ended | Waiting):
        return wanted
    if offered(node) != mig_file.resources_of(wanted):
        return Waiting(f"success, but the node offers {shown(offered(node))}")
    return _end(tools, effect.epoch, ref, record, Ended(OutcomeKind.DONE, f"it is {_at(wanted, effect)}"), wanted)


def _asked(tools: Tools, node: Obj, record: Record) -> Layout | Progress:
    """The layout of the requested entry."""
    policy = cluster_policy(tools.api)
    found = policy if isinstance(policy, Answer) else tools.api.read(Ref("ConfigMap", space_of(policy), CONFIG_MAP))
    if not found.ok:
        return ended_by(found, f"ConfigMap {CONFIG_MAP}")
    try:
        configs = mig_file.entries_of(str((found.body.get("data") or {}).get("config.yaml", "")))
        return mig_file.layouts_of(configs, record.config, gpus_of(node))[0]
    except BadFileError as error:
        return not_set_up(str(error))


def _after(tools: Tools, effect: Effect, operation: RecutGpu, node: Obj) -> Ended:
    """The change of the node ended for another of its GPUs."""
    ground = _ground(tools, node)
    as_asked = isinstance(ground, _Ground) and ground.layout[operation.index] == cuts_of(operation.after)
    if as_asked:
        return Ended(OutcomeKind.DONE, "its node has changed")
    return changed(f"the change of its node ended otherwise: {effect.waits_for}")


def _end(
    tools: Tools, epoch: int, ref: Ref, record: Record, ended: Ended, layout: Layout | None = None
) -> Ended | Waiting:
    """Remove the record and our cordon. Keep the geometry of each GPU on the node: no other source states it."""
    notes = {} if layout is None else {MIG_GEOMETRY: json.dumps([each.instances for each in layout])}
    return node_record.end(tools, epoch, ref, record, ended, notes)


def _come_about(tools: Tools, node: Obj, record: Record) -> Layout | None:
    """The requested layout, if the node offers it and its manager has ended; None otherwise."""
    ended = label(node, CONFIG) == record.config and label(node, STATE) == "success" and not paused_clients(node)
    if record.step != "set" or not ended:
        return None
    wanted = _asked(tools, node, record)
    return wanted if isinstance(wanted, tuple) and offered(node) == mig_file.resources_of(wanted) else None


def settle(tools: Tools, ref: Ref, epoch: int, *, now_s: float, late: bool) -> Ended | None:  # noqa: ARG001 - as every `settle`
    """End a change without an instruction: finish one that has come about, and take a late one back.

    None: it is neither, or its node cannot be read or written now. The view may show a new geometry before the effect
    has ended, and then the controller waits for it no more.
    """
    read = tools.api.read(ref)
    record = record_of(read.body) if read.ok else None
    if record is None:
        return None
    layout = _come_about(tools, read.body, record)
    if layout is not None:
        done = Ended(OutcomeKind.DONE, "its geometry is what was asked for, and nobody waits for it")
        ended = _end(tools, epoch, ref, record, done, layout)
        return ended if isinstance(ended, Ended) else None
    return back(tools, epoch, ref, record, "its change was abandoned", Cause.LATE) if late else None


def undo(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every `undo`
    """Finish a change that has come about; else uncordon the node, and set its changed label back."""
    ref = target.first("Node")
    read = tools.api.read(ref) if ref is not None else Answer({}, Refusal.GONE, "its node is gone")
    record = record_of(read.body) if read.ok else None
    if ref is None or record is None or effect.id not in record.gpus.values():
        text = f"not done in time: {effect.waits_for or read.message or 'no progress'}"
        return Ended(OutcomeKind.FAILED, text, cause=Cause.LATE)
    layout = _come_about(tools, read.body, record)
    if layout is not None:
        return _end(tools, effect.epoch, ref, record, Ended(OutcomeKind.DONE, f"it is {_at(layout, effect)}"), layout)
    why = f"not done in time: {effect.waits_for or 'no progress'}"
    return back(tools, effect.epoch, ref, record, why, Cause.LATE)


# --- reading ----------------------------------------------------------------------------------------


def _at(layout: Layout, effect: Effect) -> str:
    return layout[asked(effect.instruction.operation, RecutGpu).index].shown


LEVER = Lever(
    NAME,
    frozenset({"recut"}),
    "set the label nvidia.com/mig.config of a cordoned node without GPU pods, and follow the MIG manager",
    (
        Rule(
            "",
            "nodes",
            ("get", "list", "patch"),
            changes=(EFFECT, MIG_GEOMETRY, CONFIG, STATE, MIG_CLIENTS, UNSCHEDULABLE),
        ),
        Rule("", "pods", ("list",)),
        Rule("", "configmaps", ("get", "patch"), (CONFIG_MAP,), changes=(MIG_FILE,)),
        Rule("nvidia.com", "clusterpolicies", ("list",)),
    ),
    suits,
    step,
    undo,
)
