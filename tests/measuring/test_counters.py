from __future__ import annotations

import os
import sys
from time import monotonic

import pytest

from optrace.measuring.counters import CountersError, _output


@pytest.mark.parametrize("groups", [True, False], ids=["process groups", "none, as on Windows"])
def test_what_takes_too_long_is_ended(groups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not groups:
        monkeypatch.delattr(os, "killpg", raising=False)
    elif not hasattr(os, "killpg"):
        pytest.skip("this system has no groups of processes")
    begin = monotonic()
    with pytest.raises(CountersError, match=r"took longer than 0\.2 s, and had come to 0 kernels"):
        _output([sys.executable, "-c", "import time; time.sleep(600)"], 0.2, lambda _: None)
    assert monotonic() - begin < 300
