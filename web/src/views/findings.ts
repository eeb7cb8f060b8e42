// What is worth changing in the run as traced: cures side by side, what stops them, findings with the calls they
// speak of, and what a compiler would fuse.

import type { Numbers } from "../data";
import { el } from "../dom";
import { Grid } from "../grid";
import type { FusedRegion } from "../data";
import type { Store } from "../store";
import * as units from "../units";

const SCHEDULES = ["eager", "graph", "fused", "both"] as const;

export class FindingsView {
  private run: unknown = null;

  constructor(
    private readonly place: HTMLElement,
    private readonly store: Store,
  ) {
    store.listen(() => {
      if (this.run !== store.run) this.build();
    });
    this.build();
  }

  get empty(): boolean {
    return !this.store.run.findings.length && !this.store.run.cures;
  }

  private build(): void {
    const { run } = this.store;
    this.run = run;
    const { findings, blockers, regions } = run;
    this.place.replaceChildren(
      ...(run.cures ? this.cures() : []),
      ...(blockers?.length
        ? [
            el("h2", {}, "What stands in the way of a CUDA graph"),
            ...blockers.map((one) =>
              this.card(one.stops ? "stops it" : "look after it", one.reason, [], "", one.calls),
            ),
          ]
        : []),
      el("h2", {}, findings.length ? units.counted(findings.length, "finding") : "No findings"),
      ...findings.map((one) =>
        this.card(one.severity, one.title, [one.place, one.why, one.change], one.claim, one.calls),
      ),
      ...(regions?.length ? this.regions(regions) : []),
    );
  }

  private card(tag: string, title: string, lines: string[], claim: string, calls: Numbers): HTMLElement {
    return el(
      "section",
      { class: `finding ${tag}` },
      el("h3", {}, el("span", { class: "tag" }, tag), title),
      ...lines.filter(Boolean).map((line, n) => el("p", { class: n ? "" : "quiet" }, line)),
      el(
        "div",
        { class: "finding-foot" },
        claim ? el("b", {}, claim) : null,
        calls.length
          ? el(
              "button",
              { type: "button", click: () => this.store.select(title, calls) },
              calls.length === 1 ? "Select its call" : `Select its ${units.count(calls.length)} calls`,
            )
          : null,
      ),
    );
  }

  private cures(): HTMLElement[] {
    const cures = this.store.run.cures!;
    const head = ["", "wall clock", "speed-up", "launches", "HBM", "peak memory", "bound by", ""];
    return [
      el("h2", {}, "Cures, as traced"),
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { class: "cures-table" },
          el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
          el(
            "tbody",
            {},
            ...cures.map((row, n) =>
              el(
                "tr",
                {},
                el("th", { scope: "row" }, row.name),
                el("td", {}, units.predicted(row.wallUs) + (row.complete ? "" : " + ?")),
                el("td", {}, `~${units.number(row.speedUp)}\u00d7`),
                el("td", {}, units.count(row.launches)),
                el("td", {}, units.moved(row.hbmBytes)),
                el("td", {}, units.allocated(row.peakBytes)),
                el("td", {}, row.bottleneck),
                el("td", {}, el("button", { type: "button", click: () => this.store.turn({ schedule: SCHEDULES[n] }) }, "Show")),
              ),
            ),
          ),
        ),
      ),
    ];
  }

  private regions(regions: FusedRegion[]): HTMLElement[] {
    const { store } = this;
    const { ops, op } = store.run.structure;
    const all = store.run.regionsInAll ?? regions.length;
    const grid = new Grid<FusedRegion>({
      label: "What a compiler would fuse",
      columns: [
        { title: "calls that become one kernel", width: "minmax(220px, 1fr)", text: ({ calls }) => Array.from(calls, (call) => ops[op[call]].label).join(", ") },
        { title: "calls", width: "64px", numeric: true, text: ({ calls }) => String(calls.length), value: ({ calls }) => calls.length },
        { title: "launches saved", width: "120px", numeric: true, text: (one) => String(one.launchesSaved), value: (one) => one.launchesSaved },
        { title: "bytes before", width: "100px", numeric: true, text: (one) => units.moved(one.bytesBefore), value: (one) => one.bytesBefore },
        { title: "after", width: "90px", numeric: true, text: (one) => units.moved(one.bytesAfter), value: (one) => one.bytesAfter },
        { title: "device saved", width: "110px", numeric: true, text: (one) => units.predicted(one.savedUs), value: (one) => one.savedUs ?? 0 },
      ],
      sort: { column: 5, down: true },
      selected: ({ calls }) => !!store.selection && calls.some((call: number) => store.selection!.mask[call] === 1),
      choose: ({ calls }) => store.select(`fused: ${ops[op[calls[0]]].label} +${calls.length - 1}`, calls),
    });
    store.listen(() => this.place.clientHeight && grid.paint());
    grid.show(regions);
    const title = all > regions.length ? `${units.count(regions.length)} of ${units.count(all)} kernels that a compiler would fuse` : "What a compiler would fuse";
    const holder = el("div", { class: "regions" }, grid.element);
    new ResizeObserver(() => holder.clientHeight && grid.paint()).observe(holder);
    return [el("h2", {}, title), holder];
  }
}
