"""What other commands may use of `scripts.bench`: a sweep, its results, and the comparison of two."""

from scripts.bench.compare import compare_folders, comparison_markdown
from scripts.bench.errors import SweepError
from scripts.bench.progress import reporter_for_stderr
from scripts.bench.settings import SweepSettings
from scripts.bench.store import read_results
from scripts.bench.sweep import run_sweep, seed_of
from scripts.bench.traffic.points import Sweep

__all__ = [
    "Sweep",
    "SweepError",
    "SweepSettings",
    "compare_folders",
    "comparison_markdown",
    "read_results",
    "reporter_for_stderr",
    "run_sweep",
    "seed_of",
]
