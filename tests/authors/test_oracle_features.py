"""What `python -m authors.oracle --part features` calls a fault."""

import json
from pathlib import Path

import pytest

from authors.oracle.features import FEATURE_VERDICTS, FEATURES, RANK, arguments, feature_faults, write_adapter
from contracts.features import ServedFeatures
from contracts.fields import from_json
from localcloud.vllm.adapters import load
from localcloud.vllm.arguments import parse
from localcloud.vllm.settings import read

RECORDED = Path("tests/fixtures/vllm_bench/features.json")


def test_the_recorded_report_is_what_random_weights_must_get():
    assert feature_faults(json.loads(RECORDED.read_text())) == []
    assert from_json(ServedFeatures, FEATURES).adapters == ("sql",)


@pytest.mark.parametrize("name", ["adapters", "context length", "speculation", "tool result"])
def test_a_check_with_another_verdict_or_another_reason_is_a_fault(name: str):
    report = json.loads(RECORDED.read_text())
    check = next(check for check in report["checks"] if check["name"] == name)
    verdict, _ = FEATURE_VERDICTS[name]
    check.update(verdict="unknown")
    (found,) = feature_faults(report)
    assert f"'{name}' must be {verdict}" in found
    check.update(verdict=verdict, measured="status 500", detail="rejected")
    (found,) = feature_faults(report)
    assert "but is" in found
    report["checks"].remove(check)
    assert feature_faults(report) == [f"features: the check '{name}' is missing"]


def test_the_simulated_server_starts_with_the_same_arguments(tmp_path: Path):
    assert refused(write_adapter(tmp_path / "a", rank=RANK)) is None
    problem = refused(write_adapter(tmp_path / "b", rank=RANK * 2))
    assert f"LoRA rank {RANK * 2} is greater than max_lora_rank {RANK}." in str(problem)


def refused(adapter: Path) -> Exception | None:
    return load(parse(["vllm", "serve", *arguments("simulated/tiny", adapter, 8000)]), read({}))
