"""The verdicts of examples/one-evening.sh on planted logs, and its end after a failed step or an unclean receipt. The commands are fakes."""

import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "one-evening.sh"
GEMMA = """\
#!/bin/sh
echo "$@" >>"$PLANTED/calls"
for last in "$@"; do :; done
case $1 in
plan) printf '    "most_usd": 1.35,\\n    "usd_per_hour": 1.05,\\n' ;;
init) echo "maxRunDuration: 4h" >"Pulumi.$2.yaml" ;;
teardown) cat "$PLANTED/receipt" >"$last" ;;
esac
cat "$PLANTED/$1-$2" 2>/dev/null
[ ! -e "$PLANTED/$1-$2-fails" ]
"""
TWICE = "Loading weights took {} seconds\nLoading weights took {} seconds\n"
PLANTED = {
    "service-disabled-without-errors": {"false": ("up-evening-l4", "API has not been used in project 1 before")},
    "run-l4-driver": {
        "true": ("logs-evening-l4", "INFO:     Application startup complete."),
        "false": ("logs-evening-l4", "Error 803: system has unsupported display driver\nApplication startup complete."),
    },
    "node-patch": {"true": ("logs-evening-tpu", "[model.py:1] Using max model len 4096")},
    "tpu-guest-attributes-namespace": {
        "true": ("up-evening-tpu", "evening-tpu deployed in 12 min."),
        "false": ("up-evening-tpu", "not ready after 1 h and published no guest attributes in gemma-serving/."),
    },
    "tpu-boot-disk-left": {"false": ("logs-evening-tpu", "OSError: [Errno 28] No space left on device")},
    "run-network-without-direct-vpc": {
        "true": ("logs-evening-l4", TWICE.format("136.86", "12.83")),
        "false": ("logs-evening-l4", TWICE.format("20.51", "12.83")),
    },
    "tpu-container-reaches-the-chips": {
        "true": ("smoke-evening-tpu", '{"verdict": "passed", "passed": true}'),
        "false": ("logs-evening-tpu", "Unable to initialize backend 'tpu': UNKNOWN"),
    },
    "tpu-machine-writes-its-log": {
        "true": ("logs-evening-tpu", "12-01 09:14:26 server INFO"),
        "false": ("logs-evening-tpu", "logs: no logs of stack evening-tpu"),
    },
    "os-login-shuts-out-metadata-keys": {"false": ("smoke-evening-tpu", "Permission denied (publickey).")},
}
"""Entry -> verdict -> the command whose output has a line that decides it."""


@pytest.fixture
def evening(tmp_path, monkeypatch):
    shims = {"gemma": GEMMA, "pulumi": "#!/bin/sh\n", "sleep": "#!/bin/sh\nexec /bin/sleep 0.01\n"}
    (tmp_path / "bin").mkdir()
    for name, text in shims.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "receipt").write_text('{"clean": true, "held": []}')
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "Pulumi.yaml").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PLANTED", str(tmp_path / "planted"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")

    def run():
        done = subprocess.run(
            [SCRIPT], cwd=tmp_path / "project", input="yes\n", capture_output=True, text=True, check=False
        )
        torn = re.findall(r"(?m)^teardown (\S+) --yes", (tmp_path / "planted" / "calls").read_text())
        return done.returncode, done.stdout + done.stderr, torn

    return run


@pytest.mark.parametrize(
    ("entry", "verdict"),
    [
        pytest.param(entry, verdict, id=f"{entry}-{verdict}")
        for entry, verdicts in PLANTED.items()
        for verdict in verdicts
    ],
)
def test_a_line_of_a_log_decides_its_entry(evening, tmp_path, entry, verdict):
    log, text = PLANTED[entry][verdict]
    (tmp_path / "planted" / log).write_text(f"{text}\n")
    code, out, torn = evening()
    assert f"\n{entry}: {verdict}\n" in out
    assert (code, torn) == (int(verdict == "false"), ["evening-l4", "evening-tpu"])
    others = re.findall(r"(?m)^([a-z0-9-]+): (?:true|false)$", out)
    assert set(others) <= {entry, "tpu-machine-writes-its-log", "run-l4-driver"}


def test_a_failed_step_ends_its_stack_and_the_other_is_tried(evening, tmp_path):
    (tmp_path / "planted" / "smoke-evening-l4-fails").touch()
    code, out, torn = evening()
    assert (code, torn) == (1, ["evening-l4", "evening-tpu"])
    assert "bench evening-l4" not in (tmp_path / "planted" / "calls").read_text()
    assert list((tmp_path / "project").glob("Pulumi.evening-*")) == [], out


def test_without_an_end_of_its_run_no_tpu_is_requested(evening, tmp_path):
    assert evening()[0] == 0
    gemma = tmp_path / "bin" / "gemma"
    gemma.write_text(gemma.read_text().replace("maxRunDuration", "otherDuration"))
    code, out, _ = evening()
    assert (code, "no tpu.maxRunDuration" in out) == (1, True)
    calls = (tmp_path / "planted" / "calls").read_text()
    assert calls.count("up evening-tpu") == 2


@pytest.mark.parametrize("receipt", ['{"clean": false, "held": []}', ""])
def test_after_an_unclean_receipt_nothing_more_is_deployed_and_the_next_start_names_it(evening, tmp_path, receipt):
    (tmp_path / "planted" / "receipt").write_text(receipt)
    code, out, torn = evening()
    assert (code, torn) == (1, ["evening-l4"])
    assert "evening-l4 may still cost money. Run: gemma teardown evening-l4\n" in out
    code, out, torn = evening()
    assert (code, torn) == (1, ["evening-l4"])
    assert "Run: gemma teardown evening-l4 && rm Pulumi.evening-l4.yaml\n" in out
