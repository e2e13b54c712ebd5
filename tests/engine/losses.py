"""Each thing that Google has of a deployed stack, taken away on a copy of its cloud, and what the commands then say of it.

The list is the cloud's own: every row of its store, and every member of a policy.
"""

import shutil
import sqlite3
from contextlib import closing

import pytest

from gemma_serving.contracts.naming import Names
from gemma_serving.engine.exported_state import parse_deployment
from gemma_serving.engine.state import of_deployment
from gemma_serving.scripts.stack.facts import read_facts
from gemma_serving.scripts.stack.lost_parts import LOOKED_AT, lost_parts, old_grants_sentence
from gemma_serving.scripts.stack.serves import differs
from localcloud.world.cloud import REGIONS
from localcloud.world.scenario import Fault
from tests.cloud.populated import PROJECT, open_world

LIMIT_S = 60
APIS = ("artifactregistry", "cloudresourcemanager", "compute", "iam", "monitoring", "secretmanager", "storage")
"""Of what a stack has beside its server. One that denies its answers shows no loss and no whole."""
NOT_LOSSES = {
    "artifactregistry.dockerImages": "a copy of Docker Hub's, which the next pull makes again",
    "compute.addresses": "Google's own, of a service with Direct VPC egress",
    "iam.serviceAgents": "Google's own",
    "logging.entries": "a log",
    "oauth.keys": "the operator's login",
    "run.revisions": "the service names the one that serves",
    "tpu.requests": "the local cloud's own record of a request",
}
"""Kinds of the store that no start reads, or that no user deletes, each with the reason. Operations are excluded too."""
UNNAMED = {"run.services", "tpu.nodes", "tpu.queuedResources"}
"""The server, which `serves` says is gone."""


def unsaid_losses(workspace, stack, folder):
    """Return each loss that `status` and `up` do not name, how many were tried, and the types of resources that are not looked at by their name."""
    copied = folder / "copy"
    shutil.copytree(workspace.folder / "cloud" / "objects", copied / "objects")
    with (
        closing(sqlite3.connect(workspace.folder / "cloud" / "resources.sqlite")) as now,
        closing(sqlite3.connect(copied / "resources.sqlite")) as copy,
    ):
        now.backup(copy)
    state = of_deployment(stack, parse_deployment(stack, workspace.state(stack)))
    types = {str(item["type"]) for item in state.resources if item.get("custom")}
    with open_world(state=copied, places=dict(REGIONS)) as world, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALCLOUD_URL", world.cloud.base_url)

        def said(denied=""):
            cloud, faults = world.cloud.cloud, (Fault(method=f"{denied}.*", count=10**6, status=403),)
            cloud.scenario = cloud.scenario.model_copy(update={"faults": faults if denied else ()})
            facts = read_facts(state, "server", "lost", limit_s=LIMIT_S)
            return facts.is_whole, " ".join(differs(facts))

        assert said() == (True, "")
        unsaid, tried = [], 0
        for what, words, take, give in losses(world.cloud.cloud.store, stack, state):
            take()
            is_whole, text = said()
            give()
            tried += 1
            if (is_whole and what not in UNNAMED) or not text or not all(word in text for word in words):
                unsaid.append(f"{what} {words}: {text or 'nothing'}")
        asked = [api for api in APIS if api != "cloudresourcemanager" or "gcp:projects/iAMMember:IAMMember" in types]
        unsaid += [f"{api} denied: {answer}" for api in asked if (answer := said(denied=api)) != (False, "")]
        assert said() == (True, "")
        unsaid += unsaid_grants(world, stack, state)
    return unsaid, tried, types - LOOKED_AT


def unsaid_grants(world, stack, state):
    """Delete the stack's account, and return a sentence if the commands do not remove each grant that Google keeps of it."""
    email = Names(project=PROJECT, stack=stack).account_email
    world.call("DELETE", "iam", f"v1/projects/{PROJECT}/serviceAccounts/{email}")
    policies = [document["policy"] for _, document in world.cloud.cloud.store.under("iam.policies")]
    members = [member for one in policies for binding in one["bindings"] for member in binding["members"]]
    kept = [member for member in members if member.startswith(f"deleted:serviceAccount:{email}")]
    said = old_grants_sentence(stack, lost_parts(state).value)
    printed = said.count("\n  gcloud ")
    return [] if printed == len(kept) > 0 else [f"{printed} of {len(kept)} grants of the deleted account: {said}"]


def losses(store, stack, state):
    """Yield what is lost, the words that must be said of it, and how it goes and comes back."""
    ids = {str(item.get("id")): str((item.get("inputs") or {}).get("displayName") or "") for item in state.resources}
    for kind, rows in sorted(store._kinds.items()):
        for name, document in sorted(rows.items()):
            of_stack = f"gemma-{stack}" in name or name in ids
            if kind == "iam.policies":
                yield from grants(store, name, document, f"gemma-{stack}@")
            elif of_stack and kind not in NOT_LOSSES and not kind.endswith(".operations") and kind != "counters":
                words = said_of(kind, name, ids)
                if words is not None:
                    yield kind, words, *taken(store, kind, name, None)
                if kind == "secretmanager.versions":
                    for end in ("DISABLED", "DESTROYED"):
                        yield kind, (name.split("/")[-1], end), *taken(store, kind, name, {**document, "state": end})
                if kind == "compute.routers":
                    yield "NAT", (name.split("/")[-1],), *taken(store, kind, name, {**document, "nats": []})


def said_of(kind, name, ids):
    """Return the words that name a loss; None for an object of another's folder, as an archive: a start without it compiles."""
    if kind in UNNAMED:
        return ()
    if kind == "storage.objects":
        return None if "/compile-cache/" in name else (name.split("/")[-1], "no server can start")
    return (ids.get(name) or name.split("/")[-1],)


def grants(store, name, document, account):
    for number, binding in enumerate(document["policy"]["bindings"]):
        members = [member for member in binding["members"] if account not in member]
        if len(members) < len(binding["members"]):
            bindings = [*document["policy"]["bindings"]]
            bindings[number] = {**binding, "members": [*members, "user:other@example.com"]}
            without = {**document, "policy": {**document["policy"], "bindings": bindings}}
            yield "grant", (binding["role"], account), *taken(store, "iam.policies", name, without)


def taken(store, kind, name, changed):
    whole = store.get(kind, name)

    def take():
        store.delete(kind, name) if changed is None else store.put(kind, name, changed)

    return take, lambda: store.put(kind, name, whole)
