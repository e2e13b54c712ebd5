"""What `pulumi up` says when a revision cannot start, with the real CLI: Cloud Run's own error gives no reason."""

import pytest

from tests.engine.conftest import FAILURE

STACK = "l4-12b-qat"

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def failing(workspace):
    workspace.pulumi("stack", "init", STACK)
    return workspace


def test_a_revision_that_cannot_start_says_why_with_the_figure_and_the_last_lines(failing):
    """A length that the KV cache cannot hold."""
    failing.stage(STACK)
    restore = failing.edit(
        STACK,
        ("maxModelLen: 8192", "maxModelLen: 262144"),
        ("gpuMemoryUtilization: 0.9", "gpuMemoryUtilization: 0.5"),
        ("config:\n", "config:\n  gemma-serving:acceptFindings: [FIT04]\n"),
    )
    failed = failing.up(STACK, expect=FAILURE)
    restore()
    assert "did not start. The KV cache is too small for one request of 262,144 tokens" in failed.text
    assert "Set gemma-serving:vllm.maxModelLen to " in failed.text
    assert f"To read its log, run `gemma logs {STACK}`." in failed.text


def test_a_driver_that_refuses_the_compatibility_libraries_names_the_setting_that_helps(failing):
    """Public sources disagree about the L4's driver; the settings file of the repository is right for Google's page."""
    failing.change_scenario({"run": {"gpu_drivers": {"nvidia-l4": 580}}})
    failed = failing.up(STACK, expect=FAILURE)
    assert "Error 803: system has unsupported display driver / cuda driver combination" in failed.text
    hint = "Set gemma-serving:cloudRun.cudaCompatibility: false"
    assert hint in failed.text
    for command in ("logs", "status"):
        assert hint in failing.script(command, "--stack", STACK, expect=None).text


def test_a_service_that_failed_is_never_up_to_date_and_up_tries_it_again(failing):
    """A refresh clears the engine's record of the failure. Then the cause is repaired outside the settings."""
    up = ("gemma", "up", STACK, "--yes")
    failing.pulumi("refresh", "--yes", "--skip-preview", "--stack", STACK)
    for words in (up, (*up, "--refresh")):
        assert "did not start" in failing.script(*words, expect=1).err
    assert "CUDA error 803" in failing.script("gemma", "chat", STACK, "Say hello.", expect=2, limit_s=60).err
    failing.change_scenario({"run": {"gpu_drivers": {"nvidia-l4": 535}}})
    failing.pulumi("refresh", "--yes", "--skip-preview", "--stack", STACK)
    failing.up(STACK)
    failing.assert_no_changes(STACK, "--refresh")
    failing.change_scenario({"run": {"gpu_drivers": {"nvidia-l4": 580}}})


def test_settings_that_fit_bring_the_server_up(failing):
    failing.edit(STACK, ("  gemma-serving:cloudRun:\n", "  gemma-serving:cloudRun:\n    cudaCompatibility: false\n"))
    failing.up(STACK)
    assert failing.served_length(STACK) == 8192
    failing.teardown(STACK)
