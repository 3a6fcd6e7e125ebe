"""Expressions of CEL: evaluated on a shorter tree and on values that are made when they are read, as by the library."""

from __future__ import annotations

from typing import Any

import celpy
import pytest
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from apiserver.cel.program import FUNCTIONS, EvaluationError, compiled
from apiserver.cel.values import to_cel

OBJECT: dict[str, Any] = {
    "metadata": {"name": "one", "labels": {"a": "x", "b": "y"}, "finalizers": ["f"]},
    "spec": {"replicas": 3, "ratio": 0.5, "on": True, "none": None, "pods": [{"cpu": 1}, {"cpu": 2}]},
}


def plainly(value: Any) -> Any:
    """A value of CEL as the library makes it, all of it at once."""
    if isinstance(value, dict):
        return celtypes.MapType({celtypes.StringType(name): plainly(each) for name, each in value.items()})
    if isinstance(value, list):
        return celtypes.ListType([plainly(each) for each in value])
    return json_to_cel(value)


@pytest.mark.parametrize(
    "source",
    [
        "object.metadata.name == 'one' && object.spec.replicas * 2 - 1 == 5",
        "has(object.metadata.labels.c) || !has(object.metadata.labels.a)",
        "object.metadata.labels.c == 'x' || object.spec.on",
        "object.metadata.labels.all(key, object.metadata.labels[key] in ['x', 'y'])",
        "object.metadata.labels == {'a': 'x', 'b': 'y'} ? size(object.metadata.labels) : -1",
        "'a' in object.metadata.labels && !('z' in object.metadata.labels)",
        "object.spec.pods.map(pod, pod.cpu + 1).exists(cpu, cpu > 2)",
        "object.spec.pods.filter(pod, pod.cpu == 2)[0].cpu",
        "(object.spec.pods[1]) == {'cpu': 2}",
        "object.spec.none == null",
        "-object.spec.replicas + int(object.spec.ratio * 4.0)",
        "object.metadata.name.startsWith('o') ? object.metadata.name + object.metadata.finalizers[0] : 'no'",
    ],
)
def test_the_value_is_that_of_the_library(source: str) -> None:
    """Also of an expression that is evaluated twice on the same values."""
    environment = celpy.Environment()
    library = environment.program(environment.compile(source), functions=FUNCTIONS)
    expected = library.evaluate({"object": plainly(OBJECT)})
    ours = {"object": to_cel(OBJECT)}
    for _ in range(2):
        found = compiled(source).value(ours)
        assert found == expected
        assert type(found) is type(expected)


@pytest.mark.parametrize("source", ["object.spec.absent", "object.spec.pods[7]", "1 / 0", "object.metadata + 1"])
def test_what_has_no_value_for_the_library_has_none_here(source: str) -> None:
    """And the values can be read afterwards."""
    environment = celpy.Environment()
    ours = {"object": to_cel(OBJECT)}
    with pytest.raises(CELEvalError):
        environment.program(environment.compile(source), functions=FUNCTIONS).evaluate({"object": plainly(OBJECT)})
    with pytest.raises(EvaluationError):
        compiled(source).value(ours)
    assert compiled("object.metadata.name").value(ours) == "one"
