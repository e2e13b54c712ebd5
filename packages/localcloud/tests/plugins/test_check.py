"""Check: allowed inputs, defaults, and chosen names."""

import re

import grpc.aio
import pytest
from pulumi.runtime.proto import provider_pb2

from localcloud.tests.plugins.harness import UNKNOWN, CheckFailedError, Replay, on_engine, secret

BUCKET = "gcp:storage/bucket:Bucket"
SERVICE = "gcp:cloudrunv2/service:Service"


def check(type_name, news, olds=None, *, name="thing", **options):
    return on_engine(Replay(), lambda attached: attached.check(type_name, name, news, olds, **options))


def failures(type_name, news):
    with pytest.raises(CheckFailedError) as caught:
        check(type_name, news)
    return dict(caught.value.failures)


def test_an_unknown_property_is_named_with_its_path_and_the_way_to_add_it():
    template = {"containers": [{"image": "i", "imagee": "x"}]}
    found = failures(SERVICE, {"location": "us-east4", "template": template})
    assert list(found) == ["template.containers[0].imagee"]
    assert (
        "does not support the property 'template.containers[0].imagee' of gcp:cloudrunv2/service:Service"
        in found["template.containers[0].imagee"]
    )
    assert "--providers real" in found["template.containers[0].imagee"]


def test_everything_that_is_wrong_is_reported_at_once():
    found = failures(BUCKET, {"labels": {"a": 1}, "versioning": {}, "forceDestroy": "yes", "selfLink": "x"})
    assert set(found) == {"labels.a", "versioning.enabled", "forceDestroy", "selfLink", "location"}
    assert found["forceDestroy"] == f"'forceDestroy' of {BUCKET} must be true or false, got a text"
    assert found["location"] == f"missing required property 'location' of {BUCKET}"
    assert "computed" in found["selfLink"]


def test_values_that_are_not_known_yet_are_neither_missing_nor_wrong():
    inputs = check(BUCKET, {"location": UNKNOWN, "labels": UNKNOWN, "versioning": {"enabled": UNKNOWN}, "name": "b"})
    assert inputs["location"] == UNKNOWN


def test_an_unknown_type_is_refused_with_the_command_that_lists_the_known_ones():
    with pytest.raises(
        grpc.aio.AioRpcError,
        match=r"does not support the resource type gcp:pubsub/schema:Schema\. `python -m localcloud types`",
    ):
        check("gcp:pubsub/schema:Schema", {})


def test_properties_that_exclude_each_other_are_refused_and_one_of_a_group_is_wanted():
    firewall = "gcp:compute/firewall:Firewall"
    tags = {"network": "n", "sourceTags": ["a"], "targetServiceAccounts": ["b"]}
    assert "one of `allow,deny` must be specified" in failures(firewall, {"network": "n"})[""]
    with pytest.raises(CheckFailedError) as caught:
        check(firewall, {**tags, "allows": [{"protocol": "tcp"}]})
    conflicts = {
        "sourceTags": ("source_tags", "target_service_accounts"),
        "targetServiceAccounts": ("target_service_accounts", "source_tags"),
    }
    assert {reason for _, reason in caught.value.failures} == {
        f"Conflicting configuration arguments. \"{one}\": conflicts with {other}. Examine values at 'thing.{name}'."
        for name, (one, other) in conflicts.items()
    }


def test_no_secret_is_in_a_failures_words():
    found = failures("gcp:secretmanager/secretVersion:SecretVersion", {"secret": "s", "secretData": ["hf_canary"]})
    assert "hf_canary" not in str(found)


def test_defaults_are_filled_in_inside_objects_too():
    template = {"containers": [{"image": "i", "startupProbe": {"httpGet": {}}}]}
    inputs = check(SERVICE, {"location": "us-east4", "name": "s", "template": template})
    assert inputs["deletionProtection"] is True
    probe = {"failureThreshold": 3, "periodSeconds": 10, "timeoutSeconds": 1, "httpGet": {"path": "/"}}
    assert inputs["template"]["containers"][0]["startupProbe"] == probe


def test_secrets_stay_secret():
    inputs = check("gcp:secretmanager/secretVersion:SecretVersion", {"secret": "s", "secretData": secret("hf_canary")})
    assert inputs["secretData"] == secret("hf_canary")


def test_a_name_is_the_resources_and_seven_digits_that_the_seed_decides():
    first = check(BUCKET, {"location": "US"}, name="Models", randomSeed=b"1")["name"]
    assert re.fullmatch(r"models-[0-9a-f]{7}", first)
    assert check(BUCKET, {"location": "US"}, name="Models", randomSeed=b"1")["name"] == first
    assert check(BUCKET, {"location": "US"}, name="Models", randomSeed=b"2")["name"] != first


def test_a_chosen_name_is_kept_and_a_written_one_is_not():
    chosen = check(BUCKET, {"location": "US"}, randomSeed=b"1")
    assert check(BUCKET, {"location": "EU"}, chosen, randomSeed=b"2")["name"] == chosen["name"]
    written = check(BUCKET, {"location": "US", "name": "fixed"})
    assert check(BUCKET, {"location": "US"}, written, randomSeed=b"2")["name"] != "fixed"


def test_an_unknown_provider_setting_is_refused_and_a_known_one_is_not():
    request = provider_pb2.CheckRequest()
    request.news.update({"project": "p", "regoin": "us-east4", "runV2CustomEndpoint": "http://x"})
    failures = on_engine(Replay(), lambda attached: attached.stub.CheckConfig(request)).failures
    assert [(each.property, "project" in each.reason) for each in failures] == [("regoin", True)]
