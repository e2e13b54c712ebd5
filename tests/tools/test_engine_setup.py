"""Set-up takes the first way that works, does nothing the second time, and says clearly when there is no way."""

import json
import os
import shutil
import socketserver
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from dev.tools.engine import concurrent_build, model, release, setup
from dev.tools.engine.__main__ import main
from dev.tools.engine.model import LANGUAGE_EXEC, LANGUAGE_HOST, VERSION, EngineError, Source

ROOT = Path(__file__).resolve().parents[2]


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with an empty cache, nothing on PATH, and a virtual environment to link into."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    return tmp_path


def complete(folder, version="3.300.0"):
    """An official distribution: the CLI with its language host beside it."""
    executable(folder / LANGUAGE_HOST, "exit 0")
    return executable(folder / "pulumi", f"echo v{version}")


def test_the_users_own_engine_comes_first(bare):
    complete(bare / "bin")
    engine = setup.ensure()
    assert (engine.source, engine.version, engine.language_exec) == (Source.PATH, "3.300.0", None)


@pytest.mark.parametrize("version", ["3.199.0", "2.0.0"])
def test_an_engine_that_is_too_old_is_passed_over(bare, version, monkeypatch):
    complete(bare / "bin", version)
    monkeypatch.setattr(release, "responds", lambda: False)
    with pytest.raises(EngineError, match="none on PATH that is new enough"):
        setup.ensure()


def test_an_engine_on_path_that_cannot_run_python_is_passed_over(bare):
    executable(bare / "bin" / "pulumi", "echo v3.300.0")
    assert setup.on_path() is None


def test_our_own_link_is_not_taken_for_the_users_engine(bare, monkeypatch):
    complete(bare / "bin")
    setup.link(setup.ensure())
    monkeypatch.setenv("PATH", f"{bare / 'venv' / 'bin'}{os.pathsep}{bare / 'bin'}")
    engine = setup.on_path()
    assert engine is not None
    assert engine.executable == (bare / "bin" / "pulumi").resolve()


def built(bare):
    folder = model.cache_root() / VERSION / "build"
    executable(folder / LANGUAGE_EXEC, "exit 0")
    return executable(folder / "pulumi", f"echo v{VERSION}")


def test_an_engine_of_an_earlier_set_up_is_found_again_with_the_stand_in_beside_it(bare):
    path = built(bare)
    engine = setup.ensure()
    assert (engine.source, engine.executable) == (Source.BUILD, path)
    assert engine.language_exec == path.with_name(LANGUAGE_EXEC)
    assert setup.link(engine)
    assert path.with_name(LANGUAGE_HOST).is_file()


@pytest.mark.parametrize(("given", "taken"), [(None, "400"), ("off", "off")])
def test_the_link_runs_the_engine_with_its_arguments_and_less_garbage_collection(bare, given, taken):
    """Unless the user says how much."""
    executable(bare / "bin" / LANGUAGE_HOST, "exit 0")
    executable(bare / "bin" / "pulumi", 'case "$1" in version) echo v3.300.0;; *) echo "$GOGC: $@";; esac')
    setup.link(setup.ensure())
    environment = {key: value for key, value in os.environ.items() if key != "GOGC"} | (
        {"GOGC": given} if given else {}
    )
    link = bare / "venv" / "bin" / "pulumi"
    answer = subprocess.run([link, "up", "a b"], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout == f"{taken}: up a b\n"


@pytest.mark.parametrize("found", ["nothing", "site", "path", Source.RELEASE, Source.BUILD])
def test_the_engine_is_built_with_the_packages_only_if_it_will_be_built(bare, monkeypatch, found):
    asked, site = [], []
    monkeypatch.setattr(concurrent_build, "ensure", asked.append)
    monkeypatch.setattr(release, "responds", lambda: site.append("asked") or found == "site")
    if found == "path":
        complete(bare / "bin")
    elif isinstance(found, Source):
        complete(setup._folder(found))
    assert concurrent_build.main([sys.executable, "-c", "import sys, time; time.sleep(1); sys.exit(3)"]) == 3
    assert asked == ([[Source.BUILD]] if found == "nothing" else [])
    assert bool(site) is (found in {"nothing", "site"})


def test_without_any_way_the_message_names_both_ways_out(bare, monkeypatch, capsys):
    monkeypatch.setattr(release, "responds", lambda: False)
    assert main([]) == 1
    said = capsys.readouterr().err
    assert "Install Pulumi from" in said
    assert "or install Go 1.26" in said
    assert "Traceback" not in said


def test_a_build_that_does_not_compile_leaves_nothing_and_shows_the_compilers_words(bare, monkeypatch):
    executable(bare / "bin" / "go", "echo 'cannot find module'; exit 3")
    monkeypatch.setenv("PATH", f"{bare / 'bin'}:/usr/bin:/bin")
    with pytest.raises(EngineError, match="cannot find module"):
        setup.ensure([Source.BUILD])
    assert not (model.cache_root() / VERSION / "build").exists()


def test_a_result_that_says_another_version_is_removed(bare, monkeypatch):
    def wrong(folder):
        executable(folder / LANGUAGE_EXEC, "exit 0")
        executable(folder / "pulumi", "echo v1.0.0")

    monkeypatch.setattr(setup.build, "build", wrong)
    with pytest.raises(EngineError, match="does not report version"):
        setup.ensure([Source.BUILD])
    assert not (model.cache_root() / VERSION / "build").exists()


def test_the_json_report_is_one_object(bare, capsys):
    complete(bare / "bin")
    assert main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["languageHost"] == "own"
    assert report["changed"] is True


def test_the_version_that_is_built_is_the_version_that_the_module_files_require(subtests):
    text = (ROOT / "dev" / "tools" / "engine" / "golang" / "go.mod").read_text()
    for module in ("pkg/v3", "sdk/v3"):
        with subtests.test(module):
            assert f"github.com/pulumi/pulumi/{module} v{VERSION}" in text


@pytest.fixture
def runner(tmp_path):
    """A runner: its checkout with an environment of Python, an empty home, and a proxy that only records what is asked of it."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Recorder) as proxy:
        proxy.asked = []
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        (tmp_path / "home").mkdir()
        checkout = tmp_path / "checkout"
        checkout.mkdir()
        for name in ("dev", "packages"):
            (checkout / name).symlink_to(ROOT / name)
        variables = {
            "HOME": str(tmp_path / "home"),
            "RUNNER_TEMP": str(tmp_path),
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": f"{checkout}:{checkout / 'packages'}",
            **dict.fromkeys(("https_proxy", "HTTPS_PROXY"), f"http://127.0.0.1:{proxy.server_address[1]}"),
        }
        executable(tmp_path / "bin" / "go", f"touch {tmp_path / 'compiled'}; exit 1")
        executable(tmp_path / "bin" / "pulumi", "echo v3.300.0")
        executable(tmp_path / "bin" / LANGUAGE_HOST, "exit 0")

        def step(file, name):
            (script,) = [step["run"] for step in steps_of(file) if step.get("name") == name]
            return subprocess.run(
                ["bash", "-eo", "pipefail", "-c", script],
                cwd=checkout, env=variables, capture_output=True, text=True, check=False, timeout=120,
            )  # fmt: skip

        yield SimpleNamespace(folder=tmp_path, checkout=checkout, step=step, asked=proxy.asked)
        proxy.shutdown()


class _Recorder(socketserver.StreamRequestHandler):
    def handle(self):
        self.server.asked.append(self.rfile.readline().decode())


def steps_of(file):
    body = yaml.safe_load((ROOT / ".github" / file).read_text())
    return body["runs"]["steps"] if "runs" in body else body["jobs"]["set-up"]["steps"]


def python_of(runner):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", runner.checkout / ".venv"], check=True, timeout=60)


@pytest.mark.parametrize("has_pulumi", [True, False], ids=["another Pulumi", "no Pulumi"])
def test_a_job_with_credentials_runs_no_installer_if_the_engine_is_missing(runner, has_pulumi):
    python_of(runner)
    if not has_pulumi:
        (runner.folder / "bin" / "pulumi").unlink()
    done = runner.step("actions/unpack/action.yml", "Link the engine")
    assert (done.returncode, runner.asked) == (1, [])
    assert not (runner.folder / "compiled").exists()
    assert done.stderr == (
        f"engine: {runner.folder}/home/.cache/gemma-serving/engine/{VERSION} has no Pulumi engine. Install it: run `make setup`.\n"
    )


def test_a_job_with_credentials_gets_the_engine_of_the_job_that_installs(runner):
    """At the pinned version, although the runner has another Pulumi on PATH."""
    python_of(runner)
    cache = runner.folder / "home" / ".cache" / "gemma-serving"
    complete(cache / "engine" / VERSION / "release", VERSION)
    assert runner.step("workflows/set-up.yml", "Install the engine").returncode == 0
    packed = runner.step("workflows/set-up.yml", "Pack")
    assert packed.returncode == 0, packed.stderr
    shutil.rmtree(cache)
    shutil.rmtree(runner.checkout / ".venv")
    for name in ("Unpack", "Use the Python of this runner", "Link the engine"):
        done = runner.step("actions/unpack/action.yml", name)
        assert done.returncode == 0, (name, done.stderr)
    shown = subprocess.run(
        [runner.checkout / ".venv/bin/pulumi", "version"], capture_output=True, text=True, check=True
    )
    assert (shown.stdout, runner.asked) == (f"v{VERSION}\n", [])
