// Puts the page together: data, store, views, and how one leads to another.

import { load } from "./data";
import { announce, byId, el } from "./dom";
import { Panel } from "./panel";
import { Profiler } from "./profiler";
import { Search } from "./search";
import { Store } from "./store";
import { Theme } from "./theme";
import * as units from "./units";
import { FindingsView } from "./views/findings";
import { GraphView } from "./views/graph";
import { MemoryView } from "./views/memory";
import { RooflineView } from "./views/roofline";
import { SourceView } from "./views/source";
import { TablesView } from "./views/tables";
import { TimelineView } from "./views/timeline";

async function start(): Promise<void> {
  const document_ = await load(byId("data").textContent!);
  const store = new Store(document_);
  const theme = new Theme(document_.paint, document_.bounds);

  byId("program").textContent = document_.program || "a program";
  head(store, theme);
  scoreboard(store);

  const tabs = new Tabs();
  const graph = new GraphView(byId("graph-place"), byId("graph-tools"), store, theme);
  const timeline = new TimelineView(byId("timeline-place"), store, theme);
  new RooflineView(byId("roofline-place"), byId("roofline-tools"), store, theme);
  new MemoryView(byId("memory-place"), byId("memory-tools"), byId("memory-side"), store, theme);
  const tables = new TablesView(byId("tables-place"), byId("tables-tools"), store, theme);
  const source = new SourceView(byId("source-place"), byId("source-tools"), store, theme);
  if (source.empty) tabs.hide("source");
  const findings = new FindingsView(byId("view-findings"), store);
  if (findings.empty) tabs.hide("findings");
  byId("timeline-tools").append(
    el("span", { class: "quiet" }, "wheel or +/\u2212 zoom, drag pans, shift and drag selects"),
    el("button", { type: "button", click: () => timeline.fit() }, "Show all"),
  );
  new Profiler(byId("knobs"), byId("outcome"), store, theme);
  new Panel(byId("panel"), store, theme, () => graph.dependences, {
    graph: (call) => {
      tabs.show("graph");
      graph.reveal(call);
    },
    timeline: (call) => {
      timeline.reveal(call);
      timeline.canvas.focus();
    },
    table: (call) => {
      tabs.show("tables");
      tables.reveal(call);
    },
    source: (call) => {
      tabs.show("source");
      source.reveal(call);
    },
  });
  new Search(byId("search-place"), store, (call) => graph.reveal(call));
  byId("theme").addEventListener("click", () => theme.toggle());
  const help = byId("help-text") as HTMLDialogElement;
  byId("help").addEventListener("click", () => help.showModal());
  byId("help-close").addEventListener("click", () => help.close());
  document.documentElement.dataset.ready = "true";
  performance.mark("ready");
}

/** Views as tabs; the timeline stays below the others. */
class Tabs {
  private readonly buttons = [...document.querySelectorAll<HTMLButtonElement>("[role=tab]")];

  constructor() {
    for (const button of this.buttons) {
      button.addEventListener("click", () => this.show(button.dataset.view!));
      button.addEventListener("keydown", (event) => this.key(event));
    }
    this.show("graph");
  }

  hide(view: string): void {
    this.buttons.find((button) => button.dataset.view === view)!.hidden = true;
  }

  show(view: string): void {
    for (const button of this.buttons) {
      const chosen = button.dataset.view === view;
      button.setAttribute("aria-selected", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      byId(button.getAttribute("aria-controls")!).hidden = !chosen;
    }
    // One timeline: a strip below the other views, or the whole place.
    const strip = byId("strip");
    const own = view === "timeline";
    (own ? byId("view-timeline") : strip).append(byId("timeline-tools"), byId("timeline-place"));
    strip.hidden = own;
  }

  private key(event: KeyboardEvent): void {
    const shown = this.buttons.filter((button) => !button.hidden);
    const at = shown.indexOf(event.target as HTMLButtonElement);
    const to: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown.length - 1 };
    if (!(event.key in to)) return;
    const button = shown[(to[event.key] + shown.length) % shown.length];
    this.show(button.dataset.view!);
    button.focus();
    event.preventDefault();
  }
}

function head(store: Store, theme: Theme): void {
  const verdict = byId("verdict");
  const show = () => {
    const { result, run, turned } = store;
    const { bottleneck, wallUs } = result;
    const text = turned
      ? bottleneck
        ? `${bottleneck}-bound with these knobs: ${units.share(result.causes[bottleneck] / wallUs)} of ${units.predicted(wallUs)}`
        : "nothing runs on the device"
      : run.verdict;
    verdict.textContent = text;
    verdict.style.borderColor = theme.border(bottleneck ? store.document.bounds.indexOf(bottleneck) : 4);
    byId("priced").textContent = `priced for ${store.pricing.gpuName} (${store.pricing.gpuMeasured ? "measured" : "datasheet"} numbers), ${store.document.mode} mode, torch ${store.document.torch}`;
  };
  store.listen(show);
  theme.listen(show);
  show();
}

function scoreboard(store: Store): void {
  const place = byId("tiles");
  const tiles: [string, string, (result: Store["result"]) => number, (value: number, result: Store["result"]) => string][] = [
    ["wall", "wall clock", (r) => r.wallUs, (v, r) => units.predicted(v) + (r.unpriced ? " + ?" : "")],
    ["b2b", "back to back", (r) => r.b2bUs, (v) => units.predicted(v)],
    ["busy", "GPU busy", (r) => (r.wallUs ? (r.causes.memory + r.causes.compute) / r.wallUs : 0), (v) => `~${units.share(v)}`],
    ["launches", "launches", (r) => r.launchesTotal, (v, r) => units.count(v) + (r.unpriced ? " + ?" : "")],
    ["hbm", "HBM traffic", (r) => r.hbmBytes, (v, r) => units.moved(v) + (r.unpriced ? " + ?" : "")],
    ["flops", "arithmetic", (r) => r.flopsTotal, (v) => units.flop(v)],
    ["peak", "peak memory", (r) => r.peakBytes, (v) => units.allocated(v)],
    ["host", "host time", (r) => r.hostUsTotal, (v) => units.predicted(v)],
  ];
  const shown = tiles.map(([id, title]) => {
    const value = el("output", { id: `tile-${id}` });
    const was = el("span", { class: "was" });
    place.append(el("div", { class: "tile" }, el("span", { class: "quiet" }, title), value, was));
    return { value, was };
  });
  const show = () => {
    const { result, traced, turned } = store;
    tiles.forEach(([, , figure, text], n) => {
      const now = figure(result);
      const before = figure(traced);
      shown[n].value.textContent = text(now, result);
      shown[n].value.dataset.value = String(now);
      shown[n].was.textContent = turned && now !== before ? `${text(before, traced)} as traced` : "\u00a0";
    });
  };
  store.listen(show);
  show();
}

start().catch((error: unknown) => {
  document.documentElement.dataset.ready = "failed";
  announce("the page could not be shown");
  byId("verdict").textContent = `This page could not be shown: ${error instanceof Error ? error.message : String(error)}`;
  throw error;
});
