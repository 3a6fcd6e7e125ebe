"""A running service beside an API server: every face shows a recommendation with the same figures at the same time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import requests
import yaml

from apiserver.http.serve import Running as Api
from apiserver.standard import install_standard
from apiserver.users import ADMIN
from autopilot.core.model.units import format_clock, format_gpu_s
from autopilot.crds.documents import stamp
from autopilot.service.state_folder import read_note
from scripts.generate_crds import files
from tests.kits.scraping import scrape
from tests.service.kit import Running, cli, poll, service, settings
from tests.service.test_kubernetes_service import api as api  # noqa: PLC0414 - a fixture
from tests.service.test_kubernetes_service import create_job

FIGURES = ("gain", "cost")


def card(running: Running) -> dict[str, Any]:
    """The recommendation as the page has it."""
    found = running.ask("/api/v1/recommendations?details=false").json()["recommendations"] or []
    return next((each for each in found if each["workload"] == "team/train"), {})


def in_cluster(api: Api) -> dict[str, Any]:
    """The status of its object."""
    with api.clock.lock:
        found = api.shell.server.client(ADMIN, "test").list("recommendations.gpu-autopilot.io")
    return next((each.get("status") for each in found if each["spec"]["workload"] == "team/train"), None) or {}


def scraped(running: Running) -> dict[str, float]:
    """The metrics now."""
    url = read_note(running.state / "service.json")["metrics"]
    return scrape(
        requests.get(f"{url}/metrics", headers={"Authorization": f"Bearer {running.token}"}, timeout=30).content
    )


def test_every_face_shows_the_same_figures_since_the_same_time(api: Api, tmp_path: Path) -> None:
    """Page, explanation, command line, object, metrics and journal, to the digit, while the recommendation stands."""
    with api.clock.lock:
        install_standard(api.shell.server)
        for each in yaml.safe_load_all("---\n".join(files().values())):
            if each["kind"] == "CustomResourceDefinition":
                api.shell.server.client(ADMIN, "test").create("customresourcedefinitions.apiextensions.k8s.io", each)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.kubeconfig(), "utf-8")
    beside = {"kubeconfig": str(kubeconfig), "watch_s": 2, "recommendations": 10}
    content = settings(tmp_path / "state", policy="autopilot", loop={"interval_s": 1.0}, kubernetes=beside)
    del content["simulation"]
    with service(tmp_path, content) as running:
        poll(lambda: running.tick() > 1, "no tick")
        create_job(api, "train", 8)
        first = poll(lambda: card(running), "a recommendation")
        object_ = poll(lambda: in_cluster(api), "its object")
        poll(lambda: running.tick() > first["tick"] + 3, "some ticks")
        explained = running.ask(f"/api/v1/decisions/{first['id']}").json()
        metrics, listed = scraped(running), cli(tmp_path, "recommendations", "--state", str(running.state)).stdout
        told = cli(tmp_path, "explain", first["id"], "--state", str(running.state), "--json")
        shown = card(running)
    journal = json.loads(told.stdout or told.stderr)
    assert shown["tick"] > first["tick"]
    assert (shown["since_s"], shown["digest"], shown["why"]) == (first["since_s"], first["digest"], first["why"])
    assert shown["since_s"] < shown["at_s"], "not always now"
    assert shown["gain"] == format_gpu_s(shown["benefit_gpu_s"]) != "0 GPU-h"

    for other in (first, explained, journal["decision"]):
        assert {name: other[name] for name in FIGURES} == {name: shown[name] for name in FIGURES}
        assert other["benefit_gpu_s"] == shown["benefit_gpu_s"]
    line = f"  gain {shown['gain']}, cost {shown['cost']}"
    since = f"  recommended since {format_clock(shown['since_s'])}"
    assert {line, since} <= set(explained["lines"])
    assert {line, since} <= set(journal["lines"])
    assert f"{shown['gain']}  {shown['cost']}" in " ".join(listed.split(" ")) or shown["gain"] in listed

    assert [object_[name] for name in FIGURES] == [shown[name] for name in FIGURES]
    assert (object_["since"], object_["why"]) == (stamp(shown["since_s"]), shown["why"])
    assert object_["gainGPUSeconds"] == round(shown["benefit_gpu_s"], 3)

    name = f"{{id={shown['id']}}}"
    assert metrics[f"recommendation_gain_gpu_seconds{name}"] == shown["benefit_gpu_s"]
    assert metrics[f"recommendation_cost_gpu_seconds{name}"] == shown["cost_gpu_s"]
    assert metrics[f"recommendation_worst_cost_gpu_seconds{name}"] == shown["worst_cost_gpu_s"]
