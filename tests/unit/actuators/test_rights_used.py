"""The rights of each kind of instruction are those that its levers use: none is missing, and none is left over.

The stories are tests of the other files of this folder, told once more on one cluster while the requests are recorded.
"""

from __future__ import annotations

import pytest

from actuators.kubernetes.rights import kinds
from autopilot.service.leading.restraint import WITHOUT_VERSION
from tests.kits.acting_kit import Acting
from tests.kits.autoscaler_kit import Autoscaler
from tests.kits.mig_kit import Scene
from tests.kits.rights_kit import Right, Rights, granted, without_names
from tests.kits.scaling_kit import Scaling
from tests.kits.sharing_kit import SharingScene
from tests.unit.actuators import (
    test_admission_check,
    test_job_width,
    test_kueue_levers,
    test_mig_config,
    test_node_cordon,
    test_notice,
    test_offer_back,
    test_plain_levers,
    test_provisioning,
    test_saving,
    test_service_ceiling,
    test_service_scale,
    test_sharing_config,
    test_step_pause,
    test_writing,
)


@pytest.fixture(scope="module")
def asked(acting: Acting, tmp_path_factory: pytest.TempPathFactory) -> tuple[Rights, ...]:
    """What was asked for, on the cluster with Kueue and on those with the GPU operator."""
    test_admission_check.test_a_gang_starts_whole_at_its_place(acting)
    test_kueue_levers.test_a_moved_gang_returns_to_our_check(acting)
    test_kueue_levers.test_preempted_work_stays_out_until_it_is_admitted_again(acting)
    test_plain_levers.test_gated_pods_get_their_nodes_and_start(acting)
    test_plain_levers.test_a_job_that_we_suspended_starts_again_elsewhere(acting)
    test_plain_levers.test_pods_are_evicted_with_their_grace(acting)
    test_saving.test_work_is_stopped_once_it_has_saved(acting)
    test_notice.test_the_owner_reads_what_may_follow_and_how_to_prevent_it(acting)
    test_step_pause.test_a_program_waits_and_goes_on(acting)
    test_notice.test_the_owner_of_a_pod_without_a_job_reads_it_too(acting)
    test_job_width.test_a_job_starts_narrow_grows_and_gives_up_the_member_that_is_named(acting)
    test_job_width.test_a_job_of_kueue_gets_another_workload_when_it_grows(acting)
    scaling = Scaling(acting)
    test_service_scale.test_the_minimum_of_an_autoscaler_is_raised_and_given_back(scaling)
    for plural in ("deployments", "statefulsets"):
        test_service_scale.test_replicas_are_raised_and_given_back(scaling, plural)
    ceilings = Scaling(acting, "ceiling")
    for plural in ("deployments", "statefulsets"):
        test_service_ceiling.test_replicas_go_to_zero_and_come_back(ceilings, plural)
    autoscaler = Autoscaler(acting)
    autoscaler.install()
    test_provisioning.test_a_gang_of_kueue_asks_until_it_starts(acting, autoscaler)
    test_provisioning.test_a_request_is_removed_at_its_deadline(acting, autoscaler)
    test_provisioning.test_where_kueue_asks_itself_nothing_is_asked_for(acting, autoscaler)
    test_writing.test_our_check_is_kept_active(acting)
    test_offer_back.test_an_offer_is_an_annotation_and_is_taken_back((acting, test_node_cordon.Nodes(acting)))
    test_node_cordon.test_a_condemned_node_is_closed_and_opened_again((acting, test_node_cordon.Nodes(acting)))
    scene = Scene(tmp_path_factory.mktemp("rights"))
    test_mig_config.test_a_gpu_is_cut_and_the_other_one_keeps_its_geometry(scene)
    scene.close()
    sharing = SharingScene(tmp_path_factory.mktemp("sharing"))
    test_sharing_config.test_an_empty_node_is_turned_and_turned_back(sharing)
    sharing.close()
    return acting.rights, scene.rights, sharing.rights


@pytest.mark.parametrize("kind", kinds())
def test_a_kind_of_instruction_uses_each_of_its_rights(asked: tuple[Rights, ...], kind: str) -> None:
    """And the server refuses nothing that it asks for."""
    used = set[Right]().union(*(each.used[kind] for each in asked))
    assert set[Right]().union(*(each.refused[kind] for each in asked)) == set()
    assert granted(kind) - without_names(used, kind) == set(), "no story uses it: remove the right"
    assert without_names(used, kind) - granted(kind) == set()


def test_kinds_whose_writes_name_no_version_only_recommend_without_the_fence(asked: tuple[Rights, ...]) -> None:
    """A write that names one is refused once the next leader has written its object; the others need the policy."""
    found = {kind for rights in asked for kind, writes in rights.unversioned.items() if writes}
    assert found == WITHOUT_VERSION == {"evict", "resize", "provision"}
