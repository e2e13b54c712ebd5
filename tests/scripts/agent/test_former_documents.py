"""The agent reads the documents of commands of the former release."""

import json

import pytest

from scripts.agent.context import answer_of
from scripts.agent.programs import ProgramResult

GOLDEN = {
    "teardown": (
        (
            '{"stack": "x", "left": [{"kind": "network"}], "kept": [{"kind": "bucket", "size_gib": 1.5}], "deleted": [],'
            ' "untold": ["Could not list buckets."], "remarks": ["The state was cut off."], "clean": false}'
        ),
        (
            '{"stack": "x", "leaked": [{"kind": "network"}], "retained": [{"kind": "bucket", "size_gib": 1.5}], "deleted": [],'
            ' "unknown": ["Could not list buckets."], "warnings": ["The state was cut off."], "clean": false}'
        ),
    ),
    "recover": (
        '{"stack": "x", "ours": [{"kind": "API"}], "foreign": [], "absent": [], "unknown": [], "later": [], "taken": []}',
        (
            '{"stack": "x", "owned": [{"kind": "API"}], "not_owned": [], "missing": [], "unknown": [], "pending": [],'
            ' "imported": []}'
        ),
    ),
    "capacity": (
        '{"places": [{"accelerator": "L4", "place": "us-east4", "open": true}], "problems": []}',
        '{"locations": [{"accelerator": "L4", "location": "us-east4", "open": true}], "problems": []}',
    ),
    "new": (
        '{"file": "Pulumi.x.yaml", "places": ["us-east5-a"]}',
        '{"file": "Pulumi.x.yaml", "locations": ["us-east5-a"]}',
    ),
}
"""A document of the former release by command, and the same document as this release reads it."""


@pytest.mark.parametrize("command", GOLDEN)
def test_a_command_of_the_former_release_is_understood(command):
    former, current = (json.loads(text) for text in GOLDEN[command])
    result = ProgramResult(exit_code=0, printed=json.dumps(former), said=())
    assert answer_of(command, result).document == current
