"""ObjectMeta: the additions of the server, and its refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from apiserver.errors import FieldError, forbidden_field, invalid_value, required, shown, too_long

Obj = dict[str, Any]
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
ANNOTATIONS_LIMIT = 256 * 1024
SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
NAME_PART_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
QUALIFIED_TEXT = (
    "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. "
    "'example.com/MyName')"
)


DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
DNS_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
OLDEST_GROUPS = {"", "apps", "batch"}  # other groups check names of finalizers as of labels
STANDARD_FINALIZERS = {"kubernetes", "orphan", "foregroundDeletion"}


def dns_label_errors(name: str) -> list[str]:
    """Errors of a name as a DNS label."""
    errors = ["must be no more than 63 bytes"] if len(name) > 63 else []
    return errors if DNS_LABEL.fullmatch(name) else [*errors, DNS_LABEL_TEXT]


def subdomain_errors(name: str) -> list[str]:
    """Errors of a name as a DNS subdomain."""
    errors = []
    if len(name) > 253:
        errors.append("must be no more than 253 characters")
    if not SUBDOMAIN.fullmatch(name):
        errors.append(SUBDOMAIN_TEXT)
    return errors


def qualified_name_errors(name: str) -> list[str]:
    """Errors of a name as `[prefix/]name`, in the words for names of keys and gates."""
    parts = name.split("/")
    if len(parts) > 2:
        return [
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. "
            "'example.com/MyName')"
        ]
    errors = []
    if len(parts) == 2:
        if not parts[0]:
            errors.append("prefix part must be non-empty")
        else:
            errors += [f"prefix part {each}" for each in subdomain_errors(parts[0])]
    last = parts[-1]
    if not last:
        errors.append("name part must be non-empty")
    elif len(last) > 63:
        errors.append("name part must be no more than 63 characters")
    if not QUALIFIED.fullmatch(last):
        errors.append(NAME_PART_TEXT)
    return errors


def label_errors(labels: Obj, path: str) -> list[FieldError]:
    """Errors of labels."""
    errors = []
    for key in sorted(labels):
        value = labels[key]
        for why in qualified_name_errors(key):
            text = QUALIFIED_TEXT if why.startswith("a qualified name") else why
            errors.append(invalid_value(path, key, text))
        errors += [invalid_value(path, value, why) for why in label_value_errors(value)]
    return errors


def label_value_errors(value: str) -> list[str]:
    """Errors of a text as the value of a label."""
    errors = ["must be no more than 63 bytes"] if len(value) > 63 else []
    return errors if VALUE.fullmatch(value) else [*errors, LABEL_VALUE_TEXT]


def annotation_errors(annotations: Obj, path: str) -> list[FieldError]:
    """Errors of annotations."""
    errors = []
    for key in sorted(annotations):
        errors += [invalid_value(path, key, why) for why in qualified_name_errors(key.lower())]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > ANNOTATIONS_LIMIT:
        errors.append(too_long(path, ANNOTATIONS_LIMIT))
    return errors


def path_segment_errors(name: str) -> list[str]:
    """Errors of a name as part of a path: the rule for roles and their bindings."""
    if name in {".", ".."}:
        return [f"may not be '{name}'"]
    return [f"may not contain '{each}'" for each in ("/", "%") if each in name]


MOST_CONTROLLERS = 16
"""References that are told of as a second controller: each of these errors repeats all references."""


def owner_errors(metadata: Obj) -> list[FieldError]:
    """Errors of references to owners."""
    path = "metadata.ownerReferences"
    references = metadata.get("ownerReferences") or []
    errors, controllers = [], []
    for each in references:
        for name, word in (("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid")):
            if not each.get(name):
                errors.append(invalid_value(f"{path}.{name}", each.get(name, ""), f"{word} must not be empty"))
        if each.get("controller"):
            controllers.append(f"{each.get('kind', '')}/{each.get('name', '')}")
    listed = shown(references) if len(controllers) > 1 else ""
    for each in controllers[1:MOST_CONTROLLERS]:
        text = 'Only one reference can have Controller set to true. Found "true" in references for '
        errors.append(invalid_value(path, references, f"{text}{controllers[0]} and {each}", raw=listed))
    return errors


def finalizer_errors(group: str, metadata: Obj) -> list[FieldError]:
    """Finalizers in the oldest groups are standard ones, or name their owner."""
    if group not in OLDEST_GROUPS:
        return []
    return [
        invalid_value(
            f"metadata.finalizers[{at}]", each, "name is neither a standard finalizer name nor is it fully qualified"
        )
        for at, each in enumerate(metadata.get("finalizers") or [])
        if "/" not in each and each not in STANDARD_FINALIZERS
    ]


def metadata_errors(metadata: Obj, name_errors: Callable[[str], list[str]] = subdomain_errors) -> list[FieldError]:
    """Errors of the metadata of an object; `name_errors` is the rule of its kind for names."""
    errors = []
    if not metadata.get("name"):
        errors.append(required("metadata.name", "name or generateName is required"))
    else:
        errors += [invalid_value("metadata.name", metadata["name"], why) for why in name_errors(metadata["name"])]
    errors += label_errors(metadata.get("labels") or {}, "metadata.labels")
    errors += annotation_errors(metadata.get("annotations") or {}, "metadata.annotations")
    return errors + owner_errors(metadata)


def drop_empty(metadata: Obj) -> None:
    """Take out the empty maps and lists: the types leave them out."""
    for name in ("labels", "annotations", "finalizers", "ownerReferences", "managedFields"):
        if name in metadata and not metadata[name]:
            del metadata[name]


def metadata_update_errors(new: Obj, old: Obj) -> list[FieldError]:
    """Errors of an update to the fixed fields of the metadata."""
    errors = []
    fresh = sorted(set(new.get("finalizers") or ()) - set(old.get("finalizers") or ()))
    if "deletionTimestamp" in old and fresh:
        found = "[]string{" + ", ".join(json.dumps(each) for each in fresh) + "}"
        text = f"no new finalizers can be added if the object is being deleted, found new finalizers {found}"
        errors.append(forbidden_field("metadata.finalizers", text))
    errors += label_errors(new.get("labels") or {}, "metadata.labels")
    errors += annotation_errors(new.get("annotations") or {}, "metadata.annotations")
    errors += owner_errors(new)
    return errors + [
        invalid_value(f"metadata.{name}", new.get(name), "field is immutable")
        for name in ("uid", "creationTimestamp")
        if new.get(name) != old.get(name)
    ]
