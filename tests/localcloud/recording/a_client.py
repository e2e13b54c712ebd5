"""A program that calls the APIs by the endpoint variables, as Pulumi's plugins, gcloud and this project's scripts do. Run it under a recorder."""

import base64
import os
import time
from urllib.parse import urlsplit

import requests
from google.cloud import storage
from google.oauth2.credentials import Credentials

PROJECT = os.environ["GOOGLE_CLOUD_PROJECT"]
TOKEN = os.environ["GOOGLE_OAUTH_ACCESS_TOKEN"]
P = f"projects/{PROJECT}"
SESSION = requests.Session()
SESSION.headers["Authorization"] = f"Bearer {TOKEN}"


def root(api):
    value = os.environ[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}"].rstrip("/")
    return value.removesuffix(f"/{api}/v1")


def call(verb, api, path, body=None, expect=200, **query):
    answer = SESSION.request(verb, f"{root(api)}/{path}", json=body, params=query, timeout=30)
    assert answer.status_code == expect, (verb, path, answer.status_code, answer.text)
    return answer.json() if answer.content else {}


def until(api, path, is_done):
    while True:
        found = call("GET", api, path)
        if is_done(found):
            return found
        time.sleep(0.02)


def project():
    call("GET", "cloudresourcemanager", f"v1/{P}")


def secrets():
    call("POST", "secretmanager", f"v1/{P}/secrets", {"replication": {"automatic": {}}}, secretId="hub")
    data = base64.b64encode(os.environ["CANARY_HUB"].encode()).decode()
    call("POST", "secretmanager", f"v1/{P}/secrets/hub:addVersion", {"payload": {"data": data}})
    found = call("GET", "secretmanager", f"v1/{P}/secrets/hub/versions/latest:access")
    assert found["payload"]["data"] == data
    call("GET", "secretmanager", f"v1/{P}/secrets/absent", expect=404)


def policies():
    account = call("POST", "iam", f"v1/{P}/serviceAccounts", {"accountId": "canary-server"})
    call("GET", "iam", f"v1/{account['name']}")
    policy = call("POST", "cloudresourcemanager", f"v1/{P}:getIamPolicy", {})
    policy["bindings"].append({"role": "roles/viewer", "members": [f"user:{os.environ['CANARY_PERSON']}"]})
    call("POST", "cloudresourcemanager", f"v1/{P}:setIamPolicy", {"policy": policy})
    call("POST", "cloudresourcemanager", f"v1/{P}:setIamPolicy", {"policy": policy}, expect=409)


def objects():
    """Cloud Storage with the official client, and an upload to the root of the host, as Go's client sends it."""
    call("POST", "storage", "storage/v1/b", {"name": f"{PROJECT}-models"}, project=PROJECT)
    client = storage.Client(
        project=PROJECT,
        credentials=Credentials(token=TOKEN),
        client_options={"api_endpoint": root("storage")},
    )
    bucket = client.bucket(f"{PROJECT}-models")
    bucket.blob("small.txt").upload_from_string(os.environ["CANARY_CONTENT"])
    large = bucket.blob("folder/large.bin", chunk_size=1 << 18)
    with large.open("wb") as stream:
        stream.write(os.environ["CANARY_CONTENT"].encode() * 40_000)
    assert bucket.blob("small.txt").download_as_text() == os.environ["CANARY_CONTENT"]
    address = urlsplit(root("storage"))
    answer = SESSION.post(
        f"http://{address.netloc}/upload/storage/v1/b/{PROJECT}-models/o",
        params={"uploadType": "media", "name": "at-the-root"},
        data=b"x" * 100,
        timeout=30,
    )
    assert answer.status_code == 200, answer.text
    assert len(list(bucket.list_blobs())) == 3


def networks():
    path = f"compute/beta/{P}"
    call("POST", "compute", f"{path}/global/networks", {"name": "net", "autoCreateSubnetworks": False})
    until("compute", f"{path}/global/networks/net", lambda found: "id" in found)
    rule = {
        "name": "from-home",
        "network": f"https://www.googleapis.com/compute/beta/{P}/global/networks/net",
        "allowed": [{"IPProtocol": "tcp"}],
        "sourceRanges": [os.environ["CANARY_ADDRESS"] + "/32", "10.1.0.0/16"],
    }
    made = call("POST", "compute", f"{path}/global/firewalls", rule)
    until("compute", f"{path}/global/operations/{made['name']}", lambda found: found["status"] == "DONE")
    call("GET", "compute", f"{path}/global/firewalls/from-home")


def services():
    service = {
        "template": {
            "containers": [
                {
                    "image": "docker.io/x",
                    "args": ["--api-key", os.environ["CANARY_SERVE"]],
                    "env": [{"name": "HF_TOKEN", "value": os.environ["CANARY_HUB"]}],
                }
            ]
        }
    }
    path = f"v2/{P}/locations/us-east4/services"
    operation = call("POST", "run", path, service, serviceId="vllm")
    until("run", f"v2/{operation['name']}", lambda found: found.get("done"))
    found = call("GET", "run", f"{path}/vllm")
    operation = call("PATCH", "run", f"{path}/vllm", {**service, "labels": {"a": "b"}, "etag": found["etag"]})
    until("run", f"v2/{operation['name']}", lambda found: found.get("done"))
    call("GET", "run", f"{path}/vllm")


def queue():
    zone = f"{P}/locations/us-east5-a"
    node = {
        "parent": zone,
        "nodeId": "n",
        "node": {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e", "metadata": {"hub-token": "hf_x"}},
    }
    body = {"tpu": {"nodeSpec": [node]}}
    call("POST", "tpu", f"v2alpha1/{zone}/queuedResources", body, queuedResourceId="q")
    path = f"v2alpha1/{zone}/queuedResources/q"
    until("tpu", path, lambda found: found["state"]["state"] == "ACTIVE")
    call("GET", "tpu", f"v2alpha1/{zone}/nodes/n")
    operation = call("DELETE", "tpu", path, force="true")
    until("tpu", f"v2alpha1/{operation['name']}", lambda found: found.get("done"))
    call("GET", "tpu", path, expect=404)


if __name__ == "__main__":
    for part in (secrets, policies, objects, networks, services, queue):
        part()
