"""What is shipped, and what importing it costs."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_package_list_is_what_is_in_the_tree():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    # Folders of data too: for setuptools each is a package.
    files = [f for f in (ROOT / "optrace").rglob("*") if f.is_file() and f.parent.name != "__pycache__"]
    library = {".".join(f.parent.relative_to(ROOT).parts) for f in files}
    command = {
        ".".join(("optrace", "cli", *f.parent.relative_to(ROOT / "cli").parts))
        for f in (ROOT / "cli").rglob("__init__.py")
    }
    assert sorted(settings["packages"]) == sorted(library | command)


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.strip()


def test_importing_optrace_imports_no_torch():
    code = "import optrace, sys; print('torch' in sys.modules, 'networkx' in sys.modules)"
    assert python(code) == "False False"


@pytest.mark.parametrize("module", ["optrace.graph", "optrace.report", "optrace.rendering"])
def test_a_recorded_graph_is_priced_and_drawn_without_torch(module):
    assert python(f"import {module}, sys; print('torch' in sys.modules)") == "False"


def test_importing_the_tracer_leaves_the_compile_stack_alone():
    code = "import optrace.tracing, sys; print([m for m in sys.modules if m.startswith(('torch._dynamo.', 'torch._inductor'))])"
    assert python(code) == "[]"


def test_public_names_are_there():
    import optrace

    for name in optrace.__all__:
        assert getattr(optrace, name)
    with pytest.raises(AttributeError, match="no attribute 'tracee'"):
        optrace.tracee  # noqa: B018
