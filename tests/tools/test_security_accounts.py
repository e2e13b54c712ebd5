"""SECURITY.md names what each account of the workflows could do beyond its stacks, as the commands of docs/ci.md grant it."""

import re

from gemma_serving.contracts.naming import Names
from gemma_serving.scripts.doctor import permissions
from tests.security_page import rows
from tests.tools.ci_page import account_grants, account_roles, custom_roles, page_commands

POWERS = {
    "resourcemanager.projectIamAdmin": "grant roles",
    "iam.serviceAccountAdmin": "grant the use of any account",
    "iam.serviceAccountUser": "act as any account",
    "storage.objectViewer": "read every bucket",
    "artifactregistry.admin": "replace every image",
    "logging.configWriter": "export every log",
    "run.admin": "run any image",
    "tpu.admin": "run any machine",
    "compute.securityAdmin": "open any firewall",
    "compute.networkAdmin": "change any network",
    "viewer": "read every resource and log",
    "compute.instanceAdmin.v1": "run any machine",
}
"""Roles on the project whose holder gets more than the stacks' own resources."""
NAMED = {"roles/storage.admin", "roles/secretmanager.admin"}
"""Roles that a condition limits to the names of stacks."""
WRITERS = ("ci-deploy", "ci-teardown", "ci-guard")


def accounts():
    return {command[3] for command in page_commands() if command[:3] == ["iam", "service-accounts", "create"]}


def test_the_page_names_the_powers_of_each_account_of_the_workflows():
    held = {account: {role.removeprefix("roles/") for role in account_roles(account) - NAMED} for account in accounts()}
    assert len(held) >= 4
    page = {
        account.strip("`"): set(re.findall(r"`([\w.]+)`", powers))
        for account, _, powers in rows("Accounts of the workflows")
    }
    assert page == {account: roles & set(POWERS) for account, roles in held.items()}


def test_the_accounts_that_write_manage_the_buckets_and_secrets_with_the_names_of_stacks_only():
    names = Names(project="my-project", stack="l4-qat")
    places = {
        "roles/storage.admin": f"projects/_/buckets/{names.bucket}",
        "roles/secretmanager.admin": f"projects/123456789012/secrets/{names.base}-hf-token",
    }
    for account in WRITERS:
        limits = {role: limit for role, limit in account_grants(account).items() if role in NAMED}
        assert limits.keys() == NAMED
        for role, limit in limits.items():
            (prefix,) = re.fullmatch(r"resource\.name\.startsWith\('([^']+)'\)", limit).groups()
            assert places[role].startswith(prefix)
            assert prefix.endswith("gemma-")
    assert {
        account for account in accounts() if "projects/my-project/roles/gemmaCreator" in account_roles(account)
    } == {"ci-deploy"}


def test_google_checks_on_the_project_what_the_doctor_and_the_custom_role_list():
    groups = [value for value in vars(permissions).values() if isinstance(value, permissions.RolePermissions)]
    named = [group for group in groups if group.by_name]
    assert {group.role for group in named} == NAMED
    assert {"gemmaCreator": sorted(permissions.CREATIONS), "gemmaGuard": ["iam.serviceAccounts.delete"]} == {
        name: sorted(listed) for name, listed in custom_roles().items()
    }
    assert {
        permission
        for group in named
        for permission in group.permissions
        if permission.endswith((".buckets.create", ".secrets.create"))
    } == permissions.CREATIONS
