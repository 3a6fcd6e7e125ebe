"""GPUs and pods as exporters see them, joined with the nodes and pods of the API."""

from __future__ import annotations

from functools import partial

import pytest

from autopilot.core.intake.assemble import assemble
from autopilot.core.model.records import Work
from collectors.attribution import Attribution, Sighting, Sightings
from collectors.exporter import ExporterCollector, Target
from tests.kits.exporter_text import Device, render
from tests.kits.kube_objects import node, pod
from tests.kits.stored import Scraped, StoredCollector
from tests.unit.collectors.kubernetes.view import Seen, held, reasons

START_S = 1_700_000_000.0


class Sees:
    """A source of sightings."""

    def __init__(self, *seen: Sighting, on: tuple[tuple[str, ...], ...] = ()) -> None:
        """`on`: (entity, pod) or (entity, pod, container)."""
        rows = ((entity, name, rest[0] if rest else "") for entity, name, *rest in on)
        self.answer = Sightings(seen, tuple(Attribution(e, "team", name, 1.0, False, c) for e, name, c in rows))

    def sightings(self) -> Sightings:
        return self.answer


def test_an_exporter_names_gpus_and_the_pods_on_them() -> None:
    """The UUIDs of the exporter replace the counted names, and a pod holds the GPU on which it is seen."""
    sees = Sees(*[Sighting(f"GPU-{k}", host="n1") for k in range(2)], on=(("GPU-1", "p"),))
    seen = Seen(node("n1", 2), pod("p", 1, node="n1"), hardware=sees).tables()
    assert seen[0].gpus.uuid.tolist() == ["GPU-0", "GPU-1"]
    assert held(seen, "team/p") == ["GPU-1"]


def test_names_that_replace_others_are_no_loss_of_hardware() -> None:
    """The counted names are reported deleted when the real ones come."""
    view = Seen(node("n1", 2))
    view.tables()
    view.collector.join(Sees(*[Sighting(f"GPU-{k}", host="n1.example.com") for k in range(2)]))
    batch = view.batch()
    assert set(batch.inventory_list.deleted) == {"n1:gpu0", "n1:gpu1"}
    assert batch.inventory is not None
    assert batch.inventory.gpus.uuid.tolist() == ["GPU-0", "GPU-1"]


def test_a_host_that_is_no_node_is_found_by_its_pods() -> None:
    """Exporters may name their own pod: the pod on one of their GPUs shows the node of all."""
    sees = Sees(*[Sighting(f"GPU-{k}", host="dcgm-x7") for k in range(2)], on=(("GPU-1", "p"), ("GPU-9", "gone")))
    seen = Seen(node("n1", 2), node("n2", 2), pod("p", 1, node="n2"), hardware=sees).tables()
    assert seen[0].gpus.uuid.tolist() == ["n1:gpu0", "n1:gpu1", "GPU-0", "GPU-1"]
    assert held(seen, "team/p") == ["GPU-1"]


def test_instances_are_joined_by_their_ids() -> None:
    """A pod on a MIG instance holds that instance; the slices are laid out, since exporters do not name them."""
    parts = [Sighting("GPU-a", str(7 + k), "3g.40gb", "n1") for k in range(2)]
    cut = node("n1", 1, capacity={"nvidia.com/gpu": "0", "nvidia.com/mig-3g.40gb": "2"})
    sees = Sees(Sighting("GPU-a", host="n1"), *parts, on=(("GPU-a/8", "p"),))
    seen = Seen(cut, pod("p", 1, node="n1", resource="nvidia.com/mig-3g.40gb"), hardware=sees).tables()
    assert seen[0].instances.id.tolist() == ["GPU-a/7", "GPU-a/8"]
    assert sorted(seen[0].instances.start.tolist()) == [0, 4]
    assert held(seen, "team/p") == ["GPU-a/8"]


def test_what_two_scrape_jobs_say_otherwise_counts_once() -> None:
    """The second has the address for the host, and no label of the container. `exporter-b` is its own pod."""
    texts = [
        render(
            [Device("GPU-a", gi_id=str(7 + k), profile="3g.40gb", pod="p" if k else "") for k in range(2)], node="n1"
        ),
        render(
            [Device("GPU-a", gi_id=str(7 + k), profile="3g.40gb", pod="p" if k else "") for k in range(2)], node="ip-7"
        ),
    ]
    texts[1] = texts[1].replace('container="main",', "")
    targets = [
        Scraped(partial(_always, text), {"job": f"gpu-{place}", "instance": f"{place}", "pod": f"exporter-{place}"})
        for place, text in enumerate(texts)
    ]
    source = StoredCollector(targets, START_S, joins=True, workers=1)
    source.collect(START_S + 60.0)
    cut = node("n1", 1, capacity={"nvidia.com/gpu": "0", "nvidia.com/mig-3g.40gb": "2"})
    pods = pod("p", 1, node="n1", namespace="team-a", resource="nvidia.com/mig-3g.40gb")
    seen = Seen(cut, pods, hardware=source).tables()
    assert seen[0].instances.id.tolist() == ["GPU-a/7", "GPU-a/8"]
    assert held(seen, "team-a/p") == ["GPU-a/8"]


def _always(text: str, _: float) -> str:
    return text


def test_containers_that_share_one_gpu_each_hold_a_part_of_it() -> None:
    """Two containers of a pod on one time-sliced GPU, and another pod beside them; the other GPU stays free."""
    shared = node("n1", 2, labels={"nvidia.com/gpu.replicas": "4"}, capacity={"nvidia.com/gpu": "8"})
    two = pod("p", 1, node="n1")
    two["spec"]["containers"].append({**two["spec"]["containers"][0], "name": "side"})
    sees = Sees(
        *[Sighting(f"GPU-{k}", host="n1") for k in range(2)],
        on=(("GPU-1", "p", "main"), ("GPU-1", "p", "side"), ("GPU-1", "q", "main")),
    )
    seen = Seen(shared, two, pod("q", 1, node="n1"), hardware=sees).tables()
    assert held(seen, "team/p") == ["GPU-1", "GPU-1"]
    assert held(seen, "team/q") == ["GPU-1"]


def test_labels_that_contradict_the_api_are_named_and_not_believed() -> None:
    """A pod of one node on the GPU of another, and one on more GPUs than it requests: relabelled, or left over."""
    sees = Sees(
        *[Sighting(f"GPU-{k}", host=f"n{k // 2 + 1}") for k in range(4)],
        on=(("GPU-2", "p"), ("GPU-2", "q"), ("GPU-3", "q")),
    )
    view = Seen(node("n1", 2), node("n2", 2), pod("p", 1, node="n1"), pod("q", 1, node="n2"), hardware=sees)
    batch = view.batch()
    assert batch.inventory is not None
    assert batch.work is not None
    assert held((batch.inventory, batch.work), "team/p") == ["GPU-0"]
    assert held((batch.inventory, batch.work), "team/q") == ["GPU-2"]
    assert [text.partition(": the label")[0] for text in reasons(batch, "pods")] == [
        "team/p: an exporter shows it on GPU-2 of node n2, and the API on node n1",
        "team/q: an exporter shows it on 2 GPUs or instances, and it requests 1",
    ]


TWO = [Sighting(f"GPU-{k}", host="n1") for k in range(2)]


@pytest.mark.parametrize(
    ("pods", "on", "found"),
    [
        pytest.param([("p", 1)], [], {"p"}, id="another GPU is free"),
        pytest.param([("p", 2)], [], set(), id="it holds all"),
        pytest.param([("p", 1), ("q", 1)], [], {"p", "q"}, id="two gangs may have changed places"),
        pytest.param([("p", 1), ("q", 1)], [("GPU-0", "q")], set(), id="one is left for the other"),
        pytest.param([("p", 1)], [("GPU-1", "p")], set(), id="seen there"),
        pytest.param([("p", 1)], [("GPU-0", "p")], set(), id="seen where it would be assumed"),
        pytest.param([("p", 2), ("q", 1)], [], {"p"}, id="one holds what nobody knows"),
    ],
)
def test_what_nobody_sees_is_assumed(pods: list[tuple[str, int]], on: list[tuple[str, str]], found: set[str]) -> None:
    """Pods on a node of two GPUs that no source names, unless only one of them can be what each holds."""
    view = Seen(node("n1", 2), *[pod(name, gpus, node="n1") for name, gpus in pods], hardware=Sees(*TWO))
    view.tables()
    view.collector.hardware = Sees(*TWO, on=tuple(on))
    work = view.tables()[1]
    names = work.workloads.id[work.placements.workload[work.placements.assumed]].tolist()
    assert {name.removeprefix("team/") for name in names} == found


def test_instances_and_shares_are_assumed_by_kind() -> None:
    """The one instance of a profile is sure, one of two is not; so are shares of one GPU, and of two."""
    both = {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-3g.40gb": "1"}
    profiles = {"p": "1g.10gb", "q": "3g.40gb"}
    pods = [pod(name, 1, node="n1", resource=f"nvidia.com/mig-{profile}") for name, profile in profiles.items()]
    work = Seen(node("n1", 1, capacity=both), *pods).tables()[1]
    assert work.placements.assumed.tolist() == [each == "team/p" for each in _holders(work)]
    for gpus, found in ((1, False), (2, True)):
        shared = node("n1", gpus, labels={"nvidia.com/gpu.replicas": "4"}, capacity={"nvidia.com/gpu": str(4 * gpus)})
        work = Seen(shared, *[pod(f"p{k}", 1, node="n1") for k in range(3)]).tables()[1]
        assert work.placements.assumed.tolist() == [found] * 3, f"shares of {gpus} GPUs"


def test_telemetry_without_pods_is_named() -> None:
    """GPUs that pods hold are seen, and no pod is: once, with what helps. An idle cluster is silent."""
    words = "the telemetry names no pods, so which GPUs of a node each of them holds is assumed"
    silent = Seen(node("n1", 2), pod("p", 1, node="n1"), hardware=Sees(*TWO)).batch()
    assert [text.partition(words)[1] for text in reasons(silent, "pods")] == [words]
    assert reasons(Seen(node("n1", 2), hardware=Sees(*TWO)).batch(), "pods") == []
    named = Seen(node("n1", 2), pod("p", 1, node="n1"), hardware=Sees(*TWO, on=(("GPU-1", "p"),)))
    assert reasons(named.batch(), "pods") == []


def _holders(work: Work) -> list[str]:
    """Who holds each row of the placements."""
    names: list[str] = work.workloads.id[work.placements.workload].tolist()
    return names


def test_two_nodes_with_one_gpu_get_no_work() -> None:
    """A UUID that two nodes show is named for both; their GPUs are counted again, and both are cordoned for us."""
    sees = Sees(Sighting("GPU-x", host="n1"), Sighting("GPU-x", host="n2"), Sighting("GPU-y", host="n3"))
    batch = Seen(node("n1", 1), node("n2", 1), node("n3", 1), hardware=sees).batch()
    assert batch.inventory is not None
    assert batch.inventory.nodes.cordoned.tolist() == [True, True, False]
    assert batch.inventory.gpus.uuid.tolist() == ["n1:gpu0", "n2:gpu0", "GPU-y"]
    assert reasons(batch, "uuid") == [
        "n1: it shows a GPU that n2 shows too; neither gets work",
        "n2: it shows a GPU that n1 shows too; neither gets work",
    ]


def test_a_scrape_is_joined_with_the_cluster() -> None:
    """The whole way: text of an exporter, windows by UUID, and the pod that holds the GPU."""
    text = render([Device("GPU-a", pod="p"), Device("GPU-b", 1)]).encode()
    exporter = ExporterCollector([Target("http://x/metrics", "n1")], lambda _: text)
    view = Seen(node("n1", 2), pod("p", 1, namespace="team-a", node="n1"), hardware=exporter)
    telemetry = exporter.collect(view.now_s)
    snapshot, _ = assemble([view.batch(), telemetry], view.now_s)
    assert snapshot.gpus.uuid.tolist() == ["GPU-a", "GPU-b"]
    assert (snapshot.telemetry.age_s == 0).all()
    assert snapshot.gpus.uuid[snapshot.placements.gpu[0]] == "GPU-a"


THREE = {"nvidia.com/gpu": "0", "nvidia.com/mig-3g.40gb": "2"}


@pytest.mark.parametrize(
    ("shown", "ids", "usable"),
    [
        pytest.param(("3g.40gb", "3g.40gb"), ("7", "8"), True, id="as the plugin"),
        pytest.param(("3G.40GB", "MIG 3g.40gb"), ("7", "8"), True, id="other spellings"),
        pytest.param(("", ""), ("7", "8"), True, id="no profile"),
        pytest.param(("", "3g.40gb"), ("8", "7"), True, id="one without a profile"),
        pytest.param(("3g.40gb",), ("7", "100"), False, id="one is missing"),
        pytest.param(("1g.5gb", "1g.5gb"), ("100", "101"), False, id="a profile of another product"),
        pytest.param(("1g.10gb",) * 7, ("100", "101"), False, id="the geometry before a change"),
        pytest.param(("3g.40gb", "3g.40gb", "1g.10gb"), ("7", "8"), False, id="one too many"),
        pytest.param(("3g.40gb", "1g.10gb", "1g.10gb"), ("7", "100"), False, id="half of it"),
    ],
)
def test_instances_that_the_plugin_does_not_offer_do_not_count(
    shown: tuple[str, ...], ids: tuple[str, ...], *, usable: bool
) -> None:
    """The plugin counts the instances of each profile, and the exporter names them. What is guessed gets no work."""
    parts = [Sighting("GPU-a", str(7 + k), name, "n1") for k, name in enumerate(shown)]
    view = Seen(node("n1", 1, capacity=THREE), hardware=Sees(Sighting("GPU-a", host="n1"), *parts))
    inventory = view.tables()[0]
    assert inventory.instances.id.tolist() == [f"GPU-a/{each}" for each in ids]
    assert sorted(inventory.instances.start.tolist()) == [0, 4]
    assert inventory.gpus.healthy.tolist() == [usable]
    assert bool(reasons(view.batch(), "mig")) is ("" in shown or not usable)


def test_instances_that_the_plugin_calls_unhealthy_stay_where_they_are() -> None:
    """It offers one of two: which of them is not known, and no other instance fits in the place of either."""
    parts = [Sighting("GPU-a", str(7 + k), "3g.40gb", "n1") for k in range(2)]
    one = {**THREE, "nvidia.com/mig-3g.40gb": "1"}
    view = Seen(node("n1", 1, capacity=one), hardware=Sees(Sighting("GPU-a", host="n1"), *parts))
    assert view.tables()[0].instances.id.tolist() == ["GPU-a/7", "GPU-a/8"]
    assert reasons(view.batch(), "mig")
