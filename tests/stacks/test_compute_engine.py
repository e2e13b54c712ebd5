"""What `tpu.api: compute-engine` allows in the settings, and what it changes in the plan."""

from pathlib import Path

import pytest

from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.planner import plan
from gemma_serving.stacks.loading import SettingsError, from_file
from gemma_serving.stacks.planned import to_deployment

FILE = Path(__file__).parents[2] / "Pulumi.tpu-v6e1.yaml"


def settings(tmp_path: Path, *changes: tuple[str, str]):
    text = FILE.read_text().replace(
        "    acceleratorType: v6e-1\n", "    api: compute-engine\n    acceleratorType: v6e-1\n"
    )
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(text)
    return from_file(path, project="my-project")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("acceleratorType: v6e-1", "acceleratorType: v5e-1"), "one of v6e-1, v6e-4, v6e-8"),
        (("waitPerZone: 30m", "renewBefore: 1h"), "renews queued resources only"),
        (
            ("waitPerZone: 30m", "tunnelRole: gemmaTunnel"),
            "tunnelRole replaces roles/tpu.admin, which members get with api",
        ),
        (("waitPerZone: 30m", "waitPerZone: 3h"), "waitPerZone exceeds 2h"),
        (("waitPerZone: 30m", "runtimeVersion: v2-alpha-tpuv6e"), "must be a boot image"),
        (("provisioning: flex-start", "provisioning: reservation\n    reservation: r"), "not support reservations"),
    ],
)
def test_what_compute_engine_does_not_offer_is_refused_with_the_way_out(tmp_path, change, said):
    with pytest.raises(SettingsError, match=said):
        settings(tmp_path, change)


def test_the_plan_has_the_minute_of_docker_and_cloud_nat_without_the_hub(tmp_path):
    other = plan(to_deployment(from_file(FILE, project="my-project")))
    planned = plan(to_deployment(settings(tmp_path)))
    assert planned.startup.total_s - other.startup.total_s == pytest.approx(constant("DOCKER_INSTALL_S"))
