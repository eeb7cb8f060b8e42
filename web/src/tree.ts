// The folded run as a tree that is opened level by level: phases, modules, loops, stretches, calls. Equal parts (twelve
// layers, the turns of a loop) are one item with a count. What is equal is found by optrace/graph/folding.

import type { Structure } from "./data";

export type Kind = "phase" | "module" | "call" | "loop" | "stretch";

/** A node that may be drawn. Its copies are equal: their costs are one node's. */
export class Item {
  open = false;
  readonly children: Item[] = [];
  private all: Uint32Array | null = null;

  constructor(
    readonly kind: Kind,
    readonly name: string,
    readonly cls: string,
    /** What sets it apart from its equals beside it; empty where there are none. */
    readonly differs: string,
    /** How many neighbours inside the parent it stands for, and how many in all. */
    readonly count: number,
    readonly copies: number,
    readonly parent: Item | null,
    /** Of a call, copy by copy. */
    private readonly own: Uint32Array,
  ) {}

  get canOpen(): boolean {
    return this.kind !== "call";
  }

  get depth(): number {
    return this.parent ? this.parent.depth + 1 : 0;
  }

  /** The call that stands for the others, of an item that is one. */
  get lead(): number {
    return this.own.length ? this.own[0] : -1;
  }

  /** Calls of all copies, in order. */
  get calls(): Uint32Array {
    return (this.all ??= this.gathered(1));
  }

  /** Calls of the first copy, in order. */
  get firstCalls(): Uint32Array {
    return this.gathered(this.copies);
  }

  /** Calls of the first of so many parts. */
  private gathered(parts: number): Uint32Array {
    const found: Uint32Array[] = [];
    const waiting: Item[] = [this];
    for (let item = waiting.pop(); item; item = waiting.pop()) {
      if (item.own.length) found.push(item.own.subarray(0, item.own.length / parts));
      waiting.push(...item.children);
    }
    const all = new Uint32Array(found.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of found) {
      all.set(part, at);
      at += part.length;
    }
    return all.sort();
  }
}

export class Tree {
  readonly root: Item;

  constructor({ tree }: Structure) {
    let [row, call] = [0, 0];
    const read = (parent: Item | null): Item => {
      const kind = tree.kinds[tree.kind[row]] as Kind;
      const copies = tree.copies[row];
      const own = kind === "call" ? (tree.calls.subarray(call, (call += copies)) as Uint32Array) : new Uint32Array(0);
      const [name, cls, differs] = [tree.name, tree.cls, tree.differs].map((column) => tree.texts[column[row]]);
      const item = new Item(kind, name, cls, differs, tree.count[row], copies, parent, own);
      const inside = tree.inside[row];
      row++;
      for (let n = 0; n < inside; n++) item.children.push(read(item));
      return item;
    };
    this.root = read(null);
    this.openTop();
  }

  /** Open what would be a single box, so that the first picture says something. */
  private openTop(): void {
    const queue = [this.root];
    let visible = 1;
    while (queue.length) {
      const item = queue.shift()!;
      if (!item.canOpen) continue;
      const alone = item.kind === "phase" || item.parent!.children.filter((child) => child.canOpen).length === 1;
      if (!alone || visible + item.children.length > 48) continue;
      item.open = true;
      visible += item.children.length;
      queue.push(...item.children);
    }
  }

  /** From the whole run to the innermost item that holds a call, opened or not. */
  *path(call: number): Generator<Item> {
    let item: Item | undefined = this.root;
    while (item) {
      yield item;
      item = item.children.find((child) => includes(child.calls, call));
    }
  }
}

export function includes(sorted: Uint32Array, value: number): boolean {
  let low = 0;
  let high = sorted.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] === value) return true;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle - 1;
  }
  return false;
}
