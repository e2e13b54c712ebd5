"""The `gcp` stand-in's diffs against the recorded ones: the same operations and the same properties, row by row."""

import functools
import re
from typing import Any

from localcloud.tests.plugins.harness import (
    KINDS,
    Recorder,
    Replay,
    Resource,
    create_all,
    declared,
    engine,
    operation_of,
    oracle,
    run,
    secret,
    with_property,
)

ROWS = oracle("diffs.jsonl")

# Shown as added on every change because of the answers of the store behind the recordings, not because of the change itself.
ODDITIES = {
    "gcp:cloudrunv2/service:Service": {"template.annotations", "template.labels"},
    "gcp:monitoring/alertPolicy:AlertPolicy": {"conditions[0].conditionPrometheusQueryLanguage.labels"},
}


@functools.cache
def created() -> dict[str, Resource]:
    async def scenario() -> dict[str, Resource]:
        async with engine(Recorder(Replay("create.jsonl")), project="p1", region="us-east4") as attached:
            made = await create_all(attached)
        return {resource.type: resource for resource in made.values()}

    return run(scenario())


def rows_answered() -> list[tuple[str, dict[str, str], bool]]:
    made = created()

    async def scenario() -> list[tuple[str, dict[str, str], bool]]:
        answers = []
        inputs = {each["type"]: each["inputs"] for each in declared().values()}
        async with engine(Recorder(Replay()), project="p1", region="us-east4") as attached:
            for row in ROWS:
                resource = made[row["type"]]
                hidden = row["property"] == "secret_data"
                wanted = with_property(inputs[row["type"]], row["property"], secret(row["to"]) if hidden else row["to"])
                news = await attached.check(resource.type, resource.name, wanted, resource.inputs)
                answer = await attached.diff(resource, news)
                details = {path: KINDS[each.kind] for path, each in answer.detailedDiff.items()}
                answers.append((operation_of(answer), details, answer.deleteBeforeReplace))
        return answers

    return run(scenario())


cached_answers = functools.cache(rows_answered)


def row_id(index: int) -> str:
    row = ROWS[index]
    return f"{index}-{row['type'].rpartition(':')[2]}-{row['property']}"


def recorded_details(row: dict[str, Any]) -> dict[str, str]:
    changed = re.sub(r"\.(\d+)", r"[\1]", row["property"])
    odd = {path for path in ODDITIES.get(row["type"], set()) if path != changed}
    return {path: kind for path, kind in row["detailedDiff"].items() if path not in odd}


def test_there_are_95_rows():
    assert len(ROWS) == 95


def test_a_change_leads_to_the_recorded_operation_and_the_recorded_properties(subtests):
    for index in range(len(ROWS)):
        with subtests.test(row_id(index)):
            row = ROWS[index]
            operation, details, _ = cached_answers()[index]
            assert ([operation], details) == (row["ops"], recorded_details(row))


def test_no_change_is_no_difference():
    made = created()

    async def scenario() -> dict[str, dict[str, str]]:
        found = {}
        async with engine(Recorder(Replay()), project="p1", region="us-east4") as attached:
            for name, each in declared().items():
                resource = made[each["type"]]
                news = await attached.check(resource.type, name, each["inputs"], resource.inputs)
                answer = await attached.diff(resource, news)
                if answer.detailedDiff:
                    found[name] = {path: KINDS[detail.kind] for path, detail in answer.detailedDiff.items()}
        return found

    assert run(scenario()) == {}


def test_a_replacement_of_a_resource_whose_name_the_program_wrote_deletes_first():
    """As in the real provider 10.2.0, it does not matter whether the name changes."""
    by_property = {
        (row["type"], row["property"]): answer[2] for row, answer in zip(ROWS, cached_answers(), strict=True)
    }
    assert by_property["gcp:storage/bucket:Bucket", "location"]
    assert by_property["gcp:storage/bucket:Bucket", "name"]
    assert by_property["gcp:projects/iAMMember:IAMMember", "role"]
    assert by_property["gcp:cloudrunv2/serviceIamMember:ServiceIamMember", "member"]
    assert not by_property["gcp:storage/bucketIAMMember:BucketIAMMember", "role"]
    assert not by_property["gcp:secretmanager/secretVersion:SecretVersion", "secret_data"]
