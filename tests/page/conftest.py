from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from optrace.cli import main

from optrace.rendering import read_report, render
from optrace.report import Report

SAMPLES = Path(__file__).parents[2] / "samples"

#: Where distributions put it.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium of this machine."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} on the PATH (apt-get install chromium)")
    with playwright.sync_playwright() as running:
        # In a container root has no sandbox to give.
        started = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page in the browser, with what went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.console: list[str] = []
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, message: Any) -> None:
        # Chromium's advice to tests that look at pixels.
        if "willReadFrequently" not in message.text:
            self.console.append(f"{message.type}: {message.text}")

    def value(self, output: str) -> float:
        """The number behind a figure, as the script computed it."""
        return float(self.page.get_attribute(f"#{output}", "data-value"))

    def slide(self, knob: str, place: float) -> None:
        """Drag a slider and wait for the frame that shows it."""
        self.page.evaluate(
            """([id, place]) => new Promise((done) => {
                const slider = document.getElementById(id);
                slider.value = place;
                slider.dispatchEvent(new Event("input", { bubbles: true }));
                requestAnimationFrame(() => requestAnimationFrame(done));
            })""",
            [f"knob-{knob}", place],
        )

    def settle(self) -> None:
        """Two frames: what was asked for is drawn."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def choose(self, knob: str, value: str) -> None:
        self.page.select_option(f"#knob-{knob}", value)
        self.settle()

    def tab(self, view: str) -> None:
        self.page.click(f"#tab-{view}")
        self.settle()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Open an HTML file; afterwards nothing may have been asked of a network or said on the console."""
    contexts = []
    all_opened: list[tuple[Opened, str]] = []

    def open_page(file: Path, **options: Any) -> Opened:
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}} | options)
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.goto(file.as_uri())
        opened.page.wait_for_selector("html[data-ready=true]", timeout=60_000)
        opened.settle()
        all_opened.append((opened, file.as_uri()))
        return opened

    yield open_page
    for context in contexts:
        context.close()
    for opened, url in all_opened:
        assert opened.errors == []
        assert opened.console == []
        assert opened.requests == [url]


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A program's ``graph.json`` by the command line; traced once a session."""
    made: dict[tuple[str, ...], Path] = {}

    def traced(program: Path, *words: str) -> Path:
        key = (str(program), *words)
        if key not in made:
            file = tmp_path_factory.mktemp("traced") / "graph.json"
            assert main([str(program), "--mode", "fake", "-q", "-o", str(file), *words]) == 0
            made[key] = file
        return made[key]

    return traced


@pytest.fixture(scope="session")
def toy(traced: Callable[..., Path]) -> Path:
    return traced(SAMPLES / "toy_block.py", "--dispatch-us", "4", "--launch-us", "6", "--bandwidth-tb", "3.3")


@pytest.fixture(scope="session")
def transformer(traced: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training step of four transformer layers."""
    program = tmp_path_factory.mktemp("transformer") / "layers.py"
    program.write_text(
        "import torch\n"
        "class Layers(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        layer = lambda: torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)\n"
        "        self.layers = torch.nn.ModuleList(layer() for _ in range(4))\n"
        "        self.head = torch.nn.Linear(256, 1000)\n"
        "    def forward(self, x):\n"
        "        for layer in self.layers:\n"
        "            x = layer(x)\n"
        "        return self.head(x)\n"
        "Model = Layers\n"
        "def get_inputs(batch=8): return (torch.randn(batch, 128, 256),)\n"
    )
    return traced(program, "--train")


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], tuple[Report, Path]]:
    """A recorded program's report and page; made once a session."""
    made: dict[Path, tuple[Report, Path]] = {}

    def page_of(graph: Path) -> tuple[Report, Path]:
        if graph not in made:
            report = read_report(graph)
            file = tmp_path_factory.mktemp("page") / "report.html"
            render(report, file)
            made[graph] = (report, file)
        return made[graph]

    return page_of


def totals(graph: Path) -> Any:
    return json.loads(graph.read_text())["totals"]
