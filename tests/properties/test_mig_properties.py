"""What holds of MIG legality for every model, every legal set and every wish."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig import MODELS, GpuModel, Placement

models = st.sampled_from(MODELS)


@st.composite
def legal_cuts(draw: st.DrawFn, model: GpuModel) -> list[Placement]:
    """A legal set of any profiles, variants included, grown by placing at random what is still free."""
    options = [Placement(profile.name, start) for profile in model.profiles for start in profile.starts]
    cut: list[Placement] = []
    for option in draw(st.lists(st.sampled_from(options), max_size=8)):
        if mig.is_legal(model, [*cut, option]):
            cut.append(option)
    return cut


@st.composite
def situations(draw: st.DrawFn) -> tuple[GpuModel, list[Placement], list[str]]:
    """A model, what is on it, and what is wanted beside it."""
    model = draw(models)
    names = st.sampled_from([profile.name for profile in model.profiles])
    return model, draw(legal_cuts(model)), draw(st.lists(names, max_size=4))


@st.composite
def pairs_of_cuts(draw: st.DrawFn) -> tuple[GpuModel, list[Placement], list[Placement], list[Placement]]:
    """A model, two legal cuts of it, and those of the first that are in use."""
    model = draw(models)
    now, then = draw(legal_cuts(model)), draw(legal_cuts(model))
    used = draw(st.lists(st.sampled_from(now), unique=True)) if now else []
    return model, now, then, used


def overlap_free(model: GpuModel, placements: list[Placement]) -> bool:
    """Legality by the rules alone, slice by slice, independent of the product's tables."""
    facts = {profile.name: profile for profile in model.profiles}
    slices: list[int] = []
    for name, start in placements:
        if start not in facts[name].starts:
            return False
        slices += range(start, start + facts[name].memory_slices)
    names = [name for name, _start in placements]
    few = all(names.count(name) <= facts[name].max_instances for name in names)
    media = sum(facts[name].media_extension for name in names)
    return few and media <= 1 and len(set(slices)) == len(slices)


@given(st.data(), models)
def test_legality_is_the_rules(data: st.DataObject, model: GpuModel) -> None:
    """Any list of placements is legal exactly if the rules, read slice by slice, allow it."""
    names = st.sampled_from([profile.name for profile in model.profiles])
    any_placement = st.builds(Placement, names, st.integers(-1, model.memory_slices))
    placements = data.draw(st.lists(any_placement, max_size=5))
    assert mig.is_legal(model, placements) is overlap_free(model, placements)


@given(st.data(), models)
def test_any_part_of_a_legal_set_is_legal(data: st.DataObject, model: GpuModel) -> None:
    """Taking instances away never makes a GPU illegal."""
    cut = data.draw(legal_cuts(model))
    part = data.draw(st.lists(st.sampled_from(cut), unique=True)) if cut else []
    assert mig.is_legal(model, part)


@given(situations())
def test_fit_is_legal_and_exactly_what_was_wanted(
    situation: tuple[GpuModel, list[Placement], list[str]],
) -> None:
    """Found places are legal together with what is there, and are the wanted profiles in their order."""
    model, occupied, wanted = situation
    found = mig.fits(model, occupied, wanted)
    if found is not None:
        assert [placement.profile for placement in found] == wanted
        assert overlap_free(model, [*occupied, *found])
        assert mig.fits(model, occupied[::-1], wanted) == found


@given(situations())
def test_fit_is_refused_only_if_there_is_none(
    situation: tuple[GpuModel, list[Placement], list[str]],
) -> None:
    """None is the answer exactly if trying every start for every wish finds nothing."""
    model, occupied, wanted = situation
    starts = {profile.name: profile.starts for profile in model.profiles}
    exists = any(
        overlap_free(model, [*occupied, *map(Placement, wanted, choice)])
        for choice in product(*(starts[name] for name in wanted))
    )
    assert (mig.fits(model, occupied, wanted) is not None) is exists


@given(situations(), st.data())
def test_existing_free_instances_never_hinder(
    situation: tuple[GpuModel, list[Placement], list[str]], data: st.DataObject
) -> None:
    """Free instances change where things go, never whether they fit; a wish that they hold destroys none."""
    model, cut, wanted = situation
    free = data.draw(st.lists(st.sampled_from(cut), unique=True)) if cut else []
    held = [placement for placement in cut if placement not in free]
    found = mig.fits(model, held, wanted, existing=free)
    assert (found is None) is (mig.fits(model, held, wanted) is None)
    assert set(mig.fits(model, held, [each.profile for each in free], existing=free) or ()) == set(free)


@given(situations())
def test_free_capacity_is_how_many_fit(situation: tuple[GpuModel, list[Placement], list[str]]) -> None:
    """As many as said of each profile fit, and not one more; the table for vectors agrees."""
    model, occupied, _wanted = situation
    capacity = mig.free_capacity(model, occupied)
    for name, count in capacity.items():
        assert mig.fits(model, occupied, [name] * count) is not None
        assert mig.fits(model, occupied, [name] * (count + 1)) is None
    row = mig.capacity_table(model)[mig.mask_of(model, occupied)].tolist()
    facts = {profile.name: profile for profile in model.profiles}
    media = any(facts[placement.profile].media_extension for placement in occupied)
    for profile, count in zip(model.profiles, row, strict=True):
        assert capacity[profile.name] == (0 if media and profile.media_extension else count)


@given(situations())
def test_masks_tell_what_is_free(situation: tuple[GpuModel, list[Placement], list[str]]) -> None:
    """For profiles without a media extension, a zero AND of masks is the same as being legal beside."""
    model, occupied, _wanted = situation
    mask = mig.mask_of(model, occupied)
    for index, start, bits in mig.placement_masks(model):
        profile = model.profiles[index]
        if not profile.media_extension:
            beside = overlap_free(model, [*occupied, Placement(profile.name, start)])
            assert (mask & bits == 0) is beside


@given(pairs_of_cuts())
def test_transition_keeps_what_stays_and_is_legal_at_every_step(
    case: tuple[GpuModel, list[Placement], list[Placement], list[Placement]],
) -> None:
    """Kept instances are never destroyed, every step is legal, the end is the wanted cut."""
    model, now, then, used = case
    change = mig.transition(model, now, then, used)
    assert set(change.keep) == set(now) & set(then)
    assert not set(change.keep) & (set(change.destroy) | set(change.create))
    cut = set(now)
    for placement in change.destroy:
        cut.remove(placement)
        assert mig.is_legal(model, cut)
    for placement in change.create:
        cut.add(placement)
        assert mig.is_legal(model, cut)
    assert cut == set(then)
    assert set(change.drain) == set(used) - set(then)
    expected = "none" if set(now) == set(then) else "gpu" if change.drain else "instance"
    assert change.scope == expected


@given(
    st.none() | st.integers(1, 9),
    st.integers(1, 7),
    st.integers(1, 999),
    st.sampled_from(["", "+me", "+me.all", "+gfx", "-me"]),
)
def test_profile_names_survive_writing_and_reading(
    compute: int | None, slices: int, memory_gb: int, variant: str
) -> None:
    """A name reads back as itself, directly and through its Kubernetes resource."""
    name = mig.ProfileName(compute, slices, memory_gb, variant)
    possible = compute is None or compute <= slices
    assert mig.find_profile_name(str(name)) == (name if possible else None)
    if possible:
        assert mig.find_profile_name(mig.resource_name(str(name))) == name


@given(models, st.data())
def test_every_profile_is_found_by_its_resource(model: GpuModel, data: st.DataObject) -> None:
    """The resource of any profile leads back to the profile on its model."""
    profile = data.draw(st.sampled_from(model.profiles))
    assert mig.find_profile(model.product_labels[0], mig.resource_name(profile.name)) is profile


@given(st.text(max_size=40))
def test_any_text_is_answered(text: str) -> None:
    """No text makes a look-up fail otherwise than by saying that it is unknown."""
    mig.find_profile_name(text)
    mig.find_gpu_model(text)
    mig.find_profile("H100-80GB", text)
