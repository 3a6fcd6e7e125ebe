"""ValidatingAdmissionPolicy: rules of the cluster's owners in CEL, bound to namespaces and objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from celpy import celtypes

from apiserver.access.rules import Attributes as Wanted
from apiserver.access.rules import decide
from apiserver.admission.base import Attributes
from apiserver.admission.params import Parameters
from apiserver.cel.authorizer import Authorizer, Decides
from apiserver.cel.program import CompileError, EvaluationError, compiled
from apiserver.cel.values import plain_text, to_cel
from apiserver.errors import StatusError, quoted
from apiserver.kinds.base import State
from apiserver.selectors import matches_labels
from apiserver.users import User

if TYPE_CHECKING:
    from apiserver.store import Event

Obj = dict[str, Any]
POLICIES = "validatingadmissionpolicies.admissionregistration.k8s.io"
BINDINGS = "validatingadmissionpolicybindings.admissionregistration.k8s.io"
IN_FORCE_S = 0.25
"""From a change of a policy or a binding until admission follows it (0.02 to 0.95 s, measured on Kubernetes 1.36)."""
EXEMPT = frozenset({POLICIES, BINDINGS})
NO_PARAMS = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


class Policies:
    """The policies in force. They follow the stored ones with a delay, as on a real server."""

    name = "ValidatingAdmissionPolicy"

    def __init__(self, server: State) -> None:
        self._server = server
        self._policies: dict[str, Obj] = {}
        self._bindings: dict[str, Obj] = {}
        self._parameters = Parameters(server)
        server.restarts.append(self._parameters.restarted)
        server.store.subscribe((POLICIES, BINDINGS), self._changed)

    def _changed(self, event: Event) -> None:
        held = self._policies if event.resource == POLICIES else self._bindings
        name = event.obj["metadata"]["name"]

        def follow() -> None:
            stored = self._server.store.get(event.resource, "", name)
            if stored is None:
                held.pop(name, None)
            else:
                held[name] = stored
            self._parameters.follow(self._policies, self._bindings)

        self._server.timeline.at(IN_FORCE_S, follow)

    def mutate(self, attributes: Attributes, server: State) -> None:
        """Nothing."""

    def validate(self, attributes: Attributes, server: State) -> None:
        """Ask every policy bound to the object. Raises StatusError of the first denial."""
        if attributes.kind.resource in EXEMPT:
            return
        for name in sorted(self._bindings):
            binding = self._bindings[name]
            policy = self._policies.get(binding["spec"]["policyName"])
            if policy is not None and self._matches(policy, binding, attributes):
                self._ask(policy, binding, attributes)

    def _matches(self, policy: Obj, binding: Obj, attributes: Attributes) -> bool:
        resources = binding["spec"].get("matchResources") or {}
        return self._constrained(policy["spec"].get("matchConstraints") or {}, attributes, default=False) and (
            self._constrained(resources, attributes, default=True)
        )

    def _constrained(self, constraints: Mapping[str, Any], attributes: Attributes, *, default: bool) -> bool:
        rules = constraints.get("resourceRules")
        if not (any(_rule_matches(rule, attributes) for rule in rules) if rules else default):
            return False
        if any(_rule_matches(rule, attributes) for rule in constraints.get("excludeResourceRules") or ()):
            return False
        subjects = [attributes.obj or attributes.old or {}, attributes.old or {}]
        selector = constraints.get("objectSelector")
        if selector and not any(matches_labels(selector, _labels(each)) for each in subjects):
            return False
        selector = constraints.get("namespaceSelector")
        if not selector:
            return True
        if attributes.kind.resource == "namespaces":
            return matches_labels(selector, _labels(subjects[0]))
        namespace = self._server.store.get("namespaces", "", attributes.namespace)
        return not attributes.namespace or matches_labels(selector, _labels(namespace or {}))

    def _ask(self, policy: Obj, binding: Obj, attributes: Attributes) -> None:
        """One evaluation. A missing parameter decides ahead of all conditions."""
        if self._parameters.unknown(policy):
            stated = policy["spec"]["paramKind"]
            text = f"'{stated['apiVersion']}, Kind={stated['kind']}'"
            self._misconfigured(policy, attributes, f"failed to find resource referenced by paramKind: {text}")
            return
        spec, params = policy["spec"], self._parameters.of(policy, binding, attributes.namespace)
        if params is None and spec.get("paramKind") and binding["spec"].get("paramRef"):
            if binding["spec"]["paramRef"].get("parameterNotFoundAction") == "Deny" and _fails(spec):
                self._act(policy, binding, attributes, NO_PARAMS, "Invalid")
            return
        given = self._given(params, attributes)
        applies, failed = _applies(spec, given)
        if failed and _fails(spec):
            self._act(policy, binding, attributes, failed, "Invalid")
        if not applies:
            return
        bindings = {name: to_cel(value) for name, value in given.items()}
        bindings["variables"] = _Variables(spec.get("variables") or (), bindings)
        for validation in spec.get("validations") or ():
            text = _broken(validation, bindings, spec.get("failurePolicy", "Fail"))
            if text:
                self._act(policy, binding, attributes, text, validation.get("reason") or "Invalid")

    def _given(self, params: Obj | None, attributes: Attributes) -> Obj:
        """The variables of an expression, by name. Values of CEL are made of them on demand, for their cost."""
        kind, user = attributes.kind, attributes.user
        namespace = self._server.store.get("namespaces", "", attributes.namespace) if attributes.namespace else None
        request = {
            "kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
            "resource": {"group": kind.group, "version": kind.version, "resource": kind.plural},
            **_stated(subResource=attributes.subresource, name=attributes.name, namespace=attributes.namespace),
            "operation": attributes.operation,
            "userInfo": {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": user.extra},
            "dryRun": attributes.dry_run,
        }
        return {
            "object": attributes.obj or None,
            "oldObject": attributes.old,
            "request": request,
            "namespaceObject": namespace,
            "params": params,
            "authorizer": Authorizer(self._decider(user)),
            "variables": {},
        }

    def _decider(self, user: User) -> Decides:
        def decides(verb: str, group: str, resource: str, subresource: str, namespace: str, name: str) -> bool:
            wanted = Wanted(verb, group, resource, subresource, namespace, name)
            return decide(self._server.store, user, wanted)[0]

        return decides

    def _misconfigured(self, policy: Obj, attributes: Attributes, text: str) -> None:
        """A policy with a broken setup refuses all writes, regardless of its conditions and actions."""
        if _fails(policy["spec"]):
            name = policy["metadata"]["name"]
            message = f"ValidatingAdmissionPolicy '{name}' denied request: failed to configure policy: {text}"
            raise _refusal(attributes, message, "Invalid")

    def _act(self, policy: Obj, binding: Obj, attributes: Attributes, text: str, reason: str) -> None:
        names = f"'{policy['metadata']['name']}' with binding '{binding['metadata']['name']}'"
        actions = binding["spec"].get("validationActions") or ()
        if "Warn" in actions:
            attributes.warnings.append(f"Validation failed for ValidatingAdmissionPolicy {names}: {text}")
        if "Deny" in actions:
            raise _refusal(attributes, f"ValidatingAdmissionPolicy {names} denied request: {text}", reason)


class _Variables(celtypes.MapType):
    """The variables of a policy by name. Each is computed at its first read."""

    def __init__(self, stated: Iterable[Mapping[str, str]], bindings: Obj) -> None:
        super().__init__()
        self._sources = {each["name"]: each["expression"] for each in stated}
        self._bindings = bindings
        self._found: Obj = {}

    def __getitem__(self, key: Any) -> Any:
        name = str(key)
        if name not in self._found:
            try:
                self._found[name] = compiled(self._sources[name]).value(self._bindings)
            except (CompileError, EvaluationError) as error:
                raise KeyError(f"no such member in mapping: {name!r}") from error
        return self._found[name]

    def get(self, key: Any, _default: Any = None) -> Any:
        """The value of a variable. Raises KeyError for one without a value."""
        return self[key]

    def __contains__(self, key: Any) -> bool:
        return str(key) in self._sources


def _refusal(attributes: Attributes, message: str, reason: str) -> StatusError:
    named = attributes.kind.named(attributes.name)
    details = named.details(named.resource) | {"causes": [{"message": message}]}
    shown = f"{named.qualified} {quoted(named.name)} is forbidden: {message}"
    return StatusError(CODES.get(reason, 422), reason, shown, details)


def _fails(spec: Mapping[str, Any]) -> bool:
    """True if a policy refuses after an error of its evaluation."""
    return bool(spec.get("failurePolicy", "Fail") == "Fail")


def _applies(spec: Mapping[str, Any], given: Obj) -> tuple[bool, str]:
    """True if all match conditions hold. The text is that of a failed one, if none is false."""
    failed = ""
    for condition in spec.get("matchConditions") or ():
        source = condition["expression"]
        try:
            program = compiled(source)
            if not program.value({name: to_cel(given[name]) for name in program.names & given.keys()}):
                return False, ""
        except (CompileError, EvaluationError) as error:
            failed = failed or f"match condition '{condition['name']}' resulted in error: {error}"
    return not failed, failed


def _stated(**fields: str) -> dict[str, str]:
    """The filled fields: an AdmissionRequest leaves out empty ones."""
    return {name: value for name, value in fields.items() if value}


def _rule_matches(rule: Mapping[str, Any], attributes: Attributes) -> bool:
    kind = attributes.kind
    resource = f"{kind.plural}/{attributes.subresource}" if attributes.subresource else kind.plural
    resources = rule.get("resources") or ()
    named = rule.get("resourceNames") or ()
    any_resource = "*" in resources and not attributes.subresource
    return (
        _listed(rule.get("operations"), attributes.operation)
        and _listed(rule.get("apiGroups"), kind.group)
        and _listed(rule.get("apiVersions"), kind.version)
        and (any_resource or "*/*" in resources or resource in resources)
        and (not named or attributes.name in named)
        and rule.get("scope", "*") in {"*", "Namespaced" if kind.namespaced else "Cluster"}
    )


def _listed(given: list[str] | None, wanted: str) -> bool:
    return bool(given) and ("*" in given or wanted in given)  # type: ignore[operator]


def _labels(obj: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = (obj.get("metadata") or {}).get("labels") or {}
    return found


def _broken(validation: Mapping[str, Any], bindings: Obj, failure_policy: str) -> str:
    """The refusal of a validation; "" without one."""
    source = validation["expression"]
    try:
        if compiled(source).value(bindings):
            return ""
    except (CompileError, EvaluationError) as error:
        return f"expression '{source}' resulted in error: {error}" if failure_policy == "Fail" else ""
    if validation.get("messageExpression"):
        try:
            said = plain_text(compiled(validation["messageExpression"]).value(bindings))
        except (CompileError, EvaluationError):
            said = None
        if said and said.strip():
            return said
    return str(validation.get("message") or f"failed expression: {source.strip()}")
