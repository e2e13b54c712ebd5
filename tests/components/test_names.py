"""A program imports the components from `gemma_serving.components`, and pays only for those that it uses."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pulumi
import pytest

from gemma_serving import components
from gemma_serving.components.checks import Block

ROOT = Path(__file__).resolve().parents[2]
OF_STACKS = {"ArchiveKeySecret", "Collector", "MemoryVolume", "Observability", "StackDetails", "StoredSecret"}
"""Parts of a stack that no program of a user declares by itself."""


def classes():
    """Return the components and their arguments, by name."""
    for path in (ROOT / "components").glob("[!_]*.py"):
        module = importlib.import_module(f"gemma_serving.components.{path.stem}")
        for name, found in inspect.getmembers(module, inspect.isclass):
            is_own = found.__module__ == module.__name__ and not name.startswith("_")
            if is_own and issubclass(found, pulumi.ComponentResource | Block):
                yield name, found


def test_every_component_and_its_arguments_are_imported_by_name():
    found = dict(classes())
    assert {*found} - OF_STACKS == {name for name in components.__all__ if name in found}
    assert all(getattr(components, name) is found[name] for name in components.__all__ if name in found)
    assert all(hasattr(components, name) for name in components.__all__)


def test_a_name_that_the_components_do_not_have_is_named():
    with pytest.raises(ImportError, match=r"cannot import name 'HugingFaceToken' from 'gemma_serving[.]components'"):
        exec("from gemma_serving.components import HugingFaceToken")  # noqa: S102 - an import of a user's


@pytest.mark.parametrize("line", ["import gemma_serving.components", "from gemma_serving.components import VllmServer"])
def test_an_import_loads_no_component_that_the_program_does_not_use(line):
    code = f"import sys; {line}; print('gemma_serving.components.cloud_run_gpu_service' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
