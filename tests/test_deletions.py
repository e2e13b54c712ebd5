"""Nothing is deleted without a proof that only the readers of a state and of Google make."""

import ast
from itertools import chain
from pathlib import Path

import pytest

from tests.tracked import tracked

ROOT = Path(__file__).parents[1]
FOLDERS = ("gemma_serving", "components", "scripts", "stacks", "packages/gcp-tpu")
PROOFS = {
    "Proof": {
        "gemma_serving/cloud/deletion.py": "the labels of a resource, read again",
        "gemma_serving/cloud/grants.py": "a policy",
        "gemma_serving/cloud/spending.py": "limits, and what was spent",
        "gemma_serving/cloud/staging/bucket.py": "the labels of a bucket, or the settings that name another owner's",
        "gemma_serving/contracts/search_results.py": "every list of a search",
        "gemma_serving/engine/state.py": "a state",
        "stacks/hooks/old_secrets.py": "the labels and the versions of a secret",
    },
    "OwnCapacity": {
        "packages/gcp-tpu/gcp_tpu_provider/operation.py": "the owner label, or the creation time in the state",
    },
}
"""Type of a proof -> each module that makes one, and from what."""
CHECKED = {
    "gemma_serving/vm_agent/archives.py": "the agent has no contracts; `_delete` checks the signature itself",
    "packages/gcp-tpu/gcp_tpu_provider/servicer.py": "`lifecycle.delete` finds the resource and makes the proof",
    "packages/gcp-tpu/gcp_tpu_provider/lifecycle.py": "as above, `capacity.delete`",
}
WORDS = ("DELETE", "destroy", ":destroy", "rm")


def modules():
    for path in tracked(*FOLDERS):
        if "tests" not in path.parts and path.resolve() == path:
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def is_deletion(call):
    """Return whether a call deletes: the verb, the engine's words, or a method `delete`, also through `partial`."""
    names = [call.func, *(call.args[:1] if getattr(call.func, "id", "") == "partial" else ())]
    if any(isinstance(name, ast.Attribute) and name.attr in {"delete", "delete_queued_resource"} for name in names):
        return True
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    given += [each for one in given if isinstance(one, ast.List | ast.Tuple) for each in one.elts]
    texts = [one.values[-1] if isinstance(one, ast.JoinedStr) and one.values else one for one in given]
    words = {str(text.value) for text in texts if isinstance(text, ast.Constant)}
    return any(word in words for word in WORDS[:3]) or {"stack", "rm"} <= words


def unproven(tree):
    """Return the lines of the deletions that neither stand in a function with a proof nor pass one on."""
    found = []

    def visit(node, is_proven):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = [*node.args.args, *node.args.kwonlyargs]
            is_proven = is_proven or any(getattr(one.annotation, "id", "") in PROOFS for one in every)
        if isinstance(node, ast.Call) and is_deletion(node):
            given = {
                getattr(getattr(one, "func", one), "attr", getattr(getattr(one, "func", one), "id", ""))
                for one in node.args
            }
            if not is_proven and not given & {"proof", "own", "_differs"}:
                found.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child, is_proven)

    visit(tree, is_proven=False)
    return found


def made(tree):
    """Return the types of the proofs that a module makes."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {name for func in calls if (name := getattr(func, "id", getattr(func, "attr", ""))) in PROOFS}


def test_every_deletion_has_a_proof_and_only_readers_make_one():
    every = dict(modules())
    assert len(every) > 300
    assert {name: lines for name, tree in every.items() if (lines := unproven(tree)) and name not in CHECKED} == {}
    makers = {name: kinds for name, tree in every.items() if (kinds := made(tree))}
    assert makers == {name: {kind for kind in PROOFS if name in PROOFS[kind]} for name in {*chain(*PROOFS.values())}}
    assert all(unproven(every[name]) for name in CHECKED)


@pytest.mark.parametrize(
    "planted",
    [
        'def f(api):\n    api.call("DELETE", "v1/x")',
        'def f(api):\n    google(api, "v1/x", verb="DELETE")',
        "def f(bucket):\n    bucket.blob('x').delete(timeout=3)",
        "def f(target, item):\n    each([partial(target.delete, item)])",
        'def f(stack):\n    run_engine(stack, "destroy", name="x")',
        'def f(stack):\n    runner.query(["stack", "rm", stack, "--yes"])',
        'def f(name):\n    call("secretmanager", f"v1/{name}:destroy", body={})',
    ],
)
def test_a_deletion_without_a_proof_is_seen(planted):
    assert unproven(ast.parse(planted)) == [2]
    assert unproven(ast.parse(planted.replace("(", "(_proof: Proof, ", 1))) == []
