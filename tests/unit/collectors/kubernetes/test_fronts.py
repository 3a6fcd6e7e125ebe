"""Which pods requests are led to, and what is looked at again for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collectors.kubernetes.cache import Changes
from collectors.kubernetes.front_wire import Service, ServiceSpec
from collectors.kubernetes.fronts import Fronts
from collectors.kubernetes.wire import Meta

LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"))


def service(name: str, selector: dict[str, str], version: str = "1") -> Service:
    """A Service that a cloud or a person made."""
    return Service(Meta(name, "team", f"uid-{name}", version), ServiceSpec(selector=selector, cluster_ip="10.0.0.1"))


@given(selectors=st.lists(LABELS, max_size=6), labels=LABELS)
def test_a_service_leads_to_pods_with_all_labels_that_it_asks_for(
    selectors: list[dict[str, str]], labels: dict[str, str]
) -> None:
    """One without a selector leads to none that is known."""
    fronts = Fronts()
    fronts.update([Changes([service(f"s{place}", each) for place, each in enumerate(selectors)])])
    expected = any(each and each.items() <= labels.items() for each in selectors)
    assert fronts.lead_to("team", labels) == expected
    assert not fronts.lead_to("other", labels)
    fronts.update([Changes(gone=[service(f"s{place}", each) for place, each in enumerate(selectors)])])
    assert not fronts.lead_to("team", labels)


def test_a_service_that_leads_where_it_led_moves_nothing() -> None:
    """Its status and annotations change often; its pods are not looked at again for that."""
    fronts = Fronts()
    assert fronts.update([Changes([service("s", {"app": "a"})])]) == {"team"}
    assert fronts.update([Changes([service("s", {"app": "a"}, "2")])]) == set()
    assert fronts.update([Changes([service("s", {"app": "b"}, "3")])]) == {"team"}
    assert not fronts.lead_to("team", {"app": "a"})
