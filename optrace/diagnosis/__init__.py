"""What the priced and replayed run means: what bounds each call, the two ceilings, the verdict; what changed between
two runs, and what is over a budget."""

from optrace.diagnosis.bounds import BOUNDS, Bound, bound_of
from optrace.diagnosis.lesson import Lesson, lesson
from optrace.diagnosis.verdict import Verdict, verdict

__all__ = ["BOUNDS", "Bound", "Lesson", "Verdict", "bound_of", "lesson", "verdict"]
