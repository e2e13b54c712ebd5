"""States as the engine exports them, for what a local cloud holds."""

from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY
from gemma_serving.engine.exported_state import deployment_of
from gemma_serving.engine.state import of_deployment
from tests.cloud.populated import PROJECT
from tests.scripts.sample_outputs import sample_outputs

STACK = "x"
NAME = f"gemma-{STACK}"
DOCUMENT = '{"schema":1}'


def urn(kind, name):
    return f"urn:pulumi:{STACK}::gemma-serving::{kind}::{name}"


def resource(kind, name, **fields):
    return {"urn": urn(kind, name), "type": kind, "custom": True, **fields}


def stack_resource(**changes):
    return resource("pulumi:pulumi:Stack", "gemma-serving-x", outputs=sample_outputs(project=PROJECT, **changes))


def queued(**outputs):
    inputs = {
        "project": PROJECT,
        "zones": ["us-east5-a", "us-east5-b"],
        "queuedResourceId": NAME,
        "metadata": {DOCUMENT_METADATA_KEY: DOCUMENT},
    }
    return resource("gcp-tpu:index:QueuedResource", "capacity", inputs=inputs, outputs=outputs)


def service(least=1, **outputs):
    inputs = {
        "project": PROJECT,
        "location": "us-east4",
        "name": NAME,
        "template": {"scaling": {"minInstanceCount": least}},
    }
    return resource("gcp:cloudrunv2/service:Service", "vllm", inputs=inputs, outputs=outputs)


def state(*resources, pending=()):
    operations = [{"resource": item, "type": "creating"} for item in pending]
    deployment = {
        "manifest": {"time": "2026-11-01T00:00:00Z"},
        "resources": list(resources),
        "pending_operations": operations,
    }
    return of_deployment(STACK, deployment_of(STACK, {"version": 3, "deployment": deployment}))
