"""The package's server in a network of one's own: what is said before, what fails as on Google, and a destroy in two runs."""

from importlib.metadata import version

import pytest

from tests.engine.conftest import HF_CANARY, PROJECT, open_workspace
from tests.engine.test_package_programs import ADD, COPY, Consumer

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(1200)]

COMPUTE = f"compute/compute/v1/projects/{PROJECT}"
NETWORK = f"projects/{PROJECT}/global/networks/bare"
SERVICE = '    service_name="package-gemma",\n'
OWN = """\
import pulumi_gcp as gcp

network = gcp.compute.Network("own", name="own", auto_create_subnetworks=False)
subnetwork = gcp.compute.Subnetwork("own", name="own", region="us-east4", network=network.id, ip_cidr_range="10.90.0.0/26")
router = gcp.compute.Router("own", name="own", region="us-east4", network=network.id)
nat = gcp.compute.RouterNat(
    "own",
    name="own",
    region="us-east4",
    router=router.name,
    nat_ip_allocate_option="AUTO_ONLY",
    source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
)
"""


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


def test_a_destroy_ends_at_the_held_subnetwork_and_a_second_one_two_hours_later_succeeds(workspace, consumer):
    existed = workspace.made("")
    consumer.run(f"venv/bin/python -m pip install --quiet pulumi-gcp=={version('pulumi-gcp')}")
    consumer.edit("import pulumi_gemma_serving as gemma\n", "import pulumi_gemma_serving as gemma\n" + OWN)
    consumer.edit(SERVICE, f"{SERVICE}    network=network.id,\n    subnetwork=subnetwork.name,\n")
    consumer.edit(
        "    },\n)\npulumi.export", "    },\n    opts=pulumi.ResourceOptions(depends_on=[nat]),\n)\npulumi.export"
    )
    up = consumer.run("pulumi up").text
    assert "Not checked that subnetwork has Cloud NAT, because it is an output." in up
    assert "run it again after two hours" in up
    first = consumer.run("pulumi destroy --continue-on-error", expect=None)
    assert first.code != 0
    assert "is already being used by" in first.text
    assert "serverless-ipv4-" in first.text
    left = {name for name in workspace.made("") if name not in existed}
    assert {name.split("/")[-2] for name in left} <= {"networks", "subnetworks", "addresses"}
    workspace.advance(2 * 3600 + 60)
    consumer.run("pulumi destroy\npulumi stack rm dev")
    assert set(workspace.made("")) <= set(existed)
