"""The settings of the service as one tree. Every field has its meaning, its limits and its default here.

`settings_file.py` reads the tree from a YAML file and the environment; `docs/settings.md` is generated from it.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from autopilot.contract import node_conditions
from autopilot.service.leading.lease import Terms
from autopilot.service.settings_collectors import Collectors
from autopilot.service.settings_fields import (
    Address,
    InstructionKind,
    Listen,
    Origin,
    PauseSecret,
    ProbeImage,
    Seconds,
    Section,
    SecureAddress,
    SharingConfigs,
    fix_of,
)
from autopilot.service.settings_notices import Notices


class Role(StrEnum):
    """What the owner of a token may do; viewer, approver and admin each include the one before.

    `alerts` delivers alerts and nothing else; of the others only admin may deliver them too.
    """

    ALERTS = "alerts"
    VIEWER = "viewer"
    APPROVER = "approver"
    ADMIN = "admin"


class MutualTls(Section):
    """A listener on which a client proves by its certificate who it is."""

    listen: Listen = Field(description="address, host:port; port 0 takes a free one")
    certificate: Path = Field(description="certificate of this service with its chain (PEM)")
    key: Path = Field(description="private key of this certificate (PEM)")
    client_ca: Path = Field(description="authority that signs the certificates of clients (PEM); others are refused")


class Alerts(Section):
    """Alerts that Alertmanager or Grafana delivers, and their runbooks."""

    mtls: MutualTls | None = Field(
        None, description="takes deliveries by client certificate in place of a token, and nothing else"
    )
    alertmanager: Address | None = Field(
        None,
        description="address of the Alertmanager: its alerts are read, so that none is missed after the start and "
        "after a truncated delivery, and one that it has no more ends here",
    )
    receiver: str = Field(
        "", max_length=200, description='receiver of the Alertmanager that leads here; "": alerts of all receivers'
    )

    prometheus: Address | None = Field(
        None, description="address of the Prometheus that answers the queries of runbooks; null: collectors.prometheus"
    )
    token_file: Path | None = Field(None, description="file with a bearer token for it")
    runbooks: Path | None = Field(None, description="folder of runbooks; null: the shipped ones")
    body_kib: int = Field(1024, ge=1, le=4096, description="longest body of a delivery, in KiB")


class Token(Section):
    """One bearer token."""

    name: str = Field(min_length=1, max_length=64, description="who it belongs to; kept with every command")
    role: Role = Field(
        description="what it allows: viewer reads, approver also decides, admin also resumes; alerts only delivers "
        "alerts"
    )
    file: Path = Field(description="file with the token, readable by its owner only")


def _subjects(value: tuple[str, ...]) -> tuple[str, ...]:
    for each in value:
        kind, _, name = each.partition(":")
        if kind not in {"user", "group"} or not name:
            raise ValueError("write user:NAME or group:NAME")
    return value


Subjects = Annotated[tuple[str, ...], AfterValidator(_subjects)]


class ClusterRoles(Section):
    """Roles of people and accounts of the cluster, whose bearer tokens the API server reviews (TokenReview)."""

    viewers: Subjects = Field((), description="who may read: user:NAME or group:NAME")
    approvers: Subjects = Field((), description="who may also decide")
    admins: Subjects = Field((), description="who may also resume")
    alerts: Subjects = Field((), description="who delivers alerts, and does nothing else")
    audiences: tuple[str, ...] = Field(
        (), description="audiences that a token may be meant for; empty: that of the API server"
    )

    def of(self, role: Role) -> tuple[str, ...]:
        """Users and groups with exactly this role."""
        given = {Role.VIEWER: self.viewers, Role.APPROVER: self.approvers, Role.ADMIN: self.admins}
        return given.get(role, self.alerts)


class Oidc(Section):
    """Sign-in of people through an OpenID Connect provider, beside tokens."""

    name: str = Field("single sign-on", min_length=1, max_length=40, description="its name on the button of the page")
    issuer: SecureAddress = Field(description="the issuer, exactly as its discovery document and its ID tokens name it")
    client_id: str = Field(min_length=1, max_length=200, description="id of this service at the provider")
    secret_file: Path = Field(description="file with the client secret, readable by its owner only")
    scopes: tuple[str, ...] = Field(("openid", "profile", "email"), description="what the provider is asked for")
    name_claim: str = Field(
        "preferred_username", min_length=1, description="claim with the name of the person; without it the subject"
    )
    role_claim: str = Field(
        "groups", min_length=1, description="claim of the ID token with text or a list; realm_access.roles is a path"
    )
    roles: dict[str, Role] = Field(
        min_length=1, description="value of that claim -> viewer, approver or admin; a person has the highest"
    )
    session_s: Seconds = Field(4 * 3600.0, ge=60, le=12 * 3600, description="longest session; then sign in again")
    ca_file: Path | None = Field(None, description="authorities of the provider's certificate (PEM); null: public ones")

    @model_validator(mode="after")
    def _usable(self) -> Oidc:
        if "openid" not in self.scopes:
            raise ValueError("scopes: add openid; without it there is no ID token")
        if Role.ALERTS in self.roles.values():
            raise ValueError("roles: alerts is no role of a person; write viewer, approver or admin")
        return self


class Http(Section):
    """The HTTP API and the status page."""

    listen: Listen = Field("127.0.0.1:9470", description="address of the API, host:port; port 0 takes a free one")
    tokens: tuple[Token, ...] = Field(
        (), description="bearer tokens; without any, one admin token is created in the state folder"
    )
    cluster_roles: ClusterRoles | None = Field(
        None, description="roles of tokens of the cluster; null: only `tokens` are known"
    )
    public_url: Origin | None = Field(
        None, description="where browsers reach the page; the provider sends people back to it, and links name it"
    )
    oidc: Oidc | None = Field(None, description="an OpenID Connect provider; null: people sign in with tokens alone")
    answer_s: Seconds = Field(5.0, ge=0, le=60, description="how long a command waits for the tick that obeys it")
    body_kib: int = Field(64, ge=1, le=4096, description="longest body of a request, in KiB; alerts have their own")

    @model_validator(mode="after")
    def _comes_back(self) -> Http:
        if self.oidc is not None and self.public_url is None:
            raise ValueError("oidc needs public_url, to which the provider sends people back; set it")
        return self


class Metrics(Section):
    """The metrics of the controller."""

    listen: Listen | None = Field("127.0.0.1:9471", description="address of /metrics; null: none are served")
    open: bool = Field(False, description="serve metrics without a token")


class LoopSettings(Section):
    """When the controller decides."""

    interval_s: Seconds = Field(5.0, gt=0, le=300, description="most time between two ticks, by the cluster's clock")
    least_s: Seconds | None = Field(
        None, ge=0.01, le=60, description="least time between two ticks; 1 s, in a simulation 0.1 s of wall time"
    )


class KillSwitch(Section):
    """Where the kill switch is read at every tick. A switch that cannot be read is on."""

    file: Path | None = Field(
        None,
        description="while this file exists and does not say `off`, nothing acts; default: kill in the state folder",
    )


class Telemetry(StrEnum):
    """How the telemetry of a simulated cluster reaches the controller."""

    WINDOWS = "windows"
    SCRAPE = "scrape"
    OFF = "off"


class Simulation(Section):
    """A simulated cluster in a process of its own."""

    scenario: str = Field("quickstart", min_length=1, description="a built-in scenario or a scenario file")
    speed: float = Field(60.0, gt=0, le=100_000, description="virtual seconds per second")
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the scenario; null: the scenario's own")
    listen: Listen = Field("127.0.0.1:0", description="address of the simulated cluster, for its metrics")
    attach: Address | None = Field(
        None, description="address of a simulated cluster that runs already; null: one is started and stopped"
    )
    telemetry: Telemetry = Field(
        Telemetry.WINDOWS,
        description="windows: computed by the cluster, for any speed; scrape: its exporters are scraped; off: none",
    )


Name = Annotated[str, Field(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""Name of a namespace or of a ConfigMap."""


ConditionText = Annotated[str, Field(pattern="^[A-Za-z][-A-Za-z0-9./_]{0,252}=(True|False|Unknown)$")]
"""Type and status of a condition."""


class Level(StrEnum):
    """A topology level that a label of nodes names."""

    ISLAND = "island"
    LEAF = "leaf"
    BLOCK = "block"
    ZONE = "zone"


class LeaseSettings(Section):
    """Election among several controllers of a cluster, by a Lease in `kubernetes.namespace`."""

    name: Name = Field("gpu-autopilot", description="name of the Lease")
    duration_s: Seconds = Field(
        10.0, ge=2, le=300, description="others lead this long after the last renewal that they saw; whole seconds"
    )
    renew_s: Seconds = Field(6.0, gt=0, le=300, description="the leader stops this long after its last renewal")
    retry_s: Seconds = Field(1.5, gt=0, le=60, description="time between two renewals, and between two looks")

    @model_validator(mode="after")
    def _apart(self) -> LeaseSettings:
        self.terms()
        return self

    def terms(self) -> Terms:
        """The same for the election."""
        return fix_of(Terms, self.duration_s, self.renew_s, self.retry_s)


class Kubernetes(Section):
    """A real cluster through its API server. It is only read, unless `act` is set."""

    kubeconfig: Path | None = Field(None, description="kubeconfig; null: the default one, unless in_cluster is set")
    context: str | None = Field(None, min_length=1, description="context of the kubeconfig; null: its current one")
    in_cluster: bool = Field(False, description="use the service account of the pod that the service runs in")
    namespaces: tuple[Name, ...] = Field(
        (), description="read only these namespaces, for an account without rights on all; empty: all"
    )
    topology: dict[Level, str] = Field(
        default_factory=dict,
        description="label of nodes by level (island, leaf, block, zone), before those of Kueue's Topology and GFD",
    )
    node_conditions: tuple[ConditionText, ...] = Field(
        node_conditions.KNOWN,
        description="conditions of nodes, by type and status, that bar new work; the default has those of the "
        "node problem detector, the agents of EKS, AKS and Nebius, and NVSentinel",
    )
    sharing_configs: SharingConfigs = Field(default_factory=dict)
    sharing_probe_image: ProbeImage = ""
    pause_secret_file: PauseSecret = None
    watch_s: Seconds = Field(
        15.0, ge=2, le=300, description="length of one watch; a list without changes is at most this old"
    )

    act: bool = Field(
        False,
        description="carry out what the modes of the policy allow; false: the cluster is only read, and every mode "
        "counts as recommend at most",
    )
    act_kinds: tuple[InstructionKind, ...] = Field(
        (),
        description="kinds of instructions that the account may carry out (admit, cordon, evict, notify, offer, "
        "pause, provision, recut, resize, resume, scale), so that actions which need others only recommend; empty: all "
        "with levers",
    )
    namespace: Name = Field("gpu-autopilot", description="namespace of the ConfigMaps")
    policy_map: Name | None = Field(
        None, description="ConfigMap whose key policy.yaml is the policy; null: the setting `policy`"
    )
    policy_object: Name | None = Field(
        None, description="AutopilotPolicy (docs/control-resources.md) that is the policy; null: policy_map or `policy`"
    )
    kill_map: Name | None = Field(
        None,
        description="ConfigMap of the kill switch: its key kill allows actions with `off` and blocks "
        "them with anything else; null: no switch in the cluster",
    )
    recommendations: int = Field(
        0,
        ge=0,
        le=5000,
        description="most recommendations that are kept as objects, those that take an approval and gain most first "
        "(docs/control-resources.md); 0: none, and no approval by annotation",
    )

    approve_on_work: bool = Field(
        False,
        description="the annotation gpu-autopilot.io/approve on work, or on its namespace, approves what touches no "
        "other work (docs/control-resources.md); false: only Recommendations are approved by annotation",
    )

    lease: LeaseSettings | None = Field(
        None,
        description="election among several controllers; memory and commands are kept in ConfigMaps then; null: this "
        "is the only controller",
    )

    @model_validator(mode="after")
    def _one_way(self) -> Kubernetes:
        if self.in_cluster and (self.kubeconfig is not None or self.context is not None):
            raise ValueError("in_cluster uses the account of the pod; leave kubeconfig and context out")
        return self

    @property
    def shown(self) -> str:
        """The cluster in words."""
        if self.in_cluster:
            return "the one that this pod runs in"
        source = str(self.kubeconfig) if self.kubeconfig is not None else "the default kubeconfig"
        return f"that of {source}" + (f", context {self.context}" if self.context else "")


class Forecasting(Section):
    """The forecasters and their worker."""

    durations: Annotated[str, Field(pattern="^(predicted|last-two)$")] = Field(
        "predicted", description="run times: predicted (fitted models) or last-two (the last two similar jobs)"
    )
    fit: bool = Field(True, description="fit models beside the loop, in a process of their own")
    registry: bool = Field(True, description="gate new models and keep them in the state folder")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the fits")


class Metering(Section):
    """What is metered beside the journal."""

    prices: Path | None = Field(
        None, description="price file for daily spending and budgets of tenants; null: the shipped example prices"
    )
    labels: list[str] = Field(
        default_factory=list, description="labels of pods that are metered, for `showback --by label:KEY`"
    )


class Keda(Section):
    """A server of KEDA's external scaler interface."""

    listen: Listen = Field(
        description="address for KEDA (gRPC), host:port, for example 0.0.0.0:9473; without certificates it is not "
        "encrypted"
    )
    certificate: Path | None = Field(None, description="certificate of this server (PEM); null: no encryption")
    key: Path | None = Field(None, description="key of the certificate (PEM)")
    client_ca: Path | None = Field(None, description="authority whose clients are accepted (PEM)")

    @model_validator(mode="after")
    def _whole(self) -> Keda:
        given = [each is not None for each in (self.certificate, self.key, self.client_ca)]
        if any(given) and not all(given):
            raise ValueError("certificate, key and client_ca belong together; give all three or none")
        return self


class Scale(Section):
    """How floors of services reach their autoscalers, beside the metrics and the API server."""

    keda: Keda | None = Field(None, description="a server for triggers of the type external; null: none")


class LogFormat(StrEnum):
    """The form of the log."""

    CONSOLE = "console"
    JSON = "json"


class Log(Section):
    """The log on standard error."""

    format: LogFormat = Field(LogFormat.CONSOLE, description="console for people, json for machines")
    level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = Field(
        "info", description="least level that is written: debug, info, warning or error"
    )


class Settings(Section):
    """The service."""

    state: Path | None = Field(
        None, description="folder of memory, journal, inbox and lock; default: service in the user's state folder"
    )
    policy: str | None = Field(
        None,
        min_length=1,
        description="a shipped policy, or a policy file, which is read again when it changes; default: recommend, and "
        "for a simulated cluster approve",
    )
    simulation: Simulation | None = Field(None, description="a simulated cluster; null: a real one")
    kubernetes: Kubernetes | None = Field(None, description="a real cluster; null: none")
    loop: LoopSettings = Field(LoopSettings(), description="when the controller decides")
    collectors: Collectors = Field(Collectors(), description="sources of telemetry")
    forecasting: Forecasting = Field(Forecasting(), description="forecasters and their worker")
    metering: Metering = Field(Metering(), description="metering and daily spending")
    alerts: Alerts = Field(Alerts(), description="alerts and runbooks")
    kill_switch: KillSwitch = Field(KillSwitch(), description="where the kill switch is read")
    http: Http = Field(Http(), description="the HTTP API")
    notices: Notices = Field(Notices(), description="further ways for notices to owners of idle work")
    metrics: Metrics = Field(Metrics(), description="the metrics of the controller")
    scale: Scale = Field(Scale(), description="floors of services for their autoscalers (docs/scaling.md)")
    log: Log = Field(Log(), description="the log")

    @model_validator(mode="after")
    def _one_cluster(self) -> Settings:
        if self.simulation is not None and self.kubernetes is not None:
            raise ValueError("simulation and kubernetes are both set; leave one of them out")
        given = self.kubernetes
        places = {
            "policy": self.policy,
            "kubernetes.policy_map": given.policy_map if given is not None else None,
            "kubernetes.policy_object": given.policy_object if given is not None else None,
        }
        several = [name for name, value in places.items() if value is not None]
        if len(several) > 1:
            raise ValueError(f"{' and '.join(several)} are both set; leave one of them out")
        if self.http.cluster_roles is not None and self.kubernetes is None:
            raise ValueError("http.cluster_roles needs a real cluster; set kubernetes, or leave it out")
        return self

    @property
    def policy_name(self) -> str:
        """The policy, with its default."""
        return self.policy or ("approve" if self.simulation is not None else "recommend")
