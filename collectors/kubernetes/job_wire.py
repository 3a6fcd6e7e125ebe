"""Jobs, reduced to the fields in use, and the writers of these fields."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from autopilot.contract.written import may_start
from collectors.kubernetes.wire import Condition, Count, Int64, Meta, Object, PodTemplate, Struct


class Written(Struct):
    """The fields written by one client, and the time. `fields_v1` is JSON that few objects need."""

    manager: str = ""
    subresource: str = ""
    time: str = ""
    fields_v1: msgspec.Raw = msgspec.Raw(b"{}")


class WrittenMeta(Meta):
    """Metadata with the managed fields: the last writer of each field."""

    managed_fields: list[Written] | None = None

    def written(self) -> dict[str, Any]:
        """It as the server sends it, for `autopilot.contract.written`."""
        found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, managed_fields=None))
        entries = ((each, msgspec.json.decode(each.fields_v1)) for each in self.managed_fields or ())
        fields = [
            {"manager": each.manager, "subresource": each.subresource, "time": each.time, "fieldsV1": inside}
            for each, inside in entries
        ]
        return found | {"managedFields": fields}

    def shrink(self) -> None:
        """As of every object; the texts of the fields would keep whole answers of the server in memory."""
        Meta.shrink(self)
        self.managed_fields = None


JOB_CONTROLLER = "kubernetes.io/job-controller"
"""`spec.managedBy` of a Job managed by Kubernetes itself; so is one without."""


class JobSpec(Struct):
    """The request of a Job."""

    parallelism: Count | None = None
    completions: Count | None = None
    completion_mode: str = ""
    suspend: bool | None = None
    active_deadline_seconds: Int64 | None = None
    managed_by: str | None = None
    template: PodTemplate = msgspec.field(default_factory=PodTemplate)


class JobStatus(Struct):
    """The state of a Job."""

    start_time: datetime | None = None
    completion_time: datetime | None = None
    conditions: list[Condition] | None = None
    succeeded: Count | None = None


class Job(Object):
    """A Job."""

    metadata: WrittenMeta
    spec: JobSpec = msgspec.field(default_factory=JobSpec)
    status: JobStatus = msgspec.field(default_factory=JobStatus)
    kept: str = ""  # not of the server: reason against the start of a suspended one, "" for none

    def shrink(self) -> None:
        """Also read the writer of its suspension now."""
        if self.spec.suspend:
            self.kept = may_start(self.metadata.written())
        self.metadata.shrink()
