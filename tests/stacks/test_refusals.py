"""Every rejection of settings and of a component's arguments, word for word: `refusals.golden.txt` changes only where a message gets better.

A case is a line of the golden file, and the lines below it, which are indented, are its message. For a new case, write its line there and run
the command that the test prints. Wrong types come from the settings themselves.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pulumi.errors import InputPropertiesError

from gemma_serving.components.cloud_run_gpu_service import CloudRunGpuService
from gemma_serving.components.tpu_queued_resource import TpuQueuedResource
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.cloud_run import MountSettings, ProbeSettings
from gemma_serving.scripts.plan.question import QuestionOptions, question_from
from gemma_serving.stacks.loading import SettingsError, from_file
from gemma_serving.stacks.package.constructing import construct
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.schema import block_of, settings_schema
from tests.components.test_argument_laws import COMPONENTS
from tests.components.test_cloud_run_gpu_service import ARGS as SERVICE
from tests.components.test_invalid_arguments import changed as with_arguments
from tests.components.test_tpu_queued_resource import ARGS as CAPACITY
from tests.golden import golden, if_meant
from tests.stacks.conftest import ROOT, changed, with_parents
from tests.stacks.test_package import inputs_of

GOLDEN = Path(__file__).with_name("refusals.golden.txt")
L4, TPU = "l4-qat", "tpu-v6e4"
VALID = {**COMPONENTS, CloudRunGpuService: SERVICE, TpuQueuedResource: CAPACITY}
OF_A_FILE = re.compile(r"file: (?P<text>.+)")
"""A whole file. Errors in YAML name the line."""
OF_CHANGES = re.compile(r"(?P<stack>[a-z][\w-]*): (?P<changes>\{.*\})")
"""A stack and changes of its file by path; null removes a key."""
OF_A_VALUE = re.compile(r"(?P<stack>[a-z][\w-]*): (?P<path>\S+) = (?P<value>.+)")
"""A stack and one value, below blocks that may be new."""
OF_PLAN = re.compile(r"plan(?: (?P<stack>[a-z][\w-]*))?(?P<options>(?: --(?!set)[\w-]+ \S+)*)(?: --set (?P<pair>.*))?")
"""A question of `gemma plan`."""
OF_A_COMPONENT = re.compile(r"(?P<component>[A-Z]\w+): (?P<changes>\{.*\})")
"""A component, and the arguments in Python that differ from valid ones."""

OF_THE_PACKAGE = re.compile(r"package (?P<component>\w+): (?P<changes>.+)")
"""A component of the package, and its inputs by path that differ from valid ones; null removes one."""


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "CLOUDSDK_CORE_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def of_values(folder: Path, stack: str, values: dict[str, Any]) -> str:
    """Return the rejection of a file, or of the plan of its settings; empty if both accept it."""
    path = folder / "Pulumi.x.yaml"
    config = {"gcp:project": "my-project", **{f"{PRODUCT}:{key}": value for key, value in values.items()}}
    path.write_text(yaml.safe_dump({"config": config}, sort_keys=False))
    try:
        found = plan(to_question(from_file(path)))
    except (SettingsError, PlanningError) as error:
        return str(error)
    blocking = [f"{one.id}: {one.message}" for one in found.findings if one.severity == "block"]
    return "\n".join(f"(the plan blocks) {text}" for text in blocking)


def of_text(folder: Path, text: str) -> str:
    path = folder / "Pulumi.x.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as raised:
        from_file(path, project="my-project")
    return str(raised.value)


def of_question(case: re.Match[str]) -> str:
    words = case["options"].split()
    options = dict(zip((name.removeprefix("--") for name in words[::2]), words[1::2], strict=True))
    pairs = () if case["pair"] is None else (case["pair"],)
    try:
        plan(question_from(QuestionOptions(stack=case["stack"], set=pairs, **options)))
    except (SettingsError, PlanningError) as error:
        return str(error)
    return ""


def of_arguments(case: re.Match[str]) -> str:
    """Return the rejection of a component. Outside a program of Pulumi, a resource that is declared first is another error."""
    (component,) = (one for one in VALID if one.__name__ == case["component"])
    blocks = {"ProbeSettings": ProbeSettings, "MountSettings": MountSettings}
    changes = eval(case["changes"], blocks)  # noqa: S307 - arguments of Python, from a file of this folder
    with pytest.raises(PlanningError) as raised:
        component("x", with_arguments(VALID[component], changes))
    return str(raised.value)


def of_inputs(case: re.Match[str]) -> str:
    """Return the rejection of a component of the package: its sentence, then each input with the reason."""
    changes = {path.replace(".", "__"): value for path, value in json.loads(case["changes"]).items()}
    with pytest.raises(InputPropertiesError) as raised:
        construct(case["component"], "own", inputs_of(case["component"], **changes))
    reasons = [f"{one['property_path']}: {one['reason']}" for one in raised.value.errors]
    return "\n".join([raised.value.message, *reasons])


def message_of(case: str, folder: Path) -> str:
    """Return the rejection of a case."""
    if one := OF_A_COMPONENT.fullmatch(case):
        return of_arguments(one)
    if one := OF_THE_PACKAGE.fullmatch(case):
        return of_inputs(one)
    if one := OF_PLAN.fullmatch(case):
        return of_question(one)
    if one := OF_A_FILE.fullmatch(case):
        return of_text(folder, json.loads(one["text"]))
    if one := OF_CHANGES.fullmatch(case):
        return of_values(folder, one["stack"], changed(one["stack"], json.loads(one["changes"])))
    one = OF_A_VALUE.fullmatch(case)
    assert one, f"{case}: not a case"
    return of_values(folder, one["stack"], with_parents(one["stack"], one["path"], json.loads(one["value"])))


def wrong_types(stack: str) -> Iterator[str]:
    """Yield a case for each key that a file can have, with a value of a type that it never has, and for an unknown key beside it."""
    whole = settings_schema()

    def of(path: str, block: dict[str, Any]) -> Iterator[str]:
        for key, value in block["properties"].items():
            place = f"{path}.{key}".removeprefix(".")
            yield f"{place} = {json.dumps([{'wrong': 1}])}"
            inner = block_of(whole, value)
            if inner:
                yield f"{place}.wrongKey = 1"
                yield from of(place, inner)

    foreign = "tpu" if stack == L4 else "cloudRun"
    for case in of("", whole):
        head = re.split(r"[. ]", case)[0]
        is_own = (stack == L4) or head == "tpu"
        if head != foreign and is_own and head not in {"hfToken", "apiKey", "target"}:
            yield f"{stack}: {case}"


def cases_in(text: str) -> Iterator[str]:
    """Yield the cases in the order of the golden file: those that are written there, and those of the settings."""
    written = [line for line in text.split("\n") if line and not line.startswith(" ")]
    for kind in (OF_A_FILE, OF_CHANGES):
        yield from (case for case in written if kind.fullmatch(case))
    yield from (*wrong_types(L4), *wrong_types(TPU))
    for kind in (OF_PLAN, OF_A_COMPONENT, OF_THE_PACKAGE):
        yield from (case for case in written if kind.fullmatch(case))


def test_a_rejection_changes_only_on_purpose(tmp_path):
    messages = {case: message_of(case, tmp_path) for case in cases_in(GOLDEN.read_text(encoding="utf-8"))}
    texts = {case: text.replace(f"{ROOT}/", "").replace("\n", "\n    ") for case, text in messages.items()}
    said = "".join(f"{case}\n    {text or 'accepted'}\n" for case, text in texts.items())
    assert said == golden(GOLDEN, said), if_meant()


def test_no_rejection_names_the_parser():
    said = GOLDEN.read_text(encoding="utf-8")
    for word in ("pydantic", "Traceback", "msgspec", "Input should", "NoneType", "ValidationError"):
        assert word not in said
