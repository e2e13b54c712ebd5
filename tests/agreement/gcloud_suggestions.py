"""The gcloud commands that messages of this project suggest.

`python -m tests.agreement.gcloud_suggestions` records the requests of the installed gcloud again, and which of these its parser knows.
"""

import json
import re
import shlex
import sys
import tempfile
from pathlib import Path

from gemma_serving.cloud.grants import PolicyHolder
from gemma_serving.cloud.kinds import KINDS
from localcloud.tests.conftest import SCENARIO
from localcloud.tests.idle_cloud import start
from localcloud.tests.server.gcloud_commands import (
    PROJECT,
    REQUESTS,
    commands,
    installed,
    prepared,
    recording,
    refused_by_parser,
    run,
)

_PROVIDER = Path(__file__).parents[2] / "packages" / "gcp-tpu" / "gcp_tpu_provider" / "capacity.py"

_HOLDERS = (
    PolicyHolder(kind="project", project=PROJECT, name=f"projects/{PROJECT}"),
    PolicyHolder(kind="bucket", project=PROJECT, name="projects/_/buckets/nothing"),
    PolicyHolder(kind="secret", project=PROJECT, name=f"projects/{PROJECT}/secrets/nothing"),
)


def suggested() -> list[tuple[str, ...]]:
    """The commands that messages of this project suggest, for resources that do not exist."""
    kinds = [kind.command for kind in KINDS]
    hints = re.findall(r'command = f"(compute [^"]+)"', _PROVIDER.read_text())
    assert [" ".join(hint.split()[:3]) for hint in hints] == ["compute tpus tpu-vm", "compute instances add-labels"]
    named_by_hand = {"{node}": "{id}", "{found.zone}": "us-east5-a", "{labels}": "a=b"}
    labels = [re.sub(r"\{[\w.]+\}", lambda found: named_by_hand[found[0]], hint) for hint in hints]
    named = [
        tuple(text.format(id="a@b.com" if text.startswith("iam") else "nothing", l="us-east5-a").split())
        for text in (*kinds, *labels)
    ]
    condition = {"title": "t", "expression": "a in [1, 2] || b", "description": "x=y"}
    removals = [
        holder.command("roles/run.invoker", "user:a@b.com", given) for holder in _HOLDERS for given in ({}, condition)
    ]
    return [*named, *(tuple(shlex.split(text))[1:] for text in removals)]


def record() -> int:
    """Write the requests of the installed gcloud to the file of recorded requests."""
    gcloud = installed()
    if gcloud is None:
        print("gcloud with its alpha component is not installed.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, start(scenario=SCENARIO) as cloud:
        with recording(cloud.base_url) as (url, recorded):
            outcomes = run(gcloud, url, Path(folder), prepared(Path(folder)), token=cloud.token)
        hints = suggested()
        accepted = zip(hints, run(gcloud, cloud.base_url, Path(folder), hints, token=None), strict=True)
        parsed = [list(argv) for argv, outcome in accepted if not refused_by_parser(outcome)]
    for command, outcome in zip(commands(), outcomes, strict=True):
        if not command.describes(outcome):
            print(f"{' '.join(command.argv)}: {outcome}", file=sys.stderr)
    lines = ",\n".join(json.dumps(item) for item in recorded)
    head = f'"gcloud": "{gcloud.version}",\n"parsed": {json.dumps(parsed)}'
    REQUESTS.write_text(f'{{{head},\n"requests": [\n{lines}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(record())
