"""The benchmark of previews: the bare program, the account of a process tree, and its page."""

import re

from authors.benchmarks import preview_cost
from authors.benchmarks.preview_cost import program

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


def test_the_page_shows_each_stack_below_its_limit():
    rows = re.findall(
        r"^\| (\S+) \| \d+ \| [\d.]+ s \| [\d.]+ s \| ([\d.]+) \| ([\d.]+) \| [\d.]+ s \| [\d.]+ \|$",
        preview_cost.PAGE.read_text(),
        re.MULTILINE,
    )
    assert {stack: float(limit) for stack, _, limit in rows} == preview_cost.STACKS
    for stack, ratio, limit in rows:
        assert float(ratio) <= float(limit), stack
