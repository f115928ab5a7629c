"""Imports point down only, in the layers of docs/contributing.md, and no module is a drawer."""

import ast
from pathlib import Path

import pytest

import glancefocus

ROOT = Path(glancefocus.__file__).parent

# From the bottom up. A module may import modules of lower lines and, where its line allows it, of its own line.
LAYERS: list[tuple[set[str], bool]] = [
    ({"glancefocus", "errors", "progress", "interrupts"}, False),
    (
        {
            "machine",
            "files",
            "values",
            "settings",
            "region",
            "look",
            "outcome",
            "loop",
            "stream",
        },
        True,
    ),  # the loop makes an outcome of looks, a look sees regions, a region has settings
    ({"network", "exits", "data"}, False),
    ({"runtime"}, False),
    ({"bundle"}, False),
    ({"evaluation", "export"}, False),
    ({"training", "serving"}, False),
    ({"studies"}, False),
    ({"cli", "__main__"}, True),
]


def modules() -> dict[str, Path]:
    """{dotted name: file}; the package itself is `glancefocus`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(("glancefocus", *parts))] = path
    return found


def imports(path: Path) -> set[str]:
    """Every name of this project that a module imports, at its top or inside a function.

    What stands under `if TYPE_CHECKING:` is for type checkers, and never runs.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "glancefocus"}


def imported_modules(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules behind those names: `glancefocus.look.Look` is in `glancefocus.look`."""
    found = set()
    for name in imports(path):
        while name not in known:
            name = name.rpartition(".")[0]
        found.add(name)
    return found


def part_of(module: str) -> str:
    """The word that a layer names: the package or module directly inside glancefocus."""
    return module.split(".")[1] if "." in module else module


def layer_of(module: str) -> int:
    for number, (parts, _) in enumerate(LAYERS):
        if part_of(module) in parts:
            return number
    raise AssertionError(f"{module} is in no layer. Put it into one, here and in docs/contributing.md.")


@pytest.mark.parametrize("module", modules())
def test_imports_point_down_only(module: str) -> None:
    known = modules()
    own = layer_of(module)
    for other in imported_modules(known[module], known):
        if part_of(other) == part_of(module):
            continue
        line = layer_of(other)
        inside = line == own and LAYERS[own][1]
        assert line < own or inside, f"{module} imports {other}, which is not below it"


def test_there_are_no_import_cycles() -> None:
    known = modules()
    graph = {module: imported_modules(path, known) - {module} for module, path in known.items()}
    # Remove, again and again, the modules that import none of those left; a cycle would stay.
    while leaves := {module for module, others in graph.items() if not others & graph.keys()}:
        graph = {module: others for module, others in graph.items() if module not in leaves}
    assert graph == {}


@pytest.mark.parametrize("word", ["utils", "util", "helpers", "common", "misc", "core", "engine", "manager", "base"])
def test_no_module_is_a_drawer(word: str) -> None:
    assert [name for name in modules() if word in name.split(".")] == []


def test_every_module_opens_with_a_sentence_on_what_it_is_for() -> None:
    for name, path in modules().items():
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{name} does not say what it is for"


def test_no_module_is_longer_than_400_lines() -> None:
    # predict.py is copied into exported folders as it is, so it must be one file that imports nothing else of this project.
    allowed = {"glancefocus.export.predict"}
    known = modules()
    long = {name for name, path in known.items() if len(path.read_text(encoding="utf-8").splitlines()) > 400}
    assert long == allowed
    assert all(imports(known[name]) == set() for name in allowed)
