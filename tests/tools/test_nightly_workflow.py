"""nightly.yml: it runs targets of the Makefile, and has no rights but to read."""

import os
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_workflow_runs_targets_of_the_makefile_and_may_only_read():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert not [name for name, job in workflow["jobs"].items() if "permissions" in job]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in workflow["jobs"].items()}
    kills = 'make kills SEED="$(date +%Y%m%d)$SERIES" COUNT=200 HISTORY=.work/kills.jsonl'
    assert workflow["jobs"]["kills"]["strategy"] == {"fail-fast": False, "matrix": {"series": [1, 2, 3, 4, 5]}}
    (published,) = commands.pop("published")
    assert "planning/data/checkpoints.json" in published
    find_advisories = commands["audit"].pop()
    assert "planning/data/advisories.json" in find_advisories
    assert commands == {
        "kills": ["make setup", kills],
        "long": ["make setup", 'make long PART="$PART"'],
        "packages": [
            "make setup",
            'for folder in packages/*/; do (cd "$folder" && ../../.venv/bin/python -m pytest -n 4 --dist loadfile) || failed=1; done; exit "${failed:-0}"',
        ],
        "real-plugin": ["make setup", "make nightly"],
        "images": [
            "sudo rm -rf /usr/local/lib/android /usr/share/dotnet /opt/ghc /opt/hostedtoolcache/CodeQL",
            'images/build.sh "$IMAGE"',
        ],
        "audit": ["make setup", "make audit"],
        "oracle": ["make setup", "make oracle ROUNDS=9"],
    }
    makefile = (ROOT / "Makefile").read_text()
    targets = [command.split()[1] for each in commands.values() for command in each if command.startswith("make ")]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    assert "GEMMA_SERVING_NIGHTLY=1 .venv/bin/python -m pytest -c pyproject.toml tests/nightly\n" in makefile
    assert os.access(ROOT / "tests" / "nightly" / "stack_life.sh", os.X_OK)
