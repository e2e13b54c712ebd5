"""The share of right answers stands beside the speed of the same deployment, and of no other."""

import json
from dataclasses import replace

import pytest

from scripts.bench.__main__ import COMMAND
from scripts.bench.quality import quality_beside, quality_remark
from scripts.cli.command import run_command
from scripts.quality.store import QualityStore
from tests.scripts.quality.test_compare import result

RUN = {"stack": "a", "deployment": "sha256:1 hash of a"}


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Store a run of stack a under a time."""
    monkeypatch.setattr("scripts.quality.store.project_folder", lambda: tmp_path)

    def keep(time, **changes):
        one = result("a", **changes)
        store = QualityStore(folder=tmp_path / "results" / "a" / f"{time}-quality")
        store.start(one.header, resume=False)
        for answer in one.answers:
            store.append(answer)
        return store, one

    return keep


def test_the_newest_complete_run_of_the_same_deployment_counts(kept):
    assert quality_beside(RUN) == ""
    kept("1", wrong=range(20))
    kept("2", wrong=range(10))
    assert quality_beside(RUN) == "75% (60-86%)"
    kept("3", simulated="planted")
    kept("31", adapter="red")
    for number, change in enumerate(({"thinking": True}, {"selected": True})):
        store, one = kept(f"32{number}")
        store.change(replace(one.header, **change))
    kept("4", settings_sha256="another")
    store, one = kept("5")
    store.change(replace(one.header, planned=41))
    assert quality_beside(RUN) == "75% (60-86%)"
    assert quality_beside({"stack": "a", "deployment": "sha256:2 hash of a"}) == ""
    assert quality_beside(RUN | {"server": {"simulated": "planted"}}) == ""
    assert quality_beside({"stack": None, "deployment": None}) == ""
    (store.folder / "quality.json").write_text("{")
    assert quality_beside(RUN) == ""


def test_the_comparison_of_two_sweeps_has_a_remark_only_with_a_run(kept, tmp_path):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    (tmp_path / "before" / "run.json").write_text(json.dumps(RUN))
    (tmp_path / "after" / "run.json").write_text(json.dumps(RUN | {"deployment": "other"}))
    assert quality_remark(tmp_path / "before", tmp_path / "after") == ""
    kept("1", wrong=range(10))
    said = quality_remark(tmp_path / "before", tmp_path / "after")
    assert said.startswith("Right answers of the same deployments: 75% (60-86%) before, unknown after.")


def test_a_damaged_sweep_is_still_one_sentence(kept, tmp_path, capsys):
    assert run_command(COMMAND, ["compare", str(tmp_path), str(tmp_path)]) == 2
    assert "results.jsonl" in capsys.readouterr().err
