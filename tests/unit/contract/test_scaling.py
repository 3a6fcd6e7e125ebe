"""What the owner of a service declares about its replicas, and the record of a floor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.contract import PREFIX, Contract, parse_contract
from autopilot.contract.scaling import Floor, Scaling, WakeSignal, Way, follows_floor, read_floor, read_scaling


def _of(**values: str) -> Scaling:
    return read_scaling({PREFIX + name.replace("_", "-"): value for name, value in values.items()})


def test_what_is_not_declared_is_not_allowed() -> None:
    """A service without annotations is not scaled, and may not go to zero."""
    assert _of() == Scaling(None, None, may_scale=False, wake_signal=None)


def test_declarations_are_read() -> None:
    """Bounds, consent and wake signal."""
    found = _of(min_replicas="0", max_replicas=" 8 ", scale="true", wake_signal="gateway")
    assert found == Scaling(0, 8, may_scale=True, wake_signal=WakeSignal.GATEWAY)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"min_replicas": "-1"}, "min-replicas: '-1' is not allowed; it takes a whole number from 0 to 100,000"),
        ({"max_replicas": "1e3"}, "max-replicas"),
        ({"min_replicas": "9999999"}, "min-replicas"),
        ({"min_replicas": "4", "max_replicas": "2"}, "4 is above max-replicas, 2"),
        ({"scale": "yes"}, "scale: 'yes' is not allowed; it takes one of true, false"),
        ({"wake_signal": "hope"}, "one of gateway"),
    ],
)  # fmt: skip
def test_a_wrong_value_refuses_all(values: dict[str, str], said: str) -> None:
    """Nothing is allowed on the word of a declaration that is wrong in part."""
    found = _of(scale=values.pop("scale", "true"), **values)
    assert said in found.problem
    assert not found.may_scale


def test_they_do_not_disturb_the_contract_of_a_replica() -> None:
    """The annotations stand on the Deployment, whose other annotations are read for its pods."""
    floor = Floor("i", 3, 60.0, Way.METRIC).text()
    found = parse_contract({PREFIX + "min-replicas": "0", PREFIX + "floor": floor, PREFIX + "objective-s": "1s"})
    assert isinstance(found, Contract)


@given(st.builds(Floor, st.text(), st.integers(0, 100), st.integers(0, 2**40), st.sampled_from(Way)))
def test_a_floor_is_read_as_it_was_written(floor: Floor) -> None:
    """With what the owner had, and without."""
    assert read_floor(floor.text()) == floor
    owned = Floor(floor.id, floor.replicas, floor.until_s, floor.way, 2, 5)
    assert read_floor(owned.text()) == owned


@pytest.mark.parametrize(
    "text",
    [
        "", "3", "[]", "{}", '{"id": "a", "replicas": 3, "until": 1, "way": "magic"}',
        '{"id": "a", "replicas": -3, "until": 1, "way": "hpa"}',
        '{"id": "a", "replicas": 3, "until": 1e999, "way": "hpa"}',
        '{"id": "a", "replicas": 1e999, "until": 1, "way": "hpa"}',
        '{"id": "a", "replicas": 3, "until": 1, "way": "hpa", "owner": "2"}',
    ],
)  # fmt: skip
def test_what_is_no_record_is_no_floor(text: str) -> None:
    """A text of somebody else is ignored."""
    assert read_floor(text) is None


def test_the_metric_is_found_under_the_names_of_keda_and_of_adapters() -> None:
    """KEDA puts `s0-` before the name; Prometheus has no dashes."""
    assert follows_floor("s0-gpu-autopilot-floor")
    assert follows_floor("gpu_autopilot_floor_replicas")
    assert not follows_floor("requests_per_second")
