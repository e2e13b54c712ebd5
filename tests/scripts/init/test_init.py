"""`gemma init` writes a folder that has a project: complete, or nothing."""

import json
import re
import subprocess
import zipfile
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gemma_serving import VERSION
from gemma_serving.contracts import installation
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.contracts.three_answers import Present
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.init import __main__ as command
from gemma_serving.scripts.init import own_wheels
from gemma_serving.stacks.loading import from_file
from tests.scripts.terminal import Terminal

ROOT = Path(__file__).resolve().parents[3]
PROMISED = ROOT / "tests" / "authors" / "promised.txt"
WHEELS = [f"{name}-{VERSION}-py3-none-any.whl" for name in installation.DISTRIBUTIONS]
RECORD = ["gemma_serving/a.py,sha256=1,1\n"]
LOCKS = {
    "wheels/requirements.txt": ("requirements.txt", WHEELS[:3]),
    "wheels/requirements-try.txt": ("packages/localcloud/requirements.txt", WHEELS[3:]),
}
"""Locks of a folder: the lock of this repository with its packages, and its wheels."""
TRIAL = [
    ".venv/bin/pip install --quiet --require-hashes -r wheels/requirements-try.txt",
    "localcloud shell --scenario prepared",
]
FILES = {
    *(".gitignore", "Pulumi.chat.yaml", "Pulumi.yaml", "__main__.py", "requirements.txt", *LOCKS),
    *(f"wheels/{name}" for name in WHEELS),
}


@pytest.fixture
def dist(tmp_path_factory):
    """A folder with the wheels of this version."""
    folder = tmp_path_factory.mktemp("dist")
    for name in WHEELS:
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def init(monkeypatch, tmp_path, capsys, dist):
    """Run the command in an empty folder, installed from a folder of wheels; returns exit code, stdout and stderr."""
    monkeypatch.setattr(installation, "CHECKOUT", None)
    wheel = {"url": (dist / WHEELS[0]).as_uri(), "archive_info": {}}
    monkeypatch.setattr(installation, "_direct_url", lambda: wheel)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gemma_serving.scripts.plan.question.ROOT", tmp_path)
    monkeypatch.setattr("gemma_serving.cloud.hub.main_commit", lambda *_: Present("c" * 40))
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)

    def ran(*arguments):
        capsys.readouterr()
        code = run_command(command.COMMAND, list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return ran


def _gemma_words(text):
    """Yield the commands and options of `gemma` in a script, as promised.txt writes them."""
    for words, arguments in re.findall(r"bin/gemma ((?:[a-z_]+ ?)+)((?:[^\n]|\\\n)*)", text):
        yield f"command {words.strip()}"
        yield from (f"option {words.strip()} {name}" for name in re.findall(r"--[a-z-]+", arguments))


def files_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def named_in(out):
    return {*out.partition("Wrote ")[2].partition(".\n")[0].split(", ")}


def test_it_writes_a_project_with_this_version_and_says_what_comes_next(init, tmp_path):
    code, out, err = init("chat", "--model", "12B", "--accelerator", "L4")
    assert (code, err) == (0, "")
    assert files_in(tmp_path) == FILES
    assert len((tmp_path / "__main__.py").read_text().splitlines()) == 3
    assert named_in(out) == FILES
    for lock, (source, wheels) in LOCKS.items():
        lines = (tmp_path / lock).read_text().splitlines()
        extras = ["[deploy]" if name.startswith("gemma_serving") else "" for name in wheels]
        assert [line for line in lines if line.startswith("./")] == [
            f"./wheels/{name}{extra} --hash=sha256:{sha256(name.encode()).hexdigest()}"
            for name, extra in zip(wheels, extras, strict=True)
        ]
        assert lines[len(wheels) :] == (ROOT / source).read_text().splitlines()
    project, ours = (yaml.safe_load((folder / "Pulumi.yaml").read_text()) for folder in (tmp_path, ROOT))
    assert project["name"] == ours["name"], "the namespace of the settings, and of the names in every state"
    assert from_file(tmp_path / "Pulumi.chat.yaml", project="my-project").cloud_run.gpu == "nvidia-l4"
    next_, _, trial = out.partition("Next:\n")[2].partition("\nTry it without an account (160 MB more):\n")
    assert [line.strip() for line in next_.splitlines()[:2]] == [
        "python3 -m venv .venv",
        ".venv/bin/pip install --quiet --require-hashes -r requirements.txt  # 500 MB",
    ]
    assert next_.splitlines()[-1].strip() == "gemma chat chat"
    assert [line.strip() for line in trial.splitlines()] == TRIAL
    assert max(map(len, (*next_.splitlines(), *trial.splitlines()))) <= 80


@pytest.mark.parametrize("path", shipped_files(ROOT), ids=lambda path: path.name)
def test_each_example_is_copied_with_what_it_names(init, tmp_path, path):
    stack = path.name.split(".")[1]
    code, out, err = init("chat", "--like", stack, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["fits"] is True
    theirs, ours = from_file(tmp_path / "Pulumi.chat.yaml", project="my-project"), from_file(path, project="my-project")
    assert theirs == ours
    text = (tmp_path / "Pulumi.chat.yaml").read_text()
    assert "$schema" not in text
    assert f"--stack {stack}" not in text
    assert "docs/" not in text
    assert {*json.loads(out)["files"]} == files_in(tmp_path)
    context = ours.image.build_context
    assert context is None or (tmp_path / context / "Dockerfile").is_file()


def test_it_asks_for_model_and_accelerator(init, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal("12B\n\n"))
    code, _, err = init()
    assert code == 0
    assert "Model: E2B, E4B" in err
    assert "Accelerator, such as" in err
    assert from_file(tmp_path / "Pulumi.dev.yaml", project="my-project").model.startswith("google/gemma-4-12B")


def test_without_a_terminal_it_names_the_options(init, tmp_path):
    assert init("chat") == (
        2,
        "",
        "init: No model. Pass --model ID, --from FILE, or --like STACK to copy a settings file.\n",
    )
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("wrong", [("--model", "12B", "--accelerator", "H100"), ("--like", "nothing")], ids=str)
def test_a_refusal_leaves_the_folder_as_it_was(init, tmp_path, wrong):
    (tmp_path / "components").mkdir()
    (tmp_path / "components" / "__init__.py").write_text("mine")
    assert init("chat", *wrong)[0] == 2
    assert files_in(tmp_path) == {"components/__init__.py"}


@pytest.mark.parametrize(
    "name", ["Pulumi.yaml", "__main__.py", "requirements.txt", "wheels/mine.whl", ".github/workflows/mine.yml"]
)
def test_a_file_of_the_user_is_never_replaced(init, tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("name: gemma-serving" if name == "Pulumi.yaml" else "mine")
    code, _, err = init("chat", "--like", "l4-qat", "--ci")
    assert (code, f"{name.partition('/')[0]} exists. " in err) == (2, True)
    assert files_in(tmp_path) == {name}
    assert (tmp_path / name).read_text() in {"mine", "name: gemma-serving"}


@pytest.mark.parametrize("is_project", [True, False])
def test_a_stack_that_exists_is_refused_before_a_question(init, tmp_path, is_project):
    if is_project:
        assert init("other", "--like", "l4-qat")[0] == 0
    (tmp_path / "Pulumi.chat.yaml").write_text("mine")
    code, _, err = init("chat")  # without a terminal, the question is an error
    assert code == 2
    assert re.match(r"init: Pulumi\.chat\.yaml (already )?exists\. ", err)


def test_in_a_project_it_adds_the_settings_file_of_a_stack_and_nothing_else(init, tmp_path):
    assert init("chat", "--like", "l4-qat")[0] == 0
    before = {name: (tmp_path / name).read_bytes() for name in files_in(tmp_path)}
    code, out, _ = init("second", "--like", "chat")
    assert (code, named_in(out)) == (0, {"Pulumi.second.yaml"})
    assert files_in(tmp_path) == {*before, "Pulumi.second.yaml"}
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert (tmp_path / "Pulumi.second.yaml").read_text().count("--stack second")


def test_the_users_gitignore_is_completed(init, tmp_path):
    (tmp_path / ".gitignore").write_text("mine\n.venv/\n")
    assert init("chat", "--like", "l4-qat")[0] == 0
    lines = (tmp_path / ".gitignore").read_text().splitlines()
    assert lines[:2] == ["mine", ".venv/"]
    assert sorted(lines) == sorted({*lines})
    assert {".work/", "previews/", "results/"} <= {*lines}


def test_it_refuses_if_a_wheel_is_missing_and_writes_nothing(init, tmp_path, dist):
    (dist / WHEELS[1]).unlink()
    code, _, err = init("chat", "--like", "l4-qat")
    assert (code, f"init: Not in {dist}: {WHEELS[1]}. Put it there, or install from a clone: `" in err) == (2, True)
    assert files_in(tmp_path) == set()


OF_GIT = {"url": "https://git.example/serving.git", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}}


@pytest.mark.parametrize("noted", [OF_GIT, {"url": "file:///some/clone", "dir_info": {}}], ids=["commit", "folder"])
def test_what_was_installed_from_a_commit_or_a_folder_is_built_from_it(init, tmp_path, dist, monkeypatch, noted):
    """tests/authors/release/test_project_folder.py builds them."""
    asked, changes = [], []

    def pip(words):
        asked[:] = words[words.index("--wheel-dir") + 2 :]
        for name in WHEELS:
            with zipfile.ZipFile(Path(words[words.index("--wheel-dir") + 1]) / name, "w") as wheel:
                record = "".join([*RECORD, *changes, "gemma_serving-1.dist-info/RECORD,,\n"])
                wheel.writestr("gemma_serving-1.dist-info/RECORD", record)
        return subprocess.CompletedProcess(words, 0, "", "")

    installed = SimpleNamespace(read_text=lambda _: "".join([*RECORD, "gemma_serving/__pycache__/a.pyc,,\n"]))
    monkeypatch.setattr(installation, "_direct_url", lambda: noted)
    monkeypatch.setattr(own_wheels, "distribution", lambda _: installed)
    monkeypatch.setattr(own_wheels, "CHECKOUT", None)
    monkeypatch.setattr(own_wheels, "ended", pip)
    source = f"git+{noted['url']}@{'a' * 40}" if noted is OF_GIT else "/some/clone"
    folders = ["packages/gcp-tpu", "packages/loadtest", "packages/localcloud"]
    code, _, err = init("chat", "--like", "l4-qat")
    assert (code, err) == (0, f"init: building the wheels from {source} (about 40 s)\n")
    join = "#subdirectory=" if noted is OF_GIT else "/"
    assert asked == [source, *(f"{source}{join}{folder}" for folder in folders)]
    assert files_in(tmp_path) == FILES
    first = f"'gemma-serving[deploy] @ {source}' '{source}#" if noted is OF_GIT else f"{source}[deploy]"
    assert first in installation.install_sentence("deploy").replace("'/some/clone[deploy]'", "/some/clone[deploy]")
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    changes.append("gemma_serving/b.py,sha256=2,1\n")
    code, _, err = init("--upgrade")
    assert (code, f"{source} has changed since it was installed. Run `" in err) == (2, True)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before


@pytest.mark.parametrize(
    ("last", "remedy"),
    [
        (
            "ERROR: git is not reachable\n  fatal: next\nnote: not pip's",
            "Make it reachable, with the package index, and run the same command again.",
        ),
        ("/bin/python: No module named pip", "-m ensurepip`, then the same command again."),
    ],
)
def test_a_source_that_cannot_be_built_is_one_sentence(init, tmp_path, monkeypatch, last, remedy):
    failed = subprocess.CompletedProcess([], 1, "", f"WARNING: first\n{last}\n")
    monkeypatch.setattr(installation, "_direct_url", lambda: OF_GIT)
    monkeypatch.setattr(own_wheels, "ended", lambda _: failed)
    code, _, err = init("chat", "--like", "l4-qat")
    sentence, first = err.splitlines()[1], last.partition("\n")[0]
    assert (code, sentence.endswith(remedy)) == (2, True)
    assert sentence.startswith(f"init: The wheels cannot be built from git+{OF_GIT['url']}@{'a' * 40}: {first}. ")
    assert files_in(tmp_path) == set()


def test_an_upgrade_writes_the_wheels_and_the_lock_again_and_nothing_else(init, tmp_path, dist):
    assert init("--upgrade")[0] == 2
    assert init("chat", "--like", "l4-qat")[0] == 0
    before = {name: (tmp_path / name).read_bytes() for name in files_in(tmp_path)}
    (tmp_path / "wheels" / "gemma_serving-0.0.1-py3-none-any.whl").write_text("old")
    (tmp_path / "wheels" / "mine-1-py3-none-any.whl").write_text("mine")
    (tmp_path / "wheels" / "requirements-try.txt").unlink()  # a folder of a version before that lock
    (dist / WHEELS[0]).write_text("new")
    code, out, _ = init("--upgrade")
    assert [line.strip() for line in out.partition("more):\n")[2].splitlines()] == TRIAL
    assert (code, named_in(out)) == (0, {name for name in FILES if name.startswith("wheels/")})
    after = {name: (tmp_path / name).read_bytes() for name in files_in(tmp_path)}
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert changed == {f"wheels/{WHEELS[0]}", "wheels/requirements.txt", "wheels/mine-1-py3-none-any.whl"}
    assert sha256(b"new").hexdigest() in (tmp_path / "wheels/requirements.txt").read_text()


def test_the_workflows_name_only_what_the_folder_has(init, tmp_path):
    code, out, _ = init("chat", "--like", "l4-qat", "--ci")
    assert (code, named_in(out)) == (0, files_in(tmp_path))
    workflows = {path.stem: path.read_text() for path in (tmp_path / ".github" / "workflows").iterdir()}
    assert workflows.keys() == {"deploy", "drift", "guard", "preview", "set-up", "teardown"}
    promised = {re.sub(r" [A-Z\[].*", "", line) for line in PROMISED.read_text().splitlines()}
    for path in (tmp_path / ".github").rglob("*"):
        if path.is_file() and path.parent.name != "setup":
            text = path.read_text()
            named = re.findall(r"(?<![\w/.-])(?:\./)?(\.github/[\w./-]+|scripts/[\w./-]+)", text)
            for name in named:
                assert (tmp_path / name).exists() or "CODEOWNERS" in name, (path.name, name)
            assert not re.search(r"\bmake\b|python -m (scripts|tools)|docs/\w+\.md", text), path.name
            assert "gemma_serving." not in text, f"{path.name} outlives the modules of its version"
            assert {*_gemma_words(text)} <= promised, path.name
    triggers = {name: {*yaml.load(text, yaml.BaseLoader)["on"]} for name, text in workflows.items()}  # noqa: S506 - `on` is a text
    assert [name for name, events in triggers.items() if "pull_request" in events] == ["preview"]
    (step,) = [
        step
        for step in yaml.safe_load(workflows["set-up"])["jobs"]["set-up"]["steps"]
        if "wheels/requirements-try.txt" in step.get("run", "")
    ]
    assert step["if"] == "github.event_name == 'pull_request'", "only this workflow runs the local cloud"
    assert all(
        (tmp_path / ".github" / "scripts").joinpath(name).stat().st_mode & 0o100
        for name in ("ci_plan.sh", "ci_preview.sh")
    )
