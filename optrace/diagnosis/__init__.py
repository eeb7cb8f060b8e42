"""What the priced and replayed run means: what bounds each call, the two ceilings, the verdict; what changed between
two runs, and what is over a budget."""

from optrace.diagnosis.bounds import BOUNDS, Bound, bounds_of
from optrace.diagnosis.cuda_graph import Blocker
from optrace.diagnosis.cures import Cures, cures
from optrace.diagnosis.lesson import Lesson, lesson
from optrace.diagnosis.verdict import Verdict, verdict

__all__ = [
    "BOUNDS",
    "Blocker",
    "Bound",
    "Cures",
    "Lesson",
    "Verdict",
    "bounds_of",
    "cures",
    "lesson",
    "verdict",
]
