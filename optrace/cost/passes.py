"""Which kernel of a call touches what: a call of several kernels is as many passes over its operands.

What a pass wrote the next one may find in the L2, so their order matters to HBM traffic. A rule that knows its
kernels says so in ``Work.passes``; for the rest the order follows from the temporaries' sizes.
"""

from __future__ import annotations

from dataclasses import replace

from optrace.cost.work import MATRIX_KINDS, Access, Operand, Pass, Work


def passes_of(work: Work) -> tuple[Pass, ...]:
    """The call's passes in order.

    A temporary as large as an operand that is read is a copy of it in another layout or dtype, made first and read
    in its place. Any other (partial sums, a result in another layout) is written in the operand's pass and read
    by one more, which writes the results. What a call that is no product reads again it reads in passes of their own,
    the last of which writes. What a product spills it writes beside its results.
    """
    passes = work.passes or _passes(work)
    if not work.spilled:
        return passes
    spill = len(work.scratch)
    return tuple(replace(one, writes=(*one.writes, spill)) if one.is_product else one for one in passes)


def _passes(work: Work) -> tuple[Pass, ...]:
    """The passes of a call whose rule does not name them."""
    found: list[Pass] = []
    sources: list[Operand] = list(work.reads)
    uncopied = list(range(len(work.reads)))
    others: list[Operand] = []
    for number, nbytes in enumerate(work.scratch):
        copied = next((place for place in uncopied if work.reads[place].nbytes == nbytes), None)
        if copied is None:
            others.append(number)
        else:
            uncopied.remove(copied)
            found.append(Pass((work.reads[copied],), (number,)))
            sources[copied] = number
    is_product = work.kind in MATRIX_KINDS
    again = () if is_product else work.rereads
    if others or again:
        found.append(Pass(tuple(sources), tuple(others), is_product=is_product))
        rounds = [tuple(_round(access, number) for access in again) for number in range(_rounds(again))]
        last = tuple(access for access in (rounds.pop() if rounds else ()) if access.nbytes)
        found += [Pass(tuple(access for access in accesses if access.nbytes)) for accesses in rounds]
        found.append(Pass((*last, *others), work.writes))
    else:
        found.append(Pass(tuple(sources), work.writes, is_product=is_product))
    return tuple(found)


def _rounds(again: tuple[Access, ...]) -> int:
    """Passes that it takes to read each tensor so many bytes once more."""
    return max((-(-access.nbytes // max(1, access.tensor.nbytes)) for access in again), default=0)


def _round(access: Access, number: int) -> Access:
    """The part of an access that falls into its ``number``-th pass over the tensor."""
    whole = access.tensor.nbytes
    return Access(access.tensor, max(0, min(whole, access.nbytes - number * whole)))
