// A table of any length: only the rows in sight are elements. Sorting, keyboard, copying as CSV.

import {
  elementScroll,
  observeElementOffset,
  observeElementRect,
  Virtualizer,
} from "@tanstack/virtual-core";
import { announce, el } from "./dom";

export interface Column<Row> {
  title: string;
  /** What the figure is, for the header's tooltip. */
  hint?: string;
  width: string;
  numeric?: boolean;
  text: (row: Row) => string;
  /** What it is sorted and copied by; the text where there is none. */
  value?: (row: Row) => number | string;
  /** 0 to 1: a bar behind the figure. */
  bar?: (row: Row) => number;
  colour?: (row: Row) => string;
  code?: boolean;
  /** Set apart: measured among predicted figures. */
  strong?: boolean;
}

export interface GridOptions<Row> {
  label: string;
  columns: Column<Row>[];
  sort?: { column: number; down: boolean };
  sortable?: boolean;
  selected?: (row: Row) => boolean;
  choose?: (row: Row) => void;
}

const ROW = 26;
let grids = 0;

export class Grid<Row> {
  readonly element: HTMLElement;
  private readonly scroller: HTMLElement;
  private readonly body: HTMLElement;
  private readonly head: HTMLElement;
  private readonly virtual: Virtualizer<HTMLElement, HTMLElement>;
  private readonly id = `grid${++grids}`;
  private rows: Row[] = [];
  private sorted: Row[] = [];
  /** The rows in sight, by index. */
  private readonly lines = new Map<number, HTMLElement>();
  private sort: { column: number; down: boolean } | undefined;
  private active = 0;

  constructor(private readonly options: GridOptions<Row>) {
    this.sort = options.sort;
    this.head = el("div", { class: "grid-head", role: "row", "aria-rowindex": 1 });
    this.body = el("div", { class: "grid-body", role: "rowgroup" });
    this.scroller = el(
      "div",
      { class: "grid-scroll", role: "grid", tabindex: 0, "aria-label": options.label, keydown: (event) => this.key(event) },
      el("div", { role: "rowgroup", class: "grid-top" }, this.head),
      this.body,
    );
    this.element = el("div", { class: "grid" }, this.scroller);
    this.element.style.setProperty("--columns", options.columns.map((column) => column.width).join(" "));
    this.virtual = new Virtualizer<HTMLElement, HTMLElement>({
      count: 0,
      getScrollElement: () => this.scroller,
      estimateSize: () => ROW,
      overscan: 12,
      scrollMargin: 0,
      scrollPaddingStart: ROW + 4,
      observeElementRect,
      observeElementOffset,
      scrollToFn: elementScroll,
      onChange: () => this.paint(),
    });
    this.virtual._didMount();
    this.header();
  }

  /** Show rows; called again with new figures it keeps its place. */
  show(rows: Row[]): void {
    this.rows = rows;
    this.scroller.setAttribute("aria-rowcount", String(rows.length + 1));
    this.scroller.setAttribute("aria-colcount", String(this.options.columns.length));
    this.order();
  }

  private order(): void {
    this.sorted = this.rows;
    if (this.sort) {
      const column = this.options.columns[this.sort.column];
      const value = column.value ?? column.text;
      const keyed = this.rows.map((row) => ({ row, key: value(row) }));
      keyed.sort((a, b) =>
        typeof a.key === "number" && typeof b.key === "number" ? a.key - b.key : String(a.key).localeCompare(String(b.key)),
      );
      if (this.sort.down) keyed.reverse();
      this.sorted = keyed.map(({ row }) => row);
    }
    this.virtual.setOptions({ ...this.virtual.options, count: this.sorted.length });
    this.virtual._willUpdate();
    this.body.style.height = `${this.sorted.length * ROW}px`;
    this.paint();
  }

  private header(): void {
    this.head.replaceChildren(
      ...this.options.columns.map((column, n) => {
        const sorting = this.sort?.column === n ? (this.sort.down ? "descending" : "ascending") : "none";
        const cell = el("div", {
          role: "columnheader",
          "aria-sort": this.options.sortable === false ? undefined : sorting,
          class: column.numeric ? "numeric" : "",
          title: column.hint,
        });
        if (this.options.sortable === false) cell.append(column.title);
        else {
          const arrow = sorting === "none" ? "" : sorting === "descending" ? " \u25be" : " \u25b4";
          cell.append(el("button", { type: "button", click: () => this.sortBy(n) }, `${column.title}${arrow}`));
        }
        return cell;
      }),
    );
  }

  private sortBy(column: number): void {
    const down = this.sort?.column === column ? !this.sort.down : !!this.options.columns[column].numeric;
    this.sort = { column, down };
    this.header();
    this.order();
    announce(`sorted by ${this.options.columns[column].title}, ${down ? "descending" : "ascending"}`);
    (this.head.children[column].firstElementChild as HTMLElement | null)?.focus();
  }

  /**
   * Only what is in sight. A row keeps its elements from one paint to the next: the virtualizer paints of its own
   * accord some time after scrolling, and a click is lost whose element went away between press and release.
   */
  paint(): void {
    this.active = Math.min(this.active, Math.max(0, this.sorted.length - 1));
    const shown = this.virtual.getVirtualItems().filter((item) => item.index < this.sorted.length);
    const indices = new Set(shown.map((item) => item.index));
    for (const [index, line] of this.lines) {
      if (indices.has(index)) continue;
      line.remove();
      this.lines.delete(index);
    }
    let before = this.body.firstElementChild;
    for (const { index, start } of shown) {
      let line = this.lines.get(index);
      if (line) before = line.nextElementSibling;
      else {
        line = this.line(index);
        this.lines.set(index, line);
        this.body.insertBefore(line, before);
      }
      line.style.transform = `translateY(${start}px)`;
      this.fill(line, index);
    }
    // Scrolled out of sight it is no element.
    if (indices.has(this.active)) this.scroller.setAttribute("aria-activedescendant", `${this.id}r${this.active}`);
    else this.scroller.removeAttribute("aria-activedescendant");
  }

  private line(index: number): HTMLElement {
    const { columns, choose } = this.options;
    return el(
      "div",
      {
        role: "row",
        id: `${this.id}r${index}`,
        "aria-rowindex": index + 2,
        click: choose ? () => this.activate(index) : undefined,
      },
      ...columns.map((column) =>
        el(
          "div",
          { role: "gridcell", class: `${column.numeric ? "numeric" : ""}${column.code ? " code" : ""}${column.strong ? " strong" : ""}` },
          column.bar ? el("span", { class: "cell-bar" }) : column.colour ? el("span", { class: "cell-dot" }) : null,
          el("span"),
        ),
      ),
    );
  }

  private fill(line: HTMLElement, index: number): void {
    const { columns, selected, choose } = this.options;
    const row = this.sorted[index];
    const marked = selected?.(row) ?? false;
    line.className = `grid-row${marked ? " selected" : ""}${index === this.active ? " active" : ""}`;
    if (choose) line.setAttribute("aria-selected", String(marked));
    columns.forEach((column, n) => {
      const cell = line.children[n];
      const words = cell.lastElementChild as HTMLElement;
      if (words !== cell.firstElementChild) {
        const mark = cell.firstElementChild as HTMLElement;
        if (column.bar) mark.style.width = `${100 * Math.min(1, column.bar(row))}%`;
        mark.style.background = column.colour?.(row) ?? "";
      }
      const text = column.text(row);
      if (words.textContent === text) return;
      words.textContent = text;
      if (text.length > 24) words.title = text;
      else words.removeAttribute("title");
    });
  }

  private activate(index: number): void {
    this.active = index;
    this.options.choose?.(this.sorted[index]);
    this.paint();
  }

  private key(event: KeyboardEvent): void {
    if (event.target !== this.scroller) return;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW) - 2);
    const last = this.sorted.length - 1;
    const to: Record<string, number> = {
      ArrowDown: this.active + 1,
      ArrowUp: this.active - 1,
      PageDown: this.active + page,
      PageUp: this.active - page,
      Home: 0,
      End: last,
    };
    if (event.key in to) {
      this.active = Math.max(0, Math.min(last, to[event.key]));
      this.virtual.scrollToIndex(this.active, { align: "auto" });
      this.paint();
    } else if (event.key === "Enter" || event.key === " ") {
      if (last >= 0) this.activate(this.active);
    } else return;
    event.preventDefault();
  }

  /** Bring the first row that `fits` into sight. */
  reveal(fits: (row: Row) => boolean): void {
    const index = this.sorted.findIndex(fits);
    if (index >= 0) {
      this.active = index;
      this.virtual.scrollToIndex(index, { align: "center" });
      this.paint();
    }
  }

  get csv(): string {
    const quote = (value: unknown) => {
      const text = String(value);
      // A spreadsheet runs what begins like a formula.
      const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
      return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
    };
    const { columns } = this.options;
    return [
      columns.map((column) => quote(column.title)).join(","),
      ...this.sorted.map((row) => columns.map((column) => quote((column.value ?? column.text)(row))).join(",")),
    ].join("\n");
  }
}

/** Put text on the clipboard; in a frame without that right, through a selection. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { class: "offscreen", "aria-hidden": "true", tabindex: -1 });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
