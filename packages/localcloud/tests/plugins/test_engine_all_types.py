"""The stand-ins behind the real engine, in front of the local cloud's own REST services: one resource of every type, through its whole life."""

import pytest

from localcloud.plugins.overlay import OVERLAYS
from localcloud.plugins.rest import Rest
from localcloud.services import networks
from localcloud.tests.plugins.harness import create_all, declared, operation_of, run
from localcloud.tests.plugins.test_oracle_more import ARGS, on_local_cloud

LIMIT_S = 120
NOT_RECORDED = {"gcp:projects/serviceIdentity:ServiceIdentity", "gcp:serviceaccount/iAMMember:IAMMember"}


async def left(rest: Rest) -> set[str]:
    """Resources of every API."""
    listed = (await rest.get("admin/resources", {}))["resources"]
    return {f"{each['api']} {each['name']}" for each in listed}


@pytest.fixture(autouse=True)
def free_addresses(monkeypatch):
    """Let a destroy finish at once. Google keeps the subnetwork of a service for up to two hours."""
    monkeypatch.setattr(networks, "HELD_S", 0.0)


def test_every_recorded_type_lives_its_whole_life_and_leaves_nothing_without_the_engine():
    async def life() -> set[str]:
        async with on_local_cloud() as (attached, _, rest):
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

    assert set(OVERLAYS) - run(life(), limit_s=LIMIT_S) == NOT_RECORDED
