// The selection in full: figures, tensors, place, neighbours, and ways into the other views.

import { sumOf } from "./costs";
import { el } from "./dom";
import type { Edges } from "./edges";
import { compared, errorText } from "./measured";
import type { Store } from "./store";
import type { Theme } from "./theme";
import * as units from "./units";
import { callSignature, callTitle, lineOf, moduleOf, time } from "./words";

export interface Ways {
  graph: (call: number) => void;
  timeline: (call: number) => void;
  table: (call: number) => void;
  source: (call: number) => void;
}

const NEIGHBOURS = 8;

export class Panel {
  constructor(
    private readonly place: HTMLElement,
    private readonly store: Store,
    private readonly theme: Theme,
    private readonly edges: () => Edges,
    private readonly ways: Ways,
  ) {
    store.listen(() => this.show());
    theme.listen(() => this.show());
    this.show();
  }

  private show(): void {
    const { store, theme } = this;
    const { selection, result, run } = store;
    if (!selection) {
      this.place.replaceChildren(
        el("h2", {}, "Nothing selected"),
        el("p", { class: "quiet" }, "Click a node, a bar, a circle or a row. What is selected here is marked in every view. Shift and drag in the timeline selects a stretch of time."),
        ...this.about(),
      );
      return;
    }
    const sum = sumOf(result, selection.calls);
    const one = selection.calls.length === 1 ? selection.calls[0] : null;
    const first = selection.calls[0];
    const pill = el("span", { class: "pill" }, theme.name(sum.bound));
    pill.style.background = theme.fill(sum.bound);
    pill.style.color = theme.text(sum.bound);
    pill.title = theme.meaning(sum.bound);
    const wall = result.wallUs || 1;
    const unknown = sum.unpriced === sum.calls;
    const beside = compared(store, selection.calls);
    const figures: [string, string | Node, string?][] = [
      ["wall clock", time(sum, sum.wallUs), units.share(sum.wallUs / wall)],
      ["idle before", units.predicted(sum.gapUs)],
      ["busy", time(sum, sum.memoryUs + sum.computeUs)],
      ...(sum.waitUs ? ([["idle for its wait", units.predicted(sum.waitUs)]] as [string, string][]) : []),
      ["device", time(sum, sum.deviceUs)],
      ...(beside ? ([["measured", el("b", {}, units.measured(beside.measuredUs)), `${errorText(beside)} as traced`]] as [string, Node, string][]) : []),
      ["host", units.predicted(sum.hostUs)],
      ["launches", unknown ? "?" : units.count(sum.launches)],
      ["HBM read", unknown ? "?" : units.moved(sum.hbmRead)],
      ["HBM written", unknown ? "?" : units.moved(sum.hbmWritten)],
      ["tensors hold", units.moved(sum.tensorBytes)],
      ["arithmetic", units.flop(sum.flops)],
      ["intensity", sum.hbmBytes ? units.intensity(sum.flops / sum.hbmBytes) : "no HBM traffic"],
    ];
    this.place.replaceChildren(
      el("div", { class: "panel-head" }, el("h2", { id: "selection" }, selection.label), pill),
      el("p", { class: "quiet" }, one === null ? units.counted(sum.calls, "call") : callTitle(run, one)),
      el("dl", {}, ...figures.flatMap(([name, value, extra]) => [el("dt", {}, name), el("dd", {}, value, extra ? el("span", { class: "quiet" }, ` ${extra}`) : null)])),
      el(
        "div",
        { class: "ways" },
        el("button", { type: "button", click: () => this.ways.graph(first) }, "In the graph"),
        el("button", { type: "button", click: () => this.ways.timeline(first) }, "On the clock"),
        el("button", { type: "button", click: () => this.ways.table(first) }, "In the table"),
        el("button", { type: "button", disabled: run.structure.line[first] < 0, click: () => this.ways.source(first) }, "In the source"),
      ),
      ...(one === null ? [] : this.details(one)),
      el("button", { type: "button", class: "quiet-button", click: () => store.clear() }, "Clear selection"),
    );
  }

  private details(call: number): HTMLElement[] {
    const { store } = this;
    const { run, result } = store;
    const { structure } = run;
    const rows: [string, string][] = [
      ["tensors", callSignature(run, call)],
      ["arguments", structure.arguments[structure.argument[call]]],
      ["module", moduleOf(run, call)],
      ["line", lineOf(run, call)],
      ["phase", structure.phases[structure.phase[call]]],
      ["stream", String(structure.stream[call])],
      ["kernels", store.document.kinds[result.columns.kind[call]]],
      ["price from", store.document.costSources[result.columns.source[call]]],
    ];
    const { before, after } = this.edges().neighbours(call);
    const list = (title: string, calls: number[]) =>
      calls.length
        ? [
            el("h3", {}, title),
            el(
              "div",
              { class: "neighbours" },
              ...calls.slice(0, NEIGHBOURS).map((one) => el("button", { type: "button", click: () => store.selectCall(one) }, callTitle(run, one))),
              calls.length > NEIGHBOURS ? el("span", { class: "quiet" }, `and ${calls.length - NEIGHBOURS} more`) : null,
            ),
          ]
        : [];
    return [
      el("dl", { class: "wide" }, ...rows.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      ...list("Uses results of", before),
      ...list("Is used by", after),
    ];
  }

  /** What the figures rest on. */
  private about(): HTMLElement[] {
    const { document, run } = this.store;
    const lines = [...document.notes, ...run.missing].filter(Boolean);
    const { measured } = run;
    return [
      ...(measured ? [el("h3", {}, "Measured"), el("p", {}, "On ", measured.device, ": wall clock ", el("b", {}, units.measured(measured.wallUs)), ".")] : []),
      el("h3", {}, "As traced"),
      el("dl", {}, ...run.scoreboard.flatMap(({ label, value, detail }) => [el("dt", { title: detail }, label), el("dd", { title: detail }, value)])),
      el("h3", {}, "What the figures rest on"),
      ...lines.map((line) => el("p", { class: "quiet" }, line)),
    ];
  }
}
