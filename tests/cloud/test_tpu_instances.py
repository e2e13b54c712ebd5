"""A TPU VM in both APIs: the names that it can get, and a change of its metadata."""

import math
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.capacity import capacity_kind, capacity_names
from gemma_serving.cloud.kinds import INSTANCE, QUEUED
from gemma_serving.cloud.tpu_machine import TpuMachine
from gemma_serving.contracts.errors import ScriptError
from localcloud.tests.google_bodies import google_answer, google_request
from tests.cloud.populated import owner
from tests.cloud.test_deletion import Patience
from tests.laws import examples

NODE, VM = "projects/p/locations/z/nodes/n", "projects/p/zones/z/instances/n"
ERRORS = {
    NODE: ({"code": 7, "message": "denied"}, "denied (7)"),
    VM: ({"errors": [{"message": "no", "code": "A"}, {"code": "B"}]}, "no (A); no explanation (B)"),
}
"""The error of an operation in each API, and what a user reads."""


def test_the_inputs_of_our_provider_name_what_it_makes():
    inputs = {"project": "p", "queuedResourceId": "q"}
    assert (capacity_kind(inputs), capacity_names(inputs, ["z"])) == (
        QUEUED,
        ["projects/p/locations/z/queuedResources/q"],
    )
    inputs["api"] = "compute-engine"
    assert (capacity_kind(inputs), capacity_names(inputs, ["z"])) == (INSTANCE, ["projects/p/zones/z/instances/q"])


@dataclass
class Google:
    """A machine with metadata, whose change ends after some reads of its operation."""

    name: str
    looks: float
    error: dict
    asked: list = field(default_factory=list)
    polls: int = 0

    @property
    def operation(self):
        start = {"name": "projects/p/locations/z/operations/o"} if self.name == NODE else {"name": "o"}
        end = {"done": True} if self.name == NODE else {"status": "DONE"}
        return {**start, **end, **self.error} if self.polls >= self.looks else start

    def get(self, api, path):
        if "/operations/" in path:
            is_node = self.name == NODE
            place = "v2alpha1/projects/p/locations/z" if is_node else "compute/v1/projects/p/zones/z"
            assert (api, path) == ("tpu" if is_node else "compute", f"{place}/operations/o")
            self.polls += 1
            return google_answer("GET", f"{api}/{path}", self.operation)
        metadata = (
            {"kept": "1"} if self.name == NODE else {"items": [{"key": "kept", "value": "1"}], "fingerprint": "f"}
        )
        document = {"name": self.name.rpartition("/")[2], "metadata": metadata, "labels": dict(owner("x").labels)}
        return google_answer("GET", f"{api}/{path}", document)

    def change(self, verb, api, path, *, body, parameters):
        assert (verb, api, path) == ("PATCH", "tpu", f"v2alpha1/{NODE}")
        self.asked.append((google_request(verb, f"{api}/{path}", body), parameters))
        return self.operation

    def post(self, api, path, body):
        assert (api, path) == ("compute", f"compute/v1/{VM}/setMetadata")
        self.asked.append((google_request("POST", f"{api}/{path}", body), {}))
        return self.operation


@settings(max_examples=examples(test=60, part=300, night=3000))
@given(
    name=st.sampled_from([NODE, VM]),
    looks=st.integers(0, 5) | st.sampled_from([300, 301, 302, math.inf]),
    is_refused=st.booleans(),
)
@example(name=NODE, looks=301, is_refused=False)
@example(name=VM, looks=math.inf, is_refused=False)
def test_a_change_of_metadata_keeps_the_other_keys_and_ends_with_its_operation(*, name, looks, is_refused):
    (error, said), patience = ERRORS[name], Patience()
    google = Google(name, looks, {"error": error} if is_refused else {})
    machine = TpuMachine(api=google, name=name, clock=patience.clock)
    why = "it did not finish within 300 s" if looks > 301 else said if is_refused else ""
    problem = f"Cannot change the metadata of {name}: {why}. Run `gemma up x --restart` again." if why else ""
    try:
        machine.set_metadata("restart", "2", owner("x"))
        assert not problem
    except ScriptError as raised:
        assert str(raised) == problem
    assert patience.pauses == [1.0] * min(looks, 301)
    items = [{"key": "kept", "value": "1"}, {"key": "restart", "value": "2"}]
    of_node = ({"metadata": {"kept": "1", "restart": "2"}}, {"updateMask": "metadata"})
    assert google.asked == [of_node if name == NODE else ({"items": items, "fingerprint": "f"}, {})]
