"""Every package that is imported is named by the requirements of who imports it, and not only brought along by another package."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

from gemma_serving import VERSION
from tests.tools.imports import imports
from tests.tracked import tracked

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = (
    "components",
    "gemma_serving",
    "scripts",
    "stacks",
    "dev/tools",
    "dev/judges/tpu_compiler",
)
AGENT = ROOT / "scripts" / "agent"
GKE = ROOT / "components" / "gke_model_server.py"
IMAGE = ROOT / "components" / "serving_image.py"
CHILD = ROOT / "dev" / "judges" / "tpu_compiler" / "server"
"""Runs in an environment of its own, whose packages are in `dev/judges/tpu_compiler/locks/`."""
OWN = {"dev", "gcp_tpu_provider", "gemma_serving", "loadtest", "localcloud", "tests"}
SHARED = {"google"}
"""Import names of several distributions: which one is meant, a name does not say."""
WRITTEN = {"beside", "googlecloudsdk"}
"""Imported by programs that a file holds as text."""
MOST_PACKAGES = 76
"""Of a user who deploys. A package above it needs a reason in docs/architecture.md and another one that goes."""
BASE = ("requirements/plan.in", "requirements/base.in")


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(*files):
    lines = [line for file in files for line in (ROOT / file).read_text().splitlines()]
    return [Requirement(line) for line in lines if line.strip() and not line.startswith(("#", "-"))]


def named(*files):
    """Distributions that requirements name."""
    return {normal(one.name) for one in requirements(*files)}


def locked(lock):
    """Distributions that a lock has."""
    return {normal(line.partition("==")[0]) for line in (ROOT / lock).read_text().splitlines() if "==" in line}


def strangers(files, wanted):
    """Imports whose distribution is not one of these."""
    known = packages_distributions()
    return {
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in files
        for line, module in imports(path.read_text())
        for name in [module.partition(".")[0]]
        if name not in sys.stdlib_module_names | OWN | SHARED | WRITTEN
        and not {normal(owner) for owner in known.get(name, [])} & wanted
    }


def test_the_product_names_what_it_imports_and_each_extra_its_own_packages():
    product = {*tracked(*PRODUCT), ROOT / "__main__.py"}
    product = {path for path in product if CHILD not in path.parents}
    agent = {path for path in product if AGENT in path.parents}
    assert strangers(product - agent - {GKE, IMAGE}, named(*BASE)) == set()
    assert strangers(agent, named(*BASE, "requirements/agent.in")) == set()
    assert strangers({GKE}, named(*BASE, "requirements/gke.in")) == set()
    assert strangers({IMAGE}, named(*BASE, "requirements/images.in")) == set()


def test_the_tests_and_the_authors_name_what_they_import():
    own = (ROOT / "dev/judges/real_vllm", ROOT / "dev/judges/real/read_weights.py")  # they run in vLLM's environment
    files = {path for path in tracked("dev/authors", "tests") if not any(path.is_relative_to(one) for one in own)}
    extras = ("requirements/agent.in", "requirements/gke.in", "requirements/dev.in")
    wanted = named(*BASE, *extras, "packages/localcloud/requirements.in")
    assert strangers(files, wanted) == set()


def test_no_wheel_pins_a_package_of_others():
    """A pin conflicts with other packages of a person's environment.

    This project's distributions are released together and share names without a promise, so they have one version.
    """
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"][
        "requirements_txt"
    ]
    extras = [file for files in hook["optional-dependencies"].values() for file in files]
    others = [path.relative_to(ROOT) for path in ROOT.glob("packages/*/requirements.in")]
    found = requirements(*hook["files"], *extras, *others)
    exact = {str(one) for one in found if any(bound.operator in {"==", "==="} for bound in one.specifier)}
    own = ("gcp-tpu-provider", "loadtest-openai", "localcloud-google")
    assert exact == {f"{name}=={VERSION}" for name in own}


def test_the_architecture_page_has_the_reason_for_each_library():
    page = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Libraries\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w, -]+) \| `?(\w+)`? \| .{20,} \|$", page, re.MULTILINE)
    listed = {extra: {each for names, own in rows if own == extra for each in names.split(", ")} for _, extra in rows}
    files = {"plan": "plan", "deploy": "base", "images": "images", "gke": "gke", "agent": "agent"}
    assert listed == {extra: named(f"requirements/{file}.in") for extra, file in files.items()}


def test_a_deployment_has_few_packages():
    """Without those for other platforms: colorama for Windows, httpx2-jsfetch for browsers."""
    ours = named("requirements/wheels.in") | {"gemma-serving"}
    assert len(locked("requirements.txt") - {"colorama", "httpx2-jsfetch"} | ours) <= MOST_PACKAGES


def test_what_is_named_is_locked():
    locks = {
        "plan": "requirements.txt",
        "base": "requirements.txt",
        "agent": "requirements/agent.txt",
        "gke": "requirements/gke.txt",
        "images": "requirements/images.txt",
        "dev": "requirements/dev.txt",
    }
    for name, lock in locks.items():
        assert named(f"requirements/{name}.in") - locked(lock) == set(), name


def test_the_product_does_without_what_only_the_local_cloud_loads():
    assert named("packages/localcloud/requirements.in") - locked("requirements.txt") >= {"google-api-python-client"}
    assert "cryptography" not in named(*BASE)
