"""The agent reads the documents of commands of the former release."""

import json

import pytest

from scripts.agent.context import answer_of
from scripts.agent.programs import ProgramResult

FORMER = {
    "teardown": '{"left": [{"kind": "network"}], "kept": [{"size_gib": 1.5}], "untold": ["why"], "remarks": [], "clean": false}',
    "recover": '{"ours": [{"kind": "API"}], "foreign": [], "absent": [], "unknown": [], "later": [], "taken": []}',
    "capacity": '{"places": [{"accelerator": "L4", "place": "us-east4", "open": true}], "problems": []}',
}
CURRENT = {
    "teardown": '{"leaked": [{"kind": "network"}], "retained": [{"size_gib": 1.5}], "unknown": ["why"], "warnings": [], "clean": false}',
    "recover": '{"owned": [{"kind": "API"}], "not_owned": [], "missing": [], "unknown": [], "pending": [], "imported": []}',
    "capacity": '{"locations": [{"accelerator": "L4", "location": "us-east4", "open": true}], "problems": []}',
}


@pytest.mark.parametrize("command", FORMER)
def test_a_document_of_the_former_release_has_the_current_keys(command):
    result = ProgramResult(exit_code=0, printed=FORMER[command], said=())
    assert answer_of(command, result).document == json.loads(CURRENT[command])
