"""Programs and components are declared against Pulumi's mocks; what they declare is recorded."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from datetime import timedelta

import pulumi
import pytest
from pulumi.runtime.proto.source_pb2 import StackTrace
from pulumi.runtime.settings import get_root_resource

from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.three_answers import Absent, Present


@dataclass
class Declared:
    """One resource as a component declared it."""

    type: str
    name: str
    inputs: dict
    provider: str = ""


@dataclass
class Recorder(pulumi.runtime.Mocks):
    """Answers every resource with its inputs and remembers it; computed outputs get readable values."""

    declared: list[Declared] = field(default_factory=list)

    def new_resource(self, args):
        self.declared.append(Declared(args.typ, args.name, args.inputs, args.provider or ""))
        computed = {
            "gcp:serviceaccount/account:Account": {
                "email": f"{args.inputs.get('accountId')}@my-project.iam.gserviceaccount.com",
                "name": f"projects/my-project/serviceAccounts/{args.inputs.get('accountId')}@my-project.iam.gserviceaccount.com",
            },
            "gcp:cloudrunv2/service:Service": {"uri": "https://gemma-x.a.run.app"},
            "gcp:secretmanager/secretVersion:SecretVersion": {
                "version": "1",
                "name": f"{args.inputs.get('secret')}/versions/1",
            },
            "gcp-tpu:index:QueuedResource": {
                "zone": "us-east5-b",
                "nodeName": "projects/my-project/locations/us-east5-b/nodes/gemma-x-node",
                "state": "ACTIVE",
                "phase": "ready",
                "container": "confined",
                "deadline": "2026-11-20T18:00:00Z",
                "nodeIps": ["10.0.0.2"],
                "stateHistory": [{"at": "2026-11-20T00:00:00Z", "zone": "us-east5-b", "state": "ACTIVE"}],
            },
            "gcp:projects/serviceIdentity:ServiceIdentity": {
                "email": "service-1@gcp-sa-artifactregistry.iam.gserviceaccount.com"
            },
            "docker:index/image:Image": {"repoDigest": f"{args.inputs.get('imageName')}@sha256:{'b' * 64}"},
        }
        return f"{args.name}_id", {**args.inputs, **computed.get(args.typ, {})}

    def call(self, args):
        return {"number": "123"} if args.token.endswith(":getProject") else {}

    def all(self, type_part):
        return [resource for resource in self.declared if type_part in resource.type]

    def one(self, type_part):
        (resource,) = self.all(type_part)
        return resource


@pytest.fixture(autouse=True)
def records(tmp_path_factory, request):
    """What the commands of a test remember is in a folder of its own, which no other test sees. So is what they know of Google's time.

    It does not use `monkeypatch`, which has to be undone before the fixtures of a test that set variables too.
    """
    folder = tmp_path_factory.getbasetemp() / f"records-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.setattr(GOOGLE_CLOCK, "_ahead", timedelta())
        yield folder


@pytest.fixture
def ownership():
    return Ownership(project="gemma-serving", stack="x")


@pytest.fixture
def declare(monkeypatch):
    """Run a function that declares components; returns what was declared and the resolved value of the output that it returned."""
    # Mocks run no hooks; these calls to Google come before the first resource.
    monkeypatch.setattr("gemma_serving.stacks.hooks.run_recorder.RunRecorder.note_first", lambda _: Absent())
    monkeypatch.setattr("gemma_serving.stacks.hooks.run_recorder.limits_line", lambda *_: "")
    monkeypatch.setattr("gemma_serving.stacks.program.require_weights_of_new_server", lambda *_: None)
    monkeypatch.setattr("gemma_serving.stacks.google_project.propagation.require_apis", lambda *_, **__: None)
    monkeypatch.setattr(
        "gemma_serving.stacks.google_project.propagation._read_project", lambda _project, _clock: Present({})
    )
    monkeypatch.setattr("pulumi.runtime.resource._get_stack_trace", StackTrace)  # its reading of sources is a tenth

    def run(program):
        tasks, loop = [], asyncio.new_event_loop()
        loop.set_task_factory(
            lambda *given, **named: tasks.append(asyncio.Task(given[1], loop=loop, **named)) or tasks[-1]
        )
        asyncio.set_event_loop(loop)
        recorder = Recorder()
        pulumi.runtime.set_mocks(recorder, project="gemma-serving", stack="x")
        get_root_resource()._transformations = None  # those of each program before stay otherwise
        resolved = []

        @pulumi.runtime.test
        def body():
            result = program()
            return pulumi.Output.from_input(result).apply(resolved.append)

        body()
        for task in tasks:
            asyncio._unregister_task(task)  # each later `asyncio.run` looks through them as long as a result holds them
        return recorder, resolved[0] if resolved else None

    return run
