"""The wheels of localcloud and loadtest in empty environments outside the checkout: what their pages show works, with nothing else of the project."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from authors.release.build import build_distribution

pytestmark = [pytest.mark.engine, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 600
FOREIGN = (
    "authors",
    "components",
    "gcp_tpu_provider",
    "gemma_serving",
    "loadtest",
    "localcloud",
    "scripts",
    "stacks",
    "tools",
)
SITE = """
web = gcp.artifactregistry.Repository("web", repository_id="web", location="europe-west4", format="DOCKER")
image = pulumi.Output.concat("europe-west4-docker.pkg.dev/local-project/", web.repository_id, "/site")
gcp.cloudrunv2.Service("s", location="europe-west4", template={"containers": [{"image": image}]})
"""
MODULES = """
import importlib, importlib.util, json, pkgutil, sys
name, *foreign = sys.argv[1:]
package = importlib.import_module(name)
found = [each.name for each in pkgutil.walk_packages(package.__path__, name + ".")]
for each in found:
    if not each.endswith("__main__"):
        importlib.import_module(each)
print(json.dumps({"file": package.__file__, "modules": sorted(found),
    "foreign": [each for each in foreign if each != name and importlib.util.find_spec(each)]}))
"""


@dataclass(frozen=True)
class Installed:
    """A virtual environment, and a shell that sees its commands before the system's, with a home of its own."""

    folder: Path
    home: Path
    also: tuple[Path, ...] = ()

    def shell(self, script, cwd, *, expect=0):
        path = os.pathsep.join([str(self.folder / "bin"), *map(str, self.also), "/usr/local/bin", "/usr/bin", "/bin"])
        kept = {
            name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTPS_", "https_"))
        }
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=cwd,
            env={**kept, "HOME": str(self.home), "PATH": path, "PULUMI_HOME": str(self.home / ".pulumi")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == expect, f"{script}\n{done.stdout[-6000:]}"
        return done.stdout

    def modules(self, package):
        done = subprocess.run(
            [str(self.folder / "bin" / "python"), "-I", "-c", MODULES, package, *FOREIGN],
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def blocks(package, language):
    """The code blocks of a package's page in a language, each with the line that precedes it."""
    page = (ROOT / "packages" / package / "README.md").read_text()
    return re.findall(rf"([^\n]*)\n\n```{language}\n(.*?)```", page, re.DOTALL)


def block(package, language, word):
    (found,) = [text for _, text in blocks(package, language) if word in text]
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder outside the checkout, which is deleted because an environment with pulumi-gcp has 560 MB."""
    folder = tmp_path_factory.mktemp("stranger")
    assert ROOT not in folder.parents
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def dist(base):
    for name in ("loadtest", "localcloud"):
        build_distribution(ROOT / "packages" / name, base / "dist")
    return base / "dist"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(base, name, *also):
    subprocess.run([sys.executable, "-m", "venv", base / name], check=True, timeout=LIMIT_S)
    (base / f"home-{name}").mkdir()
    return Installed(base / name, base / f"home-{name}", also)


@pytest.fixture(scope="module")
def cloud(base, dist):
    """An environment with the first line of the page's installation: the wheel of localcloud alone."""
    made = environment(base, "cloud", pulumi_of_this_checkout(base))
    made.shell(block("localcloud", "sh", "pip install").splitlines()[0], dist)
    return made


def pulumi_of_this_checkout(base):
    """A folder with the project's engine. An official Pulumi has its own language host; this one is the checkout's."""
    folder = base / "bin"
    folder.mkdir()
    link = Path(sys.executable).with_name("pulumi").read_text()
    (folder / "pulumi").write_text(re.sub(r'GEMMA_SERVING_ROOT="[^"]*"', f'GEMMA_SERVING_ROOT="{ROOT}"', link))
    (folder / "pulumi").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def tester(base, dist, cloud):
    """An environment with the wheel of loadtest alone. The cloud's commands come after its own, from the other environment."""
    made = environment(base, "tester", cloud.folder / "bin")
    made.shell(block("loadtest", "sh", "pip install"), dist)
    return made


def test_each_wheel_alone_has_every_module_and_no_other_distribution(cloud, tester, base, subtests):
    for made, package in ((cloud, "localcloud"), (tester, "loadtest")):
        with subtests.test(package):
            found = made.modules(package)
            assert Path(found["file"]).is_relative_to(made.folder)
            assert found["foreign"] == []
            home = ROOT / "packages" / package
            files = [path.relative_to(home) for path in home.rglob("*.py") if "tests" not in path.parts]
            names = {".".join((package, *path.with_suffix("").parts)).removesuffix(".__init__") for path in files}
            assert {*found["modules"], package} == names
            assert "No broken requirements" in made.shell("pip check", base)


def test_the_load_tester_measures_the_model_server_of_another_environment(tester, base):
    folder = base / "measured"
    folder.mkdir()
    script = on_a_busy_machine(block("loadtest", "sh", "localcloud model-server"))
    shown = tester.shell(script.replace("8000", str(free_port())), folder)
    assert "the server is SIMULATED" in shown
    assert "### Benchmark comparison" in shown
    for name in ("a", "b"):
        assert "</html>" in (folder / "results" / name / "report.html").read_text()
        results = (folder / "results" / name / "results.jsonl").read_text().splitlines()
        assert [json.loads(line)["completed"] for line in results] == [16, 16]


def on_a_busy_machine(script):
    """Return the page's commands, with a second sweep to compare, such that late clients do not fail them, and never leave the server."""
    (sweep,) = [line for line in script.splitlines() if "--out results/a" in line]
    again = sweep.replace("results/a", "results/b")
    compared = script.replace(sweep, f"{sweep}\n{again}\nloadtest compare results/a results/b || test $? = 1")
    measured = compared.replace("--out results/", "--allow-invalid --out results/")
    assert measured.count("--allow-invalid") == 2
    return f"trap 'kill $! 2>/dev/null || true' EXIT\n{measured}"


KEY = """
localcloud model-server simulated/tiny --port 8000 --api-key sk-of-this-test &
trap 'kill $!' EXIT
until curl --fail --silent http://127.0.0.1:8000/health; do sleep 0.2; done
command="loadtest --url http://127.0.0.1:8000 --concurrency 1 --requests 2 --input-tokens 64 --output-tokens 4 --allow-invalid --out"
code=0; GEMMA_API_KEY=another $command refused || code=$?
test $code = 2
GEMMA_API_KEY=sk-of-this-test $command allowed
"""


def test_the_key_of_the_environment_is_sent_and_never_stored(tester, base):
    shown = tester.shell(KEY.replace("8000", str(free_port())), base)
    assert "/v1/models returned 401" in shown
    assert "Set GEMMA_API_KEY to a key that the server accepts." in shown
    assert not (base / "refused").exists()
    results = (base / "allowed" / "results.jsonl").read_text()
    assert json.loads(results)["completed"] == 2
    stored = [path for path in (base / "allowed").rglob("*") if path.is_file()]
    assert [path.name for path in stored if "sk-of-this-test" in path.read_text()] == []


@pytest.fixture(scope="module")
def program(cloud, base):
    """The program of the page, in a folder with its environment: the wheel of localcloud, pulumi, pulumi-gcp and pytest."""
    lock = (ROOT / "requirements/dev.txt").read_text()
    versions = [re.search(rf"^{name}==\S+", lock, re.MULTILINE)[0] for name in ("pulumi", "pulumi-gcp", "pytest")]
    (second,) = block("localcloud", "sh", "pip install").splitlines()[1:]
    assert second == "pip install pulumi pulumi-gcp pytest"
    cloud.shell(f"pip install {' '.join(versions)}", base)
    folder = base / "newsletter"
    folder.mkdir()
    (folder / ".venv").symlink_to(cloud.folder)
    for language in ("yaml", "python"):
        for before, text in blocks("localcloud", language):
            if name := re.fullmatch(r"`([\w.]+)`:", before):
                (folder / name[1]).write_text(text)
    assert {path.name for path in folder.iterdir()} == {".venv", "Pulumi.yaml", "__main__.py", "test_newsletter.py"}
    return folder


def test_the_page_tests_a_program_and_a_mistake_fails(cloud, program, subtests):
    command = block("localcloud", "sh", "-- pytest")
    with subtests.test("up, no changes, destroy"):
        assert "1 passed" in cloud.shell(command, program)
    plain = (program / "__main__.py").read_text()
    with subtests.test("an invalid name"):
        named = plain.replace('Bucket("letters", ', 'Bucket("letters", name="Letters_Of_May", ')
        assert named != plain
        (program / "__main__.py").write_text(named)
        refused = "Error creating Bucket: googleapi: Error 400: Invalid bucket name: 'Letters_Of_May', invalid"
        assert refused in cloud.shell(command, program, expect=1)
    with subtests.test("a program that changes each time"):
        (program / "__main__.py").write_text(
            plain.replace('"sender",', '"sender", description=str(__import__("time").time()),')
        )
        assert "no changes were expected" in cloud.shell(command, program, expect=1)
    (program / "__main__.py").write_text(plain)


def test_what_is_not_simulated_is_refused_with_the_messages_of_the_page(cloud, program, subtests):
    page = (ROOT / "packages" / "localcloud" / "README.md").read_text()
    script = "localcloud run --scenario prepared -- sh -c 'pulumi stack init s && pulumi up --yes --skip-preview'"
    for text, resource in (
        (
            "the local gcp stand-in does not support the resource type gcp:sql/databaseInstance:DatabaseInstance.",
            'gcp.sql.DatabaseInstance("db", database_version="POSTGRES_15", region="europe-west4", settings={"tier": "db-f1-micro"})',
        ),
        (
            "the local stand-in does not support the property 'versioning.enabeld' of gcp:storage/bucket:Bucket. Check its spelling.",
            'gcp.storage.Bucket("b", location="EU", versioning={"enabeld": True})',
        ),
        ("Image 'europe-west4-docker.pkg.dev/local-project/web/site' not found.", SITE),
    ):
        with subtests.test(text):
            assert f"`{text}`" in page
            (program / "__main__.py").write_text(f"import pulumi\nimport pulumi_gcp as gcp\n\n{resource}\n")
            assert text in cloud.shell(script, program, expect=1)
    with subtests.test("a scenario of the page"):
        (program / "cloud.yaml").write_text(block("localcloud", "yaml", "images:"))
        (program / "__main__.py").write_text(f"import pulumi\nimport pulumi_gcp as gcp\n\n{SITE}\n")
        assert "3 created" in cloud.shell(script.replace("prepared", "cloud.yaml"), program)
