"""What is imported before it is needed: torch is not by the command's help, torch's compiler not by the library."""

import subprocess
import sys

import pytest

COMPILER = ("torch._dynamo", "torch._inductor")


def imported(program: str, names: tuple[str, ...]) -> set[str]:
    """Which of these modules a program has imported in a process of its own."""
    asked = f"import sys\n{program}\nprint([name for name in {names!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return set(eval(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import optrace", ("torch", "numpy", "networkx")),
        ("import optrace; optrace.trace", COMPILER),
        ("from optrace.cli import main; main(['--help'])", ("torch", "numpy", "networkx")),
        ("import optrace; optrace.OpGraph", ("torch",)),
    ],
)
def test_an_import_brings_no_more_than_it_needs(program, absent):
    assert imported(program, absent) == set()
