"""Mutation testing of the formula: change one operator or number of `kvplan/cache/` and see whether a test notices.

    python tests/mutate.py                       every module below, a sample of 40 changes each
    python tests/mutate.py size.py --sample 0    all changes of one module

Each change runs the tests named below in a forked process until the first failure. What survives is
printed; CONTRIBUTING.md says what becomes of it. Not a test itself: it takes minutes.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("entries.py", "shard.py", "state.py", "layout.py", "size.py", "formats.py")
TESTS = (
    "tests/test_headlines.py",
    *(f"tests/cache/test_{name}.py" for name in ("entries", "parts", "plans", "formats", "laws")),
)
EXAMPLES = 20  # of each law; a run of the suite tries more
SECONDS = 30  # a change that loops for ever counts as noticed

_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def changed(node: ast.AST) -> ast.AST | None:
    """A changed copy of a node, None where there is nothing to change."""
    made: Any = copy.copy(node)
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OPERATORS:
        made.op = _OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        made.ops = [_OPERATORS[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        made.value = node.value + 1
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        made.value = not node.value
    elif isinstance(node, ast.Name) and node.id in _CALLS:
        made.id = _CALLS[node.id]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    else:
        return None
    return made


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, description and source of each change; annotations and imports are left alone."""
    count = sum(1 for node in ast.walk(ast.parse(source)) if changed(node) is not None)
    for wanted in range(count):
        tree = ast.parse(source)
        site = [node for node in ast.walk(tree) if changed(node) is not None][wanted]
        new = changed(site)
        assert new is not None
        if _is_annotation(tree, site):
            continue
        text = f"{ast.unparse(site)}  ->  {ast.unparse(new)}"
        yield getattr(site, "lineno", 0), text, ast.unparse(_Replace(site, new).visit(tree))


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def _is_annotation(tree: ast.AST, site: ast.AST) -> bool:
    for node in ast.walk(tree):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if part is not None and any(each is site for each in ast.walk(part)):
                return True
    return False


class _Changed(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Loads one module from a changed source."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        super().__init__(name, str(path))
        self.source = source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self.path)

    def get_code(self, fullname: str) -> Any:
        return compile(self.source, self.path, "exec")


def noticed(name: str, path: Path, source: str) -> bool:
    """Whether the tests fail on the changed source, in a process of its own."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    signal.alarm(SECONDS)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sys.meta_path.insert(0, _Changed(name, path, source))
    import pytest

    code = 1
    try:
        code = int(
            pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:warnings", "--hypothesis-seed=0", *TESTS])
        )
    finally:
        os._exit(code)


def main() -> int:
    """Run them, print the survivors and the score."""
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--sample", type=int, default=40, help="changes a module; 0 for all")
    options = parser.parse_args()
    os.chdir(ROOT)
    import hypothesis  # loaded once, before the forks
    import pydantic  # noqa: F401
    import yaml  # noqa: F401

    hypothesis.settings.register_profile("mutate", max_examples=EXAMPLES, deadline=None, database=None)
    hypothesis.settings.load_profile("mutate")

    entries = ROOT / "kvplan" / "cache" / "entries.py"
    if noticed("kvplan.cache.entries", entries, entries.read_text("utf-8")):
        sys.exit("the tests fail without any change")
    alive = total = 0
    for module in options.modules:
        path = ROOT / "kvplan" / "cache" / module
        found = list(mutants(path.read_text("utf-8")))
        if options.sample and len(found) > options.sample:
            found = sorted(random.Random(0).sample(found, options.sample))
        name = f"kvplan.cache.{path.stem}"
        left = [(line, text) for line, text, source in found if not noticed(name, path, source)]
        total, alive = total + len(found), alive + len(left)
        print(f"{module}: {len(found) - len(left)} of {len(found)} noticed", flush=True)
        for line, text in left:
            print(f"  line {line}: {text}", flush=True)
    print(f"{total - alive} of {total} noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
