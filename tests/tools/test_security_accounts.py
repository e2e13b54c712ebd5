"""SECURITY.md names what each account of the workflows could do beyond its stacks, as the commands of docs/ci.md grant it."""

import re

from tests.security_page import rows
from tests.tools.ci_page import account_roles, page_commands

POWERS = {
    "resourcemanager.projectIamAdmin": "grant roles",
    "iam.serviceAccountAdmin": "grant the use of any account",
    "iam.serviceAccountUser": "act as any account",
    "secretmanager.admin": "read every secret",
    "storage.admin": "read and write every bucket",
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


def accounts():
    return {command[3] for command in page_commands() if command[:3] == ["iam", "service-accounts", "create"]}


def test_the_page_names_the_powers_of_each_account_of_the_workflows():
    held = {account: {role.removeprefix("roles/") for role in account_roles(account)} for account in accounts()}
    assert len(held) >= 4
    page = {
        account.strip("`"): set(re.findall(r"`([\w.]+)`", powers))
        for account, _, powers in rows("Accounts of the workflows")
    }
    assert page == {account: roles & set(POWERS) for account, roles in held.items()}
