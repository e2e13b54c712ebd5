"""A password in the URL of a backend is in no command's output and in no file, whatever the engine says about the URL."""

import contextlib
import io
import os
import shutil
import string
from importlib import import_module
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.engine import runner
from gemma_serving.engine.backend import BACKEND_VARIABLE, shown_url
from gemma_serving.scripts.cli.command import run_command
from tests.laws import examples

ROOT = Path(__file__).parents[2]
STACK = "tpu-v6e1"
COMMANDS = (
    "gemma.__main__",
    f"status --stack {STACK}",
    "status",
    f"up --stack {STACK} --yes",
    f"up --stack {STACK} --dry-run --json",
    f"preview run --stack {STACK}",
    f"doctor --stack {STACK}",
    f"teardown --stack {STACK} --yes",
    "teardown --all --dry-run",
    f"stage_model --stack {STACK} --list",
    f"logs --stack {STACK}",
    f"alerts --stack {STACK}",
    f"smoke --stack {STACK}",
    f"bench --stack {STACK} --out nowhere",
    f"connect chat hello --stack {STACK}",
    f"save_token apiKey --stack {STACK} --generate",
    f"plan --stack {STACK}",
)
ENGINE = """#!/bin/sh
case "$1" in
whoami) test -z "$REACHED" || { printf '{"url": "%s"}' "$PULUMI_BACKEND_URL"; exit 0; } ;;
preview) printf '{"diagnostics": [{"severity": "error", "message": "unable to open bucket %s: refused"}]}' "$PULUMI_BACKEND_URL" ;;
esac
test "$1 $2" != "stack ls" -o -z "$REACHED" || { echo '[]'; exit 0; }
echo "error: unable to open bucket $PULUMI_BACKEND_URL: parse \\"$PULUMI_BACKEND_URL\\": refused" >&2
exit 255
"""
"""An engine that reaches its backend only with REACHED, and quotes its URL in each error, as `gocloud.dev` does."""
PASSWORDS = st.text(string.ascii_letters + string.digits + "-._~!$*+,;=/?#% é", min_size=8, max_size=24).map(
    "S3c".__add__
)
IN_QUERY = ("password", "sslpassword", "sas_token", "secret_key", "accessKey", "PWD", "token")


@st.composite
def urls(draw):
    """Draw a URL with a password, and the password as it is there."""
    password = draw(PASSWORDS)
    is_raw = draw(st.booleans()) and not set(password) & set(" é?#")
    written = password if is_raw else quote(password, safe="")
    if draw(st.booleans()):
        return f"postgres://bob:{written}@127.0.0.1:1/db?sslmode=disable", written
    options = ["region=x", f"{draw(st.sampled_from(IN_QUERY))}={quote(password, safe='')}"]
    return f"azblob://state?{'&'.join(draw(st.permutations(options)))}", quote(password, safe="")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with one stack, and an engine on which no command waits."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("Pulumi.yaml", f"Pulumi.{STACK}.yaml"):
        shutil.copy(ROOT / name, folder)
    (folder / "engine").write_text(ENGINE)
    (folder / "engine").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(runner, "pulumi", lambda: str(folder / "engine"))
        patch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "none.json"))
        patch.setenv("PULUMI_CONFIG_PASSPHRASE", "x")
        yield folder


def printed(line):
    """Return all that a command prints."""
    name, *words = line.split()
    if name == "gemma.__main__":
        name, run = "gemma", import_module("gemma_serving.scripts.gemma.__main__").main
    else:
        command = import_module(f"gemma_serving.scripts.{name}.__main__").COMMAND
        run = lambda given: run_command(command, given)  # noqa: E731 - the other form of `main`
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        run(words)
    return out.getvalue()


@pytest.mark.law
@settings(max_examples=examples(test=60, part=200, night=2000))
@given(line=st.sampled_from(COMMANDS), url=urls(), is_reached=st.booleans())
def test_no_command_prints_or_writes_the_password_of_the_backend(project, line, url, is_reached):
    address, password = url
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BACKEND_VARIABLE, address)
        patch.setenv("REACHED", "1" if is_reached else "")
        assert password not in printed(line)
        assert password not in shown_url()
        assert "@" not in shown_url() or "[masked]@" in shown_url()
    files = [Path(folder, name) for folder, _, names in os.walk(project) for name in names]
    assert not [path for path in files if password in path.read_text(errors="replace")]


def test_an_error_about_the_backend_names_the_rest_of_its_url(project, monkeypatch):
    monkeypatch.setenv(BACKEND_VARIABLE, "postgres://bob:S3cretPw9x@127.0.0.1:1/db?password=S3cretPw9x")
    monkeypatch.setenv("REACHED", "")
    assert "unable to open bucket postgres://bob:[masked]@127.0.0.1:1/db?password=[masked]: parse" in printed(
        f"status --stack {STACK}"
    )
