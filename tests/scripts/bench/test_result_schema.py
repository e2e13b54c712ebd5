"""Real results validate against docs/bench-results.schema.json, which describes every field."""

import json
from pathlib import Path

from jsonschema import Draft7Validator

from loadtest.__main__ import main
from loadtest.tests.model_pool import ModelPool, ModelServer

PAGE = Path(__file__).parents[3] / "docs" / "bench-results.schema.json"


def strict(name):
    """The schema of one kind of record, with no other fields than the described ones."""
    schema = json.loads(PAGE.read_text())
    for record in schema["definitions"].values():
        record.update({"additionalProperties": False} if "properties" in record else {})
    Draft7Validator.check_schema(schema)
    return Draft7Validator({**schema, "anyOf": [{"$ref": f"#/definitions/{name}"}]})


def faults(validator, value):
    return [error.message[:300] for found in validator.iter_errors(value) for error in found.context or [found]]


def test_results_validate_and_have_no_field_that_the_schema_lacks(calm, tmp_path, monkeypatch, capsys, subtests):
    monkeypatch.setattr("loadtest.sweep.WorkerPool", lambda: ModelPool(ModelServer(ttft_s=0.02, tpot_s=0.008, slots=8)))
    words = ["--url", calm.url, "--input-tokens", "32", "--output-tokens", "8", "--slo", "ttft=1", "--warm-up", "0", "--json"]  # fmt: skip
    loads = ["--concurrency", "2,8", "--request-rate", "4", "--requests", "64", "--usd-per-hour", "2"]
    assert main([*words, *loads, "--out", str(tmp_path)]) in {0, 1}
    assert faults(strict("SweepOutput"), json.loads(capsys.readouterr().out)) == []
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert rows
    for row in rows:
        assert faults(strict("ResultLine"), row) == []
    with subtests.test("a wrong result is found"):
        row = rows[0]
        for wrong in (
            {**row, "duration": "1 s"},
            {**row, "unknown_field": 1},
            {**row, "point": {**row["point"], "mode": "both"}},
            {key: value for key, value in row.items() if key != "p99_ttft_ms"},
        ):
            assert faults(strict("ResultLine"), wrong)
