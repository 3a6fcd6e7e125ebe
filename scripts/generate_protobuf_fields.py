"""Write apiserver/protobuf/fields.json from the Go types of Kubernetes.

python scripts/generate_protobuf_fields.py API_FOLDER MACHINERY_FOLDER

The folders are checkouts of the repositories kubernetes/api and kubernetes/apimachinery. The file has the numbers,
names and types of the fields of each message that the kinds in ROOTS contain: what is needed to read a protobuf body.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parent.parent / "apiserver" / "protobuf" / "fields.json"
FOLDERS = {
    "core/v1": "api/core/v1",
    "batch/v1": "api/batch/v1",
    "apps/v1": "api/apps/v1",
    "policy/v1": "api/policy/v1",
    "rbac/v1": "api/rbac/v1",
    "scheduling/v1": "api/scheduling/v1",
    "networking/v1": "api/networking/v1",
    "coordination/v1": "api/coordination/v1",
    "events/v1": "api/events/v1",
    "authorization/v1": "api/authorization/v1",
    "authentication/v1": "api/authentication/v1",
    "autoscaling/v1": "api/autoscaling/v1",
    "autoscaling/v2": "api/autoscaling/v2",
    "meta/v1": "machinery/pkg/apis/meta/v1",
}
ROOTS = {
    "v1": ("core/v1", "Namespace ConfigMap Secret ServiceAccount Service Pod Node Event ResourceQuota LimitRange "
                      "Binding ReplicationController PersistentVolumeClaim"),
    "batch/v1": ("batch/v1", "Job CronJob"),
    "apps/v1": ("apps/v1", "Deployment StatefulSet DaemonSet ReplicaSet"),
    "policy/v1": ("policy/v1", "Eviction PodDisruptionBudget"),
    "rbac.authorization.k8s.io/v1": ("rbac/v1", "Role RoleBinding ClusterRole ClusterRoleBinding"),
    "scheduling.k8s.io/v1": ("scheduling/v1", "PriorityClass"),
    "networking.k8s.io/v1": ("networking/v1", "Ingress NetworkPolicy"),
    "coordination.k8s.io/v1": ("coordination/v1", "Lease"),
    "events.k8s.io/v1": ("events/v1", "Event"),
    "authorization.k8s.io/v1": ("authorization/v1", "SelfSubjectAccessReview SelfSubjectRulesReview "
                                                    "SubjectAccessReview LocalSubjectAccessReview"),
    "authentication.k8s.io/v1": ("authentication/v1", "SelfSubjectReview TokenRequest TokenReview"),
    "autoscaling/v1": ("autoscaling/v1", "Scale HorizontalPodAutoscaler"),
    "autoscaling/v2": ("autoscaling/v2", "HorizontalPodAutoscaler"),
    "meta.k8s.io/v1": ("meta/v1", "DeleteOptions"),
}  # fmt: skip
SCALARS = {
    "string": "string", "bool": "bool", "int32": "int", "int64": "int", "int": "int", "uint8": "int", "byte": "int",
    "uint32": "int", "float64": "double", "float32": "float",
}  # fmt: skip
KNOWN = {
    "metav1.Time": "time", "metav1.MicroTime": "microtime", "Time": "time", "MicroTime": "microtime",
    "intstr.IntOrString": "intstr", "resource.Quantity": "quantity", "runtime.RawExtension": "raw", "FieldsV1": "raw",
    "[]byte": "bytes", "types.UID": "string", "types.NodeName": "string", "types.NamespacedName": "string",
}  # fmt: skip
STRUCT = re.compile(r"(?ms)^type (\w+) struct \{\n(.*?)^\}")
NAMED = re.compile(r"(?m)^type (\w+) ((?:\[\]|map\[|\w)[^\s{]*)$")
FIELD = re.compile(r'^\s*(?:(\w+)\s+)?(\S+)\s+`json:"([^"]*)"(?:\s+\w+:"[^"]*")*?\s+protobuf:"([^"]*)"', re.MULTILINE)


class Types:
    """The structs and named types of all packages."""

    def __init__(self, api: Path, machinery: Path) -> None:
        self.structs: dict[str, str] = {}
        self.named: dict[str, str] = {}
        for package, folder in FOLDERS.items():
            root, _, inside = folder.partition("/")
            for path in sorted((api if root == "api" else machinery).joinpath(inside).glob("*.go")):
                if "generated" in path.name or path.name.endswith("_test.go"):
                    continue
                text = path.read_text(encoding="utf-8")
                self.structs.update({f"{package}.{name}": body for name, body in STRUCT.findall(text)})
                self.named.update({f"{package}.{name}": to for name, to in NAMED.findall(text)})

    def fields(self, full: str) -> dict[str, list[str]]:
        """Number -> [JSON name, type, flags]; flags: l list, m map, z zero values are left out, i inline."""
        package = full.rpartition(".")[0]
        found: dict[str, list[str]] = {}
        for _, go, tag, proto in FIELD.findall(self.structs[full]):
            name, _, options = tag.partition(",")
            number, flags = proto.split(",")[1], ""
            kind, shape = self._kind(package, go)
            flags += shape
            if ("omitempty" in options or "omitzero" in options) and not go.startswith("*"):
                flags += "z"
            if kind == "unknown":
                continue  # of a package that no body needs
            if not name:
                flags += "i"  # an embedded struct: its fields stand beside the others
            found[number] = [name, kind, flags]
        return found

    def _kind(self, package: str, go: str) -> tuple[str, str]:
        go = go.removeprefix("*")
        if go in KNOWN:
            return KNOWN[go], ""
        if go.startswith("[]"):
            return self._kind(package, go[2:])[0], "l"
        if go.startswith("map["):
            return self._kind(package, go.partition("]")[2])[0], "m"
        if go in SCALARS:
            return SCALARS[go], ""
        full = self._full(package, go)
        if full in self.named:
            target = self.named[full]
            if target.startswith("[]") and not target.endswith("]byte"):
                return f"items:{self._kind(full.rpartition('.')[0], target[2:])[0]}", ""
            return self._kind(full.rpartition(".")[0], target)
        if full not in self.structs:
            return "unknown", ""
        return full, ""

    @staticmethod
    def _full(package: str, go: str) -> str:
        alias, _, name = go.rpartition(".")
        homes = {"metav1": "meta/v1", "v1": "core/v1", "corev1": "core/v1", "core": "core/v1", "apiv1": "core/v1"}
        return f"{homes.get(alias, package)}.{name}"


def main() -> None:
    """Write the file."""
    types = Types(Path(sys.argv[1]), Path(sys.argv[2]))
    kinds = {
        f"{version}/{kind}": f"{package}.{kind}"
        for version, (package, names) in ROOTS.items()
        for kind in names.split()
    }
    messages: dict[str, dict[str, list[str]]] = {}
    waiting = sorted(set(kinds.values()))
    while waiting:
        full = waiting.pop()
        if full in messages or full not in types.structs:
            continue
        messages[full] = types.fields(full)
        waiting += [kind.removeprefix("items:") for _, kind, _ in messages[full].values()]
    lines = [f"{json.dumps(name)}: {json.dumps(messages[name], separators=(',', ':'))}" for name in sorted(messages)]
    about = "Field numbers of Kubernetes' types (Apache-2.0); written by scripts/generate_protobuf_fields.py"
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(
        f'{{"about": {json.dumps(about)},\n"kinds": {json.dumps(kinds, sort_keys=True)},\n"messages": {{\n'
        + ",\n".join(lines)
        + "\n}}\n",
        encoding="utf-8",
    )
    print(f"{OUT}: {len(messages)} messages")


if __name__ == "__main__":
    main()
