from __future__ import annotations

from pathlib import Path

import pytest

from optrace.diagnosis.budget import BudgetError, Limit, fits, read_budget


def read(tmp_path: Path, text: str, name: str = "optrace.toml"):
    (tmp_path / name).write_text(text)
    return read_budget(tmp_path / name)


def test_limits_absolute_with_units_and_against_a_baseline(tmp_path: Path) -> None:
    budget = read(
        tmp_path,
        """
        tolerance = 0.02
        launches = 120
        hbm_bytes = "baseline + 5 %"
        peak_bytes = "2 GiB"
        flops = "1.5 GFLOP"
        syncs = "baseline"
        wall_us = "3 ms"
        """,
    )
    assert {limit.figure: (limit.value, limit.over_baseline) for limit in budget.limits_for("model.py")} == {
        "launches": (120, None),
        "hbm_bytes": (0, 0.05),
        "peak_bytes": (2 * 2**30, None),
        "flops": (1.5e9, None),
        "syncs": (0, 0.02),
        "wall_us": (3000, None),
    }
    assert [limit.figure for limit in budget.limits if not limit.gates] == ["wall_us"]


def test_modules_findings_and_programs(tmp_path: Path) -> None:
    budget = read(
        tmp_path,
        """
        launches = 100
        findings = ["sync"]
        [modules."GPT.blocks.*"]
        launches = 9
        [programs."train*.py"]
        launches = 300
        findings = { sync = 2 }
        [programs."train*.py".modules."GPT.head"]
        hbm_bytes = "1 MB"
        """,
    )
    assert budget.limits_for("model.py") == (
        Limit("launches", value=100),
        Limit("findings.sync", value=0),
        Limit("launches", "GPT.blocks.*", value=9),
    )
    assert set(budget.limits_for("train_gpt.py")) == {
        Limit("launches", value=300),
        Limit("findings.sync", value=2),
        Limit("launches", "GPT.blocks.*", value=9),
        Limit("hbm_bytes", "GPT.head", value=1e6),
    }


def test_a_budget_in_pyproject(tmp_path: Path) -> None:
    budget = read(tmp_path, "[project]\nname = 'x'\n[tool.optrace]\nlaunches = 3\n", "pyproject.toml")
    assert budget.limits == (Limit("launches", value=3),)
    assert budget.baseline == tmp_path / "optrace-baseline.json"


ROWS = [
    ("launchs = 3", "unknown key launchs (one of baseline, tolerance, launches, hbm_bytes"),
    ('[modules."a"]\nlaunch = 3', 'unknown key modules."a".launch (one of launches, hbm_bytes'),
    ('[programs."a.py"]\nbaseline = "x"', 'unknown key programs."a.py".baseline (one of launches'),
    ('launches = "many"', 'launches = \'many\': expected a number, "baseline" or "baseline + 5 %"'),
    ("launches = -1", "launches = -1: expected a number"),
    ("launches = true", "launches = True: expected a number"),
    ("launches = nan", "launches = nan: expected a number"),
    ('launches = "3 GB"', "launches = '3 GB': expected a number"),
    ('hbm_bytes = "3 us"', "hbm_bytes = '3 us': expected a number, a number with a unit (B, kB, MB"),
    ('hbm_bytes = "baseline - 5 %"', "expected a number, a number with a unit"),
    ("tolerance = -0.1", "tolerance = -0.1: expected a share over the baseline that passes"),
    ("baseline = 3", "baseline = 3: expected the path of a file"),
    ('findings = ["slow"]', "findings: unknown kind 'slow' (one of "),
    ("findings = 3", "findings = 3: expected a list of kinds that must not be found"),
    ("modules = 3", "modules = 3: expected tables of limits"),
    ("[programs]\nlaunches = 3", "programs = {'launches': 3}: expected tables of limits"),
    ("launches = ", "Invalid value"),
]


@pytest.mark.parametrize(("text", "message"), ROWS, ids=[row[0] for row in ROWS])
def test_what_cannot_be_read_names_the_key_the_value_and_the_choices(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(BudgetError) as error:
        read(tmp_path, text)
    assert message in str(error.value)
    assert str(tmp_path / "optrace.toml") in str(error.value)


def test_no_limits_for_a_program(tmp_path: Path) -> None:
    budget = read(tmp_path, '[programs."train.py"]\nlaunches = 3')
    with pytest.raises(BudgetError, match=r"sets no limit for model\.py \(it has limits for train\.py\)"):
        budget.limits_for("model.py")


def test_no_table_in_pyproject(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"has no \[tool\.optrace\]"):
        read(tmp_path, "[project]\nname = 'x'", "pyproject.toml")


def test_globs_of_module_paths_stop_at_dots() -> None:
    assert fits("GPT.blocks.3", "GPT.blocks.*")
    assert not fits("GPT.blocks.3.mlp", "GPT.blocks.*")
    assert fits("GPT.blocks.3.mlp", "**.mlp")
    assert fits("GPT.blocks.3.mlp", "GPT.**")
    assert not fits("GPTblocks", "GPT.blocks")
