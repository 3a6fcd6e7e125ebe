"""Queries for GPU telemetry in Prometheus, and the decoding of bulk answers.

Every query is built from one `Site`: the metric names, label style and MIG use of this Prometheus. All aggregate to one
label (two and the profile for MIG instances), because an answer of 100,000 series costs its labels. Range functions see
raw samples, so no look-back repeats a sample; a GPU whose pod changed has two series, hence the mean is the sum over
both divided by their count, never a mean of means. The edge of a range is closed in Prometheus 2 and open in 3: no
result depends on one sample more or less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from autopilot.contract.documents import decoded
from autopilot.contract.notes import shown
from autopilot.core.hardware import dcgm
from autopilot.core.model.errors import AutopilotError
from collectors.entities import NODE_LABELS

INSTANCE_LABELS = ("GPU_I_ID", "GPU_I_PROFILE", "modelName")
_SAME_EXPORTER = ("job", "instance", "hpc_job")  # series that differ in these have the same samples


@dataclass(frozen=True, slots=True)
class Style:
    """Labels that name the container of a sample."""

    pod: str
    namespace: str
    container: str


EXPORTED = Style("exported_pod", "exported_namespace", "exported_container")
"""Prometheus renames the labels of the exporter where the target has labels of these names."""
PLAIN = Style("pod", "namespace", "container")
STYLES = (EXPORTED, Style("pod_name", "pod_namespace", "container_name"), PLAIN)
"""For each series the first whose pod is there counts. The second is that of exporter 1.x."""


@dataclass(frozen=True, slots=True)
class Site:
    """The detected GPU metrics of one Prometheus. Every selector is built from it."""

    names: frozenset[str]  # metric names with samples in the longest window
    uuid_labels: tuple[str, ...] = ("UUID",)
    styles: tuple[Style, ...] = ()  # the styles in use
    mig: bool = False
    vgpu: bool = False  # samples are copied to each pod that shares a GPU
    jobs: tuple[str, ...] = ()
    matchers: tuple[str, ...] = ()  # of the operator, e.g. cluster="a"

    def names_of(self, field: dcgm.Field) -> tuple[str, ...]:
        """Names under which this site has the field; during an upgrade the old and the new one."""
        return tuple(name for name in field.names if name in self.names)

    def lacks(self, field: dcgm.Field) -> bool:
        """True when no series of the field exists."""
        return not self.names_of(field)


@dataclass(frozen=True, slots=True)
class Selection:
    """The series of a field that count.

    `instances`: those of MIG instances, else those of boards. `shared`, where pods have copies: those with a pod, those
    without (the device's own), or None for all.
    """

    instances: bool = False
    shared: bool | None = None


def matcher(label: str, operator: str, value: str) -> str:
    """One label matcher with its value escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{label}{operator}"{escaped}"'


def any_of(names: Sequence[str], matchers: Sequence[str] = ()) -> str:
    """A selector of every series with one of these names."""
    return "{" + ",".join((matcher("__name__", "=~", "|".join(sorted(names))), *matchers)) + "}"


def series(site: Site, name: str, field: dcgm.Field, selection: Selection) -> str:
    """Selector of one metric.

    Board-level fields of instances repeat the board's, so all are used, except for GPU_UTIL: its value for an instance
    does not measure work.
    """
    parts = list(site.matchers)
    if selection.instances:
        parts.append(matcher("GPU_I_ID", "!=", ""))
    elif site.mig and (field.level is not dcgm.Level.BOARD or field.signal == dcgm.SIGNALS[0]):
        parts.append(matcher("GPU_I_ID", "=", ""))
    if site.vgpu and selection.shared is not None:
        pod = (*site.styles, PLAIN)[0].pod
        parts.append(matcher(pod, "!=" if selection.shared else "=", ""))
        if not selection.shared:
            parts.append(matcher("vgpu", "=", ""))  # targets of another style have copies too
    return f"{name}{{{','.join(parts)}}}"


def _by(site: Site, selection: Selection) -> str:
    return ", ".join((*site.uuid_labels, *INSTANCE_LABELS) if selection.instances else site.uuid_labels)


def mean_query(site: Site, field: dcgm.Field, name: str, window_s: float, selection: Selection) -> str:
    """Mean by entity: of all samples, or of the highest series where pods have copies."""
    source = f"{series(site, name, field, selection)}[{window_s:.0f}s]"
    by = _by(site, selection)
    if selection.shared:
        return f"max by ({by}) (avg_over_time({source}))"
    return f"sum by ({by}) (sum_over_time({source})) / sum by ({by}) (count_over_time({source}))"


def max_query(site: Site, field: dcgm.Field, name: str, window_s: float, selection: Selection) -> str:
    """Maximum by entity."""
    source = f"{series(site, name, field, selection)}[{window_s:.0f}s]"
    return f"max by ({_by(site, selection)}) (max_over_time({source}))"


def count_query(site: Site, field: dcgm.Field, name: str, window_s: float, selection: Selection) -> str:
    """Samples by entity: summed over the pods that held it, not over exporters that both report it."""
    source = f"{series(site, name, field, selection)}[{window_s:.0f}s]"
    by = _by(site, selection)
    if selection.shared:
        return f"max by ({by}) (count_over_time({source}))"
    return f"max by ({by}) (sum by ({by}, {', '.join(_SAME_EXPORTER)}) (count_over_time({source})))"


def time_query(site: Site, field: dcgm.Field, name: str, selection: Selection) -> str:
    """Time of the newest sample by entity, for series that are not stale."""
    return f"max by ({_by(site, selection)}) (timestamp({series(site, name, field, selection)}))"


def last_query(site: Site, field: dcgm.Field, name: str, selection: Selection) -> str:
    """Newest value by entity, for series that are not stale."""
    return f"max by ({_by(site, selection)}) ({series(site, name, field, selection)})"


def codes_query(site: Site, name: str) -> str:
    """The newest values of a code, each as a label `code`, by entity: of two different ones neither is lost."""
    labels = ", ".join((*site.uuid_labels, "GPU_I_ID"))
    return f'count_values by ({labels}) ("code", {name}{{{",".join(site.matchers)}}})'


def counts_query(site: Site, name: str) -> str:
    """The newest count of each code by entity, with its label `xid`."""
    labels = ", ".join((*site.uuid_labels, "GPU_I_ID", "xid"))
    return f"max by ({labels}) ({name}{{{','.join((*site.matchers, matcher('xid', '!=', '')))}}})"


def owner_query(site: Site, name: str, style: Style) -> str:
    """Latest value by entity and container, of the series of one style. It looks 90 s back, so a deleted pod disappears
    soon.

    If the target itself has a plain label `pod`, that names the exporter's pod. Prometheus renames only labels that the
    target has too.
    """
    owner = (style.namespace, style.pod, style.container)
    also = (PLAIN.namespace, PLAIN.container) if style == EXPORTED else ()
    labels = ", ".join((*site.uuid_labels, "GPU_I_ID", *owner, *also))
    before = [matcher(each.pod, "=", "") for each in site.styles[: site.styles.index(style)]]
    parts = ",".join((*site.matchers, *before, matcher(style.pod, "!=", "")))
    own = f" unless on (job, instance, namespace, pod) up{{{','.join(site.matchers)}}}" if style == PLAIN else ""
    return f"max by ({labels}) (last_over_time({name}{{{parts}}}[90s]){own})"


def owner_of(labels: Labels, style: Style) -> tuple[str, str, str]:
    """Namespace, pod and container in an answer to `owner_query`."""
    if style == EXPORTED:
        if labels.exported_namespace:
            return labels.exported_namespace, labels.exported_pod, labels.exported_container
        return labels.namespace, labels.exported_pod, labels.exported_container or labels.container
    return getattr(labels, style.namespace), getattr(labels, style.pod), getattr(labels, style.container)


def place_query(site: Site, name: str) -> str:
    """Latest value by entity and node; 90 s back, as for owners."""
    labels = ", ".join((*site.uuid_labels, *INSTANCE_LABELS, *NODE_LABELS))
    return f"max by ({labels}) (last_over_time({name}{{{','.join(site.matchers)}}}[90s]))"


def host_of(labels: Labels) -> str:
    """The node that the labels of a series name; "" for none. The scraped address is only a name without its port."""
    return labels.node or labels.hostname or labels.Hostname or labels.instance.partition(":")[0]


def down_query(site: Site) -> str:
    """Targets of the GPU jobs whose last scrape failed."""
    jobs = "|".join(_regex_escape(job) for job in site.jobs)
    return f"up{{{','.join((*site.matchers, matcher('job', '=~', jobs)))}}} == 0"


def _regex_escape(text: str) -> str:
    return "".join("\\" + c if c in r"\.+*?()|[]{}^$" else c for c in text)


def operator_matchers(given: Mapping[str, str]) -> tuple[str, ...]:
    """Equality matchers of the operator, e.g. `{"cluster": "a"}`."""
    return tuple(matcher(label, "=", value) for label, value in sorted(given.items()))


# --- answers -----------------------------------------------------------------------------------


class Labels(msgspec.Struct, gc=False):
    """The labels that a query may return; others are skipped."""

    UUID: str = ""
    uuid: str = ""
    GPU_I_ID: str = ""
    GPU_I_PROFILE: str = ""
    modelName: str = ""  # noqa: N815 - a label's name
    exported_pod: str = ""
    exported_namespace: str = ""
    pod: str = ""
    namespace: str = ""
    node: str = ""
    hostname: str = ""
    Hostname: str = ""
    instance: str = ""
    pod_name: str = ""
    pod_namespace: str = ""
    container: str = ""
    exported_container: str = ""
    container_name: str = ""
    code: str = ""  # of `codes_query`
    xid: str = ""  # of `counts_query`


class Row(msgspec.Struct, gc=False):
    """One series of an instant vector."""

    metric: Labels
    value: tuple[float, str]


class _Data(msgspec.Struct):
    result: list[Row] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""
    warnings: list[str] = []


class AnswerError(AutopilotError):
    """A Prometheus answered with an error, or with an invalid response."""


class _RawData(msgspec.Struct):
    result: list[msgspec.Raw] = []


class _RawAnswer(msgspec.Struct):
    status: str
    data: _RawData = msgspec.field(default_factory=_RawData)
    error: str = ""
    warnings: list[str] = []


_INFO = "PromQL info: "
"""How a note on the query begins that says nothing of the answer; new versions list such notes apart."""
_ABOUT_QUERY = (_INFO, "PromQL warning: ")
"""How warnings begin that are about the query or single series. All others say that a part of the data is missing."""
_DECODER = msgspec.json.Decoder(_Answer)
_RAW = msgspec.json.Decoder(_RawAnswer)
_ROW = msgspec.json.Decoder(Row)


class Answered(NamedTuple):
    """The series of an instant query. `partial` names a missing part of the data, "" for none."""

    rows: list[Row]
    warnings: list[str]
    partial: str = ""


def decode(body: bytes) -> Answered:
    """The answer to an instant query. An unreadable series is left out, and a warning names it.

    Raises `AnswerError`.
    """
    unread = ""
    try:
        answer = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer, unread = _one_by_one(body)
    if answer.status != "success":
        raise AnswerError(answer.error or f"status {answer.status!r}")
    rows = [row for row in answer.data.result if _is_number(row.value[1])]
    warnings = [text for text in answer.warnings if not text.startswith(_INFO)]
    lost = len(answer.data.result) - len(rows)
    odd = [unread] if unread else []
    odd += [f"{lost} series have no numeric value and do not count"] if lost else []
    return Answered(rows, [*warnings, *odd], _partial(answer.warnings))


class _Values(msgspec.Struct):
    status: str = "success"
    data: list[str] = []
    error: str = ""
    warnings: list[str] = []


def values_of(body: bytes) -> tuple[list[str], str]:
    """The values of a label, and the answer's warning of missing data ("" for none). Raises `AnswerError`."""
    try:
        answer = msgspec.json.decode(body, type=_Values)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerError(f"not a Prometheus response: {error}") from None
    if answer.status != "success":
        raise AnswerError(answer.error or f"status {answer.status!r}")
    return [each for each in answer.data if each], _partial(answer.warnings)


def _partial(warnings: Sequence[str]) -> str:
    return next((shown(text) for text in warnings if not text.startswith(_ABOUT_QUERY)), "")


def _one_by_one(body: bytes) -> tuple[_Answer, str]:
    """An answer with the readable series, and a text about the others. Raises `AnswerError`."""
    try:
        raw = decoded(_RAW.decode, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerError(f"not a Prometheus response: {error}") from None
    rows, lost = [], ""
    for each in raw.data.result:
        try:
            rows.append(_ROW.decode(each))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            lost = lost or f"series cannot be read, and do not count; the first: {error}"
    return _Answer(raw.status, _Data(rows), raw.error, raw.warnings), lost


class Series(msgspec.Struct, gc=False):
    """One series of an instant vector, with all its labels."""

    metric: dict[str, str]
    value: tuple[float, str]


_SERIES = msgspec.json.Decoder(Series)


def series_of(body: bytes) -> tuple[list[Series], str]:
    """The series of an instant query, and a text with those that do not count ("": all do).

    An unreadable series is left out, and so is one with two different values. Raises `AnswerError`, also for a partial
    answer: a sum over the rest looks whole.
    """
    try:
        answer = decoded(_RAW.decode, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerError(f"not a Prometheus response: {error}") from None
    if answer.status != "success":
        raise AnswerError(answer.error or f"status {answer.status!r}")
    if partial := _partial(answer.warnings):
        raise AnswerError(f"partial answer: {partial}")
    known: dict[tuple[tuple[str, str], ...], Series] = {}
    twice: dict[tuple[tuple[str, str], ...], str] = {}
    odd: list[str] = []
    for raw in answer.data.result:
        try:
            found = _SERIES.decode(raw)
            float(found.value[1])
        except (ValueError, RecursionError):  # of msgspec too
            odd.append(f"{_named(raw)} cannot be read")
            continue
        key = tuple(sorted(found.metric.items()))
        before = known.setdefault(key, found)
        if before.value[1] != found.value[1]:
            twice[key] = f"{_named(raw)} has another value before, {shown(before.value[1])}"
    odd += twice.values()
    rows = [each for key, each in known.items() if key not in twice]
    return rows, f"{len(odd)} series do not count; the first: {odd[0]}" if odd else ""


def _named(raw: msgspec.Raw) -> str:
    """A series and its value for a message."""
    try:
        found: Any = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return f"series {shown(bytes(raw).decode('utf-8', 'replace'))}"
    metric, value = found.get("metric"), found.get("value")
    value = value[1] if isinstance(value, list) and len(value) > 1 else value
    if not isinstance(metric, dict):
        return f"series {shown(metric)} with value {shown(value)}"
    labels = ", ".join(f"{shown(name)[1:-1]}={shown(text)}" for name, text in islice(metric.items(), 4))
    return f"series {{{labels}}} with value {shown(value)}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
