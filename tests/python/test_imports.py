"""The package's modules import each other downward only, within functions too."""
import ast
import graphlib

from conftest import ROOT

PACKAGE = ROOT / "python" / "checkpoint_engine"


def imported_by(path):
    """Names of the package's own modules that a module imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module.split(".")[0]] if node.module else [each.name for each in node.names]


def test_no_module_imports_up():
    modules = {path.stem: set(imported_by(path)) for path in PACKAGE.glob("*.py")}
    assert "vllm_extension" in modules["worker"]
    graphlib.TopologicalSorter(modules).prepare()  # CycleError names the circle
