"""``optrace gpus``: the GPU profiles, and where their numbers come from."""

from __future__ import annotations

from collections import Counter

import typer
from rich.table import Table
from rich.text import Text

from .console import console, show

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def gpus() -> None:
    """List the GPUs that --gpu knows. Dense rates; TFLOP/s of matmuls in bf16 and of fp32 outside of them."""
    from optrace.cost.profiles import gpu_profiles

    out = console()
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right", "right", "right", "right"):
        table.add_column(no_wrap=True, justify=justify)
    heading = ("gpu", "name", "bf16 TFLOP/s", "fp32 TFLOP/s", "TB/s", "memory", "L2", "numbers")
    table.add_row(*heading, style="bright_black")
    for profile in gpu_profiles().values():
        table.add_row(
            profile.key,
            profile.name,
            f"{profile.peak_tflops['bfloat16']:,.0f}",
            f"{profile.peak_tflops['float32']:,.1f}",
            f"{profile.bandwidth_tb_s:g}",
            f"{profile.memory_bytes / 2**30:,.0f} GiB",
            f"{profile.l2_bytes / 2**20:,.0f} MiB",
            "measured" if profile.measured else "datasheet",
        )
    show(out, table)
    show(out, "")
    profiles = list(gpu_profiles().values())
    notes = {profile.key: _sentences(profile.note) for profile in profiles}
    counts = Counter(sentence for said in notes.values() for sentence in said)
    shared = [sentence for sentence, count in counts.items() if 2 * count > len(profiles)]
    for profile in profiles:
        show(out, f"{profile.key}: {profile.source}")
        own = " ".join(sentence for sentence in notes[profile.key] if sentence not in shared)
        if own:
            show(out, Text(f"  {own}", style="bright_black"))
    for sentence in shared:
        without = ", ".join(key for key, said in notes.items() if sentence not in said)
        show(out, "")
        show(out, Text(f"{f'All but {without}' if without else 'All'}: {sentence}", style="bright_black"))


def _sentences(note: str) -> list[str]:
    return [f"{sentence.removesuffix('.')}." for sentence in note.split(". ") if sentence]
