"""The program uses nothing of the gcp plugin whose requests nobody has seen."""

import ast
import inspect
from pathlib import Path

import pulumi
import pulumi_gcp as gcp

from localcloud.tests.plugins.harness import declared, oracle

ROOT = Path(__file__).parents[2]
FUNCTIONS = oracle("functions.json")
UNRECORDED = {
    "gcp.projects.ServiceIdentity": "only with gemma-serving:dockerHub; resource_google_project_service_identity.go: generateServiceIdentity and its operation",
    "gcp.serviceaccount.IAMMember": "only with tunnelMembers; iam_service_account.go: getIamPolicy and setIamPolicy of the account",
}
"""Types of the program without a recording, when they are declared, and where their requests were read instead."""


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
