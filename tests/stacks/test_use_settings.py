"""The blocks of `vllm` become the planner's options: with the flags of the pinned releases, beside the former keys, never against them."""

import re

import pytest

from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.features import served_features
from gemma_serving.planning.question.server_flags import flag_releases, flag_table, parse_arguments
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.vllm_args import vllm_arguments
from gemma_serving.stacks.loading import from_values
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.settings_wording import file_changes
from tests.stacks.conftest import values_of

ALL = {
    "multimodal": {"images": 2, "imageTokens": 560, "maxImageTokens": 1120},
    "thinking": {"default": True, "template": "/templates/tools.jinja"},
    "tools": {},
    "lora": {"adapters": {"sql": "org/sql", "chat": "org/chat"}, "rank": 32},
    "speculative": {"method": "n-gram", "tokens": 4},
}
SPELLED = {
    '--limit-mm-per-prompt={"audio":0,"image":2,"video":0}',
    '--mm-processor-kwargs={"max_soft_tokens":560}',
    '--hf-overrides={"vision_config":{"default_output_length":1120},"vision_soft_tokens_per_image":1120}',
    '--default-chat-template-kwargs={"enable_thinking":true}',
    "--chat-template=/templates/tools.jinja",
    "--enable-auto-tool-choice",
    "--tool-call-parser=gemma4",
    '--speculative-config={"method":"ngram","num_speculative_tokens":4}',
    "--max-lora-rank=32",
    "--max-loras=2",
}


def settings(stack="tpu-v6e1-e4b", **stated):
    """Return the settings of a stack with other top-level keys, or with other options of vLLM."""
    values = values_of(stack)
    own = {key: value for key, value in stated.items() if key in {*values, "image"}}
    vllm = {key: value for key, value in stated.items() if key not in own}
    given = {**values, "vllm": vllm, **own}
    return from_values(
        {key: value for key, value in given.items() if value is not None}, project="my-project", origin="Pulumi.x.yaml"
    )


def test_each_block_is_spelled_into_flags_that_each_pinned_release_takes():
    words = vllm_arguments(settings(**ALL).vllm, model_or_path="m")
    assert set(words) >= SPELLED
    at = words.index("--enable-lora")
    assert words[at + 1 : at + 4] == ("--lora-modules", "chat=org/chat", "sql=org/sql")
    for version in flag_releases():
        assert [one.problem for one in parse_arguments(words[1:], flag_table(version)) if one.problem] == []


FORMER = {
    "multimodal": ({"limitMmPerPrompt": {"image": 2, "video": 0, "audio": 0}}, {"images": 2}),
    "tools": ({"enableAutoToolChoice": True, "toolCallParser": "gemma4"}, {}),
    "thinking": ({"reasoningParser": "gemma4"}, {"parser": "gemma4"}),
    "speculative": ({"speculativeConfig": {"method": "ngram", "num_speculative_tokens": 3}}, {"method": "n-gram"}),
}


@pytest.mark.parametrize("block", FORMER)
def test_a_former_key_means_the_same_and_may_stand_beside_the_block(block):
    former, now = FORMER[block]
    assert settings(**former).vllm == settings(**{block: now}).vllm == settings(**former, **{block: now}).vllm


FEATURES = {
    "n-gram": (
        ALL,
        {
            "images": 2,
            "image_tokens": 560,
            "thinks_by_default": True,
            "adapters": ("chat", "sql"),
            "draft_tokens": 4,
            "speculation": "n-gram",
        },
    ),
    "flags": (
        {
            "extraArgs": [
                "--enable-lora",
                "--lora-modules",
                "b=org/b",
                '{"name": "a", "path": "/a"}',
                "--mm-processor-kwargs.max_soft_tokens=70",
                '--default-chat-template-kwargs={"enable_thinking": true}',
            ]
        },
        {"adapters": ("a", "b"), "image_tokens": 70, "thinks_by_default": True},
    ),
    "text": (
        {"multimodal": {"images": 0}, "tools": {"enabled": False}},
        {"images": 0, "videos": 0, "audios": 0, "tools": False, "thinking": True},
    ),
    "none": ({}, {"images": 4, "speculation": "none", "adapters": (), "tools": True, "thinks_by_default": False}),
}


@pytest.mark.parametrize("name", FEATURES)
def test_the_features_are_those_of_the_options(name):
    vllm, expected = FEATURES[name]
    found = served_features(resolve(to_question(settings(**vllm))))
    assert {key: getattr(found, key) for key in expected} == expected


def test_a_remedy_is_worded_and_applied_in_the_keys_that_the_file_uses():
    question = to_question(
        settings("rtx6000-31b", speculative={"method": "draft-model", "drafter": "google/gemma-4-E2B-it-assistant"})
    )
    found = next(finding for finding in plan(question).findings if finding.id == "MOD03")
    change = file_changes(question, found.remedies[0].changes)
    assert set(change) == {f"vllm.speculative.{key}" for key in ("method", "tokens", "drafter", "revision")}
    assert question.vllm_key("speculative_config") == "vllm.speculative"
    block = {key.rpartition(".")[2]: value for key, value in change.items() if value is not None}
    after = plan(to_question(settings("rtx6000-31b", speculative=block)))
    assert "MOD03" not in [finding.id for finding in after.findings]


HEARING = {"model": "google/gemma-4-E4B-it", "modelRevision": None, "weights": "hub"}
CUSTOM = {"repository": "me/vllm-audio", "digest": f"sha256:{'a' * 64}", "version": "0.28.0"}
IMAGES = {
    "no": ({"image": "vllm-openai-0.28.0"}, r"will fail, because the image lacks .*vllm\[audio\]", 0),
    "yes": ({"image": {**CUSTOM, "audio": True}}, None, 1),
    "unknown": ({}, r"will fail unless the image has .*unknown", 1),
}


@pytest.mark.parametrize("answer", IMAGES)
def test_audio_needs_an_image_that_decodes_it(answer):
    image, sentence, audios = IMAGES[answer]
    question = to_question(settings("l4-12b-qat", **HEARING, **image, vllm={"multimodal": {"images": 1, "audios": 1}}))
    found = [finding for finding in plan(question).findings if finding.id == "WRK07"]
    assert [bool(re.search(sentence or "", one.message)) for one in found] == [True] * (sentence is not None)
    assert served_features(resolve(question)).audios == audios
    for one in found:
        assert file_changes(question, one.remedies[0].changes) == {
            "vllm.multimodal.images": 1,
            "vllm.multimodal.videos": 0,
            "vllm.multimodal.audios": 0,
        }
        after = plan(with_changes(question, one.remedies[0].changes))
        assert "WRK07" not in [finding.id for finding in after.findings]
