"""Telemetry: is every DCGM field there, fresh, for every GPU, and joined with pods?"""

from __future__ import annotations

from collections.abc import Iterator

from autopilot.core.hardware import dcgm
from autopilot.readiness.line import Asked, Line, Status, Telemetry, some

COUNTERS = "use deploy/dcgm-exporter-counters.csv as the counters of dcgm-exporter"
BACK = "5m"
STALE_S = 120.0
"""The default interval of dcgm-exporter (30 s) plus a scrape interval of up to 60 s is 90 s; twice that is stale."""
SKEW_S = 5.0
MEMORY_USED = 252
"""The DCGM field of every GPU and every MIG instance."""


def telemetry(asked: Asked) -> Iterator[Line]:
    """Everything about telemetry; one line without a Prometheus."""
    source = asked.telemetry
    if source is None:
        fix = "set collectors.prometheus.url, or give --prometheus URL"
        text = "no Prometheus is configured: GPU use is unknown, and decisions rest on requests alone"
        yield Line("telemetry", "Prometheus", Status.WARNING, text, fix)
        return
    try:
        skew_s = source.query("time()")[0].value - asked.now_s()
        names = {
            sample.labels.get("__name__", "")
            for sample in source.query(f"count by (__name__) (last_over_time({_any()}[{BACK}]))")
        }
    except (OSError, ValueError, LookupError) as error:
        fix = "check the address, the token and the network policy"
        yield Line("telemetry", "Prometheus", Status.FAILED, f"{source.url} cannot be queried: {error}", fix)
        return
    if abs(skew_s) > SKEW_S:
        text = f"the clock of Prometheus differs from this machine's by {skew_s:+.0f} s"
        yield Line("clock", "Prometheus", Status.WARNING, text, "synchronise both clocks (NTP)")
    yield from _fields(names)
    if names:
        yield from _series(source, names)


def _any() -> str:
    names = "|".join(sorted(name for field in dcgm.FIELDS.values() for name in field.names))
    return f'{{__name__=~"{names}"}}'


def _fields(names: set[str]) -> Iterator[Line]:
    """One line for the activity and one for the other fields."""
    if not names:
        fix = "install dcgm-exporter, and let this Prometheus scrape it"
        yield Line("telemetry", "DCGM", Status.FAILED, f"no DCGM series in the last {BACK}", fix)
        return
    there = {number for number, field in dcgm.FIELDS.items() if names & set(field.names)}
    best = next((dcgm.FIELDS[number].names[0] for number, _ in dcgm.ACTIVITY if number in there), "")
    if best == dcgm.FIELDS[dcgm.ACTIVITY[0][0]].names[0]:
        yield Line("telemetry", "SM activity", Status.OK, f"measured ({best})")
    else:
        text = f"SM activity is not measured; {best or 'nothing'} stands in for it, which says less"
        yield Line("telemetry", "SM activity", Status.WARNING if best else Status.FAILED, text, COUNTERS)
    missing = [field.names[0] for number, field in sorted(dcgm.FIELDS.items()) if number not in there]
    if missing:
        yield Line("telemetry", "fields", Status.WARNING, f"missing: {some(missing, 8)}", COUNTERS)
    else:
        yield Line("telemetry", "fields", Status.OK, f"all {len(dcgm.FIELDS)} DCGM fields are there")


def _series(source: Telemetry, names: set[str]) -> Iterator[Line]:
    """Age, number of GPUs and owners, by one common field of all GPUs."""
    common = next((name for name in dcgm.FIELDS[MEMORY_USED].names if name in names), min(names))
    try:
        age_s = source.query(f"max(time() - timestamp({common}))")
        gpus = source.query(f'count(count by (UUID) ({common}{{UUID!=""}}))')
        owned = source.query(f'count({common}{{exported_pod!=""}} or {common}{{pod!=""}})')
    except (OSError, ValueError) as error:
        yield Line("telemetry", "series", Status.UNKNOWN, f"cannot be queried: {error}", "try again")
        return
    if age_s and age_s[0].value > STALE_S:
        fix = "look at the targets of dcgm-exporter in Prometheus"
        yield Line("telemetry", "age", Status.WARNING, f"the oldest sample is {age_s[0].value:.0f} s old", fix)
    elif age_s:
        yield Line("telemetry", "age", Status.OK, f"the oldest sample is {age_s[0].value:.0f} s old")
    if gpus:
        yield Line("telemetry", "GPUs", Status.OK, f"{int(gpus[0].value):,} GPUs report")
    else:
        text = "the series have no label UUID: GPUs cannot be told apart"
        yield Line("telemetry", "GPUs", Status.FAILED, text, "use dcgm-exporter 3 or later")
    if owned and owned[0].value > 0:
        yield Line("telemetry", "pods", Status.OK, f"{int(owned[0].value):,} series name the pod that uses the GPU")
    else:
        fix = "set DCGM_EXPORTER_KUBERNETES=true, and mount the kubelet's pod-resources socket"
        yield Line("telemetry", "pods", Status.WARNING, "no series names a pod: use is not joined with work", fix)
