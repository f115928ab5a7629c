"""Puts predict.py of an exported folder together: one file that needs nothing of ours."""

import ast
import sys
from pathlib import Path

from glancefocus.export.formats import Format

_FOLDER = Path(__file__).parent / "standalone"
_NEEDS = {
    "onnx": "onnxruntime",
    "openvino": "openvino",
    "executorch": "executorch",
    "litert": "ai-edge-litert",
}


def predict_script(to: Format) -> str:
    """The text of predict.py: the loop, and the class that runs graphs of this format."""
    modules = ["main", "loop", "stopping", f"graphs_{to.name}", "views", "answers"]
    texts = [(_FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in modules]
    trees = [ast.parse(text) for text in texts]
    told = (ast.get_docstring(trees[0]) or "").strip()
    needs = f"It needs {' and '.join(packages(to))}. `gf export` wrote it; change it as you like."
    # Nothing is used at import but by what stands after it, so what is imported comes first.
    bodies = [_body(text, tree) for text, tree in zip(reversed(texts), reversed(trees), strict=True)]
    return f'"""{told}\n\n{needs}\n"""\n\n{_imports(trees)}\n\n\n' + "\n\n\n".join(bodies) + "\n"


def packages(to: Format) -> tuple[str, ...]:
    """What predict.py needs."""
    return (_NEEDS[to.name], "numpy", "Pillow")


def _imports(trees: list[ast.Module]) -> str:
    """Every import of the modules that is not of ours, once."""
    plain: set[str] = set()
    named: dict[str, set[str]] = {}
    for node in [node for tree in trees for node in tree.body]:
        if isinstance(node, ast.Import):
            plain |= {ast.unparse(ast.Import([alias])) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("glancefocus"):
            named.setdefault(node.module or "", set()).update(alias.name for alias in node.names)
    froms = [f"from {module} import {', '.join(sorted(names))}" for module, names in named.items()]
    lines = [*sorted(plain), *sorted(froms)]
    own = [line for line in lines if line.split()[1].partition(".")[0] in sys.stdlib_module_names]
    return "\n".join([*own, "", *(line for line in lines if line not in own)])


def _body(text: str, tree: ast.Module) -> str:
    """What stands after the imports of a module."""
    last = max(node.end_lineno or 0 for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    return "\n".join(text.splitlines()[last:]).strip().replace("  # noqa: T201", "")
