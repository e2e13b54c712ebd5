"""Each change of a field that a stack sends and that the real gcp plugin refuses is refused by the stand-in or the local cloud too.

`UPDATE_GOLDEN=1 make nightly` writes the counts into refusals.csv beside this file.
"""

import asyncio
import copy
import json
import os
import re
import subprocess
from collections import Counter
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import grpc.aio
import pytest
from pulumi.runtime.proto import provider_pb2_grpc

from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.private_network import PrivateNetwork, PrivateNetworkArgs
from gemma_serving.contracts.labels import Ownership
from gemma_serving.stacks.program import run
from localcloud.plugins import serve
from localcloud.tests.plugins.harness import CheckFailedError, Engine
from tests.engine.conftest import open_workspace
from tests.golden import golden, if_meant
from tests.stacks.conftest import configured

__all__ = ["configured"]  # a fixture

COUNTS = Path(__file__).with_name("refusals.csv")
BINARY = Path(f"plugins/resource-gcp-v{version('pulumi-gcp')}/pulumi-resource-gcp")
MISSING = object()
HUB = "projects/local-project/secrets/hub"
PROGRAMS = {
    "tpu-v6e1": {
        "tpu__tunnelMembers": ["user:alice@example.com"],
        "apiKey": "canary-0123456789",
        "dockerHub": {"username": "me", "tokenSecret": "projects/my-project/secrets/hub/versions/3"},
    },
    "tpu-v6e4": {
        "alerts": {"email": "a@example.com", "webhook": "https://alerts.example.com/x"},
        "metrics": {"enabled": True},
    },
    "l4-12b-qat": {
        "apiKey": "canary-0123456789",
        "cloudRun__invokers": ["user:alice@example.com"],
        "cloudRun__directVpc": True,
        "cloudRun__compileCache": "bucket",
    },
    "l4-qat": {"cloudRun__mount": {"mode": "memory"}, "labels": {"team_x": "ml"}},
}
"""Stacks and changed settings that together declare each type of the provider."""
REFERENCES = {
    "my-project": "local-project",
    '"network_id"': '"projects/local-project/global/networks/gemma-x"',
    '"archive-key_id"': '"projects/local-project/secrets/gemma-x-archive-key"',
    HUB: "projects/local-project/secrets/gemma-x-archive-key",
}
"""Outputs of Pulumi's mocks, and the names of the resources that are created here."""
NAMED = {"Account": "accountId", "Repository": "repositoryId", "Secret": "secretId"} | dict.fromkeys(
    ("Bucket", "Firewall", "Network", "Router", "RouterNat", "Service", "Subnetwork"), "name"
)
NAMES = {
    "Secret": {"secretId": "gemma-x-archive-key"},
    "Repository": {"location": "us-east4", "repositoryId": "gemma-x"},
    "RepositoryIamMember": {"location": "us-east4", "repository": "gemma-x"},
}
LATER = ("Member", ":SecretVersion", ":Subnetwork", ":Firewall", ":Router", ":RouterNat")
"""Kinds that need others."""
PLAIN = {"containers": [{"image": "us-docker.pkg.dev/cloudrun/container/hello"}]}
"""Template of a service that starts at once."""
ALONE = ("RouterNat", "Subnetwork")
"""Kinds of which a second one conflicts with the first."""
PLUGIN_ALONE = {("AlertPolicy", "documentation", "{}"), ("Service", "template.timeout", "")}
"""Empty values, which Google's APIs do not distinguish from missing ones."""


def parts():
    """Declare what no stack of the repository declares: NAT, egress rules, an archive's folder."""
    where = {"project": "my-project", "name": "own", "ownership": Ownership(project="gemma-serving", stack="x")}
    network = {"regions": ["us-east5"], "target_tag": "x", "internet_egress": True, "allow_iap": True}
    PrivateNetwork("network", PrivateNetworkArgs(**where, **network, egress_ports=("443", "80")))
    members = {"server": "serviceAccount:a@my-project.iam.gserviceaccount.com"}
    bucket = {
        "location": "us-east5",
        "readers": members,
        "archivers": members,
        "archive_days": 7,
        "labels": {"a_b": "c"},
    }
    return ModelBucket("models", ModelBucketArgs(**where, **bucket, retain=True)).bucket


def sent_by_stacks(declare, configured, monkeypatch):
    """Return the longest inputs of each kind of the provider that the programs declare, in the order of the first."""
    monkeypatch.setattr("gemma_serving.stacks.base.token_hex", lambda count: "ab" * count)
    declared = declare(parts)[0].declared
    for stack, changes in PROGRAMS.items():
        configured(stack, **changes)
        monkeypatch.setenv("PULUMI_CONFIG_SECRET_KEYS", '["gemma-serving:apiKey"]')
        declared += declare(run)[0].declared
    found = {}
    for each in declared:
        text = json.dumps(each.inputs, default=str)
        if each.type.startswith("gcp:"):
            found[each.type] = max(text, found.get(each.type, ""), key=lambda known: (len(known), known))
    in_order = sorted(found, key=lambda kind: (not kind.endswith(":Account"), kind.endswith(LATER), len(kind), kind))
    return {kind: resolved(kind, found[kind]) for kind in in_order}


def resolved(kind, text):
    for mocked, real in REFERENCES.items():
        text = text.replace(mocked, real)
    inputs = json.loads(text)
    inputs.pop("notificationChannels", None)
    inputs.get("remoteRepositoryConfig", {}).pop("upstreamCredentials", None)
    place = {"region": "us-east4"} if "region" in inputs else {}
    return inputs | place | NAMES.get(kind.rpartition(":")[2], {})


def places(value, at=()):
    yield at, value
    inside = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in inside:
        yield from places(each, (*at, key))


def changes(value):
    yield MISSING
    if isinstance(value, str):
        yield from ("", "Upper_Case!", "a" * 300, f"{value}-", f"1{value}", "no-such-value")
        yield from ["-1s"] * bool(re.fullmatch(r"\d+s", value))
    elif isinstance(value, list):
        yield from ([], value * 2, value * 20)
    elif isinstance(value, dict):
        yield {}
        if all(isinstance(each, str) for each in value.values()):
            yield from (
                {**value, "Bad Key": "x"},
                {**value, "key": "Bad Value!"},
                {**value, **dict.fromkeys(map(str, range(70)), "x")},
            )
    elif not isinstance(value, bool):
        yield from (-1, 0, 10**9)


def changed(inputs, at, value):
    root = copy.deepcopy(inputs)
    node = root
    for key in at[:-1]:
        node = node[key]
    if value is MISSING:
        del node[at[-1]]
    else:
        node[at[-1]] = value
    return root


async def refusal(work):
    """Return why a provider refuses, or None."""
    try:
        await asyncio.wait_for(work, 20)
    except CheckFailedError as error:
        return str(error.failures)
    except grpc.aio.AioRpcError as error:
        # A service that was accepted and did not start: the error has its whole state.
        return None if error.details().startswith("Stream removed") else error.details()
    return None


@asynccontextmanager
async def engines(environment):
    """The real plugin and the stand-in, both on the local cloud of the environment."""
    home = Path(os.environ.get("PULUMI_HOME", Path.home() / ".pulumi"))
    plugin = await asyncio.create_subprocess_exec(
        home / BINARY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        token, base_url = environment["LOCALCLOUD_TOKEN"], environment["LOCALCLOUD_URL"]
        async with serve(base_url, token=token, environment=environment, speed=200) as ports:
            channels = [
                grpc.aio.insecure_channel(f"127.0.0.1:{port}")
                for port in (int(await plugin.stdout.readline()), ports.gcp)
            ]
            both = [Engine(provider_pb2_grpc.ResourceProviderStub(channel)) for channel in channels]
            for each in both:
                await each.configure(project="local-project", region="us-east4")
            yield both
            for channel in channels:
                await channel.close()
    finally:
        plugin.kill()
        await plugin.wait()


async def compared(environment, sent):
    """Return the counts of each kind, and the changes that only the real plugin refuses."""
    counts, kinder = {}, []
    async with engines(environment) as (real, standin):
        for kind, inputs in sent.items():
            name = kind.rpartition(":")[2]
            assert await refusal(real.check(kind, "n", inputs)) is None, kind
            made = await standin.up(kind, "n", {**inputs, "template": PLAIN} if name == "Service" else inputs)
            if name in ALONE:
                await standin.delete(made)
            found = counts.setdefault(name, Counter())
            for at, value in places(inputs):
                for number, change in enumerate(changes(value) if at else ()):
                    found["changes"] += 1
                    wrong = changed(inputs, at, change)
                    if await refusal(real.check(kind, "n", wrong)) is None:
                        continue
                    found["refused"] += 1
                    key = NAMED.get(name)
                    if key and at[0] != key:
                        wrong[key] = f"{inputs[key][:14]}-{found['refused']}"
                    why = await refusal(standin.up(kind, f"n{number}", wrong))
                    place = (name, ".".join(map(str, at)), str(change)[:40])
                    if why is None and place not in PLUGIN_ALONE:
                        found["accepted"] += 1
                        kinder.append(place)
    return counts, kinder


@pytest.mark.skipif(
    "GEMMA_SERVING_NIGHTLY" not in os.environ,
    reason="the real gcp plugin, which the engine downloads: run `make nightly`",
)
@pytest.mark.timeout(1800)
def test_what_the_real_plugin_refuses_is_refused_here(declare, configured, monkeypatch, tmp_path):
    sent = sent_by_stacks(declare, configured, monkeypatch)
    with open_workspace(tmp_path, "--providers", "real") as workspace:
        counts, kinder = asyncio.run(compared(dict(workspace.environment), sent))
    rows = [
        f"{name},{found['changes']},{found['refused']},{found['accepted']}" for name, found in sorted(counts.items())
    ]
    head = COUNTS.read_text(encoding="utf-8").partition("\n")[0]
    recorded = golden(COUNTS, "\n".join([head, *rows, ""])).splitlines()[1:]
    assert kinder == []
    assert {row.split(",")[0] for row in recorded} == {row.split(",")[0] for row in rows}, if_meant("make nightly")
