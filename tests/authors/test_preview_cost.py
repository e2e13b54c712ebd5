"""The benchmark of previews: the bare program, the account of a process tree, and its page."""

import json
import os
import re
import subprocess
import sys

import pytest

from authors.benchmarks import preview_cost
from authors.benchmarks.preview_cost import program
from authors.benchmarks.process_tree import UNSEEN

STACK = "urn:pulumi:x::gemma-serving::pulumi:pulumi:Stack::gemma-serving-x"
PROVIDER = "urn:pulumi:x::gemma-serving::pulumi:providers:gcp::gcp"
BUCKET = "urn:pulumi:x::gemma-serving::gemma-serving:index:ModelBucket::models"
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
STEPS = [
    {"newState": {"type": "pulumi:pulumi:Stack", "urn": STACK}},
    {
        "newState": {
            "type": "pulumi:providers:gcp",
            "urn": PROVIDER,
            "parent": STACK,
            "inputs": {"project": "p", "userProjectOverride": "true", "version": "10.2.0"},
        }
    },
    {"newState": {"type": "gemma-serving:index:ModelBucket", "urn": BUCKET, "parent": STACK}},
    {
        "newState": {
            "type": "gcp:storage/bucketIAMMember:BucketIAMMember",
            "urn": "urn:pulumi:x::gemma-serving::gemma-serving:index:ModelBucket$gcp:storage/bucketIAMMember:BucketIAMMember::reader",
            "parent": BUCKET,
            "provider": f"{PROVIDER}::{UNKNOWN}",
            "inputs": {
                "__defaults": ["etag"],
                "etag": "x",
                "bucket": UNKNOWN,
                "role": "true",
                "member": "user:a@example.com",
            },
        }
    },
]
TREE = """
import subprocess, sys
def burn(seconds):
    import time
    while time.process_time() < seconds:
        pass
if sys.argv[1] == "child":
    burn(0.3)
else:
    child = subprocess.Popen([sys.executable, sys.argv[0], "child"])
    burn(0.15)
    if sys.argv[1] == "waits":
        child.wait()
"""
ACCOUNT = """
import json, sys
from pathlib import Path
from authors.benchmarks.process_tree import measured
cost = measured(
    [sys.executable, sys.argv[1], sys.argv[2]], folder=Path(sys.argv[1]).parent, environment={},
    part=lambda line: "child" if line.endswith("child") else "parent",
)
print(json.dumps({"code": cost.code, "cpu_s": cost.cpu_s, "by_part": dict(cost.by_part)}))
"""


def test_a_bare_program_declares_what_the_preview_says():
    source = program(STEPS)
    compile(source, "bare", "exec")
    assert "gcp.Provider('gcp', project='p', user_project_override=True" in source
    assert "pulumi.ComponentResource('gemma-serving:index:ModelBucket', 'models', None" in source
    assert "gcp.Provider('gcp', project='p')" in program(STEPS, thin=True)
    (grant,) = [line for line in source.splitlines() if "BucketIAMMember(" in line]
    inputs = "bucket='known-after-up', member='user:a@example.com', role='true'"
    assert f"gcp.storage.BucketIAMMember('reader', gcp.storage.BucketIAMMemberArgs({inputs}), opts" in grant
    assert f"parent=made[{BUCKET!r}], provider=made[{PROVIDER!r}]" in grant


@pytest.mark.skipif(sys.platform != "linux", reason="the account reads /proc")
@pytest.mark.parametrize("ending", ["waits", "leaves"])
def test_the_account_has_every_process_also_one_whose_parent_ended_first(tmp_path, ending):
    script = tmp_path / "tree.py"
    script.write_text(TREE)
    command = [sys.executable, "-c", ACCOUNT, str(script), ending]
    answer = subprocess.run(
        command, cwd=preview_cost.ROOT, env={**os.environ}, capture_output=True, text=True, check=True
    )
    cost = json.loads(answer.stdout)
    assert cost["code"] == 0
    assert cost["cpu_s"] >= 0.45, "both have burned theirs, whatever the machine does beside it"
    assert cost["by_part"].keys() == {"child", "parent", UNSEEN}
    assert sum(cost["by_part"].values()) == pytest.approx(cost["cpu_s"])


def test_each_process_of_a_preview_has_a_part():
    parts = {
        "/v/bin/python /e/pulumi-language-python-exec --monitor 127.0.0.1:1 --engine 127.0.0.1:2 .": "program",
        "/v/bin/python -P /r/tools/engine/language_host.py --exec /e/pulumi-language-python-exec 127.0.0.1:2": "language host",
        "/bin/sh /e/pulumi-language-python 127.0.0.1:2": "language host",
        "/v/bin/python /p/packages/gcp-tpu 127.0.0.1:2": "provider gcp-tpu",
        "/e/pulumi preview --stack tpu-v6e1 --json": "engine",
    }
    assert {line: preview_cost._part(line) for line in parts} == parts


def test_the_page_shows_each_stack_below_its_limit():
    rows = re.findall(
        r"^\| (\S+) \| \d+ \| [\d.]+ s \| [\d.]+ s \| ([\d.]+) \| ([\d.]+) \| [\d.]+ s \| [\d.]+ \|$",
        preview_cost.PAGE.read_text(),
        re.MULTILINE,
    )
    assert {stack: float(limit) for stack, _, limit in rows} == preview_cost.STACKS
    for stack, ratio, limit in rows:
        assert float(ratio) <= float(limit), stack
