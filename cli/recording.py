"""A program run under the recorder, and an exit code for each way in which it can end."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from .errors import DONE, INTERRUPTED, PROGRAM_RAISED, BadInput, bad_input, tell, tell_raised
from .speaker import Speaker

if TYPE_CHECKING:
    from optrace.cost.profiles import Pricing
    from optrace.graph import OpGraph
    from optrace.program import Program
    from optrace.tracing import Session


def choose_pricing(prices: dict[str, Any], mode: str, say: Speaker) -> Pricing:
    """The profiles asked for; with no GPU named, that of the GPU which will run the program."""
    from optrace.cost.profiles import UnknownProfileError, find_gpu, pricing

    with bad_input(ValueError):
        chosen = pricing(**prices)
    if "gpu" in prices or mode not in ("auto", "cuda"):
        return chosen
    import torch

    if not torch.cuda.is_available():
        return chosen
    name = torch.cuda.get_device_name()
    try:
        return pricing(**prices, gpu=find_gpu(name).key)
    except UnknownProfileError:
        say.warning(f"no profile fits this machine's {name}: priced for {chosen.gpu.name} (see optrace gpus)")
        return chosen


def priced_for(prices: Pricing) -> str:
    """Which GPU, and how well it is known."""
    return f"priced for {prices.gpu.name} ({'measured' if prices.gpu.measured else 'datasheet'} numbers)"


def record(
    target: str, options: dict[str, Any], place: dict[str, Any], prices: Pricing, say: Speaker
) -> tuple[OpGraph, int]:
    """What was recorded, also of a run that stopped half way, and the exit code.

    ``options`` are those of ``optrace.program.Options``, ``place`` those of ``open_session``.
    """
    from optrace.api import answers_of
    from optrace.program import Options, ProgramError, find_program
    from optrace.tracing import TraceError, open_session

    code = DONE
    program: Program | None = None
    with ExitStack() as stack:
        with bad_input(TraceError):
            session = stack.enter_context(
                open_session(gpu=prices.gpu.key, answers=answers_of(prices.gpu), **place)
            )
        # What was imported so far stays: no garbage collection and no look for live tensors has to pass over it.
        gc.freeze()
        stack.callback(gc.unfreeze)
        how = session.notes[0] if session.notes else f"mode {session.mode}"
        try:
            with bad_input(ProgramError), find_program(target, Options(**options)) as program:
                say.line(program.describe)
                say.line(f"{how}; {priced_for(prices)}")
                with say.progress(lambda: session.calls):
                    program.run(session)
        except BadInput:
            raise
        except KeyboardInterrupt:
            tell("interrupted")
            code = INTERRUPTED
        except SystemExit as end:
            tell(end.code if isinstance(end.code, str) else f"{target} ended with exit status {end.code}")
            code = PROGRAM_RAISED
        except Exception as error:
            tell_raised(error)
            code = PROGRAM_RAISED
    if program is not None:
        for note in session.graph.info.notes[len(session.notes) :]:
            say.warning(note)
        if code == DONE:
            _check_steps(program, session, say)
        session.describe(program.name, _steps(program, session))
    return session.graph, code


def _steps(program: Program, session: Session) -> int:
    """How many steps were recorded."""
    if not program.marks_steps:
        return program.steps
    return max(1, min(program.steps, session.steps_seen - program.warmup))


def _check_steps(program: Program, session: Session, say: Speaker) -> None:
    """Nothing was recorded, or not what was asked for."""
    from optrace.program import RANKS

    seen = session.steps_seen
    if len(session.graph):
        if program.marks_steps and not seen and (program.steps > 1 or program.warmup):
            say.warning("no optrace.step() was passed: --steps and --warmup had nothing to count")
        elif program.marks_steps and 0 < seen < program.warmup + program.steps:
            say.warning(
                f"{program.name} took {seen} steps: {seen - program.warmup} of --steps {program.steps} recorded"
            )
    elif program.marks_steps and seen:
        raise BadInput(
            f"nothing was recorded: {program.name} took {seen} steps, with --warmup {program.warmup}"
        )
    else:
        looked_for = f" (looked for {'; '.join(RANKS)})" if program.marks_steps else ""
        raise BadInput(f"nothing was recorded: {program.describe} dispatched no op{looked_for}")
