"""Speed of staging compared with a plain parallel copy of the same files: `python -m authors.benchmarks.staging_speed`.

The plain copy is `upload_many_from_filenames` of Google's client with as many threads. It copies whole files and leaves nothing that a later run can
use. Both alternately copy the same folder to the same local cloud, each into a separate folder. Staging also hashes
every byte, joins parts and writes a manifest. The local cloud is one process that hashes and writes the data and shares the
processors with the client. The values are specific to one machine. Only the ratio is comparable.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from cloud.staging.bucket import WeightsBucket
from cloud.staging.copying import PART_BYTES, WORKERS, CopyPlan, stage
from cloud.staging.sources import FolderSource
from contracts.parallel import each

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = "local-project"
BUCKET: Final = "staging-speed"
MIB: Final = 1 << 20
_START_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingRatio:
    """Result of the measurement. Seconds are medians."""

    mib: int
    rounds: int
    plain_s: float
    staging_s: float
    again_s: float
    """Second run of staging, which finds all files in place."""
    ratio: float
    """Speed of staging as a multiple of the plain copy's: the median of the rounds' ratios."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m authors.benchmarks.staging_speed", description="Measure the speed of staging."
    )
    parser.add_argument("--shards", type=int, default=8, help="files of weights")
    parser.add_argument("--mib", type=int, default=96, help="size of each file")
    parser.add_argument("--rounds", type=int, default=5, help="copies of each kind, alternating")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args(argv)
    if min(args.shards, args.mib, args.rounds) < 1:
        parser.error("--shards, --mib and --rounds must be 1 or more")
    with tempfile.TemporaryDirectory(prefix="staging-speed-") as folder, running_cloud(Path(folder)):
        found = measure(Path(folder), args.shards, args.mib, args.rounds)
    if args.json:
        print(json.dumps(asdict(found), indent=2))
        return 0
    print(f"{found.mib} MiB, {found.rounds} rounds, {WORKERS} concurrent, parts of {PART_BYTES // MIB} MiB")
    for what, seconds in (("plain", found.plain_s), ("staging", found.staging_s), ("staging again", found.again_s)):
        print(f"{what:<16} {seconds:>8.2f} s {found.mib / seconds:>8.1f} MiB/s")
    print(f"{'staging/plain':<16} {found.ratio:>8.2f} x")
    return 0


@contextlib.contextmanager
def running_cloud(folder: Path) -> Generator[None]:
    """Run a local cloud with a bucket in a separate process, and set this process's environment for it."""
    command = [sys.executable, "-m", "localcloud"]
    state = ["--state", str(folder / "cloud")]
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen([*command, "serve", *state], cwd=ROOT, stdout=log, stderr=log)
    try:
        end = time.monotonic() + _START_LIMIT_S
        while (
            answer := subprocess.run([*command, "env", *state, "--json"], cwd=ROOT, capture_output=True, check=False)
        ).returncode:
            if time.monotonic() > end:
                raise SystemExit(f"the local cloud did not start: {(folder / 'serve.log').read_text()}")
            time.sleep(0.2)
        os.environ.update(json.loads(answer.stdout))
        _client().create_bucket(BUCKET, location="us-east4")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(_START_LIMIT_S)


def measure(folder: Path, shards: int, mib: int, rounds: int) -> StagingRatio:
    """Copy a folder with both methods, alternately."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    for number in range(shards):
        (checkpoint / f"model-{number}.safetensors").write_bytes(os.urandom(mib * MIB))
    plain, staging, again = list[float](), list[float](), list[float]()
    for turn in range(rounds):
        plain.append(_timed_plain(checkpoint, f"plain-{turn}"))
        staging.append(_timed_stage(checkpoint, f"staged-{turn}"))
        again.append(_timed_stage(checkpoint, f"staged-{turn}"))
        target = WeightsBucket(BUCKET, PROJECT)
        each([partial(target.delete, item) for item in target.objects("").values()], workers=WORKERS)
    return StagingRatio(
        mib=shards * mib,
        rounds=rounds,
        plain_s=statistics.median(plain),
        staging_s=statistics.median(staging),
        again_s=statistics.median(again),
        ratio=statistics.median(one / other for one, other in zip(plain, staging, strict=True)),
    )


def _timed_plain(checkpoint: Path, prefix: str) -> float:
    from google.cloud.storage import transfer_manager  # noqa: PLC0415 - the other candidate does not load it

    names = sorted(path.name for path in checkpoint.iterdir())
    upload = cast("Any", transfer_manager).upload_many_from_filenames
    began_s = time.perf_counter()
    results = upload(
        _client().bucket(BUCKET),
        names,
        source_directory=str(checkpoint),
        blob_name_prefix=f"{prefix}/",
        worker_type="thread",
        max_workers=WORKERS,
    )
    took_s = time.perf_counter() - began_s
    for failure in filter(None, results):
        raise SystemExit(f"the plain copy failed: {failure}")
    return took_s


def _timed_stage(checkpoint: Path, prefix: str) -> float:
    began_s = time.perf_counter()
    plan = CopyPlan(source=FolderSource(folder=checkpoint), target=WeightsBucket(BUCKET, PROJECT), prefix=prefix)
    stage(plan, lambda _file, _copied: None, lambda _work, _done, _total: None)
    return time.perf_counter() - began_s


def _client() -> Any:  # noqa: ANN401 - the library is untyped
    from google.cloud import storage  # noqa: PLC0415 - slow to load

    from cloud import google_api  # noqa: PLC0415 - reads the environment that the local cloud set

    options = {"api_endpoint": google_api.endpoint("storage").rstrip("/")}
    return storage.Client(project=PROJECT, credentials=google_api.credentials(), client_options=options)


if __name__ == "__main__":
    sys.exit(main())
