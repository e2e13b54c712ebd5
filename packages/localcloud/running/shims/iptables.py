"""`iptables` on a simulated machine: one redirection by control group, which determines a container's metadata server.

Only rules of the table `nat` that redirect TCP connections of one control group are supported; any other is rejected.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from localcloud.running.shims.machine import Machine, read_json, this_machine, write_json

_FILE: Final = "iptables.json"
_BAD_USAGE, _NO_RULE = 2, 1
_RULE: Final = ("-p", "tcp", "-d", "", "--dport", "", "-m", "cgroup", "--path", "", "-j", "REDIRECT", "--to-ports", "")
"""The words of a rule; an empty one is a value."""


def redirected(machine: Machine, cgroup: str, address: str, port: int) -> int | None:
    """Return the port to which a control group's connections to an address and port are redirected, or None."""
    for rule in _rules(machine):
        where, at, path, target = rule.split(" ")
        if (where, at) == (address, str(port)) and cgroup and (f"{cgroup}/").startswith(f"{path}/"):
            return int(target)
    return None


def _rules(machine: Machine) -> list[str]:
    return list((read_json(machine.folder / _FILE) or {}).get("rules", []))


def _fail(message: str, code: int) -> int:
    print(f"iptables v1.8.7 (nf_tables): {message}", file=sys.stderr)
    return code


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns iptables' exit codes."""
    machine = this_machine()
    words = [word for word in argv if word != "-w"]
    command, rule = "".join(words[2:3]), words[4:]
    is_known = len(rule) == len(_RULE) and all(wanted in ("", word) for wanted, word in zip(_RULE, rule, strict=True))
    if (
        words[:2] != ["-t", "nat"]
        or command not in {"-A", "-C", "-D", "-I"}
        or words[3:4] != ["OUTPUT"]
        or not is_known
    ):
        return _fail(f"the simulated machine does not support the rule {' '.join(argv)}", _BAD_USAGE)
    address = rule[3]
    port = rule[5]
    path = rule[9]
    target = rule[13]
    if not (Path(os.environ.get("GEMMA_SERVING_CGROUPS", "/sys/fs/cgroup")) / path).is_dir():
        return _fail(" RULE_APPEND failed (No such file or directory): rule in chain OUTPUT", 4)
    text, rules = f"{address} {port} {path} {target}", _rules(machine)
    if command in {"-C", "-D"} and text not in rules:
        return _fail("Bad rule (does a matching rule exist in that chain?).", _NO_RULE)
    if command == "-D":
        rules.remove(text)
    elif command != "-C":
        rules = [*rules, text] if command == "-A" else [text, *rules]
    write_json(machine.folder / _FILE, {"rules": rules})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
