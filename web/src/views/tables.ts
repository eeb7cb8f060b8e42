// Tables by op, by module, by source line and call by call; sortable, copied as CSV.

import { sumOf, type Sum } from "../costs";
import { announce, el } from "../dom";
import { copy, Grid, type Column } from "../grid";
import { compared, errorText, type Compared } from "../measured";
import type { Store } from "../store";
import type { Theme } from "../theme";
import * as units from "../units";
import { callSignature, fileName, lineOf, moduleOf, time } from "../words";

interface Row {
  name: string;
  detail: string;
  calls: Uint32Array;
  sum: Sum;
  /** Where the program was measured. */
  beside: Compared | null;
}

/** What a group of calls is before they are priced. */
type Group = Omit<Row, "sum" | "beside">;

type By = "op" | "module" | "line" | "call";
const TITLES: Record<By, string> = { op: "op", module: "module", line: "source line", call: "call" };

export class TablesView {
  private by: By = "op";
  private readonly grids = new Map<By, Grid<Row>>();
  private groups = new Map<By, Group[]>();
  private shownOf = "";
  private readonly rows = new Map<By, Row[]>();

  constructor(
    private readonly place: HTMLElement,
    toolbar: HTMLElement,
    private readonly store: Store,
    private readonly theme: Theme,
  ) {
    const choose = el(
      "select",
      { id: "table-by", change: (event: Event) => this.show((event.target as HTMLSelectElement).value as By) },
      ...(Object.keys(TITLES) as By[]).map((by) => el("option", { value: by }, TITLES[by])),
    );
    const copied = el("button", { type: "button", id: "copy-csv" }, "Copy as CSV");
    copied.addEventListener("click", async () => {
      const done = await copy(this.grid().csv);
      copied.textContent = done ? "Copied" : "Cannot copy here";
      announce(copied.textContent);
      setTimeout(() => (copied.textContent = "Copy as CSV"), 1600);
    });
    toolbar.append(el("label", {}, "by ", choose), copied);
    let run = store.run;
    store.listen((changed) => {
      if (run !== store.run) {
        run = store.run;
        this.groups = new Map();
      }
      if (this.place.clientHeight) this.refresh(changed.has("knobs"));
    });
    theme.listen(() => this.grids.forEach((grid) => grid.paint()));
    new ResizeObserver(() => this.place.clientHeight && this.refresh(false)).observe(place);
    this.show("op");
  }

  get csv(): string {
    return this.grid().csv;
  }

  private show(by: By): void {
    this.by = by;
    this.place.replaceChildren(this.grid().element);
    this.refresh(false);
  }

  private refresh(sorted: boolean): void {
    const key = `${this.by} ${this.store.result.version}`;
    if (key !== this.shownOf || sorted) {
      this.shownOf = key;
      const { result } = this.store;
      const rows = this.grouped().map((group) => ({ ...group, sum: sumOf(result, group.calls), beside: compared(this.store, group.calls) }));
      this.rows.set(this.by, rows);
      this.grid().show(rows);
    } else this.grid().paint();
  }

  /** Bring the row that holds a call into sight. */
  reveal(call: number): void {
    this.grid().reveal((row) => row.calls.includes(call));
  }

  private grouped(): Group[] {
    let found = this.groups.get(this.by);
    if (!found) this.groups.set(this.by, (found = this.group(this.by)));
    return found;
  }

  private group(by: By): Group[] {
    const { run } = this.store;
    const { structure } = run;
    const { calls } = structure;
    if (by === "call") {
      return Array.from({ length: calls }, (_, call) => ({
        name: `%${call} ${structure.ops[structure.op[call]].name}`,
        detail: callSignature(run, call),
        calls: Uint32Array.of(call),
      }));
    }
    const column = { op: structure.op, module: structure.module, line: structure.line }[by];
    const found = new Map<number, number[]>();
    for (let call = 0; call < calls; call++) {
      const known = found.get(column[call]);
      if (known) known.push(call);
      else found.set(column[call], [call]);
    }
    return [...found].map(([key, members]) => ({ ...this.naming(by, key), calls: Uint32Array.from(members) }));
  }

  private naming(by: By, key: number): { name: string; detail: string } {
    const { structure } = this.store.run;
    if (by === "op") return { name: structure.ops[key].name, detail: "" };
    if (by === "module") {
      if (key < 0) return { name: "(outside any module)", detail: "" };
      return { name: structure.modules[key].path, detail: structure.modules[key].cls };
    }
    if (key < 0) return { name: "(no line of yours)", detail: "" };
    const [file, line, inside] = structure.lines[key];
    return { name: `${fileName(file)}:${line}`, detail: inside };
  }

  private grid(): Grid<Row> {
    let grid = this.grids.get(this.by);
    if (!grid) this.grids.set(this.by, (grid = this.makeGrid(this.by)));
    return grid;
  }

  private makeGrid(by: By): Grid<Row> {
    const { store, theme } = this;
    const wall = () => store.result.wallUs || 1;
    const single = by === "call";
    const columns: Column<Row>[] = [
      { title: TITLES[by], width: "minmax(170px, 2.2fr)", text: (row) => row.name, colour: (row) => theme.fill(row.sum.bound) },
      ...(by === "op" ? [] : [{ title: { module: "class", line: "function", call: "tensors" }[by], width: "minmax(90px, 1.2fr)", text: (row: Row) => row.detail }]),
      ...(single
        ? [{ title: "module", width: "minmax(90px, 1.2fr)", text: (row: Row) => moduleOf(store.run, row.calls[0]) },
           { title: "line", width: "minmax(80px, .8fr)", text: (row: Row) => lineOf(store.run, row.calls[0]) }]
        : [{ title: "calls", width: "64px", numeric: true, text: (row: Row) => units.count(row.sum.calls), value: (row: Row) => row.sum.calls }]),
      { title: "wall", hint: "predicted share of the wall clock: idle before, and busy", width: "84px", numeric: true, text: (row) => time(row.sum, row.sum.wallUs), value: (row) => row.sum.wallUs },
      { title: "share", width: "74px", numeric: true, text: (row) => units.share(row.sum.wallUs / wall()), value: (row) => row.sum.wallUs / wall(), bar: (row) => row.sum.wallUs / wall(), colour: (row) => theme.fill(row.sum.bound) },
      { title: "bound", width: "74px", text: (row) => theme.name(row.sum.bound) },
      { title: "device", hint: "predicted time on the device", width: "92px", numeric: true, text: (row) => time(row.sum, row.sum.deviceUs), value: (row) => row.sum.deviceUs },
      ...(store.run.measured
        ? [{ title: "measured", hint: "time on the device, by the profiler", width: "92px", numeric: true, strong: true, text: (row: Row) => units.measured(row.beside!.measuredUs), value: (row: Row) => row.beside!.measuredUs },
           { title: "error", hint: "of the device time predicted as traced", width: "92px", numeric: true, text: (row: Row) => errorText(row.beside!), value: (row: Row) => row.beside!.error }]
        : []),
      { title: "idle", hint: "the device stands idle just before, because nothing was issued", width: "84px", numeric: true, text: (row) => units.predicted(row.sum.gapUs), value: (row) => row.sum.gapUs },
      { title: "host", hint: "predicted host time", width: "84px", numeric: true, text: (row) => units.predicted(row.sum.hostUs), value: (row) => row.sum.hostUs },
      { title: "launches", width: "78px", numeric: true, text: (row) => (row.sum.unpriced === row.sum.calls ? "?" : units.count(row.sum.launches)), value: (row) => row.sum.launches },
      { title: "HBM", hint: "bytes that cross HBM", width: "82px", numeric: true, text: (row) => (row.sum.unpriced === row.sum.calls ? "?" : units.moved(row.sum.hbmBytes)), value: (row) => row.sum.hbmBytes },
      { title: "FLOP", width: "100px", numeric: true, text: (row) => units.flop(row.sum.flops), value: (row) => row.sum.flops },
    ];
    return new Grid<Row>({
      label: `Costs by ${TITLES[by]}`,
      columns,
      sort: single ? undefined : { column: columns.findIndex((column) => column.title === "wall"), down: true },
      selected: (row) => !!store.selection && row.calls.some((call) => store.selection!.mask[call] === 1),
      choose: (row) => (row.calls.length === 1 ? store.selectCall(row.calls[0]) : store.select(row.name, row.calls)),
    });
  }
}
