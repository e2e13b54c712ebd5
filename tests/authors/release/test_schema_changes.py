"""Changes between two package schemas: each kind is found, and judged by what it does to a program."""

import copy
import json
import random
import subprocess
from pathlib import Path

import pytest

from authors.release import __main__ as command
from authors.release import schema_changes, version
from scripts.cli.command import run_command

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / version.SCHEMA
R, T, E, F = "p:index:Server", "p:index:Disk", "p:index:Mode", "p:index:getServer"


def base():
    """A schema with one of each: a resource, an object, an enum, a function, a setting of the provider."""
    return {
        "name": "p",
        "version": "0.1.0",
        "language": {"nodejs": {"packageName": "@a/p"}, "python": {"pyproject": {"enabled": True}}},
        "config": {"variables": {"project": {"type": "string"}}},
        "provider": {"inputProperties": {"project": {"type": "string"}}},
        "types": {
            T: {"type": "object", "properties": {"source": {"type": "string"}, "mode": {"$ref": f"#/types/{E}"}}, "required": ["source"]},
            E: {"type": "string", "enum": [{"name": "Read", "value": "r"}, {"name": "Write", "value": "w"}]},
        },
        "resources": {
            R: {
                "inputProperties": {
                    "name": {"type": "string", "description": "Its name."},
                    "size": {"type": "integer", "default": 1},
                    "zones": {"type": "array", "items": {"type": "string"}},
                    "disk": {"$ref": f"#/types/{T}"},
                    "key": {"type": "string", "secret": True},
                },
                "requiredInputs": ["name"],
                "properties": {"name": {"type": "string"}, "ip": {"type": "string"}, "state": {"type": "string"}},
                "required": ["name", "ip"],
                "aliases": [{"type": "p:index:Machine"}],
            }
        },
        "functions": {
            F: {
                "inputs": {"properties": {"id": {"type": "string"}}},
                "outputs": {"properties": {"ip": {"type": "string"}}, "required": ["ip"]},
            }
        },
    }  # fmt: skip


def at(schema, path):
    for part in path:
        schema = schema[part]
    return schema


IN, OUT = ("resources", R, "inputProperties"), ("resources", R, "properties")
BREAKING = {
    "resource removed": lambda s: s["resources"].pop(R),
    "function removed": lambda s: s["functions"].pop(F),
    "type removed": lambda s: s["types"].pop(T),
    "input removed": lambda s: at(s, IN).pop("size"),
    "output removed": lambda s: at(s, OUT).pop("state"),
    "property removed": lambda s: at(s, ("types", T, "properties")).pop("mode"),
    "input type changed": lambda s: at(s, IN)["size"].update(type="number"),
    "output type changed": lambda s: at(s, OUT)["ip"].update(type="integer"),
    "input became required": lambda s: s["resources"][R]["requiredInputs"].append("size"),
    "required input added": lambda s: (at(s, IN).update(new={"type": "string"}), s["resources"][R]["requiredInputs"].append("new")),
    "property became required": lambda s: s["types"][T]["required"].append("mode"),
    "property became optional": lambda s: s["types"][T]["required"].remove("source"),
    "output became optional": lambda s: s["resources"][R]["required"].remove("ip"),
    "input default changed": lambda s: at(s, IN)["size"].update(default=2),
    "input defaultInfo changed": lambda s: at(s, IN)["name"].update(defaultInfo={"environment": ["NAME"]}),
    "input const changed": lambda s: at(s, IN)["name"].update(const="x"),
    "input plain changed": lambda s: at(s, IN)["zones"]["items"].update(plain=True),
    "input replaceOnChanges changed": lambda s: at(s, IN)["size"].update(replaceOnChanges=True),
    "input secret changed": lambda s: at(s, IN)["key"].pop("secret"),
    "enum value removed": lambda s: s["types"][E]["enum"].pop(),
    "enum name changed": lambda s: s["types"][E]["enum"][0].update(name="ReadOnly"),
    "alias removed": lambda s: s["resources"][R].pop("aliases"),
    "isComponent changed": lambda s: s["resources"][R].update(isComponent=True),
    "arguments removed": lambda s: s["functions"][F].pop("inputs"),
    "packageName changed": lambda s: s["language"]["nodejs"].update(packageName="@b/p"),
    "name changed": lambda s: s.update(name="q"),
}  # fmt: skip
HARMLESS = {
    "resource added": lambda s: s["resources"].update({"p:index:New": {}}),
    "function added": lambda s: s["functions"].update({"p:index:getNew": {}}),
    "type added": lambda s: s["types"].update({"p:index:New": {"type": "object"}}),
    "input added": lambda s: at(s, IN).update(new={"type": "string"}),
    "input with a default added": lambda s: at(s, IN).update(new={"type": "string", "default": "x"}),
    "output added": lambda s: at(s, OUT).update(new={"type": "string"}),
    "input became optional": lambda s: s["resources"][R]["requiredInputs"].clear(),
    "output became required": lambda s: s["resources"][R]["required"].append("state"),
    "enum value added": lambda s: s["types"][E]["enum"].append({"value": "x"}),
    "alias added": lambda s: s["resources"][R]["aliases"].append({"type": "p:index:Old"}),
    "input secret changed": lambda s: at(s, IN)["name"].update(secret=True),
    "description changed": lambda s: at(s, IN)["name"].update(description="The name."),
    "deprecationMessage changed": lambda s: at(s, IN)["size"].update(deprecationMessage="Use zones."),
    "pyproject changed": lambda s: s["language"]["python"].pop("pyproject"),
    "version changed": lambda s: s.update(version="0.2.0"),
}


def test_each_kind_of_change_is_found_and_judged(subtests):
    for rows, breaks in ((BREAKING, True), (HARMLESS, False)):
        for kind, edit in rows.items():
            with subtests.test(kind, breaks=breaks):
                new = base()
                edit(new)
                found = schema_changes.changes(base(), new)
                assert any(change.is_breaking for change in found) is breaks
                assert found
    assert list(schema_changes.changes(base(), base())) == []


def leaves(node, path=()):
    """Yield the path of every value that is neither an object nor a list."""
    if not isinstance(node, (dict, list)):
        yield path
        return
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield from leaves(value, (*path, key))


def test_no_difference_of_the_providers_schema_is_missed():
    """Each value of the real schema in turn is another one, or gone: something is reported."""
    schema = json.loads(SCHEMA.read_text())
    paths = list(leaves(schema))
    assert len(paths) > 290
    for path in random.Random(0).sample(paths, 150):  # noqa: S311 - a fixed choice
        for edit in (lambda owner, key: owner.__setitem__(key, "planted"), lambda owner, key: owner.__delitem__(key)):
            new = copy.deepcopy(schema)
            edit(at(new, path[:-1]), path[-1])
            assert schema_changes.changes(schema, new), path


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository whose first commit, `main`, has the schema."""
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    (tmp_path / schema_changes.SCHEMA).parent.mkdir(parents=True)
    (tmp_path / schema_changes.SCHEMA).write_text(json.dumps(base()))
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], [*author, "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_the_gate_follows_the_version(checkout, capsys, subtests):
    for new, code in (("0.2.0", 0), ("1.0.0", 0), ("0.1.1", 1), ("0.1.0", 1)):
        with subtests.test(new):
            changed = {**base(), "version": new}
            changed["types"].pop(E)
            (checkout / schema_changes.SCHEMA).write_text(json.dumps(changed))
            assert run_command(command.COMMAND, ["schema-diff", "--old", "main"]) == 0
            shown = capsys.readouterr().out
            assert f'BREAKING  types {E} type: "string" -> none' in shown
            assert shown in (checkout / "summary").read_text()
            assert run_command(command.COMMAND, ["schema-diff", "--old", "main", "--gate"]) == code
            assert (f"{new} may not break programs of 0.1.0" in capsys.readouterr().err) is bool(code)


def test_a_minor_version_from_one_on_may_not_break_programs():
    change = schema_changes.SchemaChange(where="x", is_breaking=True, before="1", after="")
    for old, new, refused in (("1.1.0", "1.2.0", True), ("1.1.0", "2.0.0", False)):
        found = schema_changes.SchemaComparison(source="main", old=old, new=new, changes=[change])
        assert found.is_refused is refused


def test_without_a_tag_nothing_is_compared_and_what_is_no_commit_is_refused(checkout, capsys):
    assert run_command(command.COMMAND, ["schema-diff", "--gate"]) == 0
    assert "No tag vX.Y.Z before this commit" in capsys.readouterr().out
    assert run_command(command.COMMAND, ["schema-diff", "--old", "v9"]) == 1
    assert f"v9 is not a commit with {schema_changes.SCHEMA}" in capsys.readouterr().err
