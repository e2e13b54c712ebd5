"""The planner's data files: every row has the fields and the types of its dataclass, and no import reads one."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from gemma_serving import planning
from gemma_serving.planning.data.checkpoints import ABSENT, CHECKPOINTS, Checkpoint
from gemma_serving.planning.data.images import IMAGES, Image
from gemma_serving.planning.data.overheads import CONSTANTS, Constant
from gemma_serving.planning.data.prices import PRICES, SOURCES, ListPrice, PriceSource
from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.machine.families import FAMILIES, AcceleratorFamily
from gemma_serving.planning.machine.hardware import ACCELERATORS, Accelerator
from gemma_serving.planning.model.support import Support, support_rows
from gemma_serving.planning.question.records import CRASHES, Crash
from gemma_serving.planning.rules.registry import RULES, Rule
from gemma_serving.planning.rules.security import advisories
from gemma_serving.planning.speed.measured_starts import MEASURED_STARTS, MeasuredStarts
from gemma_serving.planning.speed.start_limits import FIGURES, StageFigure

FILES: dict[str, tuple[type[object], Mapping[str, object]]] = {
    "checkpoints": (Checkpoint, {**CHECKPOINTS, **ABSENT}),
    "images": (Image, IMAGES),
    "rules": (Rule, RULES),
    "advisories": (advisories.Advisory, advisories.ADVISORIES),
    "crashes": (Crash, CRASHES),
    "prices": (ListPrice, PRICES),
    "sources": (PriceSource, SOURCES),
    "precisions": (Support, {str(place): row for place, row in enumerate(support_rows())}),
    "accelerators": (Accelerator, ACCELERATORS),
    "families": (AcceleratorFamily, FAMILIES),
    "constants": (Constant, CONSTANTS),
    "start limits": (StageFigure, FIGURES),
    "measured starts": (MeasuredStarts, MEASURED_STARTS),
}


@pytest.mark.parametrize("name", FILES)
def test_every_row_has_the_types_of_its_struct(name: str):
    kind, rows = FILES[name]
    assert rows
    for row in rows.values():
        assert msgspec.convert(msgspec.to_builtins(row), kind) == row


def test_no_import_of_the_planner_reads_a_data_file():
    code = (
        "import sys\nread = []\n"
        "sys.addaudithook(lambda event, args: read.append(args[0]) if event == 'open' else None)\n"
        "import gemma_serving.planning.planner, gemma_serving.planning.solve.search\n"
        "print([name for name in read if str(name).endswith('.json')])\n"
        "gemma_serving.planning.data.images.IMAGES['vllm-tpu']\n"
        "print(len([name for name in read if str(name).endswith('images.json')]))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split("\n")[:2] == ["[]", "1"]


def test_every_constant_that_the_planner_names_is_a_row():
    found = (path.read_text(encoding="utf-8") for path in Path(planning.__file__).parent.glob("**/*.py"))
    named = {name for text in found for name in re.findall(r"""constant\(["']([\w.]+)["']""", text)}
    assert len(named) > 60
    assert named - CONSTANTS.keys() == set()


def test_a_row_with_another_field_is_refused():
    with pytest.raises(msgspec.ValidationError, match="colour"):
        msgspec.convert({**data_file("images.json")["vllm-tpu"], "colour": "red"}, Image)
