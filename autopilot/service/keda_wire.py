"""Messages of KEDA's external scaler, as in externalscaler.proto. They are built at the import of the module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"

FIELDS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "ScaledObjectRef": {"name": (1, "string"), "namespace": (2, "string"), "scalerMetadata": (3, "map")},
    "IsActiveResponse": {"result": (1, "bool")},
    "GetMetricSpecResponse": {"metricSpecs": (1, "repeated MetricSpec")},
    "MetricSpec": {"metricName": (1, "string"), "targetSize": (2, "int64"), "targetSizeFloat": (3, "double")},
    "GetMetricsRequest": {"scaledObjectRef": (1, "ScaledObjectRef"), "metricName": (2, "string")},
    "GetMetricsResponse": {"metricValues": (1, "repeated MetricValue")},
    "MetricValue": {"metricName": (1, "string"), "metricValue": (2, "int64"), "metricValueFloat": (3, "double")},
}
"""Number and type of each field; `map` is from text to text."""

METHODS: Mapping[str, tuple[str, str]] = {
    "IsActive": ("ScaledObjectRef", "IsActiveResponse"),
    "StreamIsActive": ("ScaledObjectRef", "IsActiveResponse"),
    "GetMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse"),
    "GetMetrics": ("GetMetricsRequest", "GetMetricsResponse"),
}
"""Request and response of each method; the one that begins with Stream answers with a stream."""

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _FIELD.TYPE_STRING,
    "bool": _FIELD.TYPE_BOOL,
    "int64": _FIELD.TYPE_INT64,
    "double": _FIELD.TYPE_DOUBLE,
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="gpu_autopilot/externalscaler.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated, _, last = kind.rpartition(" ")
            row = message.field.add(name=field, number=number)
            row.label = _FIELD.LABEL_REPEATED if repeated or kind == "map" else _FIELD.LABEL_OPTIONAL
            row.type = _TYPES.get(last, _FIELD.TYPE_MESSAGE)
            if kind == "map":
                entry = message.nested_type.add(name="ScalerMetadataEntry")
                entry.options.map_entry = True
                for at, part in enumerate(("key", "value"), start=1):
                    entry.field.add(name=part, number=at, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
                row.type_name = f".{PACKAGE}.{name}.{entry.name}"
            elif last not in _TYPES:
                row.type_name = f".{PACKAGE}.{last}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in FIELDS}


MESSAGES: Mapping[str, Any] = _messages()
"""The class of each message by its name."""
