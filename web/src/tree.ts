// The module hierarchy as a tree that is opened level by level: phases, modules, ops. Repeated neighbours (twelve
// equal layers, the body of a loop) are one node with a count; a level too long to read is cut into stretches.
// Children are made when a node is opened, so a page of 20,000 calls costs what is looked at.

import type { Numbers, Structure } from "./data";

export type Kind = "phase" | "module" | "op" | "loop" | "range";

/** What was recorded: every instance stands for itself. */
export interface Raw {
  kind: Kind;
  name: string;
  cls: string;
  call: number;
  children: Raw[];
  /** Equal numbers: the same ops on the same shapes in the same order. */
  same: number;
  calls?: Uint32Array;
}

/** More children than this are cut into stretches. */
const READABLE = 72;
/** Loops with longer bodies are not looked for. */
const LONGEST_BODY = 64;

/** A node that may be drawn. `instances` are equal: their costs are one node's. */
export class Item {
  open = false;
  private made: Item[] | null = null;
  private all: Uint32Array | null = null;

  constructor(
    readonly instances: Raw[],
    /** How many neighbours of the parent it stands for. */
    readonly count: number,
    readonly name: string,
    readonly parent: Item | null,
    private readonly tree: Tree,
  ) {}

  get first(): Raw {
    return this.instances[0];
  }

  get kind(): Kind {
    return this.first.kind;
  }

  get canOpen(): boolean {
    return this.kind !== "op";
  }

  get depth(): number {
    return this.parent ? this.parent.depth + 1 : 0;
  }

  /** Calls of all instances, in order. */
  get calls(): Uint32Array {
    if (!this.all) {
      const parts = this.instances.map(callsOf);
      const all = new Uint32Array(parts.reduce((sum, part) => sum + part.length, 0));
      let at = 0;
      for (const part of parts) {
        all.set(part, at);
        at += part.length;
      }
      this.all = all.sort();
    }
    return this.all;
  }

  get children(): Item[] {
    return (this.made ??= this.kind === "op" ? [] : this.tree.childrenOf(this));
  }
}

export function callsOf(raw: Raw): Uint32Array {
  if (!raw.calls) {
    const found: number[] = [];
    const walk = (node: Raw): void => {
      if (node.kind === "op") found.push(node.call);
      for (const child of node.children) {
        if (child.calls) for (const call of child.calls) found.push(call);
        else walk(child);
      }
    };
    walk(raw);
    raw.calls = Uint32Array.from(found).sort();
  }
  return raw.calls;
}

export class Tree {
  readonly root: Item;
  private readonly numbers = new Map<string, number>();

  /** `shown[call]`: whether a call has a node (views are drawn with the call that they belong to). */
  constructor(
    private readonly structure: Structure,
    shown: Uint8Array,
    launches: Numbers,
  ) {
    const root = this.raw(shown, launches);
    this.root = new Item([root], 1, root.name, null, this);
    this.openTop();
  }

  private raw(shown: Uint8Array, launches: Numbers): Raw {
    const { structure } = this;
    const paths = structure.modules.map((module) => module.path.split("."));
    const classes = new Map(structure.modules.map((module) => [module.path, module.cls]));
    const phases = new Map<number, Raw>();
    const nodes = new Map<number, Raw>();
    const byPath = new Map<string, Raw>();
    for (let call = 0; call < structure.calls; call++) {
      if (!shown[call]) continue;
      const phase = structure.phase[call];
      let top = phases.get(phase);
      if (!top) phases.set(phase, (top = node("phase", structure.phases[phase], "")));
      const module = structure.module[call];
      const key = phase * (structure.modules.length + 1) + module + 1;
      let parent = nodes.get(key);
      if (!parent) {
        parent = top;
        let path = "";
        for (const part of module < 0 ? [] : paths[module]) {
          path = path ? `${path}.${part}` : part;
          const full = `${phase} ${path}`;
          let child = byPath.get(full);
          if (!child) {
            child = node("module", part, classes.get(path) ?? "");
            byPath.set(full, child);
            parent.children.push(child);
          }
          parent = child;
        }
        nodes.set(key, parent);
      }
      const op = structure.op[call];
      const leaf = node("op", structure.ops[op].label, "");
      leaf.call = call;
      leaf.same = this.number(
        `${op} ${structure.input[call]} ${structure.output[call]} ${structure.argument[call]} ${launches[call]}`,
      );
      parent.children.push(leaf);
    }
    const tops = [...phases.values()];
    const root = tops.length === 1 ? tops[0] : node("phase", "all calls", "");
    if (tops.length !== 1) root.children = tops;
    this.numberModules(root);
    return root;
  }

  private number(key: string): number {
    let found = this.numbers.get(key);
    if (found === undefined) this.numbers.set(key, (found = this.numbers.size));
    return found;
  }

  private numberModules(raw: Raw): void {
    for (const child of raw.children) if (child.kind !== "op") this.numberModules(child);
    // Names of children count, the own one does not: block 3 is equal to block 4.
    const inside = raw.children.map((child) => `${child.kind === "op" ? "" : child.name}:${child.same}`);
    raw.same = this.number(`${raw.cls}(${inside.join(",")})`);
  }

  /** The nodes inside an item, repeats folded. */
  childrenOf(item: Item): Item[] {
    const rows = item.instances.map((raw) => raw.children);
    const base = rows[0];
    const runs = repeats(base);
    if (runs.length > READABLE) return this.stretches(item, rows, runs);
    return runs.map(({ start, body, count }) => {
      if (body === 1) {
        const instances = rows.flatMap((row) => row.slice(start, start + count));
        return this.through(new Item(instances, count, runName(base, start, count), item, this));
      }
      const instances = rows.flatMap((row) =>
        Array.from({ length: count }, (_, n) => this.group("loop", row.slice(start + n * body, start + (n + 1) * body))),
      );
      return new Item(instances, count, "repeated", item, this);
    });
  }

  /** A list of modules has no class and costs nothing itself: it is named in front of what it holds. */
  private through(item: Item): Item {
    if (item.kind !== "module" || item.first.cls || item.count > 1 || item.children.length !== 1) return item;
    const [only] = item.children;
    if (only.kind !== "module") return item;
    return new Item(only.instances, only.count, `${item.name}.${only.name}`, item.parent, this);
  }

  /** About as many stretches as calls in each. */
  private stretches(item: Item, rows: Raw[][], runs: RepeatRun[]): Item[] {
    const size = Math.max(24, Math.ceil(runs.length / 36));
    const found: Item[] = [];
    for (let first = 0; first < runs.length; first += size) {
      const last = runs[Math.min(runs.length, first + size) - 1];
      const from = runs[first].start;
      const to = last.start + last.body * last.count;
      const instances = rows.map((row) => this.group("range", row.slice(from, to)));
      found.push(new Item(instances, 1, "", item, this));
    }
    return found;
  }

  private group(kind: Kind, children: Raw[]): Raw {
    const group = node(kind, "", "");
    group.children = children;
    group.same = this.number(`${kind}(${children.map((child) => child.same).join(",")})`);
    return group;
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

  /** The innermost item that holds a call, opened or not. */
  *path(call: number): Generator<Item> {
    let item: Item | undefined = this.root;
    while (item) {
      yield item;
      item = item.children.find((child) => includes(child.calls, call));
    }
  }
}

function node(kind: Kind, name: string, cls: string): Raw {
  return { kind, name, cls, call: -1, children: [], same: -1 };
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

export interface RepeatRun {
  start: number;
  body: number;
  count: number;
}

/** Stretches of neighbours that are the same body over and over; the longest from each place on. */
export function repeats(row: Raw[]): RepeatRun[] {
  const runs: RepeatRun[] = [];
  let at = 0;
  while (at < row.length) {
    let best = { start: at, body: 1, count: 1 };
    for (let body = 1; body <= LONGEST_BODY && at + 2 * body <= row.length; body++) {
      if (row[at].same !== row[at + body].same) continue;
      let length = body;
      while (at + length < row.length && row[at + length].same === row[at + length - body].same) length++;
      const count = Math.floor(length / body);
      // Two equal ops in a row are easier read as two.
      const enough = row[at].kind === "op" && body < 3 ? 4 : 2;
      if (count >= enough && count * body > best.count * best.body) best = { start: at, body, count };
    }
    runs.push(best);
    at += best.body * best.count;
  }
  return runs;
}

function runName(row: Raw[], start: number, count: number): string {
  const first = row[start].name;
  if (count === 1 || row[start].kind === "op") return first;
  const last = row[start + count - 1].name;
  return first === last ? first : `${first}\u2013${last}`;
}
