"""Writes: from the decoded body through admission and validation to the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from apiserver.admission.base import Admission, Attributes, Operation
from apiserver.conform import ConformError, go_map
from apiserver.crd.definition import admit_create
from apiserver.decoding import body_value, check_kind, conformed, decode_object
from apiserver.delete_options import decode_options
from apiserver.deletion import Deletion
from apiserver.errors import (
    FieldError,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    modified,
    not_found,
    unexpected,
)
from apiserver.go_json import why_no_json
from apiserver.kinds.base import Call, Kind, State, Subresource
from apiserver.kinds.scale import scale_errors
from apiserver.managed import Writer, applied, blank, track_update
from apiserver.metadata import drop_empty, finalizer_errors, metadata_errors, metadata_update_errors
from apiserver.options import is_set
from apiserver.patches import apply_patch
from apiserver.patching import (
    bad_patch,
    check_apply,
    check_patch_options,
    checked_patch,
    same_but_times,
    sorted_text,
    uid_of_nothing,
)
from apiserver.plain_json import clone
from apiserver.reading import Reading
from apiserver.requests import PATCHES, Response
from apiserver.schemas import schema
from apiserver.timeline import stamp
from apiserver.views import view_of

Obj = dict[str, Any]


class Writing:
    """The writing verbs, and the means for subresources to write themselves."""

    def __init__(self, server: State, admission: Admission, reading: Reading) -> None:
        self._server, self._admission, self._reading = server, admission, reading
        self._deletion = Deletion(server)

    # verbs

    def create(self, call: Call) -> Response:
        """POST to a collection."""
        obj = decode_object(call, call.kind)
        wait_s = 0.0
        if call.kind.custom:
            wait_s = admit_create(self._server, call.kind, (obj.get("metadata") or {}).get("name", ""))
        return Response(201, self._shown(call, self.create_object(call, obj)), delay_s=wait_s)

    def update(self, call: Call) -> Response:
        """PUT."""
        obj = decode_object(call, self._body_kind(call))
        stored = self._server.store.get(call.kind.storage, call.namespace, call.name)
        uid = obj.setdefault("metadata", {}).get("uid")
        if stored is None:
            if uid:
                raise self._uid_conflict(call, uid, "")
            raise not_found(call.kind.named(call.name))
        if obj["metadata"].setdefault("name", call.name) != call.name:
            why = f"the name of the object ({obj['metadata']['name']}) does not match the name on the URL ({call.name})"
            raise bad_request(why)
        return Response(200, self._shown(call, self.update_object(call, self._through(call, lambda _old: obj))))

    def patch(self, call: Call) -> Response:
        """PATCH of any type."""
        how = PATCHES.get(call.request.content_type)
        if how == "strategic" and call.kind.custom:
            raise StatusError(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: "
                + ", ".join(media for media, name in PATCHES.items() if name != "strategic" and "cbor" not in media),
            )
        if how is None:
            raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        try:
            patch = body_value(call.request)
        except json.JSONDecodeError as error:
            body = call.request.body
            text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
            raise bad_request(f"error decoding patch: {why_no_json(text, error)}") from None
        check_patch_options(call, how)
        if how == "apply":
            return self._apply(call, patch)
        patch = checked_patch(how, patch)
        kind = self._body_kind(call)

        def change(old: Obj) -> Obj:
            obj = apply_patch(kind, how, old, patch)
            try:
                return conformed(kind, obj, call)
            except ConformError as error:
                raise bad_patch(go_map(patch) if how == "strategic" else sorted_text(obj), str(error)) from None

        return Response(200, self._shown(call, self.update_object(call, self._through(call, change))))

    def _apply(self, call: Call, config: Obj) -> Response:
        kind, server = self._body_kind(call), self._server
        check_apply(call, kind, config)
        stored = server.store.get(call.kind.storage, call.namespace, call.name)
        writer = self._writer(call)
        force = is_set(call.request.query, "force")
        if stored is None:
            if config["metadata"].get("uid"):
                raise uid_of_nothing(call, config["metadata"]["uid"])
            if call.subresource:
                raise not_found(call.kind.named(call.name))
            fresh: Obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": call.name}}
            if kind.namespaced:
                fresh["metadata"]["namespace"] = call.namespace
            obj = applied(kind.schema, fresh, config, writer, force=force)
            return Response(201, self._shown(call, self.create_object(call, obj, owned=True)))
        subresource = call.kind.subresources.get(call.subresource)
        apply = subresource.apply if subresource is not None else None

        def change(old: Obj) -> Obj:
            if apply is None:
                return applied(kind.schema, old, config, writer, force=force)
            return self._through(call, lambda shown: apply(shown, old, config, writer, force), owned=True)(old)

        return Response(200, self._shown(call, self.update_object(call, change, owned=True)))

    def _writer(self, call: Call) -> Writer:
        kind, now = call.kind, stamp(self._server.timeline.now)
        return Writer(call.manager, kind.api_version, call.subresource, now, "status" in kind.subresources)

    def delete(self, call: Call) -> Response:
        """DELETE of one object."""
        options = decode_options(call)
        if call.kind.deletion is not None:
            options, warnings = call.kind.deletion(options)
            call.warnings += warnings
        call = replace(call, dry_run=bool(options.get("dryRun")))
        stored = self._server.store.get(call.kind.storage, call.namespace, call.name)
        if stored is None:
            raise not_found(call.kind.named(call.name))
        attributes = self._attributes(call, "DELETE", {}, stored, options)
        self._admission.validate(attributes, self._server)
        last, gone = self._deletion.delete(call.kind, stored, options, dry_run=call.dry_run)
        if gone and call.kind.grace is None:
            named = call.kind.named(call.name, stored["metadata"]["uid"])
            details = named.details(call.kind.plural)
            return Response(
                200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
            )
        return Response(200, self._shown(call, last))

    def delete_collection(self, call: Call) -> Response:
        """DELETE of all objects matching the selectors; the list of the deleted ones."""
        options = decode_options(call)
        call = replace(call, dry_run=bool(options.get("dryRun")))
        match = self._reading.match(call)
        store = self._server.store
        namespace = call.namespace if call.kind.namespaced and call.namespace else None
        entries = [entry for entry in store.shelf(call.kind.storage).entries(namespace) if match(entry.obj)]
        for entry in entries:
            attributes = self._attributes(call, "DELETE", {}, entry.obj, options)
            self._admission.validate(attributes, self._server)
            self._deletion.delete(call.kind, entry.obj, options, dry_run=call.dry_run)
        metadata = {"resourceVersion": str(store.version)}
        view = view_of(call.kind, call.request.accept)
        return Response(200, view.list(entries, metadata, self._server.timeline.now))

    # what they are made of

    def create_object(self, call: Call, obj: Obj, *, owned: bool = False) -> Obj:
        """Admit, check and store a new object; the object as stored. `owned`: it states the owners of its fields."""
        server, kind = self._server, call.kind
        metadata = obj.setdefault("metadata", {})
        if kind.namespaced:
            if metadata.setdefault("namespace", call.namespace) != call.namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
        else:
            metadata.pop("namespace", None)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + server.name_suffix(metadata["generateName"])
        kind.default(obj)
        attributes = self._attributes(call, "CREATE", obj, None)
        self._admission.mutate(attributes, server)
        obj = attributes.obj
        metadata = obj["metadata"]
        if metadata.get("resourceVersion"):
            raise unexpected("resourceVersion should not be set on objects to be created")
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"):
            metadata.pop(name, None)
        drop_empty(metadata)
        metadata["creationTimestamp"] = stamp(server.timeline.now)
        metadata["uid"] = server.new_uid(kind, metadata.get("namespace", ""), metadata.get("name", ""))
        kind.prepare_create(obj)
        if kind.generation:
            metadata["generation"] = 1
        finalizers = finalizer_errors(kind.group, metadata)
        self._check(kind, obj, metadata_errors(metadata, kind.name_errors) + finalizers + kind.validate(obj))
        self._admission.validate(attributes, server)
        taken = server.store.get(kind.storage, metadata.get("namespace", ""), metadata["name"])
        if taken is not None:
            deleting = "object is being deleted: " if "deletionTimestamp" in taken["metadata"] else ""
            raise already_exists(kind.named(metadata["name"]), deleting)
        kind.finish_create(obj)
        self._finish(call, attributes, owned=owned)
        return obj if call.dry_run else server.store.put(kind.storage, self._stored(kind, obj))

    def update_object(
        self, call: Call, change: Callable[[Obj], Obj], *, admit: bool = True, owned: bool = False
    ) -> Obj:
        """Change an object; the object as stored. `change` gets a copy of its own, in the version of the call.

        `owned`: what comes back states the owners of its fields already.
        """
        server, kind = self._server, call.kind
        stored = server.store.get(kind.storage, call.namespace, call.name)
        if stored is None:
            raise not_found(kind.named(call.name))
        old = kind.from_storage(stored) if kind.from_storage is not None else stored
        obj = change(clone(old))
        check_kind(obj, kind)
        metadata = obj.setdefault("metadata", {})
        for name in ("name", "namespace", "uid", "creationTimestamp"):
            if name in old["metadata"] and not metadata.get(name):
                metadata[name] = old["metadata"][name]
        self._check_names(call, metadata)
        given_uid = metadata.get("uid")
        given = metadata.get("resourceVersion")
        if given and given != old["metadata"]["resourceVersion"]:
            raise modified(kind.named(call.name))
        self._keep_deletion(metadata, old["metadata"])
        drop_empty(metadata)
        kind.default(obj)
        subresource = kind.subresources[call.subresource] if call.subresource else None
        attributes = self._attributes(call, "UPDATE", obj, old)
        if admit:
            self._admission.mutate(attributes, server)
            obj = attributes.obj
        self._prepare_update(kind, subresource, obj, old)
        if given_uid != old["metadata"]["uid"] and call.verb == "update":
            raise self._uid_conflict(call, given_uid, old["metadata"]["uid"])
        # the generic update and the kind's own strategy look at the metadata: each mistake is a cause twice
        errors = metadata_update_errors(obj["metadata"], old["metadata"])
        again = kind.validate_again(obj) if subresource is None else []
        finalizers = finalizer_errors(kind.group, obj["metadata"])
        self._check(kind, obj, errors + again + errors + finalizers + self._update_errors(kind, subresource, obj, old))
        if admit:
            self._admission.validate(attributes, server)
        self._finish(call, attributes, owned=owned)
        obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if same_but_times(obj, old):
            return stored
        if call.dry_run:
            return obj
        return self._deletion.settle(kind, self._stored(kind, obj)) or server.store.put(
            kind.storage, self._stored(kind, obj)
        )

    @staticmethod
    def _check_names(call: Call, metadata: Obj) -> None:
        """A patch leaves the name and the namespace as they are. Raises StatusError 400."""
        if call.verb != "patch" or not call.name:
            return
        if metadata.get("name") != call.name:
            raise bad_request(
                f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({call.name})"
            )
        if metadata.get("namespace", "") != call.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")

    def _prepare_update(self, kind: Kind, subresource: Subresource | None, obj: Obj, old: Obj) -> None:
        if subresource is not None:
            subresource.prepare(obj, old)
        else:
            kind.prepare_update(obj, old)
        if kind.generation:
            changed = any(obj.get(name) != old.get(name) for name in obj.keys() | old.keys() if is_desired(name))
            if kind.counts_annotations and subresource is None:
                changed |= obj["metadata"].get("annotations") != old["metadata"].get("annotations")
            obj["metadata"]["generation"] = old["metadata"].get("generation", 1) + changed

    def _update_errors(self, kind: Kind, subresource: Subresource | None, obj: Obj, old: Obj) -> list[FieldError]:
        if subresource is not None:
            return subresource.validate(obj, old)
        return kind.validate_update(obj, old)

    def _keep_deletion(self, metadata: Obj, old: Obj) -> None:
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"):
            if name in old:
                metadata[name] = old[name]
            else:
                metadata.pop(name, None)

    def _check(self, kind: Kind, obj: Obj, errors: list[FieldError]) -> None:
        if errors:
            named = kind.named(obj["metadata"].get("name", ""))
            group = kind.storage.partition(".")[2] if kind.stored_as else kind.group  # of the internal type
            raise invalid(replace(named, group=group), errors)

    def _finish(self, call: Call, attributes: Attributes, *, owned: bool) -> None:
        """The last steps for an accepted object: owners of its fields, warnings."""
        call.warnings += attributes.warnings
        if call.kind.warnings is not None:
            call.warnings += call.kind.warnings(attributes.obj, attributes.old)
        if not owned:
            old = attributes.old
            if old is None and not call.kind.custom:
                old = blank(attributes.obj)
            track_update(call.kind.schema, old, attributes.obj, self._writer(call))

    def _stored(self, kind: Kind, obj: Obj) -> Obj:
        return kind.to_storage(obj) if kind.to_storage is not None else obj

    def _attributes(
        self, call: Call, operation: Operation, obj: Obj, old: Obj | None, options: Obj | None = None
    ) -> Attributes:
        name = call.name or obj.get("metadata", {}).get("name", "")
        return Attributes(
            operation,
            call.kind,
            call.namespace,
            name,
            call.subresource,
            call.user,
            obj,
            old,
            call.dry_run,
            options or {},
        )

    def delete_object(self, kind: Kind, stored: Obj, options: Obj, *, dry_run: bool = False) -> tuple[Obj, bool]:
        """Delete an object, for evictions: its state afterwards or its last one, and True if it is gone."""
        return self._deletion.delete(kind, stored, options, dry_run=dry_run)

    def check_uid(self, call: Call, uid: str | None, stored: Obj) -> None:
        """Raises StatusError 409 if the uid is not that of the stored object."""
        if uid and uid != stored["metadata"]["uid"]:
            raise self._uid_conflict(call, uid, stored["metadata"]["uid"])

    def admit_action(self, call: Call, obj: Obj) -> None:
        """Ask admission about an action below an object, such as an Eviction. Raises StatusError."""
        self._admission.validate(self._attributes(call, "CREATE", obj, None), self._server)

    def put_object(self, call: Call, change: Callable[[Obj], Obj]) -> Obj:
        """Write the change of an action to its object: without admission and checks; its fields have owners."""
        server, kind = self._server, call.kind
        stored = server.store.get(kind.storage, call.namespace, call.name)
        if stored is None:
            raise not_found(kind.named(call.name))
        obj = change(clone(stored))
        track_update(kind.schema, stored, obj, self._writer(call))
        return obj if call.dry_run else server.store.put(kind.storage, obj)

    def _uid_conflict(self, call: Call, given: str, held: str) -> StatusError:
        kind = call.kind
        prefix = f"/registry/{kind.plural}"
        key = "/".join(part for part in (prefix, call.namespace, call.name) if part)
        why = (
            f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
            f"Precondition failed: UID in precondition: {given}, UID in object meta: {held}"
        )
        return conflict(kind.named(call.name), why)

    def _body_kind(self, call: Call) -> Kind:
        """The kind of the written body: that of a subresource if it is shown as an object of another kind."""
        subresource = call.kind.subresources.get(call.subresource)
        if subresource is None or subresource.put is None or subresource.kind is None:
            return call.kind
        group, version, kind = subresource.kind
        return Kind(group, version, call.kind.plural, kind, call.kind.namespaced, schema=schema(kind))

    def _through(self, call: Call, change: Callable[[Obj], Obj], *, owned: bool = False) -> Callable[[Obj], Obj]:
        """A change of a subresource's view (a Scale) as a change of the object behind it.

        `owned`: what comes back states the owners of the fields of that object.
        """
        subresource = call.kind.subresources.get(call.subresource)
        if subresource is None or subresource.get is None or subresource.put is None:
            return change
        read, write = subresource.get, subresource.put

        def changed(old: Obj) -> Obj:
            shown = change(read(self._server, call.kind, old))
            self._check_shown(call, shown, old)
            obj = write(self._server, call.kind, old, shown)
            obj["metadata"]["resourceVersion"] = (shown.get("metadata") or {}).get("resourceVersion", "")
            if owned:
                obj["metadata"]["managedFields"] = shown["metadata"].get("managedFields", [])
            return obj

        return changed

    def _check_shown(self, call: Call, shown: Obj, old: Obj) -> None:
        """Refuse a Scale of another object, or an impossible one. Raises StatusError 409, 422."""
        kind, metadata = self._body_kind(call), shown.get("metadata") or {}
        self._check_names(replace(call, verb="patch"), metadata)
        uid, held = metadata.get("uid"), old["metadata"]["uid"]
        if uid and uid != held:
            named = replace(call.kind.named(call.name), resource=f"{call.kind.plural}/{call.subresource}")
            raise conflict(named, f"Precondition failed: UID in precondition: {uid}, UID in object meta: {held}")
        errors = scale_errors(shown)
        if errors:
            raise invalid(kind.named(call.name), errors)

    def _shown(self, call: Call, obj: Obj) -> Obj:
        subresource = call.kind.subresources.get(call.subresource)
        if subresource is not None and subresource.get is not None and call.verb != "create":
            return subresource.get(self._server, call.kind, obj)
        view = view_of(call.kind, call.request.accept, call.option("includeObject"))
        return view.one(obj, self._server.timeline.now)


def is_desired(name: str) -> bool:
    """True if a top-level field counts for metadata.generation."""
    return name not in {"metadata", "status", "apiVersion", "kind"}
