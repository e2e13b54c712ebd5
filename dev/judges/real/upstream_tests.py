"""Upstream's own tests of the modules that an image replaces: those that need neither a device nor the hub."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import pytest

from dev.judges.real.home import run
from dev.judges.real_vllm.environment import last_line

ENVIRONMENT: Final = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
NEEDS: Final = {
    "a TPU": re.compile(r"Unsupported TPU device kind: cpu"),
    "the hub": re.compile(r"Invalid repository ID or local directory|OfflineModeIsEnabled|LocalEntryNotFoundError"),
}
"""What a test lacks here, by the error that it then ends with."""
_LIMIT_S: Final = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Packages that an image installs or replaces, in a folder before the environment's own. The folder may have upstream's tests."""

    python: Path
    folder: Path

    def run(self, *words: str, limit_s: float = 600) -> tuple[int, str]:
        """Run the interpreter with these packages first, and return its exit code and both outputs."""
        environment = {**ENVIRONMENT, "PYTHONPATH": str(self.folder)}
        done = run([str(self.python), "-P", *words], limit_s=limit_s, environment=environment, folder=self.folder)
        return done.returncode, done.stdout + done.stderr

    def require_imports(self, modules: Sequence[str]) -> None:
        """Fail unless each module can be imported from the folder."""
        script = (
            "import importlib, sys\nfor name in sys.argv[1:]: print('from', importlib.import_module(name).__file__)"
        )
        code, text = self.run("-c", script, *modules)
        assert code == 0, f"{' '.join(modules)}: {last_line(text)}"
        found = re.findall(r"^from (.+)$", text, re.MULTILINE)
        others = [path for path in found if not Path(path).is_relative_to(self.folder)]
        assert not others, f"imported from elsewhere: {' '.join(others)}"
        assert len(found) == len(modules), f"imported: {' '.join(found)}"


def run_tests(modules: Modules, files: Sequence[str]) -> Counter[str]:
    """Run upstream's tests, and count them as `count_tests`. Skips the test if a file is missing."""
    results = modules.folder / "results.xml"
    missing = [name for name in files if not (modules.folder / name).is_file()]
    if missing:
        pytest.skip(f"not in the package: {' '.join(missing)}")
    results.unlink(missing_ok=True)
    settings = modules.folder / "pytest.ini"  # else pytest takes those of this project, which the folder is in
    settings.write_text("[pytest]\n", encoding="utf-8")
    options = ("-c", str(settings), f"--rootdir={modules.folder}", f"--junitxml={results}")
    _, text = modules.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *files, limit_s=_LIMIT_S)
    assert results.is_file(), f"pytest wrote no results: {last_line(text)}"
    return count_tests(results.read_text(encoding="utf-8"))


def count_tests(results: str) -> Counter[str]:
    """Count the tests that passed, and those that need something that is not here, in pytest's results (JUnit XML). Fails if a test failed otherwise."""
    counts = Counter[str]()
    for case in ET.fromstring(results).iter("testcase"):  # noqa: S314 - written by the child
        failures = [one.get("message", "") for kind in ("failure", "error") for one in case.iter(kind)]
        if case.find("skipped") is not None:
            counts["skipped"] += 1
        elif not failures:
            counts["passed"] += 1
        else:
            lacks = next((what for what, pattern in NEEDS.items() if pattern.search(failures[0])), None)
            assert lacks, f"{case.get('name')}: {' '.join(failures[0].split())[:300]}"
            counts[lacks] += 1
    return counts
