"""`localcloud shell`: a user's start-up file cannot replace the project's commands, Ctrl-C belongs to the shell, its exit code is passed on."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

from localcloud.environment import REMOVED, exports
from localcloud.shell import PROMPT, start_of

VARIABLES = {"PATH": f"/ours/bin:{os.environ['PATH']}", "GOOGLE_CLOUD_PROJECT": "local"}


@pytest.fixture
def home(tmp_path):
    """A home folder whose start-up file does what pyenv, conda and the Google Cloud SDK do."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / ".bashrc").write_text(
        f"export PATH=/theirs/bin:$PATH GOOGLE_CLOUD_PROJECT=real {REMOVED[0]}=real MINE=kept\n"
        "export gh_token=real PIP_INDEX_URL=https://user:pass@x/simple\nPS1='me> '\n"
    )
    return folder


def in_bash(home, state, words):
    start = start_of("/bin/bash", state, VARIABLES)
    environment = {**os.environ, **VARIABLES, **start.variables, "HOME": str(home)}
    shown = subprocess.run([*start.command, "-c", words], capture_output=True, text=True, env=environment, check=False)
    return shown.stdout.splitlines()


def test_the_users_start_up_file_is_read_and_the_clouds_environment_comes_after_it(home, tmp_path):
    found = in_bash(
        home,
        tmp_path,
        'echo "$PATH"; echo "$GOOGLE_CLOUD_PROJECT"; echo "$MINE"; '
        f'echo "${{{REMOVED[0]}-unset}} ${{gh_token-unset}} ${{PIP_INDEX_URL-unset}}"',
    )
    assert found == [VARIABLES["PATH"], "local", "kept", "unset unset unset"]


def test_a_shell_that_joins_by_eval_loses_its_credentials(tmp_path):
    script = f'{exports({"HF_TOKEN": "hf_local"})}\necho "${{GH_TOKEN-unset}} ${{CLOUDSDK_CORE_ACCOUNT-unset}} $HF_TOKEN $MINE"'
    given = {
        "PATH": os.environ["PATH"],
        "GH_TOKEN": "a\nMINE=b",
        "CLOUDSDK_CORE_ACCOUNT": "a",
        "HF_TOKEN": "b",
        "MINE": "c",
    }
    shown = subprocess.run(["sh", "-c", script], env=given, capture_output=True, text=True, check=False)
    assert shown.stdout == "unset unset hf_local c\n"


def test_the_prompt_says_where_one_is_and_the_history_is_the_clouds(home, tmp_path):
    prompt, history = in_bash(home, tmp_path, 'echo "$PS1"; echo "$HISTFILE"')
    assert prompt == f"{PROMPT}me> "
    assert history == str(tmp_path / "shell" / "history")


@pytest.mark.parametrize(
    ("shell", "variable"), [("/usr/bin/zsh", "ZDOTDIR"), ("/usr/bin/fish", "ENV"), ("/bin/dash", "ENV")]
)
def test_other_shells_get_their_own_start_up_file(shell, variable, tmp_path):
    start = start_of(shell, tmp_path, VARIABLES)
    path = tmp_path / "shell" / (".zshrc" if variable == "ZDOTDIR" else "shrc")
    assert start.variables[variable].startswith(str(tmp_path / "shell"))
    assert "export GOOGLE_CLOUD_PROJECT=local" in path.read_text()
    assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0


def read_until(descriptor, text, seconds=60):
    found, deadline, poll = "", time.monotonic() + seconds, select.poll()
    poll.register(descriptor, select.POLLIN)
    while text not in found:
        assert poll.poll(1000 * max(0.0, deadline - time.monotonic())), found
        found += os.read(descriptor, 4096).decode(errors="replace")
    return found


def own_shell(home, tmp_path, *, umask=0o22):
    """Start `localcloud shell` in a terminal. Return its process and the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.umask(umask)
        os.execve(  # noqa: S606
            sys.executable,
            [sys.executable, "-m", "localcloud", "shell", "--providers=standin", "--state", str(tmp_path / "state")],
            {**os.environ, "HOME": str(home), "SHELL": "/bin/bash", "TERM": "dumb"},
        )
    return pid, terminal


def left(pid, terminal):
    """Return the exit code of a shell."""
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status)


CONNECT = "import os, socket, urllib.parse as p; u = p.urlsplit(os.environ['LOCALCLOUD_URL']); socket.create_connection((u.hostname, u.port))"


def test_ctrl_c_ends_a_program_of_the_shell_and_not_the_cloud(home, tmp_path):
    """The program itself prints before it waits: Ctrl-C reaches it in the foreground."""
    pid, terminal = own_shell(home, tmp_path)
    read_until(terminal, f"{PROMPT}me> ")
    os.write(terminal, b"sh -c 'echo begun-$((1+1)); exec sleep 600'\n")
    read_until(terminal, "begun-2")
    os.write(terminal, b"\x03")
    read_until(terminal, f"{PROMPT}me> ")
    os.write(terminal, f'python -c "{CONNECT}" && echo alive-$((1+2)); exit 3\n'.encode())
    assert "alive-3" in read_until(terminal, "alive-3")
    assert left(pid, terminal) == 3


def test_a_second_shell_and_the_printed_command_join_the_cloud_that_runs(home, tmp_path):
    """Leaving the second one ends neither the cloud nor the first shell. Its files are the owner's alone, its own umask stays."""
    state = tmp_path / "state"
    first, terminal = own_shell(home, tmp_path)
    read_until(terminal, f"{PROMPT}me> ")
    shutil.rmtree(state / "shell")
    second, other = own_shell(home, tmp_path)
    joined = read_until(other, f"{PROMPT}me> ")
    assert "this shell uses the local cloud that runs on" in joined
    os.write(other, f'python -c "{CONNECT}" && echo alive-$((1+2))-$(umask); exit 4\n'.encode())
    read_until(other, "alive-3-0022")
    assert left(second, other) == 4
    assert not [path for path in (state / "shell").iterdir() if path.stat().st_mode & 0o77]

    command = [sys.executable, "-m", "localcloud", "run", "--state", str(state), "--", "true"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    printed = refused.stderr.split("`")[1]
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # noqa: PTH120 - a link of a virtual environment stays one
    words = f'{printed}; python -c "{CONNECT}" && echo joined'
    shown = subprocess.run(
        ["sh", "-c", words], capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    assert shown.stdout == "joined\n", shown.stderr
    os.write(terminal, b"exit 3\n")
    assert left(first, terminal) == 3
