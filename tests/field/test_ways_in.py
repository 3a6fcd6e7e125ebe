"""The same signals on every way in: what a direct scrape reads is read through a Prometheus too."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from math import isnan, nan

import pytest
import yaml

from autopilot.core.recovery.cordon import Cordon
from collectors.attribution import Sightings
from collectors.exposition import Scanner
from tests.kits.batch_kit import check_batch
from tests.kits.exporter_text import Device, render
from tests.kits.field_kit import FOLDER, objects_of, play, play_objects
from tests.kits.stored import Scraped, StoredCollector

START_S = 1_700_000_000.0


# --- errors of GPUs ----------------------------------------------------------------------------


@pytest.mark.parametrize("stored_s", [0.0, 15.0])
def test_errors_of_gpus_close_their_node(stored_s: float) -> None:
    """XID 79 and a failed row remapping on GPU 0 (NVIDIA/DCGM#235), by direct scrape and through a Prometheus."""
    played = play("14b-xid-prometheus", "objects.yaml", "gpus.yaml", ticks=3, effects=True, stored_s=stored_s)
    closed = {each.subject.name for _, each in played.sent if isinstance(each.operation, Cordon)}
    assert closed == {"node-a"}
    assert played.accepted("evict", "train-0")
    gpus = played.snapshot.gpus
    assert [(int(code), int(rows)) for code, rows in zip(gpus.xid[:2], gpus.remap[:2], strict=True)] == [
        (79, 2),
        (0, 0),
    ]


@pytest.mark.parametrize("stored_s", [0.0, 15.0])
@pytest.mark.parametrize(("codes", "closes"), [((79, 154), True), ((154, 79), True), ((45, 31), False)])
def test_of_two_codes_of_a_gpu_the_graver_counts(codes: tuple[int, int], stored_s: float, *, closes: bool) -> None:
    """Two exporters report a GPU, and their last codes differ: neither the higher nor the later one hides the other."""
    spec = yaml.safe_load((FOLDER / "14b-xid-prometheus" / "gpus.yaml").read_text("utf-8"))
    spec["changes"] = []
    (first,) = spec["gpus"]
    spec["gpus"] = [
        first | {"count": 1, "values": first["values"] | {"DEV_XID_ERRORS": code}, "model": f"H100 {place}"}
        for place, code in enumerate(codes)
    ]
    objects = objects_of(FOLDER / "14b-xid-prometheus" / "objects.yaml")
    played = play_objects(objects, spec, ticks=3, effects=True, stored_s=stored_s)
    closed = {each.subject.name for _, each in played.sent if isinstance(each.operation, Cordon)}
    assert closed == ({"node-a"} if closes else set())


@pytest.mark.parametrize("stored_s", [0.0, 15.0])
@pytest.mark.parametrize(
    ("shown", "closes", "code"),
    [
        pytest.param(
            {"DEV_XID_ERRORS": 45, "EXP_XID_ERRORS_COUNT 79": 1, "EXP_XID_ERRORS_COUNT 45": 8}, True, 79, id="window"
        ),
        pytest.param({"DEV_XID_ERRORS": 154, "EXP_XID_ERRORS_TOTAL 79": 1}, True, 79, id="since its start"),
        pytest.param({"EXP_XID_ERRORS_TOTAL 79": 2}, True, 79, id="no last code is exported"),
        pytest.param({"DEV_XID_ERRORS": 31, "EXP_XID_ERRORS_COUNT 79": 0}, False, 31, id="it is older than the window"),
        pytest.param({"EXP_XID_ERRORS_COUNT": 0}, False, -1, id="no code in the window: nothing is known"),
        pytest.param(
            {"EXP_XID_ERRORS_TOTAL 31": 7, "EXP_XID_ERRORS_COUNT x": 7}, False, 31, id="codes of applications"
        ),
    ],
)
def test_counters_of_errors_tell_what_the_last_code_hides(
    shown: dict[str, int], code: int, stored_s: float, *, closes: bool
) -> None:
    """One series for each code, with the label `xid` (dcgm-exporter, internal/pkg/collector/xid_collector.go)."""
    spec = yaml.safe_load((FOLDER / "14b-xid-prometheus" / "gpus.yaml").read_text("utf-8"))
    spec["changes"] = []
    values = spec["gpus"][0]["values"]
    spec["gpus"][0]["values"] = {name: each for name, each in values.items() if name != "DEV_XID_ERRORS"} | shown
    objects = objects_of(FOLDER / "14b-xid-prometheus" / "objects.yaml")
    played = play_objects(objects, spec, ticks=3, effects=True, stored_s=stored_s)
    assert any(isinstance(each.operation, Cordon) for _, each in played.sent) == closes
    assert int(played.snapshot.gpus.xid[0]) == code


@pytest.mark.parametrize("stored_s", [0.0, 15.0])
def test_a_code_that_needs_a_look_is_named(stored_s: float) -> None:
    """154 says that another recovery is needed now, not which one: the gap names the code."""
    played = play("14-xid-154", "objects.yaml", "code154.yaml", ticks=4, stored_s=stored_s)
    assert [each.reason for each in played.gaps() if each.signal == "xid_code"][-1:] == [
        "XID 154 names no remedy: inspect the GPU; until then it gets no new work"
    ]
    assert not played.sent


def _always(text: str, _: float) -> str:
    return text


def _of(texts: Mapping[str, str], node: str, _: float) -> str:
    return texts[node]


@pytest.mark.parametrize("stored_s", [0.0, 15.0])
def test_errors_that_a_site_does_not_export_are_a_gap(stored_s: float) -> None:
    """The way in reads them, and the counters file of the exporter leaves them out."""
    spec = yaml.safe_load((FOLDER / "14b-xid-prometheus" / "gpus.yaml").read_text("utf-8"))
    for each in (*spec["gpus"], *spec["changes"]):
        del each["values"]["DEV_XID_ERRORS"]
    played = play_objects(objects_of(FOLDER / "14b-xid-prometheus" / "objects.yaml"), spec, stored_s=stored_s)
    assert any(each.signal == "xid_code" and "DCGM_FI_DEV_XID_ERRORS" in each.reason for each in played.gaps())


# --- counters against each other ---------------------------------------------------------------


def test_counters_that_contradict_gpu_util_are_unknown_and_others_count() -> None:
    """They stand at 0 from 600 to 1200 s (dcgm-exporter#662): windows hold no sample of it, and know the rest.

    Those of a GPU beside it work, so that the zeros of an idle one are believed.
    """
    values: dict[int, float | str] = {1002: 0.6, 1004: 0.3, 1005: 0.4, 203: 99.0, 252: 6e4}
    fallen: dict[int, float | str] = {1002: 0.0, 1004: 0.0, 1005: 0.0}

    def text(at_s: float) -> str:
        falls = 600 <= at_s - START_S < 1200
        dead, idle = (values | more if falls else values for more in (fallen, fallen | {203: 0.0}))
        return render([Device("GPU-a", values=dead), Device("GPU-b", values=idle), Device("GPU-c", values=values)])

    collector, found = StoredCollector([Scraped(text, {"job": "gpu"})], START_S, workers=1, refresh=0.0), {}
    for at_s in (540, *range(660, 1441, 60)):
        batch = collector.collect(START_S + at_s)
        check_batch(batch, "prometheus", START_S + at_s)
        assert batch.telemetry is not None
        found[at_s] = dict(zip(batch.telemetry.entity_ids, batch.telemetry.mean[0].T.tolist(), strict=True))
        named = {gap.object_id for gap in batch.gaps if "stands at 0 while GPU_UTIL" in gap.reason}
        assert named == ({"GPU-a"} if at_s > 600 else set())
    assert found[540] == dict.fromkeys(("GPU-a", "GPU-b", "GPU-c"), pytest.approx([0.6] * 3))
    assert all(map(isnan, found[900]["GPU-a"]))
    assert found[900]["GPU-b"][:2] == [0.0, 0.0]
    assert found[1440]["GPU-a"] == pytest.approx([0.6] * 3)
    assert all(map(isnan, found[1200]["GPU-a"]))
    assert found[1440]["GPU-b"][2] == pytest.approx(0.6 * 56 / 96, abs=0.02)


# --- who holds a GPU ---------------------------------------------------------------------------


def collected(targets: Sequence[Scraped]) -> Sightings:
    """What a Prometheus that scrapes them says after a minute."""
    collector = StoredCollector(targets, START_S, joins=True, workers=1)
    collector.collect(START_S + 60.0)
    return collector.sightings()


def pods(found: Sightings) -> set[tuple[str, str]]:
    """(entity, pod) of all attributions."""
    return {(each.entity_id, f"{each.namespace}/{each.pod}") for each in found.attributions}


def test_the_style_of_pod_labels_is_that_of_the_target() -> None:
    """One job scrapes without honor_labels, another with it (NVIDIA/dcgm-exporter#27)."""
    text = (FOLDER / "27-mixed-label-styles" / "gpus.prom").read_text("utf-8")
    targets = []
    for part in text.split("# target")[1:]:
        head, _, body = part.partition("\n")
        labels = dict(re.findall(r"(\w+)=(\S+)", head))
        honor = labels.pop("honor_labels", "") == "true"
        targets.append(Scraped(partial(_always, body), labels | {"instance": labels["node"]}, honor))
    assert {pod for _, pod in pods(collected(targets))} == {"team/train-0", "team/train-1"}


OWN = {"job": "gpu", "namespace": "gpu-operator", "pod": "exporter-1", "container": "exporter"}


@pytest.mark.parametrize("own", [OWN, {"job": "gpu"}])
@pytest.mark.parametrize("honor", [False, True])
def test_an_idle_gpu_is_not_held_by_the_pod_of_its_exporter(own: dict[str, str], *, honor: bool) -> None:
    """Its series have the labels of the target. So it is where nothing has run on the node for a day, too."""
    busy = render([Device("GPU-a", pod="train"), Device("GPU-b", 1)])
    idle = render([Device("GPU-c"), Device("GPU-d", 1)], node="node-c")
    old = re.sub(
        r'\b(pod|namespace|container)="',
        lambda m: f'{m[1]}_name="' if m[1] != "namespace" else 'pod_namespace="',
        render([Device("GPU-e", pod="old")], node="node-e"),
    )
    found = pods(
        collected(
            [
                Scraped(lambda _: busy, own | {"instance": "a"}, honor),
                Scraped(lambda _: idle, own | {"instance": "c", "pod": "exporter-2"} if "pod" in own else own, honor),
                Scraped(lambda _: old, own | {"instance": "e"}, honor),
            ]
        )
    )
    assert found == {("GPU-a", "team-a/train"), ("GPU-e", "team-a/old")}


def test_a_target_of_another_style_is_read_beside_in_a_direct_scrape() -> None:
    """An exporter, and the federation of a Prometheus that renamed the labels of another one."""
    federated = render([Device("GPU-b", pod="theirs"), Device("GPU-c", 1)], exported=True, node="node-b")
    federated = federated.replace("{gpu=", '{job="dcgm",instance="b:9400",gpu=')
    scanner = Scanner()
    scanner.scan([render([Device("GPU-a", pod="ours")]), federated])
    owned = scanner.owned()
    assert {(entity, owner[1]) for entity, owner in zip(owned.entity_ids, owned.owners, strict=True)} == {
        ("GPU-a", "ours"),
        ("GPU-b", "theirs"),
    }


# --- partial answers and copies ----------------------------------------------------------------


def test_what_a_partial_answer_does_not_name_stays_as_it_was() -> None:
    """A store of the federation is away: its GPUs and their pods are not gone, and a gap says so."""
    texts = {node: render([Device(f"GPU-{node}", pod=f"on-{node}")], node=node) for node in "ab"}
    targets = [Scraped(partial(_of, texts, node), {"job": "gpu", "instance": node}) for node in "ab"]
    collector = StoredCollector(targets, START_S, joins=True, workers=1)
    collector.collect(START_S + 60.0)
    whole = collector.sightings()
    collector.warning, collector.lost = "a store is away", lambda labels: labels.get("instance") == "a"
    texts["b"] = render([Device("GPU-b", pod="next")], node="b")
    batch = collector.collect(START_S + 195.0)
    assert any(gap.signal == "pods" and "a store is away" in gap.reason for gap in batch.gaps)
    after = collector.sightings()
    assert pods(whole) == {("GPU-a", "team-a/on-a"), ("GPU-b", "team-a/on-b")}
    assert pods(after) == {("GPU-a", "team-a/on-a"), ("GPU-b", "team-a/next")}
    assert {(each.uuid, each.now) for each in after.seen} == {("GPU-a", False), ("GPU-b", True)}


@pytest.mark.parametrize("first", [True, False])
def test_a_board_is_not_known_by_some_of_its_instances(*, first: bool) -> None:
    """The store with one of two instances is away: what the GPU does is unknown, and not half of what it was."""
    text = render([Device("GPU-m", gi_id=part, profile="3g.40gb") for part in "12"])
    collector = StoredCollector([Scraped(lambda _: text, {"job": "gpu"})], START_S, workers=1)
    if not first:
        collector.collect(START_S + 60.0)
    collector.warning, collector.lost = "a store is away", lambda labels: labels.get("GPU_I_ID") == "2"
    seen = collector.collect(START_S + 120.0).telemetry
    assert seen is not None
    mean = dict(zip(seen.entity_ids.tolist(), seen.mean[0, 0].tolist(), strict=True))
    assert mean["GPU-m/1"] == pytest.approx(0.62)
    assert isnan(mean.get("GPU-m", nan))


def test_names_that_a_partial_answer_lacks_are_still_read() -> None:
    """The names of a site are probed now and then. A probe of a part of the data forgets none."""
    target = Scraped(lambda _: render([Device("GPU-a")]), {"job": "gpu", "instance": "a"})
    collector = StoredCollector([target], START_S, workers=1)
    collector.collect(START_S + 60.0)
    collector.warning, collector.lost = "a store is away", lambda labels: "XID" in labels["__name__"]
    batch = collector.collect(START_S + 400.0)
    assert any("a store is away" in gap.reason and not gap.signal for gap in batch.gaps)
    collector.warning = ""
    collector.asked.clear()
    collector.collect(START_S + 420.0)
    assert any("DCGM_FI_DEV_XID_ERRORS" in query for query in collector.asked)


def test_a_gpu_that_two_jobs_scrape_counts_once() -> None:
    """So it is behind two replicas of a Prometheus: entities, values, samples, pods and places are as with one."""
    text = render(
        [Device("GPU-m", gi_id=part, profile="3g.40gb", pod=f"p{part}") for part in "12"]
        + [Device("GPU-a", 1, pod="p")]
    )
    once = [Scraped(lambda _: text, {"job": "gpu", "instance": "node-a:9400"})]
    copies = [Scraped(lambda _: text, {"job": "more", "instance": "node-a:9401", "prometheus_replica": "b"})]
    found = []
    for targets in (once, once + copies):
        collector = StoredCollector(targets, START_S, joins=True, workers=1)
        seen = collector.collect(START_S + 60.0).telemetry
        assert seen is not None
        rows = [seen.mean.tolist(), seen.maximum.tolist(), seen.samples.tolist(), seen.entity_ids.tolist()]
        found.append((repr(rows), pods(collector.sightings()), len(collector.sightings().seen)))
    assert found[0] == found[1]
