"""Every key that a stack sends to a machine or a container is read by a module of `vm_agent`."""

import ast
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemma_serving.components.container_starter import STARTER_SECTIONS
from gemma_serving.components.startup_script import SECTIONS
from gemma_serving.contracts.collector import CollectorSettings, parse_collector
from gemma_serving.contracts.compile_cache import ArchiveSettings, parse_archive
from gemma_serving.contracts.container_start import ContainerStart, GraphCache, parse_start
from gemma_serving.contracts.rollout import RolloutLimits, parse_rollout
from gemma_serving.contracts.serving_document import (
    RESTART_METADATA_KEY,
    SCRIPT_METADATA_KEY,
    BucketWeights,
    ServingDocument,
    parse_document,
)
from tests.components.test_tpu_queued_resource import IMAGE, declared
from tests.contract_keys import keys

OF_GOOGLE = {SCRIPT_METADATA_KEY, "enable-guest-attributes", "enable-oslogin"}
"""Metadata keys that Google's guest environment reads."""
KEY = "projects/p/secrets/s/versions/1"
FOLDER = BucketWeights("gs://bucket/weights", "/mnt/models/m")
DOCUMENT = ServingDocument(
    image=IMAGE,
    command=("vllm", "serve"),
    arguments=("google/gemma-4-E2B-it", "--port=8000"),
    environment={"VLLM_XLA_CACHE_PATH": "/dev/shm/vllm_cache"},
    secret_environment={"HF_TOKEN": KEY},
    port=8000,
    shm_size_gib=16,
    weights=FOLDER,
    parts=(FOLDER,),
)
SENT: list[tuple[Any, Callable[[str], Any], Iterable[str]]] = [
    (DOCUMENT, parse_document, keys()["serving-document"]),
    (RolloutLimits(1.0, 2.0, shutdown_flag=True, is_privileged=True), parse_rollout, keys()["rollout"]),
    (CollectorSettings("image@sha256:0", "{}", KEY), parse_collector, ("image", "config", "key")),
    (ArchiveSettings("gs://bucket/f", "v6e-4", KEY), parse_archive, ("uri", "accelerator", "key")),
    (ContainerStart(FOLDER, GraphCache("gs://b/f", "/m", KEY), (FOLDER,)), parse_start, ("weights", "graphs", "parts")),
]


def trees(package: str) -> Iterator[ast.Module]:
    for module in sorted({*SECTIONS, *STARTER_SECTIONS}):
        if module.startswith(f"gemma_serving.{package}."):
            yield ast.parse(Path(f"{module.replace('.', '/')}.py").read_text())


def read_by_agent() -> set[str]:
    """Names and attributes that modules of the agent read, and attributes that a contract's property of such a name reads for them."""
    nodes = [node for tree in trees("vm_agent") for node in ast.walk(tree)]
    found = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    found |= {node.id for node in nodes if isinstance(node, ast.Name)}
    for node in (node for tree in trees("contracts") for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef) and node.decorator_list and node.name in found:
            found |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    return found


@pytest.mark.parametrize(("sent", "parse", "keys"), SENT, ids=lambda one: type(one).__name__)
def test_each_key_of_a_document_reaches_a_field_that_the_agent_reads(
    sent: Any, parse: Callable[[str], Any], keys: Iterable[str]
):
    written = json.loads(sent.text())
    assert set(written) == set(keys)
    assert parse(sent.text()) == sent
    for key in written:
        try:
            unread = parse(json.dumps({name: value for name, value in written.items() if name != key})) == sent
        except (ValueError, KeyError):
            unread = False
        assert not unread, f"no reader parses `{key}`"
    fields = {field.name for field in dataclasses.fields(sent)}
    assert fields - read_by_agent() == set(), "fields that no module of vm_agent reads"


def test_each_metadata_key_is_read(declare):
    inputs, _ = declared(
        declare, compile_archive="{}", collector="{}", image_repositories={"us": "a/p/r", "europe": "b/p/r"}
    )
    keys = {*inputs["metadata"], inputs["ready"]["deadlineMetadataKey"], RESTART_METADATA_KEY}
    named = {
        ast.literal_eval(node.value): node.target.id
        for tree in trees("contracts")
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    assert [key for key in sorted(keys - OF_GOOGLE) if named.get(key) not in read_by_agent()] == []
