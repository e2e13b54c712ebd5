"""The names of the four distributions belong to nobody at a package index: no printed command takes a package by its name."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gemma_serving import VERSION
from gemma_serving.contracts import installation
from gemma_serving.scripts.init import __main__ as init
from tests.tracked import tracked

ROOT = Path(__file__).resolve().parents[3]
NAMES = [name.replace("_", "-") for name in installation.DISTRIBUTIONS]
INSTALLS = re.compile(r"\b(?:pip (?:install|download)|pipx|uvx|uv (?:add|tool|pip install)) [^`\n]*")
BARE = re.compile(rf"(?<![\w./@-])(?:{'|'.join(NAMES)})(?=[\[=<>~\s'\"]|$)")
"""A distribution's name where pip and uv read the name of a package."""
EXEMPT = {"CHANGELOG.md", "dev/docs/releasing.md"}
"""On the second page, the owner of the names compares what they give with SHA256SUMS."""
OURS = re.compile("|".join(installation.DISTRIBUTIONS))
LOCKED = {
    name: version
    for lock in init._LOCKS.values()
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / lock).read_text(), re.MULTILINE)
}


def texts():
    for path in tracked(suffix=""):
        name = path.relative_to(ROOT).as_posix()
        is_text = name.endswith((".md", ".py", ".sh", ".yml", ".in", "Makefile"))
        if is_text and "tests/" not in name and name not in EXEMPT and not path.is_symlink():
            yield name, path.read_text()


def test_no_command_in_a_page_a_message_or_a_workflow_names_a_distribution():
    found = [(name, command) for name, text in texts() for command in INSTALLS.findall(text) if BARE.search(command)]
    assert found == []


PRINTED = sorted(
    {
        command.strip("` ")
        for name, text in texts()
        if name.endswith(".md")
        for command in re.findall(r"(?:[\w./]*pip install|uvx) [^`\n]*", text)
        if OURS.search(command) or name == "docs/folder.md"
    }
)


def wheel(name, version, requires=()):
    """The bytes of a wheel without code."""
    packed, folder = io.BytesIO(), f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *requires, ""]
    with zipfile.ZipFile(packed, "w") as archive:
        for file, text in {
            "METADATA": "\n".join(metadata),
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            archive.writestr(zipfile.ZipInfo(f"{folder}/{file}"), text)  # without the time of now
    return packed.getvalue()


def required(path, extra=""):
    lines = (ROOT / "requirements" / path).read_text().splitlines()
    condition = f'; extra == "{extra}"' if extra else ""
    provided = [f"Provides-Extra: {extra}"] if extra else []
    return [*provided, *(f"Requires-Dist: {line}{condition}" for line in lines if line and not line.startswith("#"))]


@pytest.fixture
def index():
    """A package index where a stranger has the four names. Returns its URL and the paths that were requested."""
    asked = []

    class Simple(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            name, file = re.fullmatch(r"/simple/([^/]+)/?(.*)", self.path).groups()
            versions = ["99.0", VERSION] if name in NAMES else [LOCKED.get(name, "1.0")]
            if file:
                body = wheel(name, file.split("-")[1])
            else:
                files = [f"{name.replace('-', '_')}-{version}-py3-none-any.whl" for version in versions]
                body = "".join(f'<a href="/simple/{name}/{each}">{each}</a>' for each in files).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream" if file else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Simple)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/simple", asked
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path, index, monkeypatch):
    """Run a command where the wheels are, against the stranger's index. Returns what pip would install: name to URL."""
    extras = [
        *required("base.in", "deploy"),
        *required("wheels.in", "deploy"),
        *required("localcloud.in", "localcloud"),
    ]
    for name in NAMES:
        requires = [*required("plan.in"), *extras] if name == "gemma-serving" else ()
        file = f"{name.replace('-', '_')}-{VERSION}-py3-none-any.whl"
        (tmp_path / file).write_bytes(wheel(name, VERSION, requires))
    (tmp_path / ".venv").symlink_to(sys.prefix)
    monkeypatch.setattr(installation, "CHECKOUT", None)
    product = tmp_path / f"gemma_serving-{VERSION}-py3-none-any.whl"
    monkeypatch.setattr(installation, "_direct_url", lambda: {"url": product.as_uri(), "archive_info": {}})
    lines = [*required("plan.in"), *extras]
    needed = {re.split(r"[=<>]", line.removeprefix("Requires-Dist: "))[0].replace("_", "-") for line in lines}
    hashes = {name: hashlib.sha256(wheel(name, LOCKED[name])).hexdigest() for name in needed & {*LOCKED}}
    lock = [f"{name}=={LOCKED[name]} \\\n    --hash=sha256:{digest}\n" for name, digest in hashes.items()]
    (tmp_path / "lock.txt").write_text("".join(lock))
    monkeypatch.setattr(
        init, "_LOCKS", dict.fromkeys(init._LOCKS, tmp_path / "lock.txt")
    )  # with the hashes of this index
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text(init._TEXTS["requirements.txt"])
    init._write(init._packages())

    def ran(command):
        environment = {
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "PIP_INDEX_URL": index[0],
            "UV_DEFAULT_INDEX": index[0],
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_CACHE_DIR": "1",
            "PIP_DRY_RUN": "1",
            "PIP_IGNORE_INSTALLED": "1",
            "PIP_REPORT": str(tmp_path / "report.json"),
        }
        command = command.replace("git+REPOSITORY_URL", str(product))
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if command.startswith("uvx"):
            assert any("/msgspec/" in path for path in index[1]), done.stderr
            return {}
        assert done.returncode == 0, done.stderr
        report = json.loads((tmp_path / "report.json").read_text())["install"]
        return {each["metadata"]["name"]: each["download_info"]["url"] for each in report}

    return ran


def test_the_next_command_of_init_is_that_of_the_page():
    command, _, _size = init._INSTALL[0].partition("  # ")
    assert command.replace("--quiet ", "") in PRINTED


def test_the_index_gives_a_stranger_s_package_to_a_command_with_a_name(run, index):
    assert run("pip install gemma-serving")["gemma-serving"].startswith(f"{index[0]}/gemma-serving/gemma_serving-99.0")
    assert run(f"pip install ./gemma_serving-{VERSION}-py3-none-any.whl[deploy]")["gcp-tpu-provider"].startswith(
        index[0]
    )


@pytest.mark.parametrize("command", [*PRINTED, "a message"])
def test_no_printed_command_takes_it(run, index, command):
    if command == "a message":
        command = installation.install_sentence("deploy").partition("`")[2].rstrip("`.")
    installed = run(command)
    assert [path for path in index[1] if any(name in path for name in NAMES)] == []
    assert all(url.startswith("file:") for name, url in installed.items() if name in NAMES)
    assert command.startswith("uvx") or {*installed} & {*NAMES}
