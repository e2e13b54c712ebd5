"""The policy pack and the resources that it checks: it repeats names of the provider, of Google's provider and of the serving document."""

import json
import re
from pathlib import Path

import jsonschema
import pulumi_gcp
import yaml

import gcp_tpu_provider
from contracts.serving_document import DOCUMENT_METADATA_KEY, ServingDocument
from gcp_tpu_provider import properties
from gcp_tpu_provider.check import MAX_FLEX_START_S
from gemma_serving_policies import (
    RULES,
    allowed_regions,
    external_addresses,
    image_by_digest,
    public_access,
    run_limit,
)
from gemma_serving_policies.rule import Violation
from gemma_serving_policies.values import Resource

ROOT = Path(__file__).parents[2]
PACK = ROOT / "packages" / "policies"
GCP = Path(pulumi_gcp.__file__).parent
ANNOTATION = "run.googleapis.com/invoker-iam-disabled"
NO_GRANTS = {
    "access_level_condition.py",  # members to whom a condition applies
    "account.py",  # `member` is an output here and in the next two
    "iam_member_remove.py",
    "notification_service_account.py",
    "service_identity.py",
}


def tables():
    """Yield each type that a rule names, with the path of an input that it reads."""
    yield from public_access.ACCESS_LISTS.items()
    yield from ((kind, (key,)) for kind, key in public_access.PREDEFINED.items())
    yield from public_access.CALLERS.items()
    yield from image_by_digest.IMAGES.items()
    yield from image_by_digest.DOCUMENTS.items()
    yield from ((kind, run_limit.SECONDS) for kind in run_limit.MACHINES)
    yield from ((kind, ("guestAccelerators",)) for kind in run_limit.MACHINES)
    yield from ((kind, ("machineType",)) for kind in run_limit.MACHINES)
    yield run_limit.QUEUED, ("maxRunDurationS",)
    yield from ((kind, ()) for kind in run_limit.UNLIMITED)
    yield from allowed_regions.NESTED.items()
    yield from ((kind, keys) for kind, paths in external_addresses.SWITCHES.items() for keys in paths)
    yield from ((kind, keys) for kind, paths in external_addresses.CONFIGS.items() for keys in paths)
    yield from ((kind, (key,)) for kind, key in external_addresses.KINDS.items())


def snake(name):
    return re.sub(r"(?<!^)([A-Z]+)", lambda match: f"_{match[1].lower()}", name)


def test_every_type_and_input_exists(subtests):
    for kind, keys in tables():
        with subtests.test(f"{kind} {'.'.join(keys)}"):
            package, module, _ = kind.split(":")
            if package == "gcp-tpu":
                assert kind == gcp_tpu_provider.TOKEN
                assert keys[0] in properties.INPUT_BY_NAME
                continue
            folder = GCP / module.partition("/")[0]
            text = (folder / f"{snake(module.partition('/')[2])}.py").read_text()
            assert f"'{kind}'" in text
            inputs = text + ((folder / "_inputs.py").read_text())
            assert [key for key in keys if key != ANNOTATION and f"    def {snake(key)}(self)" not in inputs] == []


def test_the_grants_of_the_gcp_provider_are_recognized():
    """Each type with a member is one that the rule reads, and no other type is."""
    files = [path for path in GCP.glob("*/*.py") if not path.name.startswith(("_", "get_"))]
    texts = {path: path.read_text() for path in files}
    kinds = {
        path: match[1]
        for path, text in texts.items()
        if (match := re.search(r"^\s+'(gcp:[\w/]+:\w+)',$", text, re.MULTILINE))
    }
    assert len(kinds) > 1000
    granting = {
        path for path, text in texts.items() if re.search(r"    def (member|members|policy_data)\(self\)", text)
    }
    named = {path for path in granting if re.search(r"iam_(member|binding|policy)\.py$", path.name)}
    assert len(named) > 400
    for path in named:
        (refused,) = public_access.RULE.answers(Resource(kinds[path], "it", {"member": "allUsers"}), {})
        assert isinstance(refused, Violation)
    assert {path.name for path in granting - named} - {"outputs.py"} == NO_GRANTS


def test_the_values_of_the_other_side():
    assert run_limit.DEFAULT_LIMIT_S == MAX_FLEX_START_S
    document = ServingDocument("vllm/vllm-tpu:nightly", [], [], {}, {}, 8000)
    (refused,) = image_by_digest.RULE.answers(
        Resource(gcp_tpu_provider.TOKEN, "chips", {"metadata": {DOCUMENT_METADATA_KEY: document.text()}}), {}
    )
    assert '"vllm/vllm-tpu:nightly"' in refused.message
    pack = yaml.safe_load((PACK / "PulumiPolicy.yaml").read_text())
    assert pack["name"] == "gemma-serving-policies"


def test_the_page_lists_each_rule_with_its_settings():
    page = (ROOT / "docs" / "policies.md").read_text()
    example = json.loads(page.partition("```json\n")[2].partition("```")[0])
    assert example.keys() <= {rule.name for rule in RULES}
    for rule in RULES:
        given = dict(example.get(rule.name, {}))
        assert given.pop("enforcementLevel", "advisory") in {"mandatory", "advisory", "disabled"}
        for name, value in given.items():
            jsonschema.validate(value, {**rule.settings[name], "default": None})
        section = page.partition(f"\n## `{rule.name}`\n")[2].partition("\n## ")[0]
        assert rule.description in section
        for name in rule.own_settings:
            assert f"`{name}`" in section
