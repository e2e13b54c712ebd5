"""Inputs of the components: what is refused, in which words, and that the words are true when they are applied."""

import re

import pulumi
import pytest
import yaml

from hosted.kinds import CLOUD_RUN, KINDS, TPU
from hosted.server import RefusedError, planned_server
from hosted.server_settings import NOT_HERE, ServerInputs
from stacks.scope import BoundHooks, ServerScope
from stacks.settings.keys import setting_fields

SLICE = {
    "project": "my-project",
    "model": "google/gemma-4-E4B-it",
    "accelerator": "v6e-1",
    "zones": ["us-east5-a", "us-east5-b"],
    "max_run_duration": "4h",
}
SERVICE = {"project": "my-project", "model": "google/gemma-4-E4B-it", "region": "us-east4", "gpu": "nvidia-l4"}
BOTH = pytest.mark.parametrize(("kind", "args"), [(TPU, SLICE), (CLOUD_RUN, SERVICE)])


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(pulumi, "get_stack", lambda: "dev")
    monkeypatch.setattr(pulumi, "get_project", lambda: "their-program")
    monkeypatch.setattr(pulumi.log, "info", lines.append)
    monkeypatch.setattr(pulumi.log, "warn", lines.append)
    return lines


def planned(kind, args, name="chat"):
    return planned_server(kind, name, args, ServerScope(component=name, hooks=BoundHooks()))


def refusal(kind, args, name="chat"):
    with pytest.raises(RefusedError) as caught:
        planned(kind, args, name)
    return str(caught.value)


@BOTH
def test_a_few_inputs_are_a_whole_server(said, kind, args):
    context = planned(kind, args)
    assert context.names.base == "gemma-dev-chat"
    assert context.ownership.labels["gemma-serving-project"] == "their-program"
    assert context.settings.model_revision, "a known checkpoint is pinned to its commit"
    assert any(line.startswith("chat: google/gemma-4-E4B-it fits on") for line in said)
    assert not any(re.search(r"Run `python -m scripts|gemma-serving:", line) for line in said)


def test_settings_reach_the_plan_and_defaults_give_way(said):
    wider = {**SERVICE, "settings": {"cloudRun": {"cpu": 4.0, "memory": "16Gi"}, "vllm": {"maxModelLen": 4096.0}}}
    settings = planned(CLOUD_RUN, wider).settings
    assert (settings.cloud_run.cpu, settings.cloud_run.memory_mib, settings.vllm.max_model_len) == (4, 16384, 4096)


@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        (TPU, {"accelerator": "v6e-16"}, 'TpuServer chat: The accelerator "v6e-16" is unknown. Allowed: v5e-1,'),
        (TPU, {"zones": ["mars-1"]}, 'TpuServer chat: zones[0] = "mars-1": expected a zone such as us-east5-a.'),
        (TPU, {"max_run_duration": "soon"}, 'TpuServer chat: maxRunDuration = "soon": '),
        (TPU, {"max_run_duration": None}, "maxRunDuration is not set, but flex-start requires it."),
        (TPU, {"model": "E4B"}, 'TpuServer chat: model = "E4B": expected a Hugging Face id'),
        (TPU, {"settings": {"tpu": {"zones": ["x"]}}}, "zones and settings.tpu.zones are both set. Remove settings"),
        (TPU, {"settings": {"target": "tpu"}}, "settings.target is an input of its own or implied. Remove it."),
        (TPU, {"settings": {"hfToken": "hf_x"}}, "settings.hfToken is an input of its own or implied. Use the input"),
        (TPU, {"settings": {"vllm": {"maxModelLenn": 1.0}}}, "Did you mean settings.vllm.maxModelLen?"),
        (
            TPU,
            {"settings": {"vllm": {"maxModelLen": "x"}}},
            'settings.vllm.maxModelLen = "x": expected a whole number.',
        ),
        (TPU, {"settings": {"image": "vllm-tpu-w4a16"}}, "settings.image names an image that a stack builds"),
        (TPU, {"settings": "x"}, 'TpuServer chat: settings = "x": expected a block of settings.'),
        (CLOUD_RUN, {"gpu": "nvidia-h100"}, "CloudRunServer chat: gpu = \"nvidia-h100\": expected 'nvidia-l4' or"),
        (CLOUD_RUN, {"concurrency": 5000.0}, "CloudRunServer chat: concurrency = 5000: expected 1000 or less."),
        (CLOUD_RUN, {"settings": {"cloudRun": {"public": True}}}, "set settings.acceptFindings: [SEC02]."),
    ],
)
def test_a_wrong_input_is_one_sentence_in_the_words_of_the_inputs(said, kind, changes, sentence):
    text = refusal(kind, {**(SLICE if kind is TPU else SERVICE), **changes})
    assert sentence in text
    assert "gemma-serving:" not in text
    assert "`python -m scripts" not in text


def test_names_of_google_limit_the_names_of_stack_and_component(said):
    assert '"dev-Chat_1". Use up to 30 lower-case letters' in refusal(TPU, SLICE, "Chat_1")


def test_a_value_that_is_known_only_after_up_is_refused(said, monkeypatch):
    output = pulumi.Output.__new__(pulumi.Output)
    assert "zones[0] is an output of a resource" in refusal(TPU, {**SLICE, "zones": [output]})
    nested = {"settings": {"vllm": {"maxModelLen": output}}}
    assert "settings.vllm.maxModelLen is an output of a resource" in refusal(TPU, {**SLICE, **nested})


def test_a_project_is_needed(said, monkeypatch):
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "CLOUDSDK_CORE_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    assert "project is not set" in refusal(TPU, {**SLICE, "project": None})


@pytest.mark.parametrize("key", NOT_HERE)
def test_what_a_component_does_not_offer_is_a_setting_of_a_stack(said, subtests, key):
    assert key in {field.key for field in setting_fields()}
    block, _, name = key.partition(".")
    kind = CLOUD_RUN if block == "cloudRun" else TPU
    given = {block: {name: "x"}} if name else {block: "x"}
    text = refusal(kind, {**(SLICE if kind is TPU else SERVICE), "settings": given})
    assert f"settings.{key} is not available in a component, because" in text


@pytest.mark.parametrize(("kind", "args"), [(TPU, SLICE), (CLOUD_RUN, SERVICE)])
def test_each_way_out_of_a_model_that_does_not_fit_works_when_applied_literally(said, subtests, kind, args):
    text = refusal(kind, {**args, "model": "google/gemma-4-31B-it"})
    ways = re.findall(r"^  - .*?\): (?:(?P<set>set)|use a (?P<kind>\w+) with) (?P<values>.*)$", text, re.MULTILINE)
    assert ways
    assert {other for _, other, _ in ways if other} == {one.name for one in KINDS if one is not kind}
    for _, other, values in ways:
        with subtests.test(values=values):
            into = next((one for one in KINDS if one.name == other), kind)
            base = {"project": "my-project", "model": "google/gemma-4-31B-it", **(args if into is kind else {})}
            given = applied(base, values)
            try:
                planned(into, given)
            except RefusedError as error:
                assert "FIT01" not in str(error), values
                assert "blocked by" in str(error), error


def applied(args, values):
    """Return inputs after a sentence such as `zones: [a, b], settings.cloudRun.cpu: 20 and remove settings.tpu`."""
    given = {**args, "model": "google/gemma-4-31B-it"}
    parts = re.split(r", (?=[a-zA-Z.]+: )", values.partition(" and remove ")[0])
    for part in parts:
        key, _, value = part.partition(": ")
        *blocks, name = key.removeprefix("settings.").split(".")
        if not key.startswith("settings."):
            given[re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", key)] = yaml.safe_load(value)
            continue
        inner = given.setdefault("settings", {})
        for block in blocks:
            inner = inner.setdefault(block, {})
        inner[name] = yaml.safe_load(value)
    return given


def test_only_advice_to_run_a_command_of_this_project_is_left_out():
    inputs = ServerInputs(kind=TPU, name="chat", given={}, settings={}, secrets=())
    kept = "The alerts have 0 recipients, so only the console and `python -m scripts.alerts` show them."
    assert (
        inputs.worded(f"{kept} Run `python -m scripts.alerts --test`. Set gemma-serving:tpu.zones.")
        == f"{kept} Set zones."
    )
    assert (
        inputs.worded("tpu.zonesX and vllm.maxModelLen: a model")
        == "settings.tpu.zonesX and settings.vllm.maxModelLen: a model"
    )
