"""How fast the page of a 20,000-call program is, in headless Chromium on this machine.

    python -m tests.page.benchmark [calls]

Times are minima of five, since other work on the machine only adds. ``ready`` counts from the start of navigation
until every view can be used; ``slider`` from the input event until the frame with the new figures is handed over;
frames are those of 120 steps of zooming and panning. Exit status 1 where a figure misses its target.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from optrace.rendering import render
from tests.page.conftest import BROWSERS
from tests.page.programs import many

REPEATS = 5

SLIDE = """() => new Promise((done) => {
    const slider = document.getElementById("knob-dispatch");
    slider.value = Number(slider.value) > 10 ? 3 : 15;
    const start = performance.now();
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    requestAnimationFrame(() => {
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = () => done(performance.now() - start);
        port2.postMessage(0);
    });
})"""

FRAMES = """(place) => new Promise((done) => {
    const canvas = document.querySelector(`#${place}-place canvas`);
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const at = { clientX: left + width / 2, clientY: top + height / 2, bubbles: true, view: window };
    const times = [];
    let step = 0;
    const frame = (now) => {
        times.push(now);
        if (step === 120) return done(times.slice(1).map((time, n) => time - times[n]));
        // In for sixty, out for sixty, sideways all along.
        canvas.dispatchEvent(new WheelEvent("wheel", { ...at, clientX: at.clientX + step, deltaY: step < 60 ? -60 : 60, cancelable: true }));
        step++;
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
})"""


def measured(browser: Any, file: Path) -> Iterator[tuple[str, float, float, str]]:
    """Figure, value, target, unit. A value may be at most its target, but frames a second at least."""
    ready, slides = [], []
    frames: dict[str, list[float]] = {"graph": [], "timeline": []}
    for _ in range(REPEATS):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready=true]", timeout=120_000)
        ready.append(page.evaluate("performance.getEntriesByName('ready')[0].startTime"))
        page.evaluate(SLIDE)  # the first one warms the compiler up
        slides.append(min(page.evaluate(SLIDE) for _ in range(REPEATS)))
        for place, times in frames.items():
            times.append(statistics.median(page.evaluate(FRAMES, place)))
        context.close()
    yield "ready", min(ready), 2000, "ms"
    yield "slider to repaint", min(slides), 100, "ms"
    for place, times in frames.items():
        yield f"{place}, zoom and pan", 1000 / min(times), 30, "frames/s"


def main() -> int:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    program = next(found for name in BROWSERS if (found := shutil.which(name)))
    missed = False
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        render(many(calls), file)
        print(f"{calls:,} calls, {file.stat().st_size / 1e6:.1f} MB")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for figure, value, target, unit in measured(browser, file):
            good = value >= target if unit == "frames/s" else value <= target
            missed |= not good
            print(f"{figure:24} {value:8.1f} {unit:9} target {target}{'' if good else '  MISSED'}")
        browser.close()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
