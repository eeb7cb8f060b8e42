"""The outcome of a check as JUnit XML, which CI systems read: a suite a program, a case a limit."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from optrace.diagnosis.gate import Outcome
from optrace.rendering.budget import details, sentence
from optrace.visible import visible


def junit(program: str, outcomes: Sequence[Outcome]) -> bytes:
    """The document. A count over its limit is a failure; a time over its limit is told in the case's output."""
    failures = sum(outcome.fails for outcome in outcomes)
    figures = {"tests": str(len(outcomes)), "failures": str(failures), "errors": "0"}
    suites = ElementTree.Element("testsuites", {"name": "optrace", **figures})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": visible(program), **figures})
    for outcome in outcomes:
        place = {"classname": visible(program), "name": visible(outcome.limit.name)}
        if outcome.source is not None:
            place |= {"file": visible(outcome.source.file), "line": str(outcome.source.line)}
        case = ElementTree.SubElement(suite, "testcase", place)
        text = visible("\n".join(details(outcome)))
        if outcome.fails:
            failure = ElementTree.SubElement(case, "failure", {"message": visible(sentence(outcome))})
            failure.text = text
        elif outcome.over:
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(suites)
    document: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return document + b"\n"
