"""SDKs of a Pulumi package: sources in a language, and the files that a registry of that language takes.

The sources are those of `pulumi package gen-sdk`. A Go SDK also has a go.mod, because each SDK is a module of its own.
Bytes follow from the schema, the locks in this folder and SOURCE_DATE_EPOCH.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from authors.release import wheels
from tools.engine.model import VERSION as ENGINE_VERSION
from tools.languages import programs
from tools.languages.generator import Language
from tools.languages.generator import generate as run_generator

NPM: Final = Path(__file__).with_name("npm")
"""package.json and its lock: the TypeScript compiler, and the packages whose types an SDK uses."""
_PLUGIN_FACTS: Final = "pulumi-plugin.json"
_GO: Final = "1.25"
"""Oldest Go of an SDK: that of the Pulumi module which it requires."""
_LIMIT_S: Final = 900
_LINES_SHOWN: Final = 12
_PACKED_TABLES: Final = """\
[tool.setuptools]
packages = {packages}

[tool.setuptools.package-data]
"*" = ["py.typed", "{facts}", "*.pyi"]
"""


class SdkError(Exception):
    """The SDK was not made. The message names the cause and the next step."""


def generate(schema: Path, language: Language, out: Path) -> Path:
    """Write the SDK of a package to a new or empty folder and return it.

    `schema` is a schema.json. The first call builds the generator with Go (`python -m tools.languages`). Raises SdkError; nothing is written then.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SdkError(f"{out} is not empty: pass a new folder, or delete it.")
    try:
        text = schema.read_text(encoding="utf-8")
    except OSError as error:
        raise SdkError(f"{schema} cannot be read ({error.strerror}): pass the path of a schema.json.") from error
    module = _module_path(schema, text) if language == "go" else ""
    try:
        run_generator(programs.ensure() / programs.GENERATOR, text, language, out)
    except programs.LanguagesError as error:
        raise SdkError(f"{schema} has no SDK for {language}: {error}") from error
    if module:
        required = f"github.com/pulumi/pulumi/sdk/v3 v{ENGINE_VERSION}"
        (_facts(out).parent / "go.mod").write_text(
            f"module {module}\n\ngo {_GO}\n\nrequire {required}\n", encoding="utf-8"
        )
    return out


def pack(folder: Path, language: Language, out: Path) -> tuple[Path, ...]:
    """Write the files that are published for a generated SDK to `out`, and return them.

    python: wheel and source archive. nodejs: the compiled package as `npm publish` takes it. go: a zip of the module; the module is published
    by a tag. All have the project's license. Needs the language's package registry. Raises SdkError.
    """
    out.mkdir(parents=True, exist_ok=True)
    packers = {"python": _pack_python, "nodejs": _pack_nodejs, "go": _pack_go}
    with tempfile.TemporaryDirectory(prefix="sdk-") as base:
        return packers[language](folder, Path(base), out)


def _pack_python(folder: Path, work: Path, out: Path) -> tuple[Path, ...]:
    """Build wheel and source archive. The generator's pyproject.toml names a README that is elsewhere, and leaves out stub files."""
    copy = Path(shutil.copytree(folder, work / "sdk"))
    package = _facts(copy).parent
    (package / "README.md").rename(copy / "README.md")
    settings = copy / "pyproject.toml"
    if not settings.is_file():
        raise SdkError(f"{folder} has no pyproject.toml: set language.python.pyproject.enabled in the schema.")
    names = sorted(path.parent.relative_to(copy).as_posix().replace("/", ".") for path in copy.rglob("__init__.py"))
    text, tool, _ = settings.read_text(encoding="utf-8").partition("[tool]\n")
    if not tool:
        raise SdkError(
            f"{settings} has no table [tool]: the generator changed, so authors/release/sdks.py must follow."
        )
    license_table = '  [project.license]\n    text = "Apache-2.0"\n'  # a table gives no License-Expression (PEP 639)
    text = text.replace(license_table, "").replace("[project]\n", '[project]\n  license = "Apache-2.0"\n', 1)
    settings.write_text(text + _PACKED_TABLES.format(packages=json.dumps(names), facts=_PLUGIN_FACTS), encoding="utf-8")
    try:
        wheel = wheels.build(copy, out)
    except wheels.WheelError as error:
        raise SdkError(str(error)) from error
    return wheel, out / f"{'-'.join(wheel.name.split('-')[:2])}.tar.gz"


def _pack_nodejs(folder: Path, work: Path, out: Path) -> tuple[Path, ...]:
    """Compile with the locked compiler, and pack the compiled files with package.json beside them, as Pulumi's own packages are."""
    for file in NPM.iterdir():
        shutil.copyfile(file, work / file.name)
    _run(
        [*_npm("ci"), "--ignore-scripts", "--no-audit", "--no-fund"], work, "The TypeScript compiler was not installed"
    )
    copy = Path(shutil.copytree(folder, work / "sdk"))
    _run(["node", str(work / "node_modules" / "typescript" / "bin" / "tsc")], copy, f"{folder} does not compile")
    compiled = copy / "bin"
    for file in (copy / "package.json", copy / "README.md", wheels.LICENSE):
        shutil.copyfile(file, compiled / file.name)
    answer = _run([*_npm("pack"), "--json", "--pack-destination", str(out)], compiled, f"{folder} was not packed")
    (made,) = json.loads(answer)
    return (out / made["filename"],)


def _pack_go(folder: Path, work: Path, out: Path) -> tuple[Path, ...]:
    """Complete go.mod and go.sum, and zip the module's folder."""
    facts = _facts(folder)
    module = Path(shutil.copytree(facts.parent, work / facts.parent.name))
    _run(["go", "mod", "tidy"], module, f"The modules of {folder} were not found")
    shutil.copyfile(wheels.LICENSE, module / wheels.LICENSE.name)
    version = json.loads(facts.read_text(encoding="utf-8"))["version"]
    archive = out / f"{module.name}-go-v{version}.zip"
    stamp = time.gmtime(wheels.source_date(folder))[:6]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(path for path in module.rglob("*") if path.is_file()):
            info = zipfile.ZipInfo(path.relative_to(work).as_posix(), stamp)
            info.external_attr = 0o100644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(info, path.read_bytes())
    return (archive,)


def _module_path(schema: Path, text: str) -> str:
    """Return the path of the Go module that a schema states."""
    found: object = json.loads(text)
    for name in ("language", "go", "importBasePath"):
        found = cast("Mapping[str, object]", found).get(name) if isinstance(found, dict) else None
    if not isinstance(found, str) or not found:
        raise SdkError(f"{schema} does not set language.go.importBasePath, the path of the Go module: add it.")
    return found


def _facts(folder: Path) -> Path:
    """Return pulumi-plugin.json of generated sources; its folder is the Python package or the Go module."""
    found = sorted(folder.glob(f"*/{_PLUGIN_FACTS}"))
    if len(found) != 1:
        raise SdkError(
            f"{folder} has {len(found)} files */{_PLUGIN_FACTS}, not one: pass a folder that generate() made."
        )
    return found[0]


def _npm(command: str) -> list[str]:
    return ["npm", command, "--loglevel", "error"]


def _run(command: list[str], cwd: Path, failure: str) -> str:
    """Run a tool and return its output. Raises SdkError with its last lines."""
    if shutil.which(command[0]) is None:
        raise SdkError(f"{failure}: `{command[0]}` is not on PATH. Install it, then run the command again.")
    variables = {**os.environ, "GOFLAGS": "-mod=mod", "GOWORK": "off"}
    done = subprocess.run(
        command, cwd=cwd, env=variables, capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-_LINES_SHOWN:])
        raise SdkError(f"{failure}: `{' '.join(command)}` exited with code {done.returncode}. Last lines:\n{last}")
    return done.stdout
