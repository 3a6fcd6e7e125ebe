"""Nodes turned to sharing through the label of NVIDIA's device plugin, on an API server with that plugin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.levers import node_record, sharing_config
from actuators.kubernetes.levers.node_record import SPREAD_S
from actuators.kubernetes.levers.sharing_config import CONFIG_MAP
from actuators.kubernetes.plugin_file import BadEntryError, shares_of
from actuators.kubernetes.upkeep import AbandonedTurns
from autopilot.contract.annotations import SHARING_CONFIG
from autopilot.contract.sharing_engines import PLUGIN_CONFIG
from autopilot.core.model.objects import Sharing, SharingConfig
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from tests.kits.mig_kit import SPACE
from tests.kits.sharing_kit import FILES, GPU, MPS, PROBE, SLICED, TWO, WHOLE, SharingScene

ACCEPTED, DONE, FAILED, CONFLICT = OutcomeKind.ACCEPTED, OutcomeKind.DONE, OutcomeKind.FAILED, OutcomeKind.CONFLICT


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingScene]:
    """One cluster; each test has a node of its own."""
    found = SharingScene(tmp_path_factory.mktemp("sharing"))
    yield found
    found.close()


def test_an_empty_node_is_turned_and_turned_back(scene: SharingScene) -> None:
    """Cordon, label, wait for labels and offer, open: to time slicing, to MPS, and to whole GPUs."""
    scene.add_node("n1")
    actuator, was = scene.actuator(), WHOLE
    for number, (to, seen) in enumerate(
        ((SLICED, "time-slicing-4, 8 offered"), (MPS, "mps-2, 4 offered"), (WHOLE, "whole, 2 offered"))
    ):
        turn = scene.turn("n1", to, was, number)
        outcome = actuator.apply(turn, scene.now_s)
        assert (outcome.kind, outcome.reason) == (ACCEPTED, "its node is cordoned")
        assert scene.node("n1")["spec"]["unschedulable"]
        (ended,) = scene.follow(actuator, turn)
        assert (ended.kind, ended.reason) == (DONE, f"it is {to.key}")
        assert (scene.seen("n1"), scene.config("n1")) == (seen, to.key)
        assert scene.is_open("n1")
        assert actuator.apply(scene.turn("n1", to, was, number), scene.now_s) == ended
        was = to
    assert not scene.plugin.turned_in_use


def test_a_node_with_a_pod_is_not_turned(scene: SharingScene) -> None:
    """The label is not set while a pod holds a GPU; at the deadline the node is as before."""
    scene.add_node("n2")
    scene.pod("user", "n2", {GPU: "1"})
    actuator, turn = scene.actuator(), scene.turn("n2")
    actuator.apply(turn, scene.now_s)
    (ended,) = scene.follow(actuator, turn)
    assert (ended.kind, ended.cause) == (FAILED, Cause.LATE)
    assert "1 pods hold GPUs of its node, first user; nothing was changed" in ended.reason
    assert (scene.seen("n2"), scene.config("n2")) == ("whole, 2 offered", "")
    assert scene.is_open("n2")
    assert not scene.plugin.turned_in_use


def test_planted_bugs_are_found(scene: SharingScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look at pods, or at the key, the plugin of the tests sees the damage."""
    scene.add_node("n3")
    scene.pod("there", "n3", {GPU: "1"})
    monkeypatch.setattr(node_record, "holds_gpu", lambda _pod: False)
    actuator, turn = scene.actuator(), scene.turn("n3")
    actuator.apply(turn, scene.now_s)
    scene.follow(actuator, turn)
    assert scene.plugin.turned_in_use == ["n3: there"]
    scene.plugin.turned_in_use.clear()
    scene.add_node("n4")
    monkeypatch.setattr(sharing_config, "_key", lambda *_: None)
    turn = scene.turn("n4", SharingConfig("none-such", Sharing.MPS, 2))
    actuator.apply(turn, scene.now_s)
    scene.run(20)
    actuator.advance(scene.now_s, 1, [turn])
    scene.run(20)
    assert scene.plugin.lost("n4") == "specified config none-such does not exist"


@pytest.mark.parametrize(
    ("to", "labels", "words"),
    [
        (SharingConfig("none-such", Sharing.MPS, 2), {}, "has no key 'none-such'"),
        (SharingConfig("renamed", Sharing.TIME_SLICING, 4), {}, "set renameByDefault to false"),
        (SharingConfig("mps-2", Sharing.MPS, 4), {}, "key 'mps-2' is mps-2, not mps-4 as kubernetes.sharing_configs"),
        (SharingConfig("mps-single", Sharing.MPS, 2), {}, "is mps-2-single, not mps-2 as"),
        (MPS, {"nvidia.com/mig.strategy": "mixed"}, "has the MIG strategy mixed"),
        (SLICED, {f"{GPU}.product": "H100-MIG-1g.10gb"}, "turn MIG mode off first"),
        (SLICED, {PLUGIN_CONFIG: "whole"}, "was set to 'whole' by somebody else and is left alone"),
        (SLICED, {PLUGIN_CONFIG: "mps-2"}, "is not whole any more"),
    ],
)
def test_nothing_is_written_on_a_node_that_does_not_suit(
    scene: SharingScene, to: SharingConfig, labels: dict[str, str], words: str
) -> None:
    """One message names the object and the remedy."""
    name = f"s{abs(hash(words))}"
    scene.add_node(name, **labels)
    scene.run(60)
    ended = scene.actuator().apply(scene.turn(name, to), scene.now_s)
    assert ended.kind in {FAILED, CONFLICT}
    assert words in ended.reason
    assert scene.is_open(name)


def test_a_missing_setup_is_named_and_a_new_key_waits_for_the_nodes(scene: SharingScene) -> None:
    """No configuration in the ClusterPolicy, a map that is gone or may not be read, and a map just changed."""
    scene.add_node("n5")
    actuator = scene.actuator()

    def asked(number: int) -> str:
        return actuator.apply(scene.turn("n5", number=number), scene.now_s).reason

    for number, (spec, words) in enumerate(
        (
            (None, "names no configuration of the device plugin"),
            ({"config": {"name": "other"}}, f"cannot be read: name it {CONFIG_MAP}"),
            ({"config": {"name": CONFIG_MAP}}, "its node is cordoned"),
        )
    ):
        with scene.running.clock.lock:
            if number == 2:
                scene.client.patch("configmaps", SPACE, CONFIG_MAP, {"data": {"new": FILES["mps-2"]}})
            scene.client.patch("clusterpolicies.nvidia.com", "", "cluster-policy", {"spec": {"devicePlugin": spec}})
        if number == 2:
            assert asked(9) == "the device plugins are given time to see the changed ConfigMap"
            scene.run(SPREAD_S)
        assert words in asked(number)
    scene.follow(actuator, scene.turn("n5", number=2))


def test_a_plugin_that_does_not_start_is_turned_back(scene: SharingScene) -> None:
    """Labels alone prove nothing: the MPS daemon dies at each start. The node opens once it offers its GPUs again."""
    scene.add_node("n6")
    scene.plugin.options.mps_fails.add("n6")
    actuator, turn = scene.actuator(), scene.turn("n6", MPS)
    actuator.apply(turn, scene.now_s)
    (ended,) = scene.follow(actuator, turn)
    assert (ended.kind, ended.cause) == (FAILED, Cause.CONFIG)
    assert "its labels say mps, replicas 2, and it offers nvidia.com/gpu: 0 for 2 GPUs" in ended.reason
    assert ended.reason.endswith("its label is removed again, and it is opened once it offers its GPUs as before")
    assert not scene.is_open("n6")
    AbandonedTurns().run(scene.tools(), 1, scene.now_s, ())
    assert not scene.is_open("n6"), "its plugin starts anew"
    scene.run(60)
    AbandonedTurns().run(scene.tools(), 1, scene.now_s, ())
    assert scene.is_open("n6")
    assert (scene.seen("n6"), scene.config("n6")) == ("whole, 2 offered", "")
    assert SHARING_CONFIG not in scene.node("n6")["metadata"]["annotations"]


def begun(scene: SharingScene, name: str, to: SharingConfig = MPS) -> tuple[KubernetesActuator, Instruction]:
    """A node that shows its new sharing, with a probe pod on it."""
    scene.add_node(name)
    actuator, turn = scene.prober(), scene.turn(name, to)
    actuator.apply(turn, scene.now_s)
    for _ in range(4):
        scene.run(20)
        actuator.advance(scene.now_s, 1, [turn])
    return actuator, turn


@pytest.mark.parametrize(
    ("phase", "opens", "words"),
    [("Succeeded", True, "it is mps-2"), ("Failed", False, "failed: no GPU"), ("", False, "did not end within 180 s")],
)
def test_a_pod_tries_a_share_before_its_node_is_opened(
    scene: SharingScene, phase: str, opens: bool, words: str
) -> None:
    """The node stays closed until the pod has ended; without success it is turned back, and the pod is gone."""
    name = f"t{phase.lower()}"
    actuator, turn = begun(scene, name)
    (pod,) = scene.probes()
    assert (scene.seen(name), scene.is_open(name)) == ("mps-2, 4 offered", False)
    assert (pod["spec"]["nodeName"], pod["spec"]["containers"][0]["image"]) == (name, "registry.example/vectoradd:1")
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {GPU: "1"}
    if phase:
        scene.end_probe(phase, message="no GPU")
    else:
        scene.run(180)
        assert not actuator.advance(scene.now_s, 1, [turn])
        scene.stop_probe()
    (ended,) = scene.follow(actuator, turn)
    assert words in ended.reason
    assert (ended.kind, ended.cause) == ((DONE, Cause.NONE) if opens else (FAILED, Cause.CONFIG))
    assert (scene.probes(), scene.is_open(name)) == ([], opens)
    scene.run(60)
    AbandonedTurns().run(scene.tools(), 1, scene.now_s, ())
    assert (scene.seen(name), scene.is_open(name)) == ("mps-2, 4 offered" if opens else "whole, 2 offered", True)


def test_a_probe_outlives_the_wait_of_the_controller_and_its_process(scene: SharingScene) -> None:
    """The view shows the new sharing before the pod has ended: the node is not opened, also by another process."""
    actuator, _ = begun(scene, "u1")
    actuator.advance(scene.now_s, 1, ())
    keep = AbandonedTurns()
    keep.run(replace(scene.tools(), probe=PROBE), 1, scene.now_s, ())
    assert not scene.is_open("u1")
    scene.end_probe("Succeeded")
    AbandonedTurns().run(replace(scene.tools(), probe=PROBE), 1, scene.now_s, ())
    assert scene.is_open("u1")
    assert (scene.probes(), scene.seen("u1")) == ([], "mps-2, 4 offered")


def test_without_its_right_a_probe_names_it(scene: SharingScene) -> None:
    """And the node is turned back; nothing is tried of a node that is turned to whole."""
    with scene.running.clock.lock:
        scene.client.delete("rolebindings.rbac.authorization.k8s.io", "gpu-autopilot", "gpu-autopilot-sharing-probe")
    scene.add_node("u2")
    actuator, turn = scene.prober(), scene.turn("u2", MPS)
    actuator.apply(turn, scene.now_s)
    (ended,) = scene.follow(actuator, turn)
    assert (ended.kind, ended.cause) == (FAILED, Cause.RIGHT)
    assert "cannot get resource" in ended.reason
    assert scene.config("u2") == ""


@pytest.mark.parametrize("before_label", [True, False])
def test_a_label_that_somebody_else_sets_meanwhile_is_left_alone(scene: SharingScene, before_label: bool) -> None:
    """It is reported, and the node is opened."""
    name = f"p{before_label}".lower()
    scene.add_node(name)
    if before_label:
        scene.pod(f"user-{name}", name, {GPU: "1"})
    actuator, turn = scene.actuator(), scene.turn(name)
    actuator.apply(turn, scene.now_s)
    scene.run(1)
    actuator.advance(scene.now_s, 1, [turn])
    scene.set_label(name, "mps-2")
    (ended,) = scene.follow(actuator, turn)
    assert ended.kind == CONFLICT
    assert "was set to 'mps-2' by somebody else meanwhile; it is left alone" in ended.reason
    assert scene.config(name) == "mps-2"
    assert scene.is_open(name)
    assert SHARING_CONFIG not in scene.node(name)["metadata"]["annotations"]
    scene.plugin.turned_in_use.clear()


def test_a_process_that_ends_half_way_leaves_no_node_closed(scene: SharingScene) -> None:
    """A change without an instruction is finished where it has come about, and taken back where it is late."""
    scene.add_node("n7")
    scene.add_node("n8")
    scene.pod("late", "n8", {GPU: "1"})
    actuator = scene.actuator()
    for name in ("n7", "n8"):
        actuator.apply(scene.turn(name), scene.now_s)
    scene.run(1)
    actuator.advance(scene.now_s, 1, [scene.turn("n7"), scene.turn("n8")])
    scene.run(60)
    AbandonedTurns().run(scene.tools(), 1, scene.now_s, ())
    assert scene.is_open("n7")
    assert not scene.is_open("n8")
    scene.run(800)
    AbandonedTurns().run(scene.tools(), 1, scene.now_s, ())
    assert scene.is_open("n8")
    assert (scene.config("n7"), scene.config("n8")) == ("time-slicing-4", "")


def test_a_label_is_not_set_while_the_node_takes_work(scene: SharingScene) -> None:
    """The server refuses it to our account: the policy of the fields wants a cordon."""
    scene.add_node("n9")
    answer = scene.api().patch(
        "/api/v1/nodes/n9", {"metadata": {"labels": {PLUGIN_CONFIG: "mps-2"}}}, "application/merge-patch+json", {}
    )
    assert not answer.ok
    assert scene.config("n9") == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "not YAML"),
        ("3", "not a configuration"),
        ("sharing: {mps: {resources: 3}}", "no list of resources"),
        ("sharing: {mps: {resources: []}}", "state one number"),
        (f"sharing: {{mps: {{resources: [{{name: {GPU}, replicas: 1}}]}}}}", "state one number"),
        (f"sharing: {{mps: {{resources: [{{name: {GPU}, replicas: true}}]}}}}", "state one number"),
        ("sharing: {mps: {resources: [{name: nvidia.com/mig-1g.10gb, replicas: 2}]}}", "another resource"),
        ("sharing: {mps: {resources: [2]}}", "another resource"),
        (f"sharing: {{mps: {{failRequestsGreaterThanOne: 2, {TWO}}}}}", "state true or false"),
        ("sharing: {mps: {a: 1}, timeSlicing: {a: 1}}", "keep one of them"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named(text: str, words: str) -> None:
    """It is never guessed."""
    with pytest.raises(BadEntryError, match=words):
        shares_of(text)
