// Search by op, module, shape or source line: every word has to be found in one of them.

import { announce, el } from "./dom";
import type { Store } from "./store";
import * as units from "./units";
import { callSignature, callTitle, fileName, lineOf, moduleOf } from "./words";

const SHOWN = 40;

/** Calls that have every word of a query in their op, module, shapes, arguments or line. */
export function matches(store: Store, query: string): number[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const { structure } = store.run;
  const tables: [string[], ArrayLike<number>][] = [
    [structure.ops.map((op) => op.name), structure.op],
    [structure.modules.map(({ path, cls }) => `${path} ${cls}`), structure.module],
    [structure.lines.map(([file, line, inside]) => `${fileName(file)}:${line} ${inside}`), structure.line],
    [structure.inputs, structure.input],
    [structure.outputs, structure.output],
    [structure.arguments, structure.argument],
  ];
  const found = words.map((word) =>
    tables.map(([texts, column]) => ({ hits: texts.map((text) => text.toLowerCase().includes(word)), column })),
  );
  const calls: number[] = [];
  for (let call = 0; call < structure.calls; call++) {
    if (found.every((word) => word.some(({ hits, column }) => column[call] >= 0 && hits[column[call]]))) calls.push(call);
  }
  return calls;
}

export class Search {
  private found: number[] = [];
  private active = -1;
  private readonly input: HTMLInputElement;
  private readonly list = el("div", { id: "results", role: "listbox", "aria-label": "Calls found", hidden: true });

  constructor(
    place: HTMLElement,
    private readonly store: Store,
    private readonly show: (call: number) => void,
  ) {
    this.input = el("input", {
      id: "search",
      type: "search",
      placeholder: "Search op, module, shape, file:line",
      "aria-label": "Search op, module, shape or source line",
      role: "combobox",
      autocomplete: "off",
      spellcheck: "false",
      "aria-expanded": "false",
      "aria-controls": "results",
      input: () => this.look(),
      keydown: (event: KeyboardEvent) => this.key(event),
      blur: () => this.close(),
      focus: () => this.input.value && this.look(),
    });
    place.append(this.input, this.list);
    addEventListener("keydown", (event) => {
      const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        this.input.focus();
      }
    });
  }

  private look(): void {
    this.found = matches(this.store, this.input.value);
    this.active = -1;
    const { run } = this.store;
    const head = this.found.length
      ? `all ${units.counted(this.found.length, "call")}`
      : this.input.value.trim()
        ? "nothing found"
        : "";
    if (!head) return this.close();
    this.list.replaceChildren(
      this.option(-1, head, this.found.length > SHOWN ? `the first ${SHOWN} below` : ""),
      ...this.found.slice(0, SHOWN).map((call, n) =>
        this.option(n, callTitle(run, call), [moduleOf(run, call), lineOf(run, call), callSignature(run, call)].filter(Boolean).join(" \u00b7 ")),
      ),
    );
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.mark();
    announce(head);
  }

  private option(n: number, title: string, detail: string): HTMLElement {
    return el(
      "div",
      { role: "option", id: `result${n + 1}`, mousedown: (event: Event) => event.preventDefault(), click: () => this.choose(n) },
      el("span", {}, title),
      el("span", { class: "quiet" }, detail),
    );
  }

  private mark(): void {
    [...this.list.children].forEach((option, n) => option.setAttribute("aria-selected", String(n === this.active + 1)));
    this.input.setAttribute("aria-activedescendant", `result${this.active + 1}`);
    this.list.children[this.active + 1]?.scrollIntoView({ block: "nearest" });
  }

  private choose(n: number): void {
    if (!this.found.length) return;
    if (n < 0) this.store.select(`\u201c${this.input.value.trim()}\u201d`, this.found);
    else this.store.selectCall(this.found[n]);
    this.show(this.found[Math.max(0, n)]);
    this.close();
  }

  private key(event: KeyboardEvent): void {
    const last = Math.min(SHOWN, this.found.length) - 1;
    if (event.key === "ArrowDown") this.active = Math.min(last, this.active + 1);
    else if (event.key === "ArrowUp") this.active = Math.max(-1, this.active - 1);
    else if (event.key === "Enter") this.choose(this.active);
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
    this.mark();
  }

  private close(): void {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}
