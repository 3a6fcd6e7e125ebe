"""The chart beside the monitoring that a cluster has: its Prometheus, Grafana, storage and ingress."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from autopilot.alerts.rules import RuleSettings, rule_groups
from autopilot.metering.prices import Prices
from autopilot.service.settings import Http, Metrics, Settings
from scripts.generate_chart import CHART, ROOT
from tests.kube.test_chart_values import Render, helm, named, render

__all__ = ["helm", "render"]  # fixtures
Obj = dict[str, Any]
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
PRICES: Obj = {"currency": "EUR", "region": "a", "regions": {"a": {"gpu_hour": {"other": 3.1}}}}
MONITORED: Obj = {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
VALUE_SETS: dict[str, Obj] = {
    "monitored": MONITORED,
    "named": {**MONITORED, "fullnameOverride": "mine", "dashboards": {"enabled": True}},
    "named by its chart": {"nameOverride": "gpus", "ingress": {"enabled": True, "hosts": ["a.b"]}},
    "linked": {"prometheusRule": {"enabled": True, "runbookUrl": "https://w/r/", "dashboardUrl": "https://g/d"}},
    "labelled": {
        "prometheusRule": {"enabled": True, "labels": {"release": "kps"}},
        "serviceMonitor": {"enabled": True, "labels": {"release": "kps"}},
        "dashboards": {"enabled": True, "labels": {"grafana": "yes"}, "folder": "GPU", "folderAnnotation": "dir"},
    },
    "kept": {"persistence": {"enabled": True, "storageClass": "fast"}, "prices": PRICES},
    "ports": {"settings": {"http": {"listen": "0.0.0.0:80"}, "metrics": {"listen": "0.0.0.0:81"}}, **MONITORED},
    "no metrics": {"settings": {"metrics": {"listen": None}}},
    "resources": {"resources": {"limits": {"cpu": 1}}, "watchdog": {"resources": {}}},
    **{path.stem: yaml.safe_load(path.read_text("utf-8")) for path in EXAMPLES},
}


def alerts_of(spec: Obj) -> dict[str, Obj]:
    """The annotations of each alert."""
    return {
        rule["alert"]: rule["annotations"] for group in spec["groups"] for rule in group["rules"] if "alert" in rule
    }


def container(objects: list[Obj], kind: str = "Deployment", name: str = "gpu-autopilot") -> Obj:
    """The one container of a workload."""
    (found,) = named(objects, kind, name)["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("name", VALUE_SETS)
def test_helm_has_nothing_to_say_about_a_set_of_values(
    name: str, helm: Callable[..., str], require_tool: Callable[[str], str], tmp_path: Path
) -> None:
    """`helm lint --strict` passes, and no address of an example is left."""
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(VALUE_SETS[name]))
    done = subprocess.run(
        [require_tool("helm"), "lint", "--strict", str(CHART), "--values", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.findall(r"[\w.-]+\.example\b", helm(VALUE_SETS[name]))


@pytest.mark.parametrize("name", [name for name, values in VALUE_SETS.items() if "prometheusRule" in values])
def test_promtool_takes_the_rendered_rules(
    name: str, render: Render, require_tool: Callable[[str], str], tmp_path: Path
) -> None:
    """All of them, and they are those of the tables."""
    values = VALUE_SETS[name]
    spec = named(render(values), "PrometheusRule", values.get("fullnameOverride", "gpu-autopilot"))["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    done = subprocess.run([require_tool("promtool"), "check", "rules", "rules.yaml"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    given = values["prometheusRule"]
    wanted = RuleSettings(runbook_base=given.get("runbookUrl", ""), dashboard_base=given.get("dashboardUrl", ""))
    assert spec == rule_groups(wanted)


def test_an_alert_has_links_where_their_base_is_known(render: Render) -> None:
    """A link that leads nowhere is worse than none."""
    plain = alerts_of(named(render(MONITORED), "PrometheusRule")["spec"])
    assert {key for notes in plain.values() for key in notes} == {"summary", "description"}
    linked = alerts_of(named(render(VALUE_SETS["linked"]), "PrometheusRule")["spec"])["GPUAutopilotControllerSilent"]
    assert linked["runbook_url"] == "https://w/r/GPUAutopilotControllerSilent.md"
    assert linked["dashboard_url"].startswith("https://g/d/gpu-autopilot-")


def test_the_port_of_the_metrics_is_written_once() -> None:
    """The configuration of Prometheus, the image and the chart name the port on which the service listens."""
    port, api = (str(each.listen).rpartition(":")[2] for each in (Metrics(), Http()))
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yaml").read_text("utf-8"))
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": [f"gpu-autopilot:{port}"]}]
    assert f"EXPOSE {api} {port}" in (ROOT / "Dockerfile").read_text("utf-8")


@pytest.mark.parametrize("name", ["monitored", "ports", "no metrics"])
def test_service_and_pods_have_the_ports_of_the_settings(name: str, render: Render) -> None:
    """Also those that a user sets, and none for metrics that are off."""
    objects = render(VALUE_SETS[name])
    text = named(objects, "ConfigMap", "gpu-autopilot-settings")["data"]["service.yaml"]
    settings = Settings.model_validate(yaml.safe_load(text))
    listens = {"api": settings.http.listen, "metrics": settings.metrics.listen}
    wanted = {key: int(str(listen).rpartition(":")[2]) for key, listen in listens.items() if listen is not None}
    assert {each["name"]: each["containerPort"] for each in container(objects)["ports"]} == wanted
    assert {each["name"]: each["port"] for each in named(objects, "Service")["spec"]["ports"]} == wanted
    if name == "monitored":
        assert wanted == {"api": 9470, "metrics": int(str(Metrics().listen).rpartition(":")[2])}


def test_labels_and_the_folder_are_those_that_prometheus_and_grafana_look_for(render: Render) -> None:
    """Rule, monitor and dashboards are found by labels of the site."""
    objects = render(VALUE_SETS["labelled"])
    for kind in ("PrometheusRule", "ServiceMonitor"):
        assert named(objects, kind)["metadata"]["labels"]["release"] == "kps"
    boards = [each for each in objects if each["kind"] == "ConfigMap" and "dashboard" in each["metadata"]["name"]]
    assert len(boards) == len(list((ROOT / "dashboards").glob("*.json")))
    for each in boards:
        assert each["metadata"]["labels"]["grafana"] == "yes"
        assert each["metadata"]["annotations"] == {"dir": "GPU"}
        assert each["metadata"]["namespace"] == "elsewhere"
        ((name, text),) = each["data"].items()
        assert json.loads(text) == json.loads((ROOT / "dashboards" / name).read_text("utf-8"))


def test_links_of_the_dashboards_lead_to_the_page(render: Render) -> None:
    """`autopilotUrl` is what the variable holds."""
    objects = render({"dashboards": {"enabled": True, "autopilotUrl": "https://gpu.corp"}})
    text = named(objects, "ConfigMap", "gpu-autopilot-dashboard-fleet")["data"]["gpu-autopilot-fleet.json"]
    assert "http://localhost:9470" not in text
    (variable,) = [each for each in json.loads(text)["templating"]["list"] if each["name"] == "autopilot_url"]
    assert variable["current"]["value"] == "https://gpu.corp"


def test_what_is_kept_has_a_volume_for_each_replica(render: Render) -> None:
    """Two replicas never share a folder of state: a StatefulSet gives each its own."""
    spec = named(render(VALUE_SETS["kept"]), "StatefulSet")["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"] == {"requests": {"storage": "20Gi"}}
    pod = spec["template"]["spec"]
    assert claim["metadata"]["name"] not in {each["name"] for each in pod["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == "/var/lib/gpu-autopilot"


def test_the_price_file_is_the_one_of_the_service(render: Render) -> None:
    """What the values hold is mounted where the setting looks, and another price is another pod."""
    objects, other = render({"prices": PRICES}), render({"prices": {**PRICES, "currency": "USD"}})
    data = named(objects, "ConfigMap", "gpu-autopilot-settings")["data"]
    path = Path(yaml.safe_load(data["service.yaml"])["metering"]["prices"])
    mounts = {each["name"]: each["mountPath"] for each in container(objects)["volumeMounts"]}
    assert str(path.parent) == mounts["settings"]
    assert Prices.model_validate(yaml.safe_load(data[path.name])).at(None).gpu_hour("any", "H100") == 3.1
    sums = {
        named(each, "Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
        for each in (objects, other, render())
    }
    assert len(sums) == 3


@pytest.mark.parametrize(
    ("given", "label", "name"), [("nameOverride", "gpus", "gpus"), ("fullnameOverride", "", "gpus")]
)
def test_names_are_those_of_the_values(given: str, label: str, name: str, render: Render) -> None:
    """Objects refer to each other by them; what the service knows by name keeps its name."""
    everything = {**MONITORED, "dashboards": {"enabled": True}, "ingress": {"enabled": True, "hosts": ["a.b"]}}
    objects = render({**everything, given: "gpus"})
    pod = named(objects, "Deployment", name)["spec"]["template"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == (label or "gpu-autopilot")
    maps = [each["configMap"]["name"] for each in pod["spec"]["volumes"] if "configMap" in each]
    assert maps == [f"{name}-settings"]
    service = named(objects, "Service", name)
    for kind in ("ServiceMonitor", "PodDisruptionBudget", "NetworkPolicy", "PrometheusRule", "Ingress"):
        spec = named(objects, kind, name)["spec"]
        chosen = (spec.get("selector") or spec.get("podSelector") or {}).get("matchLabels", {})
        assert chosen.items() <= pod["metadata"]["labels"].items()
        assert chosen.items() <= service["metadata"]["labels"].items()
    backend = named(objects, "Ingress", name)["spec"]["rules"][0]["http"]["paths"][0]["backend"]
    assert backend == {"service": {"name": name, "port": {"name": "api"}}}
    kept = {each["metadata"]["name"] for each in objects if "gpu-autopilot" in each["metadata"]["name"]}
    plain = {each["metadata"]["name"] for each in render(everything)}
    assert kept < plain
    assert {"gpu-autopilot-kill-switch", "gpu-autopilot-fence", "gpu-autopilot-observe"} <= kept


def test_each_component_has_its_own_resources(render: Render) -> None:
    """The controller and the watchdog."""
    objects = render(VALUE_SETS["resources"])
    assert container(objects)["resources"]["limits"]["cpu"] == 1
    small = container(render(), name="gpu-autopilot-watchdog")["resources"]
    assert small["limits"]["memory"] == "512Mi"
    given = {"watchdog": {"resources": {"limits": {"memory": "1Gi"}}}}
    large = container(render(given), name="gpu-autopilot-watchdog")["resources"]
    assert (large["limits"]["memory"], large["requests"]) == ("1Gi", small["requests"])


def test_the_page_has_an_ingress_on_request(render: Render) -> None:
    """Each host leads to the port of the API alone."""
    given = {"enabled": True, "className": "nginx", "hosts": ["a.b", "c.d"], "tls": [{"secretName": "s"}]}
    spec = named(render({"ingress": given}), "Ingress")["spec"]
    assert ([each["host"] for each in spec["rules"]], spec["ingressClassName"]) == (["a.b", "c.d"], "nginx")
    assert spec["tls"] == [{"secretName": "s"}]
    assert not [each for each in render() if each["kind"] == "Ingress"]


@pytest.mark.parametrize(
    ("given", "named_value"),
    [
        ({"ingress": {"enabled": True}}, "hosts"),
        ({"persistence": {"size": "much"}}, "size"),
        ({"prometheusRule": {"runbookUrl": "wiki"}}, "runbookUrl"),
        ({"dashboards": {"autopilotUrl": 'http://a"b'}}, "autopilotUrl"),
        ({"prices": {"currency": "EUR"}}, "prices"),
        ({"fullnameOverride": "Mine"}, "fullnameOverride"),
        ({"settings": {"metrics": {"listen": None}}, "serviceMonitor": {"enabled": True}}, "serviceMonitor"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(helm: Callable[..., str], given: Obj, named_value: str) -> None:
    """By the schema or the template."""
    with pytest.raises(ValueError, match=named_value):
        helm(given)
