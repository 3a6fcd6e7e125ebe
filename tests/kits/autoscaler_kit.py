"""ProvisioningRequests of a cluster, and what cluster-autoscaler says of them."""

from __future__ import annotations

from typing import Any

from tests.kits.acting_kit import TIME, Acting

Obj = dict[str, Any]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROOT = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"
GROUP = "autoscaling.x-k8s.io"
NAME = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 253}}}
POD_SET = {
    "type": "object",
    "required": ["count", "podTemplateRef"],
    "properties": {"count": {"type": "integer", "minimum": 1}, "podTemplateRef": NAME},
}
SPEC = {
    "type": "object",
    "required": ["podSets", "provisioningClassName"],
    "properties": {
        "podSets": {"type": "array", "minItems": 1, "maxItems": 32, "items": POD_SET},
        "provisioningClassName": {"type": "string", "maxLength": 253},
        "parameters": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 255}},
    },
}
STATUS = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def crd() -> Obj:
    """The fields of the published definition that a request uses."""
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": SPEC, "status": STATUS}}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"provisioningrequests.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": "ProvisioningRequest",
                "plural": "provisioningrequests",
                "listKind": "ProvisioningRequestList",
            },
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


class Autoscaler:
    """The side of the autoscaler."""

    def __init__(self, acting: Acting) -> None:
        self._acting = acting

    def install(self) -> None:
        """Define the kind."""
        if self._acting.ask.response("GET", f"{CRDS}/provisioningrequests.{GROUP}").status == 404:
            self._acting.ask("POST", CRDS, crd())
            self._acting.run(5)

    def requests(self) -> list[Obj]:
        """All requests."""
        found: list[Obj] = self._acting.ask("GET", ROOT)["items"]
        return found

    def templates(self) -> list[Obj]:
        """All templates."""
        found: list[Obj] = self._acting.ask("GET", TEMPLATES)["items"]
        return found

    def says(self, *kinds: str, message: str = "") -> None:
        """These conditions are True on the only request."""
        (request,) = self.requests()
        conditions = [
            {"type": kind, "status": "True", "reason": kind, "message": message, "lastTransitionTime": TIME}
            for kind in kinds
        ]
        path = f"{ROOT}/{request['metadata']['name']}/status"
        self._acting.ask("PATCH", path, {"status": {"conditions": conditions}})
