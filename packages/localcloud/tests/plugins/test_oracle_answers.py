"""Every request that the real provider was seen to send is answered, and the program uses nothing whose requests nobody has seen.

`tests/fixtures/oracle` holds the recorded exchanges of resources; `functions.json` the requests of data sources.
"""

import ast
import inspect
import json
from pathlib import Path

import pulumi
import pulumi_gcp as gcp

from localcloud.environment import REAL_PLUGIN_ENDPOINTS
from localcloud.rest.versions import handler_id
from localcloud.server.dispatch import _route, _split
from localcloud.services import handlers
from localcloud.tests.plugins.harness import declared, oracle

ROOT = Path(__file__).parents[4]
FUNCTIONS = json.loads((ROOT / "tests" / "fixtures" / "oracle" / "functions.json").read_text())
UNRECORDED = {
    "gcp.projects.ServiceIdentity": "only with gemma-serving:dockerHub; resource_google_project_service_identity.go: generateServiceIdentity and its operation",
    "gcp.serviceaccount.IAMMember": "only with tunnelMembers; iam_service_account.go: getIamPolicy and setIamPolicy of the account",
}
"""Types of the program without a recording, when they are declared, and where their requests were read instead."""


def requests():
    for name in ("create.jsonl", "update.jsonl", "delete.jsonl"):
        yield from ((each["request"]["method"], each["request"]["path"]) for each in oracle(name))
    for recorded in FUNCTIONS["functions"].values():
        yield from (request.split() for request in recorded)


def test_every_recorded_url_is_answered(shared_cloud):
    known, missing = handlers(shared_cloud.cloud), []
    for verb, path in sorted(set(map(tuple, requests()))):
        api, below, media = _split(path)
        document, method, _ = _route(verb, api, below, media)
        if handler_id(document, method) not in known:
            missing.append(f"{verb} {path}")
    assert missing == []


def test_every_recorded_api_has_its_endpoint_for_the_real_provider():
    paths = set(REAL_PLUGIN_ENDPOINTS.values())
    apis = {path.lstrip("/").partition("/")[0] for _, path in requests()} - {"upload"}
    assert [api for api in sorted(apis) if not any(path.startswith(f"{api}/") for path in paths)] == []


def used():
    """Yield resource types and functions of pulumi-gcp that the program names."""
    for path in (*(ROOT / "components").glob("*.py"), *(ROOT / "stacks").glob("*.py"), ROOT / "__main__.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                inner = node.value
                if isinstance(inner.value, ast.Name) and inner.value.id == "gcp":
                    yield inner.attr, node.attr


def test_the_program_uses_only_what_has_a_recording():
    recorded = {each["type"] for each in declared().values()}
    unknown = set()
    for module, name in used():
        found = getattr(getattr(gcp, module), name)
        full = f"gcp.{module}.{name}"
        if inspect.isclass(found) and issubclass(found, pulumi.CustomResource):
            if found.pulumi_type not in recorded:
                unknown.add(full)
        elif inspect.isfunction(found) and not any(
            function.rpartition(":")[2].lower() == name.removesuffix("_output").replace("_", "").lower()
            for function in FUNCTIONS["functions"]
        ):
            unknown.add(full)
    assert unknown == set(UNRECORDED)
