"""The local hub's repositories are those of the planner's catalog, with the same sizes and dimensions. Neither imports the other."""

import json

from localcloud.hub.content import files_of
from localcloud.hub.repositories import repositories
from planning.data import checkpoints
from planning.model.catalog import spec_of
from planning.model.hf_config import model_from_config

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
