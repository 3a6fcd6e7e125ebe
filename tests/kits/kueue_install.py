"""Kueue on a cluster that has none: its release manifest, by kubectl, for the time of a test run.

Kueue is installed only where nothing of it is there, and what is removed is what was applied. Where other people have
used it meanwhile, it stays, and an `AssertionError` says so. `KueueAbsentError` says why it cannot be installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
import yaml

from actuators.kubernetes.api import Api, Refusal
from autopilot.kube.access import Access, Address
from tests.kits.real_cluster import E2E, KUEUE, LOOK_S, Obj, Patient
from tests.kits.tools import MissingToolError, find_tool

VARIABLE, VERSION = "AUTOPILOT_E2E_KUEUE", "v0.19.2"
RELEASE = "https://github.com/kubernetes-sigs/kueue/releases/download/{}/manifests.yaml"
GROUP = "/apis/kueue.x-k8s.io"
IN_USE = ("workloads", "clusterqueues", "localqueues", "cohorts", "resourceflavors", "admissionchecks")
DOWNLOAD_S, COMMAND_S, READY_S = 30.0, 180.0, 300.0
"""Longest time of the download, of one command, and until Kueue answers."""
FIRST = ("APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "CustomResourceDefinition")
"""What is removed before the manager: without it, a webhook that is left would refuse the Jobs of everybody."""


class KueueAbsentError(RuntimeError):
    """The cluster has no Kueue, and it cannot be installed."""


@contextmanager
def installed_kueue(kubeconfig: Path, run: str, ready_s: float = READY_S) -> Iterator[None]:
    """The cluster serves Kueue. Raises `KueueAbsentError` with the reason and what to do.

    `run`: the label of what is applied.
    """
    api = Patient(Access(Address(kubeconfig)))
    if api.get(KUEUE).ok:
        yield
        return
    if api.get(GROUP).ok:
        raise KueueAbsentError(f"the cluster serves Kueue in another version than {KUEUE}; upgrade it")
    objects = labelled(read_manifest(os.environ.get(VARIABLE) or VERSION), run)
    kubectl = _kubectl(kubeconfig)
    if there := kubectl(objects, "get", "--ignore-not-found", "--output=name").split():
        raise KueueAbsentError(f"the cluster has parts of Kueue: {', '.join(there)}; remove them, or install the rest")
    try:
        kubectl(objects, "apply", "--server-side", "--field-manager=gpu-autopilot-e2e")
        _wait(api, ready_s)
        yield
    finally:
        _remove(api, kubectl, objects)


def read_manifest(source: str) -> str:
    """The manifest of a release (`v0.19.2`), or that of a file. Raises `KueueAbsentError`."""
    if Path(source).expanduser().is_file():
        return Path(source).expanduser().read_text("utf-8")
    if not re.fullmatch(r"v\d+\.\d+\.\d+", source):
        raise KueueAbsentError(f"{VARIABLE}={source}: there is no such file; give one, or a release like {VERSION}")
    url = RELEASE.format(source)
    try:
        answer = requests.get(url, timeout=DOWNLOAD_S)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise KueueAbsentError(
            f"the cluster has no Kueue, and {url} cannot be read ({type(error).__name__}); "
            f"install Kueue, or give its manifests.yaml as {VARIABLE}"
        ) from error
    return answer.text


def labelled(manifest: str, run: str) -> list[Obj]:
    """The objects of a manifest with the label of the run. Raises `KueueAbsentError` where it has none."""
    try:
        objects = [each for each in yaml.safe_load_all(manifest) if each]
    except yaml.YAMLError as error:
        raise KueueAbsentError(f"the manifest of Kueue is no YAML: {error}") from error
    if not objects or not all(isinstance(each, dict) and "metadata" in each for each in objects):
        raise KueueAbsentError("the manifest of Kueue has something else than objects of Kubernetes in it")
    for each in objects:
        each["metadata"].setdefault("labels", {})[E2E] = run
    return objects


def _kubectl(kubeconfig: Path) -> Callable[..., str]:
    """Kubectl with objects as its input: `kubectl(objects, "apply")`. A failure is an `AssertionError`."""
    try:
        binary = find_tool("kubectl")
    except MissingToolError as error:
        raise KueueAbsentError(f"the cluster has no Kueue, and to install it {error}") from error

    def call(objects: list[Obj], *words: str) -> str:
        done = subprocess.run(
            [binary, f"--kubeconfig={kubeconfig}", *words, "--filename=-"],
            input=yaml.safe_dump_all(objects),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert done.returncode == 0, f"kubectl {' '.join(words)}, objects of Kueue: {done.stderr[-2000:]}"
        return done.stdout

    return call


def _wait(api: Api, ready_s: float) -> None:
    """Until the webhooks of Kueue let an object through, on trial."""
    flavor: dict[str, Any] = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor"}
    flavor |= {"metadata": {"name": "gpu-autopilot-e2e-trial"}, "spec": {}}
    end_s = time.monotonic() + ready_s
    while not (answer := api.post(f"{KUEUE}/resourceflavors", flavor, {"dryRun": "All"})).ok:
        assert time.monotonic() < end_s, f"Kueue was applied and does not answer within {ready_s:g} s: {answer.message}"
        time.sleep(LOOK_S)


def _remove(api: Api, kubectl: Callable[..., str], objects: list[Obj]) -> None:
    """Remove what was applied, unless somebody else uses it."""
    used = []
    for plural in IN_USE:
        answer = api.get(f"{KUEUE}/{plural}")
        assert answer.ok or answer.refusal == Refusal.GONE, f"Kueue stays: {plural} cannot be listed: {answer.message}"
        used += [f"{plural}/{each['metadata']['name']}" for each in answer.body.get("items", ())]
    label = objects[0]["metadata"]["labels"][E2E]
    assert not used, f"Kueue stays, because it is in use: {', '.join(used[:5])}; it has the label {E2E}={label}"
    first = [each for kind in FIRST for each in objects if each["kind"] == kind]
    rest = [each for each in reversed(objects) if each["kind"] not in FIRST]
    for part in (first, rest):
        if part:
            kubectl(part, "delete", "--ignore-not-found", f"--timeout={COMMAND_S - 20:g}s")
