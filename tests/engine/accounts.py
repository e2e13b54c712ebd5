"""Run commands of a workspace as one of the accounts of docs/ci.md, in the program, in the commands and in the provider plugins."""

import asyncio
import contextlib
import threading

from localcloud.cli import DEFAULT_SPEED
from localcloud.plugins import serve
from tests.engine.conftest import PROJECT
from tests.tools.ci_page import account_grants, custom_roles


def set_up(workspace, *account_ids):
    """Make accounts with the roles on the project, and the conditions, that docs/ci.md grants them. Return their addresses."""
    emails = [f"{account_id}@{PROJECT}.iam.gserviceaccount.com" for account_id in account_ids]
    number = workspace.get("cloudresourcemanager", f"v1/projects/{PROJECT}")["projectNumber"]
    for role_id, permissions in custom_roles().items():
        role = {"title": role_id, "includedPermissions": permissions}
        workspace.post(f"iam/v1/projects/{PROJECT}/roles", {"roleId": role_id, "role": role})
    workspace.advance(120)  # until they can be granted
    bindings = []
    for account_id, email in zip(account_ids, emails, strict=True):
        workspace.post(f"iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": account_id})
        for role, expression in account_grants(account_id, PROJECT, number).items():
            condition = {"condition": {"title": "limit", "expression": expression}} if expression else {}
            bindings.append({"role": role, "members": [f"serviceAccount:{email}"], **condition})
    policy = workspace.policy()
    changed = {**policy, "version": 3, "bindings": [*policy.get("bindings", []), *bindings]}
    workspace.post(f"cloudresourcemanager/v1/projects/{PROJECT}:setIamPolicy", {"policy": changed})
    workspace.advance(600)  # until they take effect
    return emails


@contextlib.contextmanager
def acting_as(workspace, email):
    """Yield the environment of commands that run as an account, with provider plugins that call as it too."""
    token = workspace.post("admin/tokens", {"email": email})["accessToken"]
    with _plugins(workspace, token) as debug_providers:
        yield {
            "GOOGLE_OAUTH_ACCESS_TOKEN": token,
            "GOOGLE_APPLICATION_CREDENTIALS": "",
            "PULUMI_DEBUG_PROVIDERS": debug_providers,
        }


@contextlib.contextmanager
def _plugins(workspace, token):
    """Serve the stand-ins of the provider plugins with a token of their own. Those of the workspace call as the person who is logged in."""
    found, ready, end = {}, threading.Event(), {}

    async def run():
        end["loop"], end["event"] = asyncio.get_running_loop(), asyncio.Event()
        url, environment = workspace.environment["LOCALCLOUD_URL"], workspace.environment
        async with serve(url, token=token, environment=environment, speed=DEFAULT_SPEED) as ports:
            found["ports"] = ports
            ready.set()
            await end["event"].wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert ready.wait(timeout=120), "the plugins did not start"
    try:
        yield found["ports"].debug_providers
    finally:
        end["loop"].call_soon_threadsafe(end["event"].set)
        thread.join(timeout=120)
