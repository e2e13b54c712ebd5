"""The wheel `gemma-serving`, alone in an empty environment and an empty folder: it plans, with the figures of the checkout."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from dev.authors.release.build import build_distribution
from dev.authors.release.version import repository, the_version
from gemma_serving.planning.settings.stored import FILE

pytestmark = [pytest.mark.long]
ROOT = Path(__file__).resolve().parents[3]
UV = Path(sys.executable).with_name("uv")
HEAVY = ("aiohttp", "gcp_tpu_provider", "google.auth", "grpc", "loadtest", "localcloud", "pulumi")
LIMIT_S = 600
PAGES = f"https://github.com/{repository(ROOT)}/blob/v{the_version(ROOT)}/"


def ended(*words, cwd, env=None):
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    build_distribution(ROOT, out)
    return out


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory):
    """Return a function that runs a program of the environment in an empty folder, without Pulumi or Go on PATH."""
    base = tmp_path_factory.mktemp("stranger")
    (base / "here").mkdir()
    (wheel,) = dist.glob("*.whl")
    for words in (
        ("venv", "--python", sys.executable, base / "env"),
        ("pip", "install", "--python", base / "env", wheel),
    ):
        code, _, said = ended(UV, *words, cwd=base)
        assert code == 0, said

    def run(program, *words):
        environment = {"HOME": str(base), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        return ended(base / "env" / "bin" / program, *words, cwd=base / "here", env=environment)

    return run


def test_it_has_every_file_of_the_product_and_of_the_table(dist):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    rooms = {"components", "images", "scripts", "stacks"}
    files = subprocess.run(
        ["git", "ls-files", "gemma_serving", *rooms], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    wanted = {f"gemma_serving/{name}" if name.partition("/")[0] in rooms else name for name in files}
    links = {f"gemma_serving/{room}" for room in rooms}
    plugin = {f"gemma_serving/components/{name}" for name in ("PulumiPlugin.yaml", "requirements.txt")}
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    outside = subprocess.run(
        ["git", "ls-files", *table["force-include"]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    made = {str(FILE.relative_to(ROOT))}
    assert names == {*(wanted - links - plugin), *(f"gemma_serving/{name}" for name in outside), *made}


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "l4-qat"),
        ("plan", "tpu-v6e1-e4b", "--costs"),
        ("plan", "--solve", "--model", "12B", "--workload", "in=700,out=300,users=8"),
        ("plan", "--compare", "--model", "12B"),
    ],
    ids=" ".join,
)
def test_it_plans_with_the_figures_of_the_checkout(installed, words):
    code, shown, said = installed("gemma", *words, "--json")
    ours = ended(
        ROOT / "gemma", *words, "--json", cwd=ROOT, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    )
    assert (code, said.replace(PAGES, "")) == (ours[0], ours[2])
    assert json.loads(shown.replace(PAGES, "")) == json.loads(ours[1])


def test_it_names_a_page_by_its_address(installed):
    for words in (("plan", "--finding", "NOPE"), ("up", "--help")):
        _, shown, said = installed("gemma", *words)
        assert f"{PAGES}docs/reference/" in shown + said


def test_it_has_neither_the_engine_nor_another_distribution_and_says_how_to_install_them(installed):
    found = "import importlib.util as u, sys; print([n for n in sys.argv[1:] if u.find_spec(n.partition('.')[0])])"
    assert installed("python", "-I", "-c", found, *HEAVY)[1] == "[]\n"
    code, _, said = installed("gemma", "bench", "--url", "http://127.0.0.1:1")
    assert (
        code,
        "The package loadtest is not installed. Not in " in said,
        "pip install --force-reinstall --no-deps CLONE" in said,
    ) == (
        2,
        True,
        True,
    )
    code, _, said = installed("gemma", "up", "l4-qat")
    assert (code, "Pulumi.yaml not found." in said) == (2, True)
    assert "or `gemma init` to make one." in installed("gemma")[1]
