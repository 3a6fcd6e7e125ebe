"""The custom resource definitions of Kueue: group, names, versions, columns and schemas."""

from __future__ import annotations

from typing import Any

from apiserver.kueue.names import GROUP
from apiserver.kueue.schemas import (
    IMMUTABLE,
    LABEL,
    SUBDOMAIN,
    anything,
    conditions,
    integer,
    many,
    mapping,
    moment,
    of,
    quantity,
    reference,
    rule,
    selector,
    text,
)

Obj = dict[str, Any]
DEPRECATED = "This version is deprecated. Use v1beta2 instead."


def _fair_sharing() -> Obj:
    return of(weight=quantity(default=1))


def _share() -> Obj:
    return of(("weightedShare",), weightedShare={"type": "integer", "format": "int64"})


def _resource_groups() -> Obj:
    resource = of(
        ("name", "nominalQuota"),
        borrowingLimit=quantity(),
        lendingLimit=quantity(),
        name=text(),
        nominalQuota=quantity(),
    )
    flavor = of(("name", "resources"), name=reference(), resources=many(resource, "name", minItems=1, maxItems=64))
    same_number = rule(
        "self.flavors.all(x, size(x.resources) == size(self.coveredResources))",
        "flavors must have the same number of resources as the coveredResources",
    )
    group = of(
        ("coveredResources", "flavors"),
        rules=(same_number,),
        coveredResources=many(text(), minItems=1, maxItems=64),
        flavors=many(flavor, "name", minItems=1, maxItems=64),
    )
    return many(group, maxItems=16)


def _stop_policy() -> Obj:
    return text(default="None", enum=["None", "Hold", "HoldAndDrain"])


def _usage(*, borrowed: bool) -> Obj:
    row = of(("name",), name=text(), total=quantity(), borrowed=quantity())
    if not borrowed:
        del row["properties"]["borrowed"]
    return many(
        of(("name", "resources"), name=reference(), resources=many(row, "name", maxItems=64)), "name", maxItems=64
    )


def _counts() -> Obj:
    return {name: integer() for name in ("admittedWorkloads", "pendingWorkloads", "reservingWorkloads")}


def _cluster_queue() -> Obj:
    never = rule(
        "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort) && "
        "self.borrowWithinCohort.policy != 'Never')",
        "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never",
    )
    preference = rule(
        "!has(self.preference) || (self.whenCanBorrow == 'TryNextFlavor' && self.whenCanPreempt == 'TryNextFlavor')",
        "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor",
    )
    no_borrowing = rule(
        "has(self.cohortName) || !has(self.resourceGroups) || self.resourceGroups.all(rg, rg.flavors.all(f, "
        "f.resources.all(r, !has(r.borrowingLimit))))",
        "borrowingLimit must be nil when cohort is empty",
    )
    check = of(("name",), name=text(minLength=1, maxLength=316), onFlavors=many(reference(), maxItems=64))
    spec = of(
        rules=(no_borrowing,),
        admissionChecksStrategy=of(("admissionChecks",), admissionChecks=many(check, "name", minItems=1, maxItems=64)),
        admissionScope=of(
            ("admissionMode",),
            admissionMode=text(enum=["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing"]),
        ),
        cohortName=reference(),
        fairSharing=_fair_sharing(),
        flavorFungibility=of(
            rules=(preference,),
            default={},
            preference=text(enum=["BorrowingOverPreemption", "PreemptionOverBorrowing"]),
            whenCanBorrow=text(default="MayStopSearch", enum=["MayStopSearch", "TryNextFlavor"]),
            whenCanPreempt=text(default="TryNextFlavor", enum=["MayStopSearch", "TryNextFlavor"]),
        ),
        namespaceSelector=selector(),
        preemption=of(
            rules=(never,),
            default={},
            borrowWithinCohort=of(
                default={},
                maxPriorityThreshold=integer(),
                policy=text(default="Never", enum=["Never", "LowerPriority"]),
            ),
            reclaimWithinCohort=text(default="Never", enum=["Never", "LowerPriority", "Any"]),
            withinClusterQueue=text(default="Never", enum=["Never", "LowerPriority", "LowerOrNewerEqualPriority"]),
        ),
        queueingStrategy=text(default="BestEffortFIFO", enum=["StrictFIFO", "BestEffortFIFO"]),
        resourceGroups=_resource_groups(),
        stopPolicy=_stop_policy(),
    )
    status = of(
        conditions=conditions(),
        fairSharing=_share(),
        flavorsReservation=_usage(borrowed=True),
        flavorsUsage=_usage(borrowed=True),
        **_counts(),
    )
    return of(spec=spec, status=status)


def _local_queue() -> Obj:
    cluster_queue = reference() | {"x-kubernetes-validations": [IMMUTABLE]}
    status = of(
        conditions=conditions(),
        fairSharing=_share(),
        flavorsReservation=_usage(borrowed=False),
        flavorsUsage=_usage(borrowed=False),
        **_counts(),
    )
    return of(
        spec=of(clusterQueue=cluster_queue, fairSharing=_fair_sharing(), stopPolicy=_stop_policy()), status=status
    )


def _toleration() -> Obj:
    return of(
        effect=text(),
        key=text(),
        operator=text(),
        tolerationSeconds={"type": "integer", "format": "int64"},
        value=text(),
    )


def _flavor() -> Obj:
    taint = of(("effect", "key"), effect=text(), key=text(), timeAdded=moment(), value=text())
    needs_label = rule(
        "!has(self.topologyName) || (has(self.nodeLabels) && self.nodeLabels.size() >= 1)",
        "at least one nodeLabel is required when topology is set",
    )
    return of(
        spec=of(
            rules=(needs_label,),
            nodeLabels=mapping(text()) | {"maxProperties": 8},
            nodeTaints=many(taint, maxItems=8),
            tolerations=many(_toleration(), maxItems=8),
            topologyName=reference(),
        )
    )


def _check() -> Obj:
    name = text(minLength=1, maxLength=253) | {"x-kubernetes-validations": [IMMUTABLE]}
    parameters = of(
        ("apiGroup", "kind", "name"),
        apiGroup=text(minLength=1, maxLength=253, pattern=SUBDOMAIN),
        kind=text(minLength=1, maxLength=63),
        name=text(minLength=1, maxLength=63, pattern=LABEL),
    )
    return of(
        spec=of(("controllerName",), controllerName=name, parameters=parameters), status=of(conditions=conditions())
    )


def _topology() -> Obj:
    level = of(("nodeLabel",), nodeLabel=text(minLength=1, maxLength=316))
    levels = many(level, minItems=1, maxItems=16) | {"x-kubernetes-validations": [IMMUTABLE]}
    return of(("spec",), spec=of(("levels",), levels=levels))


def _pod_set() -> Obj:
    topology = of(
        podIndexLabel=text(maxLength=317),
        podSetGroupName=text(maxLength=256),
        podSetSliceRequiredTopology=text(maxLength=63),
        podSetSliceSize=integer(),
        preferred=text(maxLength=63),
        required=text(maxLength=63),
        subGroupCount=integer(),
        subGroupIndexLabel=text(maxLength=317),
        unconstrained={"type": "boolean"},
    )
    return of(
        ("template",),
        count=integer(default=1, minimum=0),
        minCount=integer(minimum=1),
        name=text(default="main", maxLength=63, pattern=LABEL),
        template=of(
            metadata=of(
                annotations=mapping(text()),
                finalizers=many(text()),
                labels=mapping(text()),
                name=text(),
                namespace=text(),
            ),
            spec=anything(),
        ),
        topologyRequest=topology,
    )


def _workload_status() -> Obj:
    update = of(
        ("name",),
        annotations=mapping(text()),
        labels=mapping(text()),
        name=text(maxLength=63, pattern=LABEL),
        nodeSelector=mapping(text()),
        tolerations=many(_toleration(), maxItems=8),
    )
    check = of(
        ("lastTransitionTime", "message", "name", "state"),
        lastTransitionTime=moment(),
        message=text(maxLength=32768),
        name=text(minLength=1, maxLength=316),
        podSetUpdates=many(update, maxItems=18),
        requeueAfterSeconds=integer(minimum=0),
        retryCount=integer(minimum=0),
        state=text(enum=["Pending", "Ready", "Retry", "Rejected"]),
    )
    assignment = of(
        count=integer(minimum=0),
        delayedTopologyRequest=text(enum=["Pending", "Ready"]),
        flavors=mapping(reference()),
        name=text(default="main", maxLength=63, pattern=LABEL),
        resourceUsage=mapping(quantity()),
        topologyAssignment=of(("levels", "slices"), levels=many(text(maxLength=317)), slices=many(anything())),
    )
    eviction = of(
        ("count", "reason", "underlyingCause"),
        count=integer(minimum=0),
        reason=text(maxLength=316),
        underlyingCause=text(maxLength=316),
    )
    name = text(maxLength=63, pattern=LABEL)
    return of(
        accumulatedPastExecutionTimeSeconds=integer(),
        admission=of(
            clusterQueue=reference(),
            podSetAssignments=many(assignment, "name", maxItems=18),
        ),
        admissionChecks=many(check, "name", maxItems=8),
        clusterName=text(maxLength=256),
        conditions=conditions(),
        nominatedClusterNames=many(text(maxLength=256), maxItems=20),
        reclaimablePods=many(of(("count", "name"), count=integer(minimum=0), name=name), "name", maxItems=18),
        requeueState=of(count=integer(minimum=0), requeueAt=moment()),
        resourceRequests=many(of(("name",), name=name, resources=mapping(quantity())), "name", maxItems=18),
        schedulingStats=of(evictions=many(eviction, "reason", "underlyingCause", maxItems=256)),
        unhealthyNodes=many(of(("name",), name=text(maxLength=63)), "name", maxItems=8),
    )


def _workload() -> Obj:
    has_priority = rule(
        "!has(self.priorityClassRef) || has(self.priority)", "priority should not be nil when priorityClassRef is set"
    )
    spec = of(
        rules=(has_priority,),
        active={"type": "boolean", "default": True},
        maximumExecutionTimeSeconds=integer(minimum=1),
        podSets=many(_pod_set(), "name", minItems=1, maxItems=18),
        priority=integer(),
        priorityClassRef=of(
            ("group", "kind", "name"),
            group=text(enum=["kueue.x-k8s.io", "scheduling.k8s.io"]),
            kind=text(enum=["WorkloadPriorityClass", "PriorityClass"]),
            name=text(minLength=1, maxLength=253, pattern=SUBDOMAIN),
        ),
        queueName=reference(),
    )
    return of(spec=spec, status=_workload_status())


def _column(name: str, path: str, description: str, kind: str = "string", priority: int = 0) -> Obj:
    found: Obj = {"name": name, "type": kind, "description": description, "jsonPath": path}
    return found | {"priority": priority} if priority else found


QUEUE_COLUMNS = (
    _column("Cohort", ".spec.cohortName", "Cohort that this ClusterQueue belongs to"),
    _column("Strategy", ".spec.queueingStrategy", "The queueing strategy used to prioritize workloads", priority=1),
    _column("Pending Workloads", ".status.pendingWorkloads", "Number of pending workloads", "integer"),
    _column(
        "Admitted Workloads",
        ".status.admittedWorkloads",
        "Number of admitted workloads that haven't finished yet",
        "integer",
        1,
    ),
)
LOCAL_QUEUE_COLUMNS = (
    _column("ClusterQueue", ".spec.clusterQueue", "Backing ClusterQueue"),
    _column("Pending Workloads", ".status.pendingWorkloads", "Number of pending workloads", "integer"),
    _column(
        "Admitted Workloads",
        ".status.admittedWorkloads",
        "Number of admitted workloads that haven't finished yet.",
        "integer",
    ),
)
WORKLOAD_COLUMNS = (
    _column("Queue", ".spec.queueName", "Name of the queue this workload was submitted to"),
    _column(
        "Reserved in",
        ".status.admission.clusterQueue",
        "Name of the ClusterQueue where the workload is reserving quota",
    ),
    _column("Admitted", ".status.conditions[?(@.type=='Admitted')].status", "Admission status"),
    _column("Finished", ".status.conditions[?(@.type=='Finished')].status", "Workload finished"),
    _column("Age", ".metadata.creationTimestamp", "Time this workload was created", "date"),
)


def _crd(
    plural: str,
    kind: str,
    short_names: tuple[str, ...],
    schema: Obj,
    columns: tuple[Obj, ...] = (),
    *,
    namespaced: bool = False,
    status: bool = False,
) -> Obj:
    root = schema | {
        "properties": {"apiVersion": text(), "kind": text(), "metadata": {"type": "object"}, **schema["properties"]}
    }

    def version(name: str, *, storage: bool) -> Obj:
        shown = root if storage else anything()
        found: Obj = {"name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": shown}}
        if status:
            found["subresources"] = {"status": {}}
        if columns:
            found["additionalPrinterColumns"] = list(columns)
        return found if storage else found | {"deprecated": True, "deprecationWarning": DEPRECATED}

    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "plural": plural,
                "singular": kind.lower(),
                "kind": kind,
                "listKind": f"{kind}List",
                "shortNames": list(short_names),
            },
            "scope": "Namespaced" if namespaced else "Cluster",
            "conversion": {"strategy": "Webhook"},
            "versions": [version("v1beta1", storage=False), version("v1beta2", storage=True)],
        },
    }


def definitions() -> list[Obj]:
    """All CustomResourceDefinitions, in the order of discovery."""
    value = integer()
    return [
        _crd("resourceflavors", "ResourceFlavor", ("flavor", "flavors", "rf"), _flavor()),
        _crd("topologies", "Topology", ("topo",), _topology()),
        _crd("admissionchecks", "AdmissionCheck", ("ac",), _check(), status=True),
        _crd(
            "cohorts",
            "Cohort",
            ("co",),
            of(
                spec=of(fairSharing=_fair_sharing(), parentName=reference(), resourceGroups=_resource_groups()),
                status=of(fairSharing=_share()),
            ),
            status=True,
        ),
        _crd(
            "localqueues",
            "LocalQueue",
            ("queue", "queues", "lq"),
            _local_queue(),
            LOCAL_QUEUE_COLUMNS,
            namespaced=True,
            status=True,
        ),
        _crd("multikueueconfigs", "MultiKueueConfig", ("mkconf",), of(spec=anything())),
        _crd("provisioningrequestconfigs", "ProvisioningRequestConfig", ("prc",), of(spec=anything())),
        _crd(
            "workloadpriorityclasses",
            "WorkloadPriorityClass",
            ("wpc",),
            of(("value",), description=text(maxLength=2048), value=value),
        ),
        _crd(
            "workloads",
            "Workload",
            ("kwl", "kueueworkload", "kueueworkloads"),
            _workload(),
            WORKLOAD_COLUMNS,
            namespaced=True,
            status=True,
        ),
        _crd("clusterqueues", "ClusterQueue", ("cq",), _cluster_queue(), QUEUE_COLUMNS, status=True),
        _crd("multikueueclusters", "MultiKueueCluster", ("mkc",), of(spec=anything(), status=anything()), status=True),
    ]
