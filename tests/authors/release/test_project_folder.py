"""A user's folder: installed from a repository, `gemma init`, the life of a stack on the local cloud, and an upgrade to the next version."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dev.authors.release import version

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(3600)]
ROOT = Path(__file__).resolve().parents[3]
NEXT = "99.0.0"
LIMIT_S = 1200
STACK = "chat"
DELETED = "gemma teardown chat --yes"
DEPLOYED = """
gemma stage_model chat --yes
gemma up chat --yes
pulumi preview --stack chat --non-interactive --expect-no-changes
gemma chat chat "Say hello."
gemma smoke chat
gemma bench chat --concurrency 1 --requests 2 --input-tokens 16 --output-tokens 8 --allow-invalid --out results/a
"""
INSTALLED, TRIED, UPGRADED = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "folder.md").read_text(), re.DOTALL)
"""The page's commands: the installation, a trial, and an upgrade."""
LOCAL_CLOUD, SHELL, *TYPED = TRIED.splitlines()
"""The trial's: the installation of the local cloud, its shell, and what is typed there."""


class Folder:
    """The folder of a user, whose PATH has the environment and the engine, but nothing of the checkout."""

    def __init__(self, base):
        self.base, self.path = base, base / "my-gemma"
        (base / "bin").mkdir()
        script = Path(sys.executable).with_name("pulumi").read_text().splitlines()
        engine = [line for line in script if "trial.py" not in line]  # an official Pulumi knows no trial
        text = re.sub(r'GEMMA_SERVING_ROOT="[^"]*"', f'GEMMA_SERVING_ROOT="{ROOT}/dev"', "\n".join(engine))
        text = re.sub(r' PATH="[^"]*"', "", text)
        (base / "bin" / "pulumi").write_text(text + "\n")
        (base / "bin" / "pulumi").chmod(0o755)

    def run(self, *words, cwd=None):
        path = os.pathsep.join(map(str, (self.path / ".venv" / "bin", self.base / "bin", "/usr/bin", "/bin")))
        kept = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_", "HTTPS_"))}
        done = subprocess.run(
            list(map(str, words)),
            cwd=cwd or self.path,
            env={**kept, "HOME": str(self.base), "PATH": path, "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout


def git(folder, *words):
    subprocess.run(["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.com", *words], check=True)


def with_repository(commands, base):
    """The page's commands with the URL of a bare repository."""
    assert commands.count("REPOSITORY_URL") == 1
    return commands.replace("REPOSITORY_URL", (base / "repository.git").as_uri())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An initialized folder with its packages, and a repository with this version, which gets the next one later."""
    base = tmp_path_factory.mktemp("user")
    copied = base / "sources"
    unwanted = shutil.ignore_patterns(
        ".git", ".venv", ".work", ".ruff_cache", ".hypothesis", "tests", "judges", "__pycache__"
    )
    shutil.copytree(ROOT, copied, ignore=unwanted, symlinks=True)
    git(copied, "init", "--quiet", "--initial-branch", "main")
    git(copied, "add", "--all")
    git(copied, "commit", "--quiet", "--message", "this version")
    git(base, "clone", "--quiet", "--bare", copied, "repository.git")
    made = Folder(base)
    script = with_repository(INSTALLED, base).replace("python3", sys.executable)
    assert "fits" in made.run("bash", "-ec", script, cwd=base)
    assert not (made.path / ".venv" / "bin" / "localcloud").exists()
    made.run("bash", "-ec", LOCAL_CLOUD)
    for name in ("components", "scripts", "stacks"):
        (made.path / name).mkdir()
        (made.path / name / "__init__.py").write_text("raise SystemExit('a module of the user')\n")
    yield made
    shutil.rmtree(base)


def test_a_stack_lives_in_it_beside_the_users_own_packages_and_an_upgrade_replaces_nothing(folder):
    before = (folder.path / "Pulumi.chat.yaml").read_text()
    assert set(TYPED) <= {line.removesuffix(" --yes") for line in [*DEPLOYED.splitlines(), DELETED]}
    sources = folder.base / "sources"
    version.set_version(sources, NEXT)
    git(sources, "commit", "--quiet", "--all", "--message", "the next version")
    git(sources, "push", "--quiet", folder.base / "repository.git", "main")
    upgrade = with_repository(UPGRADED, folder.base).replace("gemma up chat", "gemma up chat --yes")
    script = f"set -eu\n{DEPLOYED}\necho UPGRADE\n{upgrade}\ngemma --version\n{DELETED}"
    shown = folder.run(*SHELL.replace("shell", "run").split(), "--", "sh", "-c", script)
    first, _, second = shown.partition("UPGRADE")
    assert "smoke passed" in first
    assert "chat deployed in" in first
    assert f"gemma-serving {NEXT}" in second
    assert not re.search(r"\b(replace|[1-9]\d* to (replace|delete|create))\b", second), second
    assert "No leaked resources" in second
    assert (folder.path / "Pulumi.chat.yaml").read_text() == before, "a trial changes no file of the user"


def test_outside_of_a_local_cloud_it_needs_no_engine_to_plan(folder):
    shown = folder.run("gemma", "plan", STACK)
    assert "fits" in shown
    assert "Pulumi is not logged in." in folder.run("gemma")
