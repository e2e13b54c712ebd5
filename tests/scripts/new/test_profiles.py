"""A profile writes what it requires if the planner accepts it, otherwise the nearest, and says which."""

import json

import pytest

from gemma_serving.contracts.answers import Present
from gemma_serving.planning.planner import plan
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.new.__main__ import COMMAND, PROFILE_NAMES, _profile_name
from gemma_serving.scripts.new.profiles import USAGE_PROFILES
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_deployment


@pytest.fixture
def new(monkeypatch, tmp_path, capsys):
    """Write a stack with these options; returns its settings, the text, the JSON and what stderr says."""
    monkeypatch.setattr("gemma_serving.scripts.plan.question.ROOT", tmp_path)
    monkeypatch.setattr("gemma_serving.cloud.hub.main_commit", lambda model: Present("c" * 40))

    def written(*words):
        assert run_command(COMMAND, ["chat", "--json", "--force", *words]) == 0
        printed = capsys.readouterr()
        path = tmp_path / "Pulumi.chat.yaml"
        return from_file(path, project="my-project"), path.read_text(), json.loads(printed.out), printed.err

    return written


CASES = {
    "latency": (("--model", "31B"), (4, 8), (8, 16), []),
    "latency of 64 users": (("--model", "E4B", "--workload", "in=700,out=300,users=64"), (4, 8), (64, 1000), ["requires 8 to 16 concurrent requests."]),
    "latency on an L4": (("--model", "12B", "--accelerator", "L4"), (1, 1), (8, 16), ["The nearest on L4 with this workload is 1."]),
    "throughput": (("--model", "12B"), (1, 2), (256, 1000), []),
    "batch": (("--model", "26B-A4B"), (1, 2), (600, 1000), []),  # 512 concurrent requests would be slower by the plan
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_profile_is_written_as_the_recipe_has_it_or_its_lack_is_said(new, name):
    words, devices, sequences, unmet = CASES[name]
    settings, text, found, err = new(*words, "--profile", name.split()[0])
    planned = plan(to_deployment(settings))
    assert planned.fits
    assert {finding.id for finding in planned.findings if finding.severity == "warn"} <= {"SCL02", "SCL04"}
    assert devices[0] <= settings.vllm.tensor_parallel_size <= devices[1]
    assert sequences[0] <= settings.vllm.max_num_seqs <= sequences[1]
    assert len(found["profile_unmet"]) == len(unmet)
    for sentence, words_of_it in zip(found["profile_unmet"], unmet, strict=True):
        assert words_of_it in sentence
        assert f"# {sentence}" in text
        assert f"new: {sentence}" in err
    lines = [line.strip() for line in text.splitlines()]
    for key in ("tensorParallelSize", "maxNumSeqs"):
        (at,) = [number for number, line in enumerate(lines) if line.startswith(f"{key}:")]
        assert lines[at - 1].startswith(f"# Profile {found['profile']}: ")


def test_spiky_scales_to_zero_and_says_what_a_cold_start_costs(new):
    settings, text, found, _ = new("--model", "12B", "--profile", "spiky")
    assert (settings.cloud_run.min_instances, settings.cloud_run.compile_cache) == (0, "bucket")
    assert found["profile_unmet"] == []
    assert "a request after a pause waits for a cold start" in text
    assert plan(to_deployment(settings)).fits
    settings, text, found, _ = new("--model", "12B", "--profile", "spiky", "--accelerator", "v6e-1")
    assert "cold start" not in text
    assert settings.tpu.accelerator_type == "v6e-1"
    assert "a slice that is billed until it is deleted" in found["profile_unmet"][0]


def test_the_names_of_the_option_are_those_of_the_profiles(capsys):
    assert [_profile_name(name) for name in USAGE_PROFILES] == list(USAGE_PROFILES)
    assert all(name in PROFILE_NAMES for name in USAGE_PROFILES)
    assert run_command(COMMAND, ["x", "--model", "12B", "--profile", "cheap"]) == 2
    assert "--profile is 'cheap'; it must be latency, throughput, batch or spiky." in capsys.readouterr().err
