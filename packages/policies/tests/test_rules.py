"""Each rule, without the engine and the policy SDK: every input that it reads, with a fault, its fix, no value and an unknown value."""

import json

import pytest

from gemma_serving_policies import (
    RULES,
    allowed_regions,
    external_addresses,
    image_by_digest,
    public_access,
    run_limit,
)
from gemma_serving_policies.rule import NotKnown, Violation
from gemma_serving_policies.values import UNKNOWN, Resource, found_at

DIGEST = "@sha256:" + "0" * 64
MEMBER = "gcp:storage/bucketIAMMember:BucketIAMMember"
POLICY = "gcp:projects/iAMPolicy:IAMPolicy"
BUCKET = "gcp:storage/bucket:Bucket"
INSTANCE = "gcp:compute/instance:Instance"
QUEUED = "gcp-tpu:index:QueuedResource"
GPU = {"machineType": "g2-standard-8"}


def nested(keys, value):
    """Inputs with a value at a path."""
    for key in reversed(keys):
        value = {key: value}
    return value


def answers(rule, kind, inputs, **config):
    return list(rule.answers(Resource(kind, "it", inputs), config))


def grants():
    """Yield each input that a rule reads: its type and path, a fault, and the fix."""
    for suffix in ("IAMMember", "IamMember", "IAMBinding", "IamBinding"):
        for kind in (f"gcp:storage/x:Bucket{suffix}", f"gcp:projects/x:{suffix}"):
            yield from ((kind, keys, "allUsers", "user:a@example.com") for keys in public_access.GRANTED)
    yield MEMBER, ("member",), "allAuthenticatedUsers", "allUsers@example.com"
    for kind, keys in public_access.ACCESS_LISTS.items():
        yield kind, keys, "READER:allUsers", "READER:user-a@example.com"
    for kind, key in public_access.PREDEFINED.items():
        yield kind, (key,), "publicRead", "private"
    for kind, keys in public_access.CALLERS.items():
        yield kind, keys, True, False
        yield kind, keys, "true", "false"


def images():
    for kind, keys in image_by_digest.IMAGES.items():
        yield kind, keys, "a.example:5000/b/c:latest", f"a.example:5000/b/c{DIGEST}"
        yield kind, keys, f"b/c{DIGEST[:-1]}", f"b/c:tag{DIGEST}"
        yield kind, keys, f"b/c{DIGEST}0", f"b/c{DIGEST}"
    for kind, keys in image_by_digest.DOCUMENTS.items():
        yield kind, keys, json.dumps({"image": "a/b:nightly"}), json.dumps({"image": f"a/b{DIGEST}"})


def places():
    for name in allowed_regions.PLACES:
        for fault in ("asia-east1", "europe-west1-b", "projects/p/zones/europe-west40-a", "US"):
            for fix in ("us-east5", "us-east5-a", "https://x/projects/p/zones/europe-west4-b", "eu", "global", ""):
                yield BUCKET, (name,), fault, fix
        yield "pulumi:providers:gcp", (name,), "asia-east1", "us-east5"
    yield from ((kind, keys, "asia-east1", "us-east5") for kind, keys in allowed_regions.NESTED.items())


def addresses():
    for kind, paths in external_addresses.SWITCHES.items():
        yield from ((kind, keys, True, False) for keys in paths)
    for kind, paths in external_addresses.CONFIGS.items():
        yield from ((kind, keys, [{}], []) for keys in paths)


LIMIT = ("maxRunDurationS",)
ONLY = {"allowed": ["us-*", "europe-west4", "EU"]}
TABLES = [
    (public_access.RULE, {}, grants(), []),
    (image_by_digest.RULE, {}, images(), []),
    (run_limit.RULE, {}, [(QUEUED, LIMIT, 604_801.0, 604_800.0)], [Violation]),
    (run_limit.RULE, {"maxRunDurationS": 60.0}, [(QUEUED, LIMIT, 61.0, 60.0)], [Violation]),
    (allowed_regions.RULE, ONLY, places(), []),
    (external_addresses.RULE, {}, addresses(), []),
    (
        external_addresses.RULE,
        {},
        ((kind, (key,), "EXTERNAL", "INTERNAL") for kind, key in external_addresses.KINDS.items()),
        [Violation],
    ),
]
"""Each rule with its configuration, its inputs, and the answers if they are missing."""


def rows():
    return ((rule, config, missing, *row) for rule, config, table, missing in TABLES for row in table)


def test_each_input_that_a_rule_reads(subtests):
    for rule, config, missing, kind, keys, fault, fix in rows():
        with subtests.test(f"{rule.name} {kind} {'.'.join(keys)} {fault}"):
            (refused,) = answers(rule, kind, nested(keys, fault), **config)
            assert isinstance(refused, Violation)
            path = ".".join(keys)
            assert refused.message.replace("[0]", "").startswith(f"it: `{path}")
            assert refused.message.endswith(".")
            assert answers(rule, kind, nested(keys, fix), **config) == []
            assert [type(each) for each in answers(rule, kind, {}, **config)] == missing
            (unknown,) = answers(rule, kind, nested(keys, UNKNOWN), **config)
            assert isinstance(unknown, NotKnown)
            assert f"`{path}" in unknown.place
            assert unknown in answers(rule, kind, nested(keys[:1], UNKNOWN), **config)
            assert answers(rule, kind, nested(keys, fault), exempt=[f"{kind}::it"], **config) == []


def test_a_list_is_checked_element_by_element():
    inputs = {"members": ["user:a@example.com", "allUsers", UNKNOWN]}
    refused, unknown = answers(public_access.RULE, MEMBER, inputs)
    assert refused.message.startswith('it: `members[1]` is "allUsers", but a grant to everyone is not allowed; name')
    assert unknown == NotKnown("`members[2]` of it")


def test_a_policy_as_json(subtests):
    def policy(*members):
        return {"policyData": json.dumps({"bindings": [{"role": "r", "members": list(members)}]})}

    (refused,) = answers(public_access.RULE, POLICY, policy("user:a@example.com", "allAuthenticatedUsers"))
    assert "`policyData.bindings[0].members[1]`" in refused.message
    assert answers(public_access.RULE, POLICY, policy("user:a@example.com")) == []
    assert answers(public_access.RULE, POLICY, {"policyData": UNKNOWN}) == [NotKnown("`policyData` of it")]
    (refused,) = answers(public_access.RULE, POLICY, {"policyData": "{"})
    assert "is not JSON" in refused.message


def test_machines_need_a_run_limit_only_with_a_tpu_or_gpu(subtests):
    limited = nested(run_limit.SECONDS, 3600.0)
    gpu = [{"type": "nvidia-l4", "count": 1}]
    table = {
        "no accelerator": ({"machineType": "e2-small"}, []),
        "a GPU of the machine type": (GPU, [Violation]),
        "a TPU of the machine type, as a link": (
            {"machineType": "https://x/machineTypes/ct6e-standard-4t"},
            [Violation],
        ),
        "a GPU added": ({"machineType": "n1-standard-4", "guestAccelerators": gpu}, [Violation]),
        "limited": ({**GPU, **limited}, []),
        "too long": ({**GPU, **nested(run_limit.SECONDS, 604_801)}, [Violation]),
        "as text": ({**GPU, **nested(run_limit.SECONDS, "3600")}, []),
        "not a number": ({**GPU, **nested(run_limit.SECONDS, "1h")}, [Violation]),
        "no limit": ({**GPU, **nested(run_limit.SECONDS, 0)}, [Violation]),
        "unknown machine type": ({"machineType": UNKNOWN}, [NotKnown]),
        "unknown machine type with a GPU": ({"machineType": UNKNOWN, "guestAccelerators": gpu}, [Violation]),
        "unknown limit": ({**GPU, "scheduling": UNKNOWN}, [NotKnown]),
    }
    for name, (inputs, expected) in table.items():
        for kind in run_limit.MACHINES:
            with subtests.test(f"{name} {kind}"):
                assert [type(each) for each in answers(run_limit.RULE, kind, inputs)] == expected


def test_the_fix_of_a_run_limit_is_what_the_api_accepts():
    """Cloud TPU accepts a run limit with flex-start only, Compute Engine with each provisioning model."""
    fixes = {
        ("flex-start", None): "set `maxRunDurationS` to 604800 or less.",
        ("spot", None): "set `maxRunDurationS` to 604800 or less and `provisioningModel` to flex-start.",
        ("spot", "compute-engine"): "set `maxRunDurationS` to 604800 or less.",
    }
    for (model, api), fix in fixes.items():
        (refused,) = answers(run_limit.RULE, QUEUED, {"provisioningModel": model, "api": api})
        assert refused.message.endswith(fix)
    for kind in run_limit.UNLIMITED:
        (refused,) = answers(run_limit.RULE, kind, {})
        assert "use gcp-tpu:index:QueuedResource with `maxRunDurationS: 604800`." in refused.message


def test_regions_are_free_by_default_and_other_clouds_are_ignored():
    assert answers(allowed_regions.RULE, BUCKET, {"location": "MARS"}) == []
    assert answers(allowed_regions.RULE, "aws:s3/bucket:Bucket", {"region": "MARS"}, allowed=["us-*"]) == []
    assert answers(public_access.RULE, "aws:x:IamPolicy", {"member": "allUsers"}) == []


def test_types_that_only_look_like_grants_are_ignored():
    for kind in ("gcp:projects/iAMMemberRemove:IAMMemberRemove", "gcp:projects/iAMAuditConfig:IAMAuditConfig"):
        assert answers(public_access.RULE, kind, {"member": "allUsers", "members": ["allUsers"]}) == []


def test_the_image_of_a_document_that_is_not_a_document_is_left_to_the_agent():
    for text in ("", "{", "[]", '"text"'):
        assert answers(image_by_digest.RULE, QUEUED, nested(("metadata", "gemma-serving-document"), text)) == []


def test_the_fix_of_an_image_names_it_without_its_tag():
    (kind, keys), *_ = image_by_digest.IMAGES.items()
    (refused,) = answers(image_by_digest.RULE, kind, nested(keys, "a.example:5000/b/c:latest"))
    assert refused.message.endswith(
        "`docker buildx imagetools inspect a.example:5000/b/c:latest` prints, as a.example:5000/b/c@sha256:DIGEST."
    )


def test_a_setting_that_does_not_exist_is_refused():
    for rule in RULES:
        (refused,) = rule.answers(Resource(BUCKET, "it", {}), {"regions": ["us-*"]})
        assert f"The policy configuration of {rule.name} has regions, but its settings are " in refused.message


def test_each_rule_states_its_settings():
    assert len(RULES) == len({rule.name for rule in RULES}) == 5
    for rule in RULES:
        assert rule.description.endswith(".")
        assert {"default", "description", "type"} <= {key for schema in rule.settings.values() for key in schema}
        assert rule.defaults().keys() == rule.settings.keys()


@pytest.mark.parametrize("value", [UNKNOWN, {"b": UNKNOWN}, [{"b": UNKNOWN}], {"b": [{"c": UNKNOWN}]}])
def test_an_unknown_part_of_a_path_is_unknown(value):
    (found,) = found_at({"a": value}, "a", "b", "c")
    assert found.value is UNKNOWN


def test_long_values_are_shortened_in_messages():
    (refused,) = answers(allowed_regions.RULE, BUCKET, {"location": "x" * 1000}, allowed=["us-*"])
    assert len(refused.message) < 400
