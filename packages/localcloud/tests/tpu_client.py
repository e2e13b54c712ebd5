"""A session of Google's own client for Cloud TPU, google-cloud-tpu (REST, version 2): run if it is installed, otherwise replayed.

`python -m localcloud.tests.tpu_client PYTHON` records it again with an interpreter that has the package.
"""

import json
import subprocess
import sys
from pathlib import Path

from localcloud.tests.idle_cloud import start
from localcloud.tests.server.gcloud_commands import recording
from localcloud.world.scenario import OperationDurations, Scenario

REQUESTS = Path(__file__).parent / "fixtures" / "tpu_client" / "requests.json"
_LIMIT_S = 120

_SESSION = """
import importlib.metadata, json, sys
from google.api_core.client_options import ClientOptions
from google.cloud import tpu_v2
from google.oauth2 import credentials

client = tpu_v2.TpuClient(
    transport="rest",
    credentials=credentials.Credentials(token=sys.argv[2]),
    client_options=ClientOptions(api_endpoint=sys.argv[1] + "/tpu"),
)
zone = "projects/local-project/locations/us-east5-a"
node = tpu_v2.Node(
    accelerator_type="v6e-1", runtime_version="v2-alpha-tpuv6e", metadata={"enable-guest-attributes": "TRUE"}
)
spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=zone, node_id="client-node", node=node)
request = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]), spot=tpu_v2.QueuedResource.Spot())
queued, name = f"{zone}/queuedResources/client-queued", f"{zone}/nodes/client-node"
said = {"version": importlib.metadata.version("google-cloud-tpu")}
said["types"] = [found.type_ for found in client.list_accelerator_types(parent=zone)]
said["runtimes"] = [found.version for found in client.list_runtime_versions(parent=zone)]
made = client.create_queued_resource(parent=zone, queued_resource=request, queued_resource_id="client-queued")
said["made"] = made.metadata.verb
said["state"] = client.get_queued_resource(name=queued).state.state.name
said["listed"] = [found.name for found in client.list_queued_resources(parent=zone)]
said["node"] = client.get_node(name=name).state.name
said["nodes"] = [found.name for found in client.list_nodes(parent=zone)]
said["attributes"] = len(client.get_guest_attributes(request={"name": name}).guest_attributes)
changed = client.update_node(node=tpu_v2.Node(name=name, labels={"a": "b"}), update_mask={"paths": ["labels"]})
said["labels"] = dict(changed.result(timeout=60).labels)
client.delete_queued_resource(request={"name": queued, "force": True}).result(timeout=60)
said["left"] = [found.name for found in client.list_queued_resources(parent=zone)]
print(json.dumps(said))
"""

EXPECTED = {
    "types": ["v6e-1", "v6e-4", "v6e-8"],
    "made": "create",
    "state": "ACTIVE",
    "listed": ["projects/local-project/locations/us-east5-a/queuedResources/client-queued"],
    "node": "READY",
    "nodes": ["projects/local-project/locations/us-east5-a/nodes/client-node"],
    "attributes": 1,
    "labels": {"a": "b"},
    "left": [],
}


def session(python: str, url: str, token: str) -> dict[str, object]:
    """Run the session with an interpreter that has the client. Return the values that the client read."""
    done = subprocess.run(
        [python, "-c", _SESSION, url, token], capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def record(python: str) -> int:
    """Write the requests of the session to the file of recorded requests."""
    with (
        start(scenario=Scenario(operations=OperationDurations(instant=True))) as cloud,
        recording(cloud.base_url) as (url, kept),
    ):
        said = session(python, url, cloud.token)
    REQUESTS.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(item) for item in kept)
    REQUESTS.write_text(f'{{"client": "google-cloud-tpu {said["version"]}",\n"requests": [\n{lines}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(record(sys.argv[1]))
