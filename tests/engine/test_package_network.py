"""The package's server in a network of one's own: what is said before, and what fails as on Google."""

import pytest

from tests.engine.conftest import HF_CANARY, PROJECT, open_workspace
from tests.engine.test_package_programs import ADD, COPY, Consumer

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(1200)]

COMPUTE = f"compute/compute/v1/projects/{PROJECT}"
NETWORK = f"projects/{PROJECT}/global/networks/bare"
SERVICE = '    service_name="package-gemma",\n'


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    with open_workspace(tmp_path_factory.mktemp("network"), cold=True) as opened:
        opened.environment.pop("PYTHONPATH", None)
        opened.post(f"iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "package-server"})
        yield opened


@pytest.fixture(scope="module")
def consumer(workspace):
    made = Consumer(workspace, "network", "__main__.py")
    made.folder.parent.mkdir(parents=True, exist_ok=True)
    made.run(COPY.replace("my-gemma", "network"))
    made.run(ADD.replace("pulumi package add CHECKOUT/packages/gcp-tpu\n", ""), stdin=HF_CANARY)
    return made


def test_weights_from_the_hub_without_nat_are_a_warning_and_then_fail_as_on_google(workspace, consumer):
    workspace.post(f"{COMPUTE}/global/networks", {"name": "bare", "autoCreateSubnetworks": False})
    subnetwork = {"name": "bare", "network": NETWORK, "ipCidrRange": "10.80.0.0/26"}
    workspace.post(f"{COMPUTE}/regions/us-east4/subnetworks", subnetwork)
    bare = f'{SERVICE}    network="{NETWORK}",\n    subnetwork="bare",\n'
    consumer.edit(SERVICE, bare)
    lacks = f"projects/{PROJECT}/regions/us-east4/subnetworks/bare has no Cloud NAT."
    assert lacks in consumer.run("pulumi preview").text
    failed = consumer.run("pulumi up", expect=None)
    assert failed.code != 0
    assert "failed the configured startup probe checks" in failed.text
    router = {"name": "bare", "network": NETWORK}
    nat = {"name": "bare", "natIpAllocateOption": "AUTO_ONLY"}
    ranges = {"sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES"}
    workspace.post(f"{COMPUTE}/regions/us-east4/routers", {**router, "nats": [{**nat, **ranges}]})
    assert "Cloud NAT" not in consumer.run("pulumi up").text
    consumer.run("pulumi destroy")
    consumer.edit(bare, SERVICE)
