"""Wrong input is one clear sentence, an exit code other than 0, and nothing created."""

import pytest

pytestmark = pytest.mark.engine

STACK = "tpu-v6e4"


@pytest.fixture(scope="module")
def stack(workspace):
    workspace.pulumi("stack", "init", STACK)
    return workspace


@pytest.fixture
def settings(stack):
    """The stack's settings file, as it was before and after each test."""
    path = stack.folder / "project" / f"Pulumi.{STACK}.yaml"
    text = path.read_text()
    yield path
    path.write_text(text)


def made(workspace):
    return [resource["name"] for resource in workspace.admin("resources")["resources"] if "gemma-" in resource["name"]]


def refused(workspace, sentence, environment=None):
    answer = workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK, expect=None, environment=environment)
    assert answer.code != 0, answer.text
    assert sentence in answer.text, answer.text
    assert "Traceback" not in answer.text
    assert "unhandled error" not in answer.text
    assert made(workspace) == []


CHANGES = {
    "a sentence of stacks.loading": (
        "maxModelLen: 16384",
        "maxModelLength: 16384",
        "gemma-serving:vllm.maxModelLength is not a known setting. Did you mean vllm.maxModelLen?",
    ),
    "a finding of the planner": ("tensorParallelSize: 4", "tensorParallelSize: 8", "TPU01"),
}
"""One of each kind. The sentences themselves are asserted without an engine, in tests/stacks/test_loading.py and tests/planning."""

MORE_CHANGES = {
    "a duration": ("maxRunDuration: 4h", "maxRunDuration: 4", "maxRunDuration = 4: a duration needs a unit"),
    "a zone": ("us-east5-a", "us-east9-a", "us-east9-a"),
    "a target": ("target: tpu", "target: cloud-run", "target cloud-run requires the block cloudRun"),
    "a model": ("model: google/gemma-4-E2B-it", "model: google/gemma-9-E2B-it", "google/gemma-9-E2B-it"),
}


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        *(pytest.param(*change, id=name) for name, change in CHANGES.items()),
        *(pytest.param(*change, id=name, marks=pytest.mark.long) for name, change in MORE_CHANGES.items()),
    ],
)
def test_a_mistake_in_the_settings(stack, settings, old, new, sentence):
    text = settings.read_text()
    assert old in text
    settings.write_text(text.replace(old, new, 1))
    refused(stack, sentence)


@pytest.mark.long
def test_a_missing_project(stack):
    bare = {"GOOGLE_CLOUD_PROJECT": "", "GOOGLE_PROJECT": "", "CLOUDSDK_CORE_PROJECT": ""}
    refused(stack, "gcp:project and GOOGLE_CLOUD_PROJECT are not set", bare)


def test_a_project_that_is_not_ours(stack):
    answer = stack.pulumi(
        "up",
        "--yes",
        "--skip-preview",
        "--stack",
        STACK,
        expect=None,
        environment={"GOOGLE_CLOUD_PROJECT": "not-our-project"},
    )
    assert answer.code != 0
    assert "not-our-project" in answer.text
    assert made(stack) == []


def test_a_wrong_passphrase(stack):
    refused(stack, "incorrect passphrase", {"PULUMI_CONFIG_PASSPHRASE": "wrong"})


def test_a_dead_endpoint_of_the_backend(stack):
    refused(stack, "error:", {"PULUMI_BACKEND_URL": "http://127.0.0.1:9", "PULUMI_ACCESS_TOKEN": "x"})


def test_a_dead_endpoint_of_the_cloud(stack):
    name = "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"
    dead = {name: "http://127.0.0.1:9/"}
    answer = stack.pulumi("up", "--yes", "--stack", STACK, expect=None, environment=dead)  # refused by its preview
    assert answer.code != 0
    assert f"{name} is http://127.0.0.1:9/, but nothing responds there" in answer.text
    assert "Traceback" not in answer.text
    assert made(stack) == []


@pytest.mark.long
def test_a_token_in_clear(stack, settings):
    settings.write_text(settings.read_text().replace("config:", "config:\n  gemma-serving:hfToken: hf_in_clear", 1))
    refused(stack, "gemma-serving:hfToken is stored in plain text")
