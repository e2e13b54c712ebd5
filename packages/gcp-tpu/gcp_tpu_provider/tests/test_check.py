"""Inputs: defaults, and every mistake as one sentence with its property path."""

from typing import Any

import pytest

from gcp_tpu_provider import wire
from gcp_tpu_provider.check import MAX_FLEX_START_S, auto_name
from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.harness import URN, Aborted, FakeEngine, wanted

SECRET = {wire.SIGNATURE: wire.SECRET, "value": "hf_canary"}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "CLOUDSDK_CORE_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return FakeEngine(FakeTpu())


def test_the_automatic_name_follows_from_the_urn_so_that_a_killed_creation_is_found_again(engine: FakeEngine):
    assert engine.inputs(wanted(queuedResourceId=None)) == engine.inputs(wanted(queuedResourceId=None))
    assert auto_name(URN) != auto_name(URN.replace("dev", "prod"))
    assert auto_name("urn:pulumi:dev::demo::t::9 Ü").startswith("tpu-9-")


def test_a_name_once_given_is_kept(engine: FakeEngine):
    engine.up(wanted(queuedResourceId="serve"))
    assert engine.inputs(wanted(queuedResourceId=None))["queuedResourceId"] == "serve"


def test_the_project_comes_from_the_environment_where_none_is_given(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "from-environment")
    assert engine.inputs(wanted(project=None))["project"] == "from-environment"


READY = {"guestAttributeNamespace": "ns"}


@pytest.mark.parametrize(
    ("change", "path", "sentence"),
    [
        (
            {"maxRunDurationS": None},
            "maxRunDurationS",
            "`maxRunDurationS` is missing. flex-start requires the run duration of the nodes",
        ),
        (
            {"maxRunDurationS": MAX_FLEX_START_S + 1},
            "maxRunDurationS",
            "`maxRunDurationS` is 604801, but flex-start allows at most 604800 s (7 days).",
        ),
        (
            {"bootDiskSizeGb": 50},
            "bootDiskSizeGb",
            "`bootDiskSizeGb` is 50, but must be at least 100 (GB).",
        ),
        (
            {"maxRunDurationS": 0},
            "maxRunDurationS",
            "`maxRunDurationS` is 0, but must be at least 1 (seconds).",
        ),
        ({"maxRunDurationS": 1.5}, "maxRunDurationS", "`maxRunDurationS` is 1.5, but must be a whole number."),
        (
            {"zones": ["us-east5-a", "useast"]},
            "zones[1]",
            '`zones[1]` is "useast", but must be a zone such as us-east5-a.',
        ),
        ({"zones": []}, "zones", "`zones` is empty"),
        ({"zones": ["us-east5-a", "us-east5-a"]}, "zones", "`zones` lists us-east5-a more than once"),
        ({"zones": "us-east5-a"}, "zones", '`zones` is "us-east5-a", but must be a list.'),
        ({"zone": "us-east5-a"}, "zones", "Set either `zones`"),
        ({"zones": None}, "zones", "Set either `zones`"),
        (
            {"project": None},
            "project",
            "`project` is missing. Set it, or set `gcp-tpu:project` or GOOGLE_CLOUD_PROJECT.",
        ),
        ({"project": "X"}, "project", '`project` is "X", but must be a project id'),
        (
            {"acceleratorType": "v6e"},
            "acceleratorType",
            '`acceleratorType` is "v6e", but must be a type and size such as v6e-4',
        ),
        (
            {"acceleratorType": None},
            "acceleratorType",
            "`acceleratorType` is missing: Type and size of the slice, such as v6e-4.",
        ),
        (
            {"provisioningModel": "flex"},
            "provisioningModel",
            "but must be one of flex-start, spot, standard, reservation.",
        ),
        (
            {"provisioningModel": "reservation", "maxRunDurationS": None},
            "reservationName",
            "`reservationName` is missing",
        ),
        ({"reservationName": "r"}, "reservationName", "Remove it or set `provisioningModel` to reservation."),
        (
            {"acelerator": "v6e-4"},
            "acelerator",
            "`acelerator` is unknown. Known names: project, zones,",
        ),
        ({"labels": {"Team": "x"}}, "labels.Team", 'Label key "Team" must start with a lower-case letter'),
        ({"labels": {"team": "A B"}}, "labels.team", '`labels.team` is "A B", but must be a label value'),
        ({"labels": {f"l{number}": "" for number in range(64)}}, "labels", "`labels` has 64 entries"),
        ({"tags": ["Serve"]}, "tags[0]", '`tags[0]` is "Serve", but must be a network tag'),
        ({"metadata": {"a b": "c"}}, 'metadata["a b"]', 'Metadata key "a b"'),
        ({"metadata": {"a": "x" * (256 * 1024 + 1)}}, "metadata.a", "`metadata.a` has 262145 bytes"),
        ({"metadata": {"a": 1}}, "metadata.a", "`metadata.a` must be a string."),
        ({"description": "x" * 513}, "description", "must be a text of at most 512 characters."),
        ({"forms": [{"waitS": 60}]}, "forms[0].provisioningModel", "`forms[0].provisioningModel` is missing"),
        (
            {"serviceAccount": {"email": "a@b.c", "mail": "x"}},
            "serviceAccount.mail",
            "`serviceAccount.mail` is unknown. Known names: email, scopes.",
        ),
        ({"waitFor": "done"}, "waitFor", "must be one of accepted, active, ready."),
        ({"waitFor": "ready"}, "ready", "`ready` is missing"),
        ({"ready": READY}, "", "`metadata` must contain `enable-guest-attributes: TRUE`"),
        (
            {"ready": {**READY, "documentMetadataKey": "doc"}, "metadata": {"enable-guest-attributes": "TRUE"}},
            "ready.documentMetadataKey",
            '`ready.documentMetadataKey` is "doc", but `metadata` has no such key.',
        ),
        (
            {"ready": {**READY, "timeoutS": 0}, "metadata": {"enable-guest-attributes": "TRUE"}},
            "ready.timeoutS",
            "`ready.timeoutS` is 0",
        ),
        ({"metadata": {"hf-token": SECRET}}, 'metadata["hf-token"]', "is a secret, but every process on the TPU VM"),
    ],
)
def test_a_mistake_is_one_sentence_at_its_path(engine: FakeEngine, change: dict[str, Any], path: str, sentence: str):
    mistakes = engine.mistakes(wanted(**change))
    assert list(mistakes) == [path], mistakes
    assert sentence in mistakes[path]
    assert "\n" not in mistakes[path]
    assert "hf_canary" not in mistakes[path]


def test_metadata_that_is_a_secret_as_a_whole_is_refused(engine: FakeEngine):
    mistakes = engine.mistakes(wanted(metadata={wire.SIGNATURE: wire.SECRET, "value": {"a": "hf_canary"}}))
    assert "hf_canary" not in mistakes[""]


def test_a_secret_that_is_wrong_is_not_repeated_in_the_sentence(engine: FakeEngine):
    mistakes = engine.mistakes(
        wanted(
            project={wire.SIGNATURE: wire.SECRET, "value": "Canary"},
            tags=[{wire.SIGNATURE: wire.SECRET, "value": "Bird"}],
        )
    )
    assert mistakes["project"].startswith("`project` is a secret, but must be a project id")
    assert mistakes["tags[0]"].startswith("`tags[0]` is a secret, but must be")


@pytest.mark.parametrize(
    "change",
    [
        {"zones": wire.UNKNOWN},
        {"zones": ["us-east5-a", wire.UNKNOWN]},
        {"queuedResourceId": wire.UNKNOWN},
        {"metadata": wire.UNKNOWN, "ready": READY},
        {
            "metadata": {"enable-guest-attributes": wire.UNKNOWN, "document": wire.UNKNOWN},
            "ready": {**READY, "documentMetadataKey": "document"},
        },
        {"serviceAccount": {"email": wire.UNKNOWN}},
        {"network": wire.UNKNOWN, "labels": {"a": wire.UNKNOWN}, "tags": wire.UNKNOWN},
        {"maxRunDurationS": wire.UNKNOWN, "provisioningModel": wire.UNKNOWN},
    ],
)
def test_values_that_are_not_known_yet_pass_in_a_preview(engine: FakeEngine, change: dict[str, Any]):
    assert engine.preview(wanted(**change)) == "create"


def test_secrets_outside_metadata_stay_marked_in_the_state(engine: FakeEngine):
    email = {wire.SIGNATURE: wire.SECRET, "value": "vm@my-project.iam.gserviceaccount.com"}
    engine.up(wanted(serviceAccount={"email": email}))
    assert engine.state
    assert engine.outputs["serviceAccount"]["email"] == email
    engine.refresh()
    assert engine.state.inputs["serviceAccount"]["email"] == email
    assert engine.up(wanted(serviceAccount={"email": email})) == "same"


def test_a_resource_of_another_type_is_refused():
    with pytest.raises(Aborted, match="gcp-tpu:index:Node is not a resource of gcp-tpu"):
        FakeEngine(FakeTpu(), urn="urn:pulumi:dev::demo::gcp-tpu:index:Node::serve").check(wanted())


@pytest.mark.parametrize("given", ["tpu7x-standard-4t", "v7x-8", "ironwood-4"])
def test_tpu7x_is_refused_with_where_it_is_offered(engine: FakeEngine, given: str):
    mistakes = engine.mistakes(wanted(acceleratorType=given))
    assert list(mistakes) == ["acceleratorType"]
    assert "TPU7x requires Compute Engine or Google Kubernetes Engine" in mistakes["acceleratorType"]


@pytest.mark.parametrize("given", ["v5p-8", "v5litepod-8"])
def test_every_generation_of_queued_resources_is_accepted(engine: FakeEngine, given: str):
    assert engine.mistakes(wanted(acceleratorType=given)) == {}
