"""Start-up script of the TPU machine: the modules of `vm_agent` and eleven of `contracts`, joined into one program and compressed."""

import ast
import base64
import bz2
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from gemma_serving.contracts.guest_attributes import GUEST_ATTRIBUTE_NAMESPACE
from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY

_LINE: Final = 120
_UNPACKING: Final = '''import base64, bz2, os

PACKED = """
{packed}
"""
TEXT = bz2.decompress(base64.b64decode(PACKED))
'''
_WRITING: Final = """FOLDER = os.environ.get("{variable}") or "{folder}"
PLAIN = os.path.join(FOLDER, "{name}")
try:
    os.makedirs(FOLDER, exist_ok=True)
    with open(PLAIN + ".new", "wb") as file:
        file.write(TEXT)
    os.replace(PLAIN + ".new", PLAIN)
except OSError:
    pass  # a disk that is full or read-only does not stop the program
"""


PLAIN_FILE: Final = {"name": "agent.py", "folder": "/var/lib/gemma-serving", "variable": "GEMMA_SERVING_STATE"}
"""The program in plain text, for inspection on the TPU VM. `variable` is the environment variable with another folder."""

SECTIONS = (
    "gemma_serving.contracts.guest_attributes",
    "gemma_serving.contracts.log_phases",
    "gemma_serving.contracts.server_errors",
    "gemma_serving.contracts.machine_log",
    "gemma_serving.contracts.masking",
    "gemma_serving.contracts.rollout",
    "gemma_serving.contracts.path_guard",
    "gemma_serving.contracts.secret_payload",
    "gemma_serving.contracts.serving_document",
    "gemma_serving.contracts.compile_cache",
    "gemma_serving.contracts.collector",
    "gemma_serving.vm_agent.base",
    "gemma_serving.vm_agent.clock",
    "gemma_serving.vm_agent.cloud",
    "gemma_serving.vm_agent.weights",
    "gemma_serving.vm_agent.mounted",
    "gemma_serving.vm_agent.archives",
    "gemma_serving.vm_agent.publishing",
    "gemma_serving.vm_agent.stored_state",
    "gemma_serving.vm_agent.compile_cache",
    "gemma_serving.vm_agent.confinement",
    "gemma_serving.vm_agent.guard_file",
    "gemma_serving.vm_agent.bounded",
    "gemma_serving.vm_agent.containers",
    "gemma_serving.vm_agent.together",
    "gemma_serving.vm_agent.metadata_guard",
    "gemma_serving.vm_agent.prefetch",
    "gemma_serving.vm_agent.shipping",
    "gemma_serving.vm_agent.follow",
    "gemma_serving.vm_agent.running_server",
    "gemma_serving.vm_agent.serving",
    "gemma_serving.vm_agent.observe",
    "gemma_serving.vm_agent.entry",
)
"""Modules in dependency order. The last one starts the program."""

HEADER = f'''#!/usr/bin/env python3
"""Start-up script of a TPU virtual machine that serves one model with vLLM: the same for every deployment.

Run without arguments (so the guest environment runs it at every boot) it starts itself as a systemd unit and returns.
Run as `agent` it runs the serving document of the metadata key `{DOCUMENT_METADATA_KEY}` as a container, follows the
key's changes, and publishes its state as guest attributes in the namespace `{GUEST_ATTRIBUTE_NAMESPACE}`.

Needs Python 3.10 and systemd, and docker or apt-get. Nothing secret is logged, published or put on a command line.
"""
'''


_PACKED_HEADER = f'''#!/usr/bin/env python3
"""Start-up script of a TPU virtual machine that serves one model with vLLM, compressed: the same for every deployment.

It writes the program in plain text to {PLAIN_FILE["folder"]}/{PLAIN_FILE["name"]} and runs it.
"""
'''


@cache
def startup_script() -> str:
    """Return the text for the metadata key `startup-script`: a Python 3.10 program with a shebang, always the same.

    Deployments differ only in the serving document, which the program follows.
    """
    return packed(_PACKED_HEADER, agent_program(), writes_plain=True)


@cache
def agent_program() -> str:
    """Return the program that the start-up script runs, in plain text."""
    return joined_program(HEADER, SECTIONS)


def packed(header: str, program: str, *, writes_plain: bool = False) -> str:
    """Return a program for Python 3.10 that runs `program`, after writing it to PLAIN_FILE if `writes_plain`.

    bzip2 has a single implementation. zlib has several (zlib-ng, Intel's), so a colleague's preview can show a change.
    """
    encoded = base64.b64encode(bz2.compress(program.encode(), 9)).decode()
    lines = "\n".join(encoded[start : start + _LINE] for start in range(0, len(encoded), _LINE))
    text = header + _UNPACKING.format(packed=lines)
    if writes_plain:
        text += _WRITING.format(**PLAIN_FILE)
    name = "PLAIN" if writes_plain else '"packed program"'
    return text + f'exec(compile(TEXT, {name}, "exec"))\n'


def joined_program(header: str, sections: Sequence[str]) -> str:
    """Return modules joined into one program. `sections` lists their names in dependency order.

    Its constant PATH_GUARD_TEXT is the path guard's file, which the program writes for the server's container (vm_agent.guard_file).
    """
    sources = [_source(module) for module in sections]
    trees = [ast.parse(source) for source in sources]
    nodes = [node for tree in trees for node in tree.body]
    plain = {ast.unparse(alias) for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module not in sections:
            named.setdefault(node.module, set()).update(map(ast.unparse, node.names))
    imports = [f"import {name}" for name in sorted(plain)]
    imports += [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(named.items())]
    guard = f"PATH_GUARD_TEXT = {_source('gemma_serving.vm_agent.path_guard')!r}"
    return (
        "\n\n".join([header.rstrip("\n"), "\n".join(imports), guard, *map(_section, sections, sources, trees)]) + "\n"
    )


def _source(module: str) -> str:
    package, _, name = module.rpartition(".")
    return files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")


def _section(module: str, source: str, tree: ast.Module) -> str:
    """Return a module's text with its docstring as a heading and without its imports."""
    left_out: set[int] = set()
    for node in tree.body:
        if node is tree.body[0] or isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept = [line for number, line in enumerate(source.splitlines(), start=1) if number not in left_out]
    heading = (ast.get_docstring(tree) or "").splitlines()[0]
    return f"# --- {module.partition('.')[2]}: {heading}\n" + "\n".join(kept).strip("\n")
