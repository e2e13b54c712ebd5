"""Changes of a module, each of one expression, and the module in which a switch makes any of them.

Changed are comparisons, `min` and `max`, `any` and `all`, `and` and `or`, the order of alternatives, numbers, truth values, filters, `not`, and sets of
which an element is left out. An operand of `and` or `or` is left out, and two calls that are statements one after the other are swapped.
Not changed are annotations, patterns, decorators and texts, and the order of an `or` of which only the truth counts, or whose last alternative is an
empty text.
"""

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

COMPARISONS: Final = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
TRUTHS: Final = ("is_", "has_", "are_", "was_", "bool", "isinstance", "any", "all", "startswith", "endswith")
"""Beginnings of the names of truth values, and of functions that return one."""
SWITCH: Final = "__mutant__"
"""Builtin function that is called with the number of a change, and returns whether it is made."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change, in its place among those of the module."""

    file: str
    place: int
    line: int
    text: str
    change: str


def _but(node: ast.expr, **fields: object) -> ast.expr:
    """Return a copy with other fields."""
    copy = deepcopy(node)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


def _other_rules(node: ast.expr, *, is_truth: bool) -> Iterator[ast.expr]:
    """Yield each changed form of a comparison, a call, or a combination."""
    match node:
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                yield _but(node, ops=[*operators[:place], COMPARISONS[type(operator)](), *operators[place + 1 :]])
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield _but(node, func=ast.Name(CALLS[name], ast.Load()))
        case ast.BoolOp(op=operator, values=values):
            yield _but(node, op=ast.And() if isinstance(operator, ast.Or) else ast.Or())
            if isinstance(operator, ast.Or) and not is_truth and not _is_empty(values[-1]):
                yield _but(node, values=deepcopy(values[::-1]))
            for place in (place for place, value in enumerate(values) if not _is_empty(value)):
                rest = deepcopy(values[:place] + values[place + 1 :])
                yield _but(node, values=rest) if len(rest) > 1 else rest[0]
        case _:
            pass


def _other_values(node: ast.expr) -> Iterator[ast.expr]:
    """Yield each changed form of alternatives, a constant or a set."""
    match node:
        case ast.IfExp(body=body, orelse=other):
            yield _but(node, body=deepcopy(other), orelse=deepcopy(body))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield deepcopy(operand)
        case ast.Constant(value=bool(value)):
            yield _but(node, value=not value)
        case ast.Constant(value=int(value) | float(value)):
            yield _but(node, value=value + 1 if value in range(10) else value * 10)
        case ast.Set(elts=elements) if len(elements) > 1:
            for place in range(len(elements)):
                yield _but(node, elts=deepcopy(elements[:place] + elements[place + 1 :]))
        case _:
            pass


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


def _is_named_as_truth(node: ast.expr) -> bool:
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Constant(value=bool()):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) | ast.Name(id=name) | ast.Attribute(attr=name):
            return name.startswith(TRUTHS)
        case _:
            return False


def _truths(tree: ast.Module) -> set[int]:
    """Return the ids of expressions of which only the truth counts. Nodes come before their children."""
    found = set[ast.expr | None]()
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.match_case(guard=test):
                found.add(test)
            case ast.UnaryOp(op=ast.Not(), operand=test):
                found.add(test)
            case ast.Assign(targets=[ast.Name(id=name)], value=test) if name.startswith(TRUTHS):
                found.add(test)
            case ast.comprehension(ifs=tests):
                found.update(tests)
            case ast.FunctionDef(returns=ast.Name(id="bool")):
                found.update(each.value for each in ast.walk(node) if isinstance(each, ast.Return))
            case ast.Call(func=ast.Name(id="any" | "all"), args=[ast.GeneratorExp(elt=test)]):
                found.add(test)
            case ast.BoolOp(values=values) if node in found or all(map(_is_named_as_truth, values)):
                found.update([node, *values])
            case _:
                pass
    return {id(node) for node in found}


def _neighbours(node: ast.AST) -> Iterator[tuple[ast.Expr, ast.Expr]]:
    """Yield two statements one after the other that only call."""
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        for first, second in pairwise(body if isinstance(body, list) else ()):
            if isinstance(first, ast.Expr) and isinstance(second, ast.Expr) and _calls(first) and _calls(second):
                yield first, second


def _calls(statement: ast.Expr) -> bool:
    value = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
    return isinstance(value, ast.Call)


class _Changer(ast.NodeTransformer):
    """Collects the changes of a module, and gives those that are `kept` a switch."""

    def __init__(self, file: str, source: str, kept: dict[int, int]) -> None:
        self.file, self.lines, self.kept = file, source.splitlines(), kept
        self.tree = ast.parse(source)
        self.truths = _truths(self.tree)
        self.mutants = list[Mutant]()

    def visit(self, node: ast.AST) -> ast.AST:
        """Change the parts of an expression, then the expression."""
        if not isinstance(node, ast.expr):
            pairs = [*_neighbours(node)]
            changed = super().visit(node)
            for first, second in pairs:
                self._swap(first, second)
            return changed
        before, others = (
            ast.unparse(node),
            [*_other_rules(node, is_truth=id(node) in self.truths), *_other_values(node)],
        )
        changed = super().visit(node)
        for other in (each for each in others if ast.unparse(each) != before):
            changed = self._switched(node, changed, other, before)
        return changed

    def _switched(self, node: ast.expr, original: ast.expr, other: ast.expr, before: str) -> ast.expr:
        place, change = len(self.mutants), f"{before} -> {ast.unparse(other)}"
        self.mutants.append(Mutant(self.file, place, node.lineno, self.lines[node.lineno - 1].strip(), change))
        if place not in self.kept:
            return original
        call = ast.Call(ast.Name(SWITCH, ast.Load()), [ast.Constant(self.kept[place])], [])
        return ast.copy_location(ast.IfExp(call, other, original), node)

    def _swap(self, first: ast.Expr, second: ast.Expr) -> None:
        """Swap two statements, by one switch in each."""
        place, texts = len(self.mutants), [self.lines[one.lineno - 1].strip() for one in (first, second)]
        self.mutants.append(Mutant(self.file, place, first.lineno, texts[0], f"swapped with {texts[1]}"))
        if place in self.kept:
            before = first.value, second.value
            for one, (now, other) in ((first, before), (second, before[::-1])):
                call = ast.Call(ast.Name(SWITCH, ast.Load()), [ast.Constant(self.kept[place])], [])
                one.value = ast.copy_location(ast.IfExp(call, deepcopy(other), deepcopy(now)), now)

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        """Leave out each filter."""
        before = [(test, ast.unparse(test)) for test in node.ifs]
        self.generic_visit(node)
        changed = zip(before, node.ifs, strict=True)
        node.ifs = [self._switched(test, new, ast.Constant(True), f"if {text}") for (test, text), new in changed]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        """Change the value."""
        node.value = node.value and self.visit(node.value)
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.FormattedValue:
        """Change the value."""
        node.value = self.visit(node.value)
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        """Change the value, but not a `strict` of `zip`, which only asserts."""
        return node if node.arg == "strict" else self.generic_visit(node)

    def visit_match_case(self, node: ast.match_case) -> ast.match_case:
        """Change the guard and the body."""
        node.guard = node.guard and self.visit(node.guard)
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Change the body."""
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """Change the defaults and the body."""
        arguments = node.args
        arguments.defaults = [self.visit(each) for each in arguments.defaults]
        arguments.kw_defaults = [each and self.visit(each) for each in arguments.kw_defaults]
        node.body = [self.visit(each) for each in node.body]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - names of the base class


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """Return all changes of a module."""
    changer = _Changer(file, (root / file).read_text(encoding="utf-8"), {})
    changer.visit(changer.tree)
    return changer.mutants


def switched(root: Path, file: str, kept: dict[int, int]) -> ast.Module:
    """Return the module with switches for the changes in `kept`, from their place to their number. Each of its functions calls with the file."""
    changer = _Changer(file, (root / file).read_text(encoding="utf-8"), kept)
    tree = changer.visit(changer.tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            call = ast.Call(ast.Name(SWITCH, ast.Load()), [ast.Constant(file)], [])
            node.body.insert(ast.get_docstring(node) is not None, ast.Expr(call))
    return ast.fix_missing_locations(tree)
