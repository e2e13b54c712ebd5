"""Words that go to vLLM are known words: each value of a key, each flag, and each option that the plan ignores."""

import dataclasses
import json
import shlex
import typing
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

import pytest

from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.extra_arguments import ON_BY_DEFAULT
from gemma_serving.planning.question.server_flags import (
    ServerFlag,
    flag_releases,
    flag_table,
    parse_arguments,
    removed_flags,
)
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.reading import read_text
from gemma_serving.planning.settings.vllm_args import OPTIONS, VllmOption, VllmOptions
from gemma_serving.scripts.plan.question import QuestionOptions, question_from, settings_of
from gemma_serving.scripts.plan.set_option import option_value, parse_set, set_keys
from gemma_serving.stacks.loading import SettingsError
from gemma_serving.stacks.schema import blocks
from localcloud.vllm import boot as startup
from localcloud.vllm.arguments import ArgumentError, known_words, parse
from localcloud.vllm.refusals import EngineStartError
from localcloud.vllm.settings import read

GPU = Question().changed(model="google/gemma-4-E2B-it", accelerator="L4")
TPU = Question().changed(model="google/gemma-4-E2B-it", accelerator="v6e-1")
WORD = "no-such-word"
FREE = {"served_model_name": "a name for clients", "lora_adapters": "places, whose form the settings check"}
"""Options whose text is no word of vLLM's."""
OF_REQUESTS = {"LoggingConfig", "ObservabilityConfig", "StructuredOutputsConfig"}
REACHES = {
    "entrypoints/serve/middleware/register.py: headers for web pages, and --allowed-origins is []": (
        "--allow-credentials --allowed-headers --allowed-methods"
    ),
    "entrypoints/cohere: only /cohere/v2/chat": "--cohere-format --cohere-is-reasoning-model",
    "entrypoints/launchers/dp_supervisor.py: read with --data-parallel-multi-port-external-lb, which ARG01 names": (
        "--data-parallel-supervisor-port --dp-supervisor-probe-failure-threshold --dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s"
    ),
    "entrypoints/launchers/utils/server_utils.py, logging_utils: lines of the log": (
        "--aggregate-engine-logging --disable-access-log-for-endpoints --disable-log-stats --disable-uvicorn-access-log --enable-log-deltas "
        "--enable-log-outputs --log-config-file --log-error-stack --max-log-len --uvicorn-log-level"
    ),
    "entrypoints/launchers/app.py: pages of the documentation": "--disable-fastapi-docs --enable-offline-docs",
    "entrypoints/common/cli_args.py: fields and headers beside an answer": (
        "--enable-force-include-usage --enable-per-request-metrics --enable-prompt-tokens-details --enable-request-id-headers "
        "--enable-server-load-tracking --fingerprint-mode --fingerprint-value --sse-keep-alive-interval"
    ),
    "entrypoints/launchers/launcher.py: limits of a request's headers": (
        "--h11-max-header-count --h11-max-incomplete-event-size"
    ),
    "entrypoints/launchers/app.py, and Starlette's get_route_path: each path is also served without it": "--root-path",
    "uvicorn config.py, is_ssl: read with a key or a certificate": (
        "--enable-ssl-refresh --ssl-ca-certs --ssl-cert-reqs --ssl-ciphers"
    ),
    "platforms/interface.py, validate_environ: variables of the container": "--fail-on-environ-validation",
    "entrypoints/pooling: requests for scores": "--enable-flash-late-interaction",
    "entrypoints/cli/serve.py: processes that share the port, if any": "--api-server-count",
    "the stack's own": "--shutdown-timeout",
    "model_executor/layers/mamba: layers that Gemma 4 lacks": (
        "--gdn-decode-backend --gdn-prefill-backend --kda-decode-backend --kda-prefill-backend"
    ),
}
"""Flags of the server with which it answers by HTTP on the same port with the same words, by the source (vLLM 0.33.0) that says so."""
SMALL = {
    "--allowed-local-media-path": "SEC10",
    "--api-key": "SEC01",
    "--default-chat-template-kwargs": "ARG01 beside vllm.thinking, whose values these are",
    "--hf-token": "SEC01",
    "--lora-modules": "read with --enable-lora",
    "--max-lora-rank": "read with --enable-lora",
    "--max-loras": "read with --enable-lora",
    "--mm-processor-kwargs": "read for max_soft_tokens",
    "--max-logprobs": "contents of a response",
    "--pt-load-map-location": "pickled files",
    "--reasoning-config": "marks of the parser",
    "--seed": "random numbers",
    "--structured-outputs-config": "requests with a schema",
    "--tokenizer": "SEC07",
    "--tokenizer-revision": "SEC07",
    "--use-tqdm-on-load": "a progress bar",
}
"""Flags of the engine that no finding has to name, with what they change."""


def with_options(on: Question, **options: object) -> Question:
    return on.changed(vllm=VllmOptions(**options))  # type: ignore[arg-type]


def blocked_by(question: Question) -> Mapping[str, str]:
    return {one.id: one.message for one in plan(question).findings if one.severity == "block"}


def made_up(option: VllmOption) -> object:
    if option.name == "speculative_config":
        return {"method": WORD, "num_speculative_tokens": 3}
    return {WORD: 1} if option.kind is Mapping else WORD


@pytest.mark.parametrize("on", [GPU, TPU], ids=["GPU", "TPU"])
@pytest.mark.parametrize("name", [one.name for one in OPTIONS.values() if one.kind in (str, Mapping)])
def test_a_made_up_word_of_a_key_is_refused(name: str, on: Question):
    option = next(one for one in OPTIONS.values() if one.name == name)
    value = made_up(option)
    try:
        read_text(option.field, value if isinstance(value, str) else json.dumps(value))
    except ValueError:
        return
    try:
        blocking = blocked_by(with_options(on, **{name: value}))
    except PlanningError as error:
        assert WORD in str(error) or option.key in str(error)
        return
    if name in FREE:
        return
    assert f"vllm.{option.key}" in blocking["ARG02"]


@pytest.mark.parametrize("on", [GPU, TPU], ids=["GPU", "TPU"])
def test_each_word_of_vllms_own_tables_is_accepted_or_refused_with_its_reason(on: Question, subtests: pytest.Subtests):
    table = flag_table("0.30.0")
    for name, rule in (("load_format", "LDR04"), ("tool_call_parser", ""), ("reasoning_parser", "")):
        for word in table.flags[f"--{name.replace('_', '-')}"].choices:
            with subtests.test(word):
                assert set(blocked_by(with_options(on, **{name: word}))) <= {rule, "LDR01"}
    assert "random weights" in blocked_by(with_options(on, load_format="dummy"))["LDR04"]


@pytest.mark.parametrize(
    ("on", "template", "said"),
    [
        (GPU, "examples/tool_chat_template_gemma4.jinja", ""),
        (GPU, "/vllm-workspace/examples/tool_chat_template_gemma4.jinja", ""),
        (GPU, "template_chatml.jinja", ""),
        (GPU, "{{ messages }}", ""),
        (GPU, "/own/folder/template.jinja", ""),
        (
            TPU,
            "/vllm-workspace/examples/tool_chat_template_gemma4.jinja",
            "did you mean /workspace/vllm/examples/tool_chat_template_gemma4.jinja?",
        ),
        (
            GPU,
            "examples/tool_chat_template_gemma.jinja",
            "did you mean /vllm-workspace/examples/tool_chat_template_gemma4.jinja?",
        ),
        (GPU, "/vllm-workspace/examples/no_such.jinja", "is not a file of vLLM 0.31.0's image."),
        (TPU, "/workspace/vllm/examples/tool_chat_template_gemma4.jinja", ""),
        (TPU, "template_chatml.jinja", ""),
        (
            TPU,
            "examples/tool_chat_template_gemma4.jinja",
            "did you mean /workspace/vllm/examples/tool_chat_template_gemma4.jinja?",
        ),
    ],
)
def test_a_template_is_a_file_of_the_image_or_one_that_only_its_maker_knows(on: Question, template: str, said: str):
    blocking = blocked_by(with_options(on, chat_template=template))
    assert ("ARG02" in blocking) == bool(said)
    assert said in blocking.get("ARG02", "")


def figures(found: Plan) -> tuple[object, ...]:
    return found.memory, found.startup, found.throughput


def spelled(flag: ServerFlag) -> tuple[str, ...]:
    if flag.kind in {"switch", "toggle", "optional"}:
        return (flag.name,)
    return (flag.name, next(iter(one for one in flag.choices if one not in {"None", "auto"}), "1"))


@pytest.mark.parametrize("version", flag_releases())
def test_each_flag_of_the_engine_that_the_plan_does_not_read_is_named(version: str, subtests: pytest.Subtests):
    newer = [flag_table(one).flags for one in flag_releases()[flag_releases().index(version) + 1 :]]
    on = GPU.changed(image=image_of_version(version))
    plain = figures(plan(on))
    for flag in {one.name: one for one in flag_table(version).flags.values() if "." not in one.name}.values():
        if any(flag.name in known for known in newer):
            continue  # judged with the newest release that has it
        with subtests.test(flag.name):
            found = plan(with_options(on, extra_args=spelled(flag)))
            is_named = any(flag.name in one.message for one in found.findings)
            is_read = figures(found) != plain
            others = {*" ".join(REACHES.values()).split(), *SMALL, *ON_BY_DEFAULT}
            assert is_named or is_read or flag.group in OF_REQUESTS or flag.name in others


@pytest.mark.parametrize(
    "ignoring",
    [
        with_options(TPU, enforce_eager=True),
        with_options(TPU, extra_args=('--additional-config={"quantization":{"qwix":{}}}',)),
        with_options(GPU, extra_args=("--attention-backend=FLASHINFER",)),
        with_options(GPU, extra_args=("--no-enable-chunked-prefill",)),
    ],
)
def test_an_ignored_option_is_named_and_its_bands_are_those_of_a_server_that_nobody_measured(ignoring: Question):
    plain, found = plan(ignoring.changed(vllm=VllmOptions())), plan(ignoring)
    finding = next(one for one in found.findings if one.id == "ARG05")
    assert finding.severity == "warn"
    names = ("enforceEager", "--additional-config", "--attention-backend", "--no-enable-chunked-prefill")
    assert any(name in finding.message for name in names)
    assert found.startup.total_low_s < plain.startup.total_low_s
    assert found.startup.total_high_s > plain.startup.total_high_s
    assert found.throughput.decode_sources == 0
    assert found.throughput.saturated_low_tok_per_s < plain.throughput.saturated_low_tok_per_s
    assert found.throughput.saturated_high_tok_per_s > plain.throughput.saturated_high_tok_per_s


@pytest.mark.parametrize("on", [GPU, TPU], ids=["gpu", "tpu"])
@pytest.mark.parametrize(
    ("argument", "severity", "rule"),
    [
        ("--ssl-keyfile=/k.pem", "block", "SEC05"),
        ("--ssl-certfile=/c.pem", "block", "SEC05"),
        ("--uds=x.sock", "block", "SEC05"),
        ("--headless", "block", "SEC05"),
        ("--api-server-count=0", "block", "SEC05"),
        ("--grpc", "block", "SEC05"),
        ("--api-server-count=2", None, "SEC05"),
        ("--root-path=/x", None, "SEC05"),
        ("--code-revision=main", "warn", "ARG05"),
        ("--generation-config=vllm", "warn", "ARG05"),
        ("--generation-config=auto", None, "ARG05"),
        ("--attention-backend=FLASHINFER", "warn", "ARG05"),
    ],
)
def test_an_argument_that_moves_the_server_blocks_and_one_that_changes_answers_warns(
    on: Question, argument: str, severity: str | None, rule: str
):
    found = plan(with_options(on, extra_args=(argument,))).findings
    assert next((one.severity for one in found if one.id == rule), None) == severity
    said = " ".join(one.message for one in found)
    assert ("attention backend for this model on this device is not judged" in said) == ("attention" in argument)


@pytest.mark.parametrize("base", [GPU, TPU], ids=["gpu", "tpu"])
def test_a_seed_changes_no_finding_and_no_speed(base: Question):
    plain, found = plan(base), plan(with_options(base, extra_args=("--seed=7",)))
    assert found.findings == plain.findings
    assert found.throughput == plain.throughput


def test_eager_on_a_gpu_is_planned():
    assert not any(one.id == "ARG05" for one in plan(with_options(GPU, enforce_eager=True)).findings)


def test_each_flag_that_a_release_lost_has_a_row_and_each_replacement_is_a_flag():
    names = [{flag.name for flag in flag_table(version).flags.values()} for version in flag_releases()]
    for older, newer in pairwise(names):
        assert older - newer <= removed_flags().keys()
    newest = flag_table(flag_releases()[-1])
    assert not removed_flags().keys() & newest.flags.keys()
    for name, removed in removed_flags().items():
        assert removed.source
        [problem] = [one.problem for one in parse_arguments((name,), newest)]
        assert "did you mean" not in problem
        instead = removed.replacement.split()
        assert (instead[0] if instead else "leave it out") in problem
        flag = instead[0].partition(".")[0] if instead else "--seed"
        later = [
            version for version in flag_releases() if removed.last not in flag_releases() or version > removed.last
        ]
        assert all(flag in flag_table(version).flags for version in later)


def test_a_flag_of_a_newer_release_names_that_release():
    [read] = parse_arguments(("--enable-trace-replay",), flag_table("0.28.0"))
    assert "(its first release is 0." in read.problem


def test_the_opposite_of_a_switch_is_never_suggested():
    [read] = parse_arguments(("--disable-log-deltas",), flag_table("0.31.0"))
    assert "--enable" not in read.problem


def test_the_simulated_server_has_the_same_words():
    def union(flag: str) -> set[str]:
        return {word for version in flag_releases() for word in flag_table(version).flags[flag].choices}

    assert set(known_words("load_formats")) == union("--load-format")
    assert set(known_words("tool_parsers")) == union("--tool-call-parser")
    assert set(known_words("reasoning_parsers")) == union("--reasoning-parser")
    assert set(known_words("chat_templates")) == {one for one in union("--chat-template") if "/pooling/" not in one}


@pytest.mark.parametrize("accelerator", ["nvidia-l4", "v6e-1"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--load-format=banana",), "Load format `banana` is not supported"),
        (
            ("--chat-template=examples/no_such.jinja",),
            "appears path-like, but doesn't exist! Tried: examples/no_such.jinja and ",
        ),
        (("--enable-auto-tool-choice", "--tool-call-parser=banana"), "invalid tool call parser: banana"),
        (("--reasoning-parser=banana",), "invalid reasoning parser: banana"),
        (("--load-format=safetensors", "--chat-template=template_chatml.jinja", "--tool-call-parser=banana"), ""),
    ],
)
def test_the_simulated_server_refuses_what_vllm_refuses(accelerator: str, arguments: tuple[str, ...], said: str):
    around = read(MappingProxyType({"VLLM_SIM_ACCELERATOR": accelerator}))
    try:
        error = startup.plan(parse(["vllm", "serve", "google/gemma-4-E2B-it", *arguments]), around).steps[-1].error
    except ArgumentError as refused:
        error = refused
    assert said in str(error) if said else not isinstance(error, EngineStartError)


LISTS = {
    "acceptFindings": ("ARG01", "ARG02"),
    "cloudRun.invokers": ("user:a@example.com", "user:b@example.com"),
    "cloudRun.mount.options": ("implicit-dirs", "log-severity=info"),
    "image.supports": ("fp8", "w4a16"),
    "tpu.provisioning": ("spot:5m", "standard"),
    "tpu.tunnelMembers": ("user:a@example.com", "user:b@example.com"),
    "tpu.zones": ("us-east5-a", "us-east5-b"),
    "vllm.allowedMediaDomains": ("a.example.com", "b.example.com"),
    "vllm.extraArgs": ("--max-logprobs", "5"),
}


def test_each_list_takes_words_brackets_and_json(subtests: pytest.Subtests):
    lists = {key for key, field in set_keys().items() if typing.get_origin(field.hint) is tuple}
    assert lists == set(LISTS)
    for key, words in LISTS.items():
        with subtests.test(key):
            forms = (" ".join(words), f"[{', '.join(words)}]", json.dumps(words))
            assert [list(parse_set([f"{key}={form}"]).values())[-1] for form in forms] == [words] * 3


def test_none_empties_each_list_but_the_one_that_needs_an_item():
    for key in LISTS.keys() - {"tpu.provisioning"}:
        assert list(parse_set([f"{key}=none"]).values())[-1] in {None, ()}
    with pytest.raises(PlanningError, match=r'^--set tpu.provisioning is "none"; expected '):
        parse_set(["tpu.provisioning=none"])


def test_a_stacks_list_takes_the_same_forms_and_an_item_may_have_spaces_and_commas():
    words = ("--hf-overrides", '{"a": 1, "b": 2}')
    forms = (json.dumps(words), f"[--hf-overrides, '{words[1]}']", option_value(set_keys()["vllm.extraArgs"], words))
    for form in (*forms, shlex.join(words)):
        pair = f"vllm.extraArgs={form}"
        assert parse_set([pair])["vllm.extra_args"] == words
        assert settings_of(QuestionOptions(stack="l4-qat", set=(pair,))).vllm.extra_args == words
    for form in ("[a", "[{a: 1}]", " ".join(words), "--hf-overrides 'a"):
        for stack in (None, "l4-qat"):
            with pytest.raises(PlanningError, match="expected a list such as"):
                (
                    settings_of(QuestionOptions(stack=stack, set=(f"vllm.extraArgs={form}",)))
                    if stack
                    else parse_set([f"vllm.extraArgs={form}"])
                )


VALUES = ("", "1", "null", "[]", "[a]", "{}", '{"model": "m"}', "{image: 1}", "{network: {a: {}}}")
PLAIN = QuestionOptions(model=GPU.settings.model, accelerator=GPU.facts.accelerator)


def refusal(asked: QuestionOptions, key: str, value: str) -> str:
    with pytest.raises((PlanningError, SettingsError)) as caught:
        question_from(dataclasses.replace(asked, set=(f"{key}={value}",)))
    return str(caught.value)


@pytest.mark.parametrize("asked", [PLAIN, QuestionOptions(stack="l4-qat")], ids=["described", "stack"])
def test_a_key_without_its_block_has_one_hint_whatever_its_value(asked: QuestionOptions):
    in_file = [
        f"{path.partition(':')[2]}.{name}".removeprefix(".") for path, block in blocks() for name in block["properties"]
    ]
    top = {key.partition(".")[0] for key in set_keys()} | {key for key in in_file if "." not in key}
    bare = {key: key.rpartition(".")[2] for key in (*set_keys(), *in_file)}
    refusals = {key: {refusal(asked, word, value) for value in VALUES} for key, word in bare.items() if word not in top}
    assert {key: said for key, said in refusals.items() if len(said) > 1} == {}
    assert {key: said for key, (said,) in refusals.items() if key in set_keys() and key not in said} == {}


@pytest.mark.parametrize("key", ["foo", "vllm.foo", "tpu.existingNetwork.foo", "vllm.speculative.foo.bar", "bucket"])
def test_an_unknown_key_is_refused_whatever_its_value(key: str):
    for value in VALUES:
        assert key in refusal(PLAIN, key, value)


@pytest.mark.parametrize("accelerator", ["v6e-1", "v6e-4", "v6e-8"])
def test_no_recommended_value_makes_its_own_plan_impossible(accelerator: str, subtests: pytest.Subtests):
    proposed = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    for model in ("google/gemma-4-E2B-it", "google/gemma-4-E4B-it", "google/gemma-4-31B-it"):
        plain = Question().changed(model=model, accelerator=accelerator)
        if blocked_by(plain):
            continue
        with subtests.test(model):
            assert not blocked_by(with_options(plain, speculative_config=proposed))


def test_given_sequences_stay_and_the_way_out_names_fewer():
    proposed = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    e4b = Question().changed(model="google/gemma-4-E4B-it", accelerator="v6e-1")
    blocked = plan(with_options(e4b, max_num_seqs=256, speculative_config=proposed))
    assert blocked.vllm.gpu_memory_utilization == 0.9
    [finding] = [one for one in blocked.findings if one.severity == "block"]
    assert {"vllm.max_num_seqs": 64} in [one.changes for one in finding.remedies]
    low = plan(with_options(e4b, max_num_seqs=256, gpu_memory_utilization=0.05, speculative_config=proposed))
    first = next(one for one in low.findings if one.id == "FIT01")
    assert any("vllm.max_num_seqs" in one.changes for one in first.remedies)


def test_a_template_outside_vllms_folder_is_noted():
    [noted] = [one for one in plan(with_options(GPU, chat_template="/own/t.jinja")).findings if one.id == "ARG02"]
    assert noted.severity == "warn"
    assert "/own/t.jinja, outside /vllm-workspace/" in noted.message
    assert noted.remedies[0].changes == {"vllm.chat_template": None}
