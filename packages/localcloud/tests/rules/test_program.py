"""The evaluator's program is built once per content, leaves no modules behind, and says why there is none."""

import shutil

import pytest

from localcloud import go_build
from localcloud.tests.rules import built, program
from localcloud.tests.rules.program import EvaluatorMissingError


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with an empty cache and nothing on PATH but a shell's own commands."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    if shutil.which("go"):
        pytest.skip("go is in /usr/bin")
    return tmp_path


def compiler(bare, text):
    """A `go` that writes its environment and arguments, and does what `text` says."""
    path = bare / "bin" / "go"
    path.write_text(f'#!/bin/sh\necho "$GOFLAGS|$GOMODCACHE|$PWD|$*" >> "{bare}/calls"\n{text}\n')
    path.chmod(0o755)


WORKS = 'mkdir -p "$GOMODCACHE/big" && echo binary > "$4"'


def test_a_bare_machine_compiles_nothing_and_names_the_command_unless_told_to_build(bare, monkeypatch):
    compiler(bare, WORKS)
    monkeypatch.delenv(built.BUILD, raising=False)
    with pytest.raises(pytest.skip.Exception, match="LOCALCLOUD_EVALUATOR=build make test"):
        built.evaluator_program()
    assert not (bare / "calls").exists()
    monkeypatch.setenv(built.BUILD, "build")
    there = built.evaluator_program()
    monkeypatch.delenv(built.BUILD)
    assert built.evaluator_program() == there == program.found()


def test_a_build_happens_once_and_leaves_no_modules(bare, capsys):
    compiler(bare, WORKS)
    path = program.ensure()
    assert path == program.found() == program.ensure()
    (call,) = (bare / "calls").read_text().splitlines()
    flags, modules, _, arguments = call.split("|")
    assert "-mod=readonly" in flags
    assert "-modcacherw" in flags
    assert modules.startswith(str(bare / "cache"))
    assert arguments.startswith("build -v -o ")
    left = sorted(path.name for path in (bare / "cache" / "gemma-serving" / "rules").iterdir())
    assert left == sorted(["lock", path.parent.name])
    assert "once" in capsys.readouterr().err


def test_a_program_that_does_not_compile_leaves_nothing_and_shows_the_compilers_words(bare):
    compiler(bare, "echo 'main.go:1: syntax error'; exit 3")
    with pytest.raises(EvaluatorMissingError, match=r"(?s)exit code 3.*main\.go:1: syntax error"):
        program.ensure()
    assert program.found() is None
    assert [path.name for path in (bare / "cache" / "gemma-serving" / "rules").iterdir()] == ["lock"]


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
