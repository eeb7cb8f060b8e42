// Dependences between the nodes inside an opened box, from those between calls.

import type { Structure } from "./data";
import type { Item } from "./tree";

export interface Edge {
  src: number;
  dst: number;
  bytes: number;
  /** Only an order that must be kept: no bytes flow. */
  order: boolean;
}

export class Edges {
  /** Edges by their later call: those of call n are `starts[n]` to `starts[n + 1]`. */
  private readonly starts: Uint32Array;
  private readonly byDst: Uint32Array;
  private readonly owner: Int32Array;

  constructor(private readonly structure: Structure) {
    const { dst } = structure.edges;
    this.starts = new Uint32Array(structure.calls + 1);
    for (const call of dst) this.starts[call + 1]++;
    for (let call = 0; call < structure.calls; call++) this.starts[call + 1] += this.starts[call];
    const next = this.starts.slice();
    this.byDst = new Uint32Array(dst.length);
    for (let edge = 0; edge < dst.length; edge++) this.byDst[next[dst[edge]]++] = edge;
    this.owner = new Int32Array(structure.calls).fill(-1);
  }

  /** The call that a call is drawn with, or -1. */
  drawnWith(call: number): number {
    return this.structure.tree.joins[call];
  }

  /** Calls whose results a call uses, and calls that use its own. */
  neighbours(call: number): { before: number[]; after: number[] } {
    const { src, dst, kind } = this.structure.edges;
    const before = new Set<number>();
    const after = new Set<number>();
    for (let n = this.starts[call]; n < this.starts[call + 1]; n++) {
      const edge = this.byDst[n];
      if (kind[edge] === 0) before.add(src[edge]);
    }
    for (let edge = 0; edge < src.length; edge++) if (src[edge] === call && kind[edge] === 0) after.add(dst[edge]);
    return { before: [...before], after: [...after] };
  }

  /** Edges between the children of an item, by number of the child. */
  between(item: Item): Edge[] {
    const { src, kind, bytes } = this.structure.edges;
    const children = item.children;
    children.forEach((child, n) => {
      for (const call of child.calls) this.owner[call] = n;
    });
    const found = new Map<number, Edge>();
    // One copy speaks for all: between two of them flows what the parent shows.
    for (const call of item.firstCalls) {
      const to = this.owner[call];
      for (let n = this.starts[call]; n < this.starts[call + 1]; n++) {
        const edge = this.byDst[n];
        const maker = this.drawnWith(src[edge]);
        const from = maker < 0 ? -1 : this.owner[maker];
        if (from < 0 || from === to) continue;
        const key = from * children.length + to;
        const known = found.get(key);
        const data = kind[edge] === 0;
        if (!known) found.set(key, { src: from, dst: to, bytes: data ? bytes[edge] : 0, order: !data });
        else if (data) {
          known.bytes += bytes[edge];
          known.order = false;
        }
      }
    }
    for (const call of item.calls) this.owner[call] = -1;
    return [...found.values()];
  }
}
