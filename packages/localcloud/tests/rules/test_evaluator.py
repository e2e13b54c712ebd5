"""The evaluator is built once per content, leaves no modules behind, and names the command where there is none."""

import shutil

import pytest

from localcloud import go_build
from localcloud.tests.rules import evaluator


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A machine with an empty cache, and a `go` that writes its environment and arguments."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    if shutil.which("go"):
        pytest.skip("go is in /usr/bin")
    go, calls = tmp_path / "bin" / "go", tmp_path / "calls"
    builds = 'mkdir -p "$GOMODCACHE/big" && echo binary > "$4"'
    go.write_text(f'#!/bin/sh\necho "$GOFLAGS|$GOMODCACHE|$*" >> "{calls}"\n{builds}\n')
    go.chmod(0o755)
    return calls


def test_a_bare_machine_names_the_command_and_builds_once_only_if_told_to(compiler, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(evaluator.BUILD, raising=False)
    with pytest.raises(pytest.skip.Exception, match="LOCALCLOUD_EVALUATOR=build make test"):
        evaluator.program()
    assert not compiler.exists()
    monkeypatch.setenv(evaluator.BUILD, "build")
    there = evaluator.program()
    monkeypatch.delenv(evaluator.BUILD)
    assert evaluator.program() == there
    (call,) = compiler.read_text().splitlines()
    flags, modules, arguments = call.split("|")
    assert {"-mod=readonly", "-modcacherw"} <= set(flags.split())
    assert modules.startswith(str(tmp_path / "cache"))
    assert arguments.startswith("build -v -o ")
    left = [path.name for path in (tmp_path / "cache" / "gemma-serving" / "rules").iterdir()]
    assert sorted(left) == sorted(["lock", there.parent.name])
    assert "once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "fetching modules, 0 fetched"),
        (["go: downloading a v1"], "fetching modules, 1 fetched"),
        (["go: downloading a v1", "errors"], "compiling, 1 of about 842 packages"),
    ],
)
def test_a_build_says_how_far_it_is(tmp_path, lines, said):
    log = tmp_path / "build.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    assert go_build.progress(log, 842) == said
