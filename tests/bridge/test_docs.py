"""The code of docs/fx.md runs as it stands, block after block."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOC = Path(__file__).parents[2] / "docs" / "fx.md"


def test_the_pages_code_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", DOC.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "torch.ops.aten.addmm.default" in done.stdout
    assert "graph 0 breaks at page.py:" in done.stdout
