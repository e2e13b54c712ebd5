"""The stand-ins behind the real engine, in front of the local cloud's own REST services: one resource of every type, through its whole life."""

import pytest

from localcloud.plugins.overlay import OVERLAYS
from localcloud.plugins.rest import LocalCloudTransport, Rest
from localcloud.server.app import Options, open_cloud
from localcloud.services import networks
from localcloud.tests.idle_cloud import idle_runtimes
from localcloud.tests.plugins.harness import create_all, declared, engine, operation_of, run
from localcloud.tests.plugins.test_oracle_more import ARGS, Wire
from localcloud.tests.server.test_replay import IMAGE
from localcloud.world.scenario import Images, Scenario

LIMIT_S = 120
# Lists that show leaked resources of the program.
LISTS = {
    "run/v2/projects/p1/locations/us-east4/services": "services",
    "secretmanager/v1/projects/p1/secrets": "secrets",
    "storage/storage/v1/b?project=p1": "items",
    "artifactregistry/v1/projects/p1/locations/us-east4/repositories": "repositories",
    "artifactregistry/v1/projects/p1/locations/us-central1/repositories": "repositories",
    "compute/compute/beta/projects/p1/global/networks": "items",
    "compute/compute/beta/projects/p1/global/firewalls": "items",
    "compute/compute/beta/projects/p1/regions/us-east4/subnetworks": "items",
    "compute/compute/beta/projects/p1/regions/us-east4/routers": "items",
    "monitoring/v3/projects/p1/notificationChannels": "notificationChannels",
    "monitoring/v3/projects/p1/alertPolicies": "alertPolicies",
    "monitoring/v1/projects/p1/dashboards": "dashboards",
}

NOT_RECORDED = {"gcp:projects/serviceIdentity:ServiceIdentity", "gcp:serviceaccount/iAMMember:IAMMember"}


async def left(rest: Rest) -> list[str]:
    found = []
    for path, key in LISTS.items():
        where, _, query = path.partition("?")
        page = await rest.get(where, dict(part.split("=") for part in query.split("&") if part))
        found += [f"{where}: {each.get('name')}" for each in page.get(key) or []]
    return found


@pytest.fixture(autouse=True)
def free_addresses(monkeypatch):
    """Let a destroy finish at once. Google keeps the subnetwork of a service for up to two hours."""
    monkeypatch.setattr(networks, "HELD_S", 0.0)


def test_every_recorded_type_lives_its_whole_life_and_leaves_nothing_without_the_engine(tmp_path):
    async def life() -> set[str]:
        options = Options(project="p1", scenario=Scenario(images=Images(existing=(IMAGE,))))
        cloud = await open_cloud(tmp_path, options, idle_runtimes)
        try:
            token = cloud.cloud.tokens.issue_access_token(cloud.cloud.operator, lifetime_s=3600)
            wire = Wire(LocalCloudTransport(cloud.base_url))
            async with (
                engine(wire, token=token, project="p1", region="us-east4") as attached,
                Rest(LocalCloudTransport(cloud.base_url), token=token) as rest,
            ):
                before = await left(rest)
                made = await create_all(attached, args=ARGS)
                assert len(await left(rest)) > len(before)
                for name, resource in made.items():
                    again = await attached.read(resource)
                    assert again is not None, name
                    news = await attached.check(resource.type, name, declared(args=ARGS)[name]["inputs"], again.inputs)
                    assert operation_of(await attached.diff(again, news)) == "same", name
                for resource in reversed(made.values()):
                    await attached.delete(resource)
                    assert await attached.read(resource) is None, resource.type
                assert await left(rest) == before
                return {resource.type for resource in made.values()}
        finally:
            await cloud.close()

    assert set(OVERLAYS) - run(life(), limit_s=LIMIT_S) == NOT_RECORDED
