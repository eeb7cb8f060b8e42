"""Findings in words: lines for the terminal, the text report and the legend, fields for ``graph.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from optrace import units
from optrace.diagnosis.findings import Finding


def headline(findings: Sequence[Finding]) -> str:
    """How many there are, by severity: ``5 findings: 1 high, 4 low``."""
    if not findings:
        return "no findings"
    counts = Counter(finding.severity for finding in findings)
    return (
        f"{units.counted(len(findings), 'finding')}: {', '.join(f'{n} {name}' for name, n in counts.items())}"
    )


def claim(finding: Finding) -> str:
    """What it is about: ``saves ~849 us of ~969 us``, or ``takes ~969 us`` where nothing is claimed."""
    if finding.saves_us is None:
        return f"takes {units.predicted_us(finding.wall_us)}"
    return f"saves {units.predicted_us(finding.saves_us)}"


def place(finding: Finding) -> str:
    """Source line and module, as far as they are known, else the first call: ``model.py:3, GPT.blocks.*``, ``call %3``."""
    known = ", ".join(part for part in (str(finding.source or ""), finding.module) if part)
    return known or f"call %{finding.leads[0]}"


def title(finding: Finding) -> str:
    """``sync x20: the host waits for the GPU inside the step``."""
    times = f" x{finding.count:,}" if finding.count > 1 else ""
    return f"{finding.kind}{times}: {finding.title}"


def paragraphs(findings: Sequence[Finding]) -> Iterator[str]:
    """Four lines a finding."""
    for finding in findings:
        yield f"{finding.severity:6}  {title(finding)}; {claim(finding)}"
        yield f"        {place(finding)}"
        yield f"        {sentence(finding.why)}"
        yield f"        {sentence(finding.change)}"


def one_line(finding: Finding) -> str:
    """For a legend: kind, claim, place."""
    times = f" x{finding.count:,}" if finding.count > 1 else ""
    return f"{finding.severity}: {finding.kind}{times}, {claim(finding)}, {place(finding)}"


def record(finding: Finding) -> dict[str, Any]:
    """A finding in ``graph.json``."""
    return {
        "kind": finding.kind,
        "title": finding.title,
        "severity": finding.severity,
        "module": finding.module or None,
        "source": str(finding.source) if finding.source else None,
        "why": finding.why,
        "change": finding.change,
        "count": finding.count,
        "leads": finding.leads,
        "calls": finding.calls,
        "wall_us": finding.wall_us,
        "saves_us": finding.saves_us,
    }


def sentence(text: str) -> str:
    """With a capital letter, unless it begins with a name."""
    first = text.split(maxsplit=1)[0] if text else ""
    plain = first.rstrip(",:;").isalpha() and first.islower()
    return text[:1].upper() + text[1:] if plain else text
