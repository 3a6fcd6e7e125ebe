"""Every configured source yields data or a gap, whatever the names are under which its metrics are there."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.hardware import dcgm
from autopilot.core.intake.silent import or_gap, yields
from autopilot.core.model.ports import Collector
from autopilot.core.model.records import Batch
from collectors.exporter import ExporterCollector, Target
from collectors.kubernetes.collector import KubernetesCollector
from collectors.kubernetes.source import Cluster
from collectors.kubernetes.transport import ApiError
from collectors.prometheus import PrometheusCollector
from collectors.slo.collector import SloCollector
from collectors.slo.sources import SOURCES, Source
from tests.kits.kube_api import Canned
from tests.kits.kube_objects import EPOCH_S, node, pod

PERIODS, PERIOD_S = 3, 15.0
GPUS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_POWER_USAGE")
LABELS = {"UUID": "GPU-1", "gpu": "0", "Hostname": "n", "namespace": "a", "pod": "p-0"}
LABELS |= dict.fromkeys(("model_name", "model", "job", "name", "destination_workload", "envoy_cluster_name"), "m")
NAME = re.compile(r"([A-Za-z_:][\w:]*)\{")


class Store:
    """A Prometheus that holds one series of each of these names, and answers each query that has one of them."""

    def __init__(self, names: tuple[str, ...], labels: Mapping[str, str]) -> None:
        self.names, self.labels = names, labels

    def answer(self, _session: object, url: str, _timeout_s: float, _limit: int, params: Mapping[str, str]) -> bytes:
        """The names that match, the values of a label, or a row."""
        if "/label/" in url:
            label, found = url.split("/")[-2], []
            if label == "__name__":
                asked = re.search(r'__name__=~"([^"]*)"', params["match[]"])
                found = [each for each in self.names if asked and re.fullmatch(asked[1], each)]
            return json.dumps({"status": "success", "data": found}).encode()
        held = set(NAME.findall(params["query"])) & {*self.names}
        row = {"metric": dict(self.labels), "value": [1, "1"]}
        return json.dumps(
            {"status": "success", "data": {"resultType": "vector", "result": [row][: len(held)]}}
        ).encode()

    def text(self) -> bytes:
        """What an exporter of these names shows."""
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        return "".join(f"{name}{{{labels}}} 1\n" for name in self.names).encode()


def names_of(source: Source) -> tuple[str, ...]:
    """The names that a server of this kind writes, under its own prefix."""
    if source.families:
        return tuple(each.prefixes[0] + name for each in source.families for name in each.shape)
    return tuple(sorted({name for query in source.queries.values() for name in NAME.findall(query)}))


def _slo(source: Source) -> Callable[[Store], Collector]:
    return lambda _: SloCollector("http://p:1", sources=[source.name])


SOURCES_OF: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[Store], Collector]]] = {
    "exporter": (GPUS, dcgm.ALIKE, lambda store: ExporterCollector([Target("http://x:1")], lambda _: store.text())),
    "prometheus": (GPUS, dcgm.ALIKE, lambda _: PrometheusCollector("http://p:1", joins=True)),
    **{each.name: (names_of(each), each.alike, _slo(each)) for each in SOURCES},
}
"""Names, the parts by which a name is near, and the collector."""

rename: st.SearchStrategy[Callable[[str], str]] = st.one_of(
    st.just(str),
    st.just(str.lower),
    st.text("abz_", min_size=1, max_size=6).map(lambda text: lambda name: f"{text}{name}"),
    st.text("abz_:", min_size=1, max_size=6).map(lambda text: lambda name: f"x{text}_{name}"),
    st.sampled_from(["_total", "_ratio", "_x"]).map(lambda text: lambda name: f"{name}{text}"),
    st.just(lambda name: re.sub("[:_]", ".", name)),
)


@given(
    name=st.sampled_from(sorted(SOURCES_OF)),
    renamed=rename,
    kept=st.integers(0, 8),
    without=st.sets(st.sampled_from(sorted(LABELS)), max_size=3),
)
@settings(max_examples=30, deadline=None)
def test_every_configured_source_yields_data_or_a_gap(
    name: str, renamed: Callable[[str], str], kept: int, without: set[str]
) -> None:
    """Within three periods; where it sees names that are near, the gap has one of them."""
    own, alike, make = SOURCES_OF[name]
    names = tuple(map(renamed, own[:kept]))
    store = Store(names, {label: value for label, value in LABELS.items() if label not in without})
    modules = ("collectors.prometheus", "collectors.slo.collector", "collectors.slo.names")
    with ExitStack() as patched:
        for each in modules:
            patched.enter_context(patch(f"{each}.get_limited", store.answer))
        collector = make(store)
        batches = [collector.collect(EPOCH_S + PERIOD_S * period) for period in range(PERIODS)]
    assert yields(batches[-1]) or batches[-1].gaps
    near = [each for each in names if any(part in each.lower() for part in alike)]
    if near and not without and not yields(batches[-1]) and not {*names} & {*own}:
        assert any(each in gap.reason for each in near for gap in batches[-1].gaps)


@given(objects=st.sets(st.sampled_from(["node", "pod"])), refused=st.sets(st.sampled_from(["nodes", "pods", "jobs"])))
@settings(max_examples=12, deadline=None)
def test_a_cluster_of_which_nothing_is_seen_is_a_gap(objects: set[str], refused: set[str]) -> None:
    """Also where every list is answered and empty."""
    api = Canned(refuse={f"list {each}": ApiError(403, "403 forbidden") for each in refused})
    api.put(*([node("n")] if "node" in objects else []), *([pod("p", 1)] if "pod" in objects else []))
    cluster = Cluster(api, lambda: EPOCH_S, rng=random.Random(1))
    for _ in range(PERIODS):
        cluster.step_all()
    batch = or_gap(KubernetesCollector(cluster).collect(EPOCH_S))
    assert yields(batch) or batch.gaps


def test_a_batch_of_nothing_gets_a_gap_once() -> None:
    """One that says why stays as it is."""
    empty = or_gap(Batch("new", 1.0))
    assert [each.reason for each in empty.gaps] == ["it returned no data and no reason: check its settings"]
    assert or_gap(empty) is empty
