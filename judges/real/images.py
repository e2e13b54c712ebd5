"""The folders of images/ without their base image: their packages, the base's check, the replaced modules, upstream's tests of them."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Final

from contracts.errors import CommandRefusedError
from judges.real.home import ROOT, Need, RealHome, run
from judges.real.rows import JudgeReport, NotJudgedError, Row, print_progress, require
from judges.real.upstream_tests import Modules, judge_tests
from judges.tpu_compiler import environment
from judges.tpu_compiler.wheels import LEFT_OUT, Wheels, wheels_for

LINEAR: Final = "vllm-tpu-w4a16"
EXPERTS: Final = "vllm-tpu-w4a16-experts"
BASE_VERSION: Final = "0.30.1rc1.dev221+gc8d7a7dd1"
"""vLLM of the base of both folders. The environment with the packages of its day stands for it."""
UPSTREAM: Final = "https://github.com/vllm-project/tpu-inference"
QUANTIZATION: Final = "tpu_inference.layers.jax.quantization"
MODULES: Final = (f"{QUANTIZATION}.wna16", f"{QUANTIZATION}.compressed_tensors", "tpu_inference.models.jax.gemma4")
TESTS: Final = tuple(
    f"tests/{path}.py"
    for path in (
        "layers/jax/quantization/test_wna16",
        "layers/jax/quantization/test_compressed_tensors",
        "models/jax/test_gemma4",
        "models/jax/test_gemma4_kv_share",
        "models/jax/test_gemma4_ple",
    )
)
_FETCH_LIMIT_S: Final = 120
_NO_BUILDX: Final = "Docker has no buildx. Install docker-buildx"


def images(home: RealHome) -> Sequence[Row]:
    """Judge the folders of images/. None of them is built: the base is on Docker Hub."""
    base = wheels_for(BASE_VERSION).wheels
    report = JudgeReport("images/", base.words)
    _without_buildx(report)
    for name in (LINEAR, EXPERTS):
        report.not_judged(
            f"{name}: the image builds and serves", "its base is on Docker Hub, and its server needs a TPU"
        )
    try:
        python = _environment(home, base)
    except (CommandRefusedError, NotJudgedError) as reason:
        report.not_judged(f"the packages, modules and tests of {LINEAR} and {EXPERTS}", str(reason))
        return report.rows
    _linear(report, home, python)
    _experts(report, home, python)
    return report.rows


def _environment(home: RealHome, base: Wheels) -> Path:
    """Return the interpreter of the packages that stand for the base's."""
    disk_gib = 0.0 if environment.installed(base) else base.disk_gb * 1e9 / 2**30
    what = f"packages of the base's day ({base.name})"
    home.get(Need(what=what, where=str(environment.folder(base)), disk_gib=round(disk_gib, 1), takes_s=base.install_s))
    return environment.install(base, report=print_progress)


def _without_buildx(report: JudgeReport) -> None:
    with report.judging("images/build.sh names the missing package where Docker has no buildx") as notes:
        if shutil.which("docker") is None:
            raise NotJudgedError("docker is not installed")
        if run(["docker", "buildx", "version"]).returncode == 0:
            raise NotJudgedError("this machine's Docker has buildx")
        done = run([str(ROOT / "images/build.sh"), LINEAR])
        require(
            done.returncode == 1 and _NO_BUILDX in done.stderr, f"exit code {done.returncode}: {done.stderr.strip()}"
        )
        notes.append(done.stderr.strip())


def _linear(report: JudgeReport, home: RealHome, python: Path) -> None:
    """Judge the folder that installs a release over the base."""
    folder = ROOT / "images" / LINEAR
    modules = Modules(python=python, folder=_empty(home, LINEAR))
    with report.judging(f"{LINEAR}: the index has each package by its hash") as notes:
        _install(modules, folder / "requirements.txt")
        notes.append(", ".join(_pins(folder / "requirements.txt")))
    with report.judging(
        f"{LINEAR}: the build's check finds each requirement among the packages of the base's day"
    ) as notes:
        code, text = modules.run(str(folder / "check.py"), *_checked(folder))
        unmet = {
            line for line in text.splitlines() if not re.search(rf"requires ({'|'.join(LEFT_OUT)})\b.* not inst", line)
        }
        require(not unmet, " ".join(sorted(unmet)))
        require(code in {0, 1}, f"exit code {code}")
        notes.append(f"{text.count('requires')} packages that the environment leaves out were not judged")
    with report.judging(f"{LINEAR}: the installed modules import with the packages of the base's day"):
        modules.require_imports(["vllm", "tokamax", *MODULES])
    judge_tests(report, LINEAR, modules, TESTS)


def _experts(report: JudgeReport, home: RealHome, python: Path) -> None:
    """Judge the folder that replaces a package with the one of an upstream commit."""
    folder = ROOT / "images" / EXPERTS
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    modules = Modules(python=python, folder=_empty(home, EXPERTS))
    with report.judging(f"{EXPERTS}: the index has each nightly of tokamax by its hash") as notes:
        pins = _pins(folder / "tokamax.txt")
        for pin in pins:
            _install(modules, folder / "tokamax.txt", only=pin)
        notes.append(f"{len(pins)} packages")
    checkout = modules.folder / "upstream"
    with report.judging(f"{EXPERTS}: upstream's commit has the class, and pins a nightly of tokamax with a known hash"):
        _fetch(checkout, re.findall(r"^ARG COMMIT=(\w+)$", text, re.MULTILINE)[0])
        looked_for, path = re.findall(r"grep --quiet '([^']+)' /tmp/upstream/(\S+)", text)[0]
        require(looked_for in (checkout / path).read_text(encoding="utf-8"), f"{path} has no {looked_for}")
        pin = re.findall(r"^tokamax==\S+", (checkout / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)[0]
        require(pin in _pins(folder / "tokamax.txt"), f"tokamax.txt has no {pin}")
        _install(modules, folder / "tokamax.txt", only=pin)
    with report.judging(f"{EXPERTS}: the replaced modules import with the packages of the base's day"):
        _require_checkout(checkout)
        for name in ("tpu_inference", "tests"):
            shutil.copytree(checkout / name, modules.folder / name)
        modules.require_imports(["tokamax", *MODULES])
    judge_tests(report, EXPERTS, modules, TESTS)


def _fetch(checkout: Path, commit: str) -> None:
    """Fetch the commit as the Dockerfile does. Raises NotJudgedError if upstream's repository cannot be reached."""
    checkout.mkdir()
    steps = (
        ("init", "--quiet"),
        ("fetch", "--quiet", "--depth=1", UPSTREAM, commit),
        ("checkout", "--quiet", "--detach", "FETCH_HEAD"),
    )
    for step in steps:
        try:
            done = run(
                ["git", *step], folder=checkout, limit_s=_FETCH_LIMIT_S, environment={"GIT_TERMINAL_PROMPT": "0"}
            )
        except TimeoutExpired:
            raise NotJudgedError(f"{UPSTREAM} did not answer within {_FETCH_LIMIT_S} s") from None
        if "unable to access" in done.stderr:
            raise NotJudgedError(f"{UPSTREAM} cannot be reached here")
        _succeeded(done)
    found = run(["git", "rev-parse", "HEAD"], folder=checkout).stdout.strip()
    require(found == commit, f"upstream gave {found} instead of {commit}")


def _require_checkout(checkout: Path) -> None:
    if not (checkout / "tpu_inference").is_dir():
        raise NotJudgedError("upstream's commit is not here")


def _install(modules: Modules, requirements: Path, *, only: str = "") -> None:
    """Install pinned packages alone into the folder, as the Dockerfile does. `only` is one NAME==VERSION of the file."""
    lines = [line for line in requirements.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    chosen = modules.folder / "chosen.txt"
    chosen.write_text("\n".join(line for line in lines if not only or line.startswith(f"{only} ")), encoding="utf-8")
    options = ("--quiet", f"--python={modules.python}", "--no-deps", "--require-hashes", f"--target={modules.folder}")
    _succeeded(run([environment.find_uv(), "pip", "install", *options, "--requirement", str(chosen)], limit_s=600))


def _pins(requirements: Path) -> list[str]:
    """Return NAME==VERSION of each line."""
    return re.findall(r"^\S+==\S+", requirements.read_text(encoding="utf-8"), re.MULTILINE)


def _checked(folder: Path) -> list[str]:
    """Return the distributions whose requirements the Dockerfile checks."""
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    return re.findall(r"check\.py ([a-z -]+)$", text, re.MULTILINE)[-1].split()


def _empty(home: RealHome, name: str) -> Path:
    folder = home.folder / "images" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _succeeded(done: CompletedProcess[str]) -> None:
    lines = done.stderr.strip().splitlines()
    require(done.returncode == 0, " ".join(lines[-3:]) if lines else f"exit code {done.returncode}")
