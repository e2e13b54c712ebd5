"""What changes about a server: its flags, model, image and variables; or that it is not known."""

import json

import pytest

from gemma_serving.contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from gemma_serving.contracts.server_change import ChangedValue, flags_of, server_change
from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY, ServingDocument

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
CANARY = "hf_canary0123456789abcdefABCDEF0123"


def machine(*arguments, model="a/b", image="i@sha256:1", **environment):
    document = ServingDocument(
        image=image,
        command=("vllm", "serve"),
        arguments=(model, *arguments),
        environment=environment,
        secret_environment={},
        port=8000,
    )
    return {"metadata": {DOCUMENT_METADATA_KEY: document.text(), "startup-script": "#!"}}


def service(*arguments, first=(), model="a/b", image="i@sha256:1", **environment):
    envs = [{"name": name, "value": value} for name, value in environment.items()]
    return {"template": {"containers": [{"image": image, "args": [*first, model, *arguments], "envs": envs}]}}


TARGETS = [(CAPACITY_TYPE, machine), (SERVICE_TYPE, service)]


@pytest.mark.parametrize(("kind", "inputs"), TARGETS)
def test_each_difference_is_named_with_both_values(kind, inputs):
    before = inputs("--max-model-len=16384", "--old", X="1")
    after = inputs("--max-model-len=8192", "--kv-cache-dtype=fp8", X="2")
    change = server_change(kind, before, after)
    assert [value.text() for value in change.values] == [
        "--max-model-len: 16384 -> 8192",
        "--kv-cache-dtype: not set -> fp8",
        "X: 1 -> 2",
        "--old: on -> not set",
    ]
    assert change.compiles
    assert server_change(kind, before, before).values == ()


@pytest.mark.parametrize(("kind", "inputs"), TARGETS)
@pytest.mark.parametrize("other", [{"model": "c/d"}, {"image": "i@sha256:2"}])
def test_another_model_or_image_compiles(kind, inputs, other):
    change = server_change(kind, inputs(), inputs(**other))
    assert [value.key for value in change.values] == list(other)
    assert change.compiles


def test_two_long_images_are_shown_from_where_they_differ():
    first, second = (f"us-docker.pkg.dev/project/repository/vllm@sha256:{digit * 64}" for digit in "12")
    (value,) = server_change(SERVICE_TYPE, service(image=first), service(image=second)).values
    before, after = value.text().removeprefix("image: ").split(" -> ")
    assert before.startswith("…ository/vllm@sha256:111")
    assert after.startswith("…ository/vllm@sha256:222")


def test_a_variable_from_a_secret_is_named_by_its_source_and_version():
    def with_key(version):
        inputs = service()
        source = {"secretKeyRef": {"secret": "key", "version": version}}
        return inputs["template"]["containers"][0]["envs"].append({"name": "KEY", "valueSource": source}) or inputs

    (added,) = server_change(SERVICE_TYPE, service(), with_key(object())).values
    assert added.text() == "KEY: not set -> Secret Manager, a new version"
    (rotated,) = server_change(SERVICE_TYPE, with_key("1"), with_key("2")).values
    assert rotated.text() == "KEY: Secret Manager, version 1 -> Secret Manager, version 2"


def test_a_flag_of_the_http_server_a_rotated_key_and_an_image_of_another_registry_compile_nothing():
    before = machine("--served-model-name=a", image="us/i@sha256:1", HF_HOME="/a")
    after = machine(
        "--served-model-name=b", "--tool-call-parser=gemma4", image="eu/i@sha256:1", HF_HOME="/b", VLLM_API_KEY="2"
    )
    change = server_change(CAPACITY_TYPE, before, after)
    assert len(change.values) == 5
    assert not change.compiles


def test_a_starter_in_front_of_the_server_is_no_difference():
    started = service("--a=1", first=("{}", "vllm", "serve"))
    assert server_change(SERVICE_TYPE, service("--a=1"), started).values == ()
    hidden = service("--a=2", first=(object(), "vllm", "serve"))
    assert [value.text() for value in server_change(SERVICE_TYPE, started, hidden).values] == ["--a: 1 -> 2"]


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        (CAPACITY_TYPE, {"metadata": {DOCUMENT_METADATA_KEY: UNKNOWN}}),
        (CAPACITY_TYPE, {"metadata": {DOCUMENT_METADATA_KEY: object()}}),
        (CAPACITY_TYPE, {}),
        (CAPACITY_TYPE, {"metadata": {DOCUMENT_METADATA_KEY: json.dumps([1])}}),
        (SERVICE_TYPE, service(object())),
        (SERVICE_TYPE, service(image=object())),
        (SERVICE_TYPE, service(X=object())),
        (SERVICE_TYPE, {"template": object()}),
        ("t:a:B", machine()),
    ],
)
def test_what_is_known_only_during_up_is_not_known(kind, after):
    before = machine() if kind == CAPACITY_TYPE else service()
    assert server_change(kind, before, after) is None


@pytest.mark.parametrize(("kind", "inputs"), TARGETS)
def test_no_secret_is_shown(kind, inputs):
    change = server_change(kind, inputs(), inputs(f"--hf-token={CANARY}", HF_TOKEN=CANARY))
    assert [value.key for value in change.values] == ["--hf-token", "HF_TOKEN"]
    assert CANARY not in str(change)


def test_a_long_value_is_shortened():
    text = ChangedValue(key="--chat-template", before=None, after="x" * 500).text()
    assert len(text) < 150
    assert text.endswith("…")


def test_a_repeated_flag_and_one_with_two_words_keep_all_values():
    assert flags_of(["m", "--a=1", "--a=2", "--b", "c"]) == {"model": "m", "--a": "1, 2", "--b": "on c"}
