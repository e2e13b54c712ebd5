"""The `gcp` stand-in's diffs against the recorded ones: the same operations and the same properties, row by row."""

import functools

from localcloud.tests.plugins.harness import (
    KINDS,
    Engine,
    Replay,
    created,
    declared,
    on_engine,
    operation_of,
    oracle,
    recorded_details,
    row_id,
    secret,
    with_property,
)

ROWS = oracle("diffs.jsonl")


def rows_answered() -> list[tuple[str, dict[str, str], bool]]:
    made = {resource.type: resource for resource in created()[1].values()}

    async def work(attached: Engine) -> list[tuple[str, dict[str, str], bool]]:
        answers = []
        inputs = {each["type"]: each["inputs"] for each in declared().values()}
        for row in ROWS:
            resource = made[row["type"]]
            hidden = row["property"] == "secret_data"
            wanted = with_property(inputs[row["type"]], row["property"], secret(row["to"]) if hidden else row["to"])
            news = await attached.check(resource.type, resource.name, wanted, resource.inputs)
            answer = await attached.diff(resource, news)
            details = {path: KINDS[each.kind] for path, each in answer.detailedDiff.items()}
            answers.append((operation_of(answer), details, answer.deleteBeforeReplace))
        return answers

    return on_engine(Replay(), work)


cached_answers = functools.cache(rows_answered)


def test_there_are_95_rows():
    assert len(ROWS) == 95


def test_a_change_leads_to_the_recorded_operation_and_the_recorded_properties(subtests):
    for index, row in enumerate(ROWS):
        with subtests.test(row_id(index, row)):
            operation, details, _ = cached_answers()[index]
            assert ([operation], details) == (row["ops"], recorded_details(row, row["detailedDiff"]))


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
