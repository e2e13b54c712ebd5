"""The local hub's repositories are those of the planner's catalog, with the same sizes and dimensions. Neither imports the other."""

import json

import pytest

from gemma_serving.planning.data import checkpoints
from gemma_serving.planning.model.catalog import spec_of
from gemma_serving.planning.model.hf_config import model_from_config
from gemma_serving.planning.model.spec import tensors
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.question import Question
from localcloud.hub.content import files_of
from localcloud.hub.repositories import repositories

KNOWN = {**checkpoints.CHECKPOINTS, **checkpoints.ABSENT}


def test_every_id_is_in_both():
    listed = {one.id for one in repositories().values() if not one.outside}
    assert listed == set(KNOWN)


def test_both_say_which_ids_are_absent():
    absent = {one.id for one in repositories().values() if one.state == "absent"}
    assert absent == set(checkpoints.ABSENT)
    assert absent.isdisjoint(checkpoints.CHECKPOINTS)


def test_configs_have_the_catalogs_dimensions_and_precision():
    wrong = []
    for one in repositories().values():
        if one.state == "absent" or one.outside:
            continue
        name, config = one.id, json.loads(files_of(one)["config.json"].content)
        read, known = model_from_config(config, name=name), spec_of(name)
        same = [(spec.hidden, spec.groups, spec.vision, spec.target_hidden, spec.centroids) for spec in (read, known)]
        if same[0] != same[1] or (known.native_quantization or "bf16") != read.native_quantization:
            wrong.append(name)
    assert wrong == []


def test_stated_sizes_agree_with_what_the_planner_computes():
    wrong = {}
    for one in repositories().values():
        stated = sum(one.bytes.get(name, 0) for name in one.weights) or one.total_bytes
        if one.state == "absent" or one.outside or not stated:
            continue
        planned = checkpoint_bytes(one.id)
        if planned != pytest.approx(stated, rel=0.05):
            wrong[one.id] = (planned, stated)
    assert wrong == {}


def checkpoint_bytes(name):
    if checkpoints.CHECKPOINTS[name].is_drafter:
        return sum(tensor.params for tensor in tensors(spec_of(name))) * 2
    return plan(Question().changed(model=name, accelerator="H200")).memory.checkpoint_gib * 2**30
