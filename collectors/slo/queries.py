"""Parts of PromQL for the queries of the table of sources.

Every query aggregates to the label that names the service, and to the namespace and the owner of its pods (`SPLIT`):
two Deployments may serve one model. `$W` is the window and `$M` the matchers of the operator. A server counts once if
two jobs, or two replicas of Prometheus, scrape it: the maximum of each of its series by pod (by address without a label
for the pod), then the sum over pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PLACE = ("autopilot_namespace", "autopilot_pod")
"""Labels that queries add: where a server runs, by whatever label says it."""
SPLIT = (PLACE[0], "autopilot_owner")
"""Namespace and owner of the pods of a series: StatefulSet, Deployment or PodClique, by the shape of the pod's name."""
_SAID_BY = (
    (PLACE[0], ("k8s_namespace_name", "kubernetes_namespace", "namespace", "exported_namespace")),
    (PLACE[1], ("instance", "k8s_pod_name", "kubernetes_pod_name", "pod", "exported_pod", "worker_addr")),
)
"""For each of them the labels that say it; the last that is there counts. Annotation jobs, operators and collectors of
OpenTelemetry use different ones. A router of SGLang shows the metrics of its workers, each with its address."""
_OWNER_OF = (
    "([a-z0-9.-]+-[0-9]+-[a-z0-9.-]+)-[a-z0-9]{5}",
    "([a-z0-9.-]+)-[0-9]+",
    "([a-z0-9.-]+)-[a-z0-9]{5,10}-[a-z0-9]{5}",
    "([a-z0-9.-]+-[0-9]+-[a-z0-9.-]*[aeiou][a-z0-9]*)-[a-z0-9]{5}",
)
"""Names of pods by the name of their owner; the last that fits counts. Of a PodClique (grove, SET-0-CLIQUE), of a
StatefulSet, of a ReplicaSet, whose own name ends with a hash (`pod-template-hash`), and of a PodClique whose
name ends with what is no hash: a hash has no vowels."""
_ENGINE = ("engine", "dp_rank", "engine_type", "ReplicaId", "WorkerId")
"""Labels of the engines of one pod that share its requests. Ranks of tensor parallelism repeat the same requests."""
_PARTS = ("finished_reason", "reason", "version", "target_model_name", "priority", "fairness_id")
"""Labels of counters whose parts sum up."""


def owner_of(pod: str) -> str:
    """The owner that queries give to the series of a pod; "" for none."""
    fits = (re.fullmatch(shape, pod) for shape in reversed(_OWNER_OF))
    return next((found[1] for found in fits if found), "")


def named(prefixes: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The name under each prefix."""
    return tuple(prefix + name for prefix in prefixes)


def any_of(names: Iterable[str], form: str = "{}", matchers: str = "$M") -> str:
    """The series with any of these names, each in a form such as a rate: servers rename their metrics."""
    return " or ".join(form.format(f"{name}{{{matchers}}}") for name in names)


def placed(vector: str) -> str:
    """The vector with the labels of `PLACE` and `SPLIT`."""
    for place, labels in _SAID_BY:
        for label in labels:
            vector = f'label_replace({vector},"{place}","$$1","{label}","(.+)")'
    for shape in _OWNER_OF:
        vector = f'label_replace({vector},"{SPLIT[1]}","$$1","{PLACE[1]}","{shape}")'
    return vector


def by_labels(by: str, *more: str) -> str:
    """A list of labels."""
    return ", ".join((by, *more))


def by_pod(by: str, vector: str, how: str = "sum") -> str:
    """One value for each pod: each series counts once, then those of the pod together."""
    once = f"max by ({by_labels(by, *_ENGINE, *_PARTS, *PLACE, SPLIT[1])}) ({placed(vector)})"
    return f"{how} by ({by_labels(by, *PLACE, SPLIT[1])}) ({once})"


def total(by: str, vector: str) -> str:
    """The sum over all series, each once."""
    once = f"max by ({by_labels(by, *_ENGINE, *_PARTS, *PLACE, SPLIT[1])}) ({placed(vector)})"
    return f"sum by ({by_labels(by, *SPLIT)}) ({once})"


def rate(by: str, names: Iterable[str]) -> str:
    """The rate of counters."""
    return total(by, any_of(names, "rate({}[$W])"))


def summed(by: str, names: Iterable[str]) -> str:
    """The sum of gauges."""
    return total(by, any_of(names))


def fullest(by: str, vector: str) -> str:
    """The mean over pods of the fullest engine of each."""
    return f"avg by ({by_labels(by, *SPLIT)}) ({by_pod(by, vector, 'max')})"


_POD_LABELS = ("pod", "exported_pod", "kubernetes_pod_name", "k8s_pod_name")
"""Labels that name a pod alone, so that a query can ask for some pods."""


def _of_pods(names: Iterable[str], form: str = "increase({}[$W])") -> str:
    """Counters of the pods `$R`, by each label that may name them. A regular expression stands for several names."""
    name = "|".join(names)
    return " or ".join(form.format(f'{{__name__=~"{name}",{label}=~"$R",$M}}') for label in _POD_LABELS)


def by_replica(names: Iterable[str]) -> str:
    """Counts by pod and cumulative bucket, of the pods `$R`."""
    once = f"max by ({by_labels('le', *_ENGINE, *PLACE)}) ({placed(_of_pods(names))})"
    return f"sum by ({by_labels('le', *PLACE)}) ({once})"


def mean_by_replica(total_us: str, count: str) -> str:
    """Mean seconds, and requests, by pod, of the pods `$R`; `le` says which."""
    spent, ended = (
        f"sum by ({by_labels(*PLACE)}) (max by ({by_labels('model', 'version', *PLACE)}) ({placed(_of_pods([name]))}))"
        for name in (total_us, count)
    )
    parts = ((f"{spent} / {ended} / 1e6", "mean"), (ended, "requests"))
    return " or ".join(f'label_replace({vector},"le","{name}","","")' for vector, name in parts)


def replicas(by: str, names: Iterable[str]) -> str:
    """Pods that report, by name of the service; and those of each owner, which may serve several names."""
    vector = any_of(names)
    pods = f"max by ({by_labels(*PLACE, SPLIT[1])}) ({placed(vector)})"
    return f"count by ({by_labels(by, *SPLIT)}) ({by_pod(by, vector)}) or count by ({by_labels(*SPLIT)}) ({pods})"


def spread(by: str, histograms: Iterable[str], of: str = "") -> dict[str, str]:
    """p99 and buckets from one histogram: the first of these names on each server."""
    buckets = rate(f"le, {by}", [f"{name}_bucket" for name in histograms])
    return {f"{of}p99_s": f"histogram_quantile(0.99, {buckets})", f"{of}within": buckets}


def latency(by: str, histograms: Iterable[str]) -> dict[str, str]:
    """p99, buckets and number of requests from one histogram."""
    names = tuple(histograms)
    requests = total(by, any_of([f"{name}_count" for name in names], "increase({}[$W])"))
    return {**spread(by, names), "requests": requests}


WAITED = "({0} and min_over_time({0}[$W]) > 0 and {0} offset $W)"
"""A gauge where it was above 0 for the whole window."""


def engines(
    by: str, waiting: Iterable[str], running: Iterable[str], finished: Iterable[str], most: str = "max_over_time"
) -> dict[str, str]:
    """Evidence of an engine with requests that wait for nothing: clients that left may stay in the gauge for good."""

    def each(vector: str) -> str:
        return f"max by ({by_labels(by, *_ENGINE, *PLACE, SPLIT[1])}) ({placed(vector)})"

    return {
        "waited": each(any_of(waiting, WAITED)),
        "ran": each(any_of(running, f"{most}({{}}[$W])")),
        "finished": f"max by ({by_labels(by, *PLACE)}) ({placed(any_of(finished, 'increase({}[$W])'))})",
    }


def renamed(by: str, names: Iterable[str], form: str, matchers: str = "$M") -> str:
    """The sum over pods. The first name on each pod counts, because the labels of the names differ."""
    pods = " or ".join(by_pod(by, any_of([name], form, matchers)) for name in names)
    return f"sum by ({by_labels(by, PLACE[0])}) ({pods})"


def pool(by: str, vector: str) -> str:
    """A gauge of a whole pool, repeated by each of its gateways."""
    return f"max by ({by_labels(by, PLACE[0])}) ({placed(vector)})"


def mesh(by: str, histogram: str, requests: str, *split: tuple[str, str, str]) -> dict[str, str]:
    """Latency (from milliseconds) and rate by proxies. Their labels are the operator's: all but jobs count.

    `split`: a label of `SPLIT`, its source label, and the pattern of its value.
    """
    copies = "job, endpoint, container, prometheus, prometheus_replica, replica, __replica__"

    def total(vector: str, more: str = "") -> str:
        for to, label, shape in split:
            vector = f'label_replace({vector},"{to}","$$1","{label}","{shape}")'
        return f"sum by ({more}{by_labels(by, *SPLIT)}) (max without ({copies}) ({vector}))"

    buckets = total(f"rate({histogram}_bucket{{$M}}[$W])", "le, ")
    return {
        "p99_s": f"histogram_quantile(0.99, {buckets}) * 0.001",
        "within": buckets,
        "requests": total(f"increase({histogram}_count{{$M}}[$W])"),
        "rate_rps": total(f"rate({requests}{{$M}}[$W])"),
    }
