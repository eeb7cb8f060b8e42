"""Running a program and recording its ATen calls: the tracer, and the stand-in for a missing GPU."""

from optrace.tracing.session import DEVICES, MODES, Mode, Session, TraceError, open_session, step
from optrace.tracing.standin import StandinDevice

__all__ = ["DEVICES", "MODES", "Mode", "Session", "StandinDevice", "TraceError", "open_session", "step"]
