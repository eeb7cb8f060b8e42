// The user's lines, with what each costs beside it.

import { sumOf, type Sum } from "../costs";
import { el } from "../dom";
import { Grid } from "../grid";
import type { Store } from "../store";
import type { Theme } from "../theme";
import * as units from "../units";
import { fileName, time } from "../words";

interface Line {
  number: number;
  text: string;
  calls: Uint32Array;
  sum: Sum | null;
}

export class SourceView {
  private readonly grid: Grid<Line>;
  private readonly choice = el("select", { id: "source-file", change: () => this.showFile() });
  private lines: Omit<Line, "sum">[] = [];
  private shownOf = "";
  private run: unknown = null;

  constructor(
    place: HTMLElement,
    toolbar: HTMLElement,
    private readonly store: Store,
    theme: Theme,
  ) {
    const wall = () => store.result.wallUs || 1;
    this.grid = new Grid<Line>({
      label: "Source lines with their costs",
      sortable: false,
      columns: [
        { title: "wall", width: "88px", numeric: true, text: ({ sum }) => (sum ? time(sum, sum.wallUs) : "") },
        { title: "share", width: "78px", numeric: true, text: ({ sum }) => (sum ? units.share(sum.wallUs / wall()) : ""), bar: ({ sum }) => (sum ? sum.wallUs / wall() : 0), colour: ({ sum }) => (sum ? theme.fill(sum.bound) : "transparent") },
        { title: "launches", width: "80px", numeric: true, text: ({ sum }) => (sum ? units.count(sum.launches) : "") },
        { title: "HBM", width: "78px", numeric: true, text: ({ sum }) => (sum ? units.moved(sum.hbmBytes) : "") },
        { title: "line", width: "52px", numeric: true, text: ({ number }) => String(number) },
        { title: "code", width: "minmax(360px, 1fr)", text: ({ text }) => text, code: true },
      ],
      selected: ({ calls }) => !!store.selection && calls.some((call) => store.selection!.mask[call] === 1),
      choose: (line) => {
        if (line.calls.length) store.select(`${fileName(this.choice.value)}:${line.number}`, line.calls);
      },
    });
    toolbar.append(el("label", {}, "file ", this.choice));
    place.append(this.grid.element);
    store.listen(() => {
      if (this.run !== store.run) this.build();
      if (place.clientHeight) this.refresh();
    });
    let seen = false;
    new ResizeObserver(() => {
      if (!place.clientHeight) return;
      this.refresh();
      if (!seen) this.revealFirst();
      seen = true;
    }).observe(place);
    theme.listen(() => this.grid.paint());
    this.build();
  }

  private build(): void {
    const { run } = this.store;
    this.run = run;
    const { lines, line } = run.structure;
    const weight = new Map<string, number>();
    for (const at of line) {
      if (at >= 0) weight.set(lines[at][0], (weight.get(lines[at][0]) ?? 0) + 1);
    }
    const files = [...weight].sort(([, a], [, b]) => b - a).map(([file]) => file);
    this.choice.replaceChildren(...files.map((file) => el("option", { value: file }, file)));
    this.showFile();
  }

  private showFile(): void {
    const { structure } = this.store.run;
    const file = this.choice.value;
    const members = new Map<number, number[]>();
    for (let call = 0; call < structure.calls; call++) {
      const row = structure.line[call];
      if (row < 0 || structure.lines[row][0] !== file) continue;
      const number = structure.lines[row][1];
      const known = members.get(number);
      if (known) known.push(call);
      else members.set(number, [call]);
    }
    const text = structure.sources[file];
    const numbers = text === undefined ? [...members.keys()].sort((a, b) => a - b) : text.split("\n").map((_, n) => n + 1);
    const rows = text?.split("\n") ?? [];
    this.lines = numbers.map((number) => ({
      number,
      text: text === undefined ? "(the file was not there when the page was made)" : (rows[number - 1] ?? "").replaceAll("\t", "    "),
      calls: Uint32Array.from(members.get(number) ?? []),
    }));
    this.shownOf = "";
    this.refresh();
    this.revealFirst();
  }

  /** The first line that costs something. */
  private revealFirst(): void {
    if (!this.store.selection) this.grid.reveal((line) => line.calls.length > 0);
  }

  private refresh(): void {
    const key = `${this.choice.value} ${this.store.result.version}`;
    if (key === this.shownOf) return this.grid.paint();
    this.shownOf = key;
    const { result } = this.store;
    this.grid.show(this.lines.map((line) => ({ ...line, sum: line.calls.length ? sumOf(result, line.calls) : null })));
  }

  /** Show a call's line. */
  reveal(call: number): void {
    const { structure } = this.store.run;
    const row = structure.line[call];
    if (row < 0) return;
    const [file, number] = structure.lines[row];
    if (this.choice.value !== file) {
      this.choice.value = file;
      this.showFile();
    }
    this.grid.reveal((line) => line.number === number);
  }

  get empty(): boolean {
    return !this.choice.options.length;
  }
}
