"""`extraArgs` are read by the image's own table of flags: what vLLM would refuse or prefer to the plan is found, and removed."""

import json
import re
import typing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.model.support import version_key
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.server_flags import (
    flag_releases,
    flag_table,
    parse_arguments,
    removed_flags,
)
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import OPTIONS, VllmOptions, vllm_arguments
from gemma_serving.planning.solve.remedy_wording import message_of, remedy_of
from gemma_serving.scripts.plan.question import CommandWording

TABLE = data_file("flags.json")
ROOT = Path(__file__).resolve().parents[2]
GPU = Question().changed(model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4")


def found(question: Question, identifier: str) -> Finding | None:
    return next((finding for finding in plan(question).findings if finding.id == identifier), None)


def with_arguments(*arguments: str) -> Question:
    return GPU.changed(vllm=VllmOptions(extra_args=arguments))


def problems(*arguments: str, version: str = "0.28.0") -> list[str]:
    return [one.problem for one in parse_arguments(arguments, flag_table(version)) if one.problem]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--enable-lora", "--lora-modules", "a=b", "c=d", "--max-loras", "2"),
        ("--no-enable-log-requests",),
        ("--hf-overrides.rope.factor=2", "--hf-overrides.x", "1"),
        ("-O3",),
        ("-O", "2"),
        ("-O=2",),
        ("-cc.mode=3",),
        ("-asc=2",),
        ("--uvicorn_log_level", "warning"),
        ("--max-logprobs=-1",),
        ("--max-logprobs", "-1"),
        ("--seed=-1", "--watermark=1e-2", "--stream-interval", "1_000"),
        ("--max-num-scheduled-tokens=25.6k", "--kv-cache-memory-bytes=4G", "--safetensors-prefetch-block-size=16M"),
        ("--max-log-len=None", "--kv-cache-memory-bytes="),
        ("--moe-backend=flashinfer-cutlass",),
        ("--attention-backend=flash_attn", "--attention-config.backend", "auto"),
        ('--structured-outputs-config={"backend": "outlines", "enable_in_reasoning": true}',),
        ("--load-format=Safetensors", "--chat-template=/own/template.jinja"),
        ("--compilation-config", '{"cudagraph_mode": "NONE"}'),
        ("--enable-mm",),
    ],
)
def test_what_the_server_takes_passes(arguments: tuple[str, ...]):
    assert problems(*arguments) == []


@pytest.mark.parametrize("version", [*flag_releases(), None])
def test_numbers_agree_with_the_simulated_server(version: str | None):
    """Its list of flags comes from vLLM's documentation, the tables from vLLM's sources."""
    told: dict[str, list[str]] = json.loads(
        (ROOT / "packages/localcloud/vllm/data/flags.json").read_text(encoding="utf-8")
    )
    kinds = {"int": "integers", "float": "floats", "size": "readable_integers"}
    documented = {f"--{name}": number for number, kind in kinds.items() for name in told[kind]}
    flags = {flag.name: flag for flag in flag_table(version).flags.values() if not flag.choices}
    both = documented.keys() & flags.keys()
    assert len(both) > 50
    assert {name: flags[name].number.rstrip("?") for name in both} == {name: documented[name] for name in both}


def test_what_the_project_itself_passes_is_in_every_table():
    options = VllmOptions(
        **{option.name: True if option.kind is bool else None for option in OPTIONS.values() if option.flag}
    )
    for version in flag_releases():
        table = flag_table(version)
        assert problems(*vllm_arguments(options, model_or_path="m")[1:], version=version) == []
        assert {option.flag for option in OPTIONS.values() if option.flag} <= set(table.flags)
        assert all(f"--no-{option.flag[2:]}" in table.flags for option in OPTIONS.values() if option.has_no_form)


def test_the_choices_of_typed_options_are_choices_of_the_flag():
    for version in {image.version for image in IMAGES.values()}:
        flags = flag_table(version).flags
        for option in OPTIONS.values():
            allowed = flags[option.flag].choices if option.flag else ()
            if allowed and option.kind is str:
                assert set(typing.get_args(option.field.hint)) <= set(allowed), option.key


@given(
    st.sampled_from(sorted({line.split()[0] for line in TABLE["flags"]} | removed_flags().keys())),
    st.sampled_from([*flag_releases(), *TABLE["others"].split()]),
    st.sampled_from(["", "rc1.dev1"]),
)
@example("--calculate-kv-scales", "0.27.1", "")
@example("--max-num-partial-prefills", "0.25.0", "")
@example("--swap-space", "0.11.0", "")
def test_a_flag_is_refused_only_by_a_release_outside_those_that_have_it(flag: str, release: str, development: str):
    """A development version, which precedes its release, may have the flags of the release before it too."""
    releases = flag_releases()
    [read] = parse_arguments((flag,), flag_table(release + development))
    said = re.search(r"its (first|last) release is ([\d.]+)", read.problem)
    if said:
        bounds = version_key(said[2]) or (), version_key(release + development) or ()
        assert (bounds[0] > bounds[1]) if said[1] == "first" else (bounds[0] < bounds[1])
    has = {one for one in releases if flag in flag_table(one).flags}
    if release in releases:
        at = releases.index(release)
        near = releases[max(at - bool(development), 0) : at + 1]
        assert ("is not a flag" in read.problem) == has.isdisjoint(near)
    if has and flag in removed_flags():
        assert removed_flags()[flag].last == max(has, key=releases.index)


def test_a_version_between_two_releases_has_the_flags_of_both():
    table = flag_table("0.29.1rc1.dev468+g0b7f11a1e")
    for flag in ("--dp-sync-interval", "--enable-bf16x3-router-gemm"):
        assert flag in table.flags
    assert "--dp-sync-interval" not in flag_table("0.29.0").flags


@pytest.mark.parametrize("version", ["", "nightly", "0.18.1", "0.99.0", "25.09", "0.33.1rc1.dev3"])
def test_an_image_outside_the_tables_is_only_warned_about(version: str):
    finding = found(with_arguments("--no-such-flag").changed(image=image_of_version(version)), "ARG02")
    assert finding is not None
    assert finding.severity == "warn"
    own = found(with_arguments("--max-model-len=9").changed(image=image_of_version(version)), "ARG01")
    assert own is not None
    assert own.severity == "block"


SECRETS = [
    "hf_canary0canary",
    "sk-canarycanarycanary",
    "ghp_canarycanarycanarycanary",
    "glpat-canarycanarycanary",
    "AIza" + "canary" * 6,
]
FLAGS = [
    "--hf-token",
    "--hf_token",
    "--hf-tok",
    "--api-key",
    "--api-k",
    "--max-model-len",
    "--no-such-flag",
    "--seed",
    "-q",
    "--hf-overrides",
    "--",
]


@given(
    st.lists(
        st.sampled_from(FLAGS + SECRETS)
        | st.builds(lambda flag, secret: f"{flag}={secret}", st.sampled_from(FLAGS), st.sampled_from(SECRETS)),
        max_size=5,
    )
)
def test_no_finding_ever_shows_a_secret_and_each_remedy_removes_its_finding(arguments: list[str]):
    question = with_arguments(*arguments)
    for finding in plan(question).findings:
        said = f"{message_of(finding, CommandWording())} {remedy_of(finding, CommandWording())} {finding!r}"
        assert "canary" not in said
        if finding.id in {"SEC01", "ARG01", "ARG02"}:
            assert finding.remedies
            for remedy in finding.remedies:
                assert found(with_changes(question, remedy.changes), finding.id) is None


@given(st.lists(st.text("-=.azAZ09_ {}", max_size=12), max_size=6), st.sampled_from(["", *flag_releases()]))
def test_any_words_can_be_read_and_each_belongs_to_one_argument(arguments: list[str], version: str):
    read = parse_arguments(arguments, flag_table(version))
    assert [position for one in read for position in one.words] == list(range(len(arguments)))
