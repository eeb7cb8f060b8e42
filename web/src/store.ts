// What is chosen and selected, and who wants to know. Views follow through one repaint a frame.

import { knobsOf, priced, type Knobs, type Region, type Result } from "./costs";
import type { Document, Pricing, Run } from "./data";

export interface Selection {
  label: string;
  calls: Uint32Array;
  /** By call. */
  mask: Uint8Array;
}

export type ColourBy = "bound" | "time" | "bytes" | "launches" | "memory" | "error";

type Change = "knobs" | "selection" | "look";

export class Store {
  run: Run;
  pricing: Pricing;
  knobs: Knobs;
  region: Region | null = null;
  selection: Selection | null = null;
  colourBy: ColourBy = "bound";
  result: Result;
  /** The program as traced and priced, with no knob turned. */
  traced: Result;
  private listeners: ((changed: Set<Change>) => void)[] = [];
  private changed = new Set<Change>();
  private frame = 0;

  constructor(readonly document: Document) {
    this.run = document.runs[0];
    this.pricing = this.run.pricings[0];
    this.knobs = knobsOf(this.run, this.pricing);
    this.traced = this.result = priced(this.run, this.pricing, this.knobs, null);
  }

  listen(listener: (changed: Set<Change>) => void): void {
    this.listeners.push(listener);
  }

  /** Turn knobs; everything that shows is drawn again in the next frame. */
  turn(knobs: Partial<Knobs>): void {
    Object.assign(this.knobs, knobs);
    this.note("knobs");
  }

  /** Another pricing of the same run: its own rates replace those of the sliders, the rest stays as it is. */
  choosePricing(pricing: Pricing): void {
    const fresh = knobsOf(this.run, pricing);
    this.pricing = pricing;
    if (!pricing.fused && (this.knobs.schedule === "fused" || this.knobs.schedule === "both")) {
      this.knobs.schedule = this.knobs.schedule === "both" ? "graph" : "eager";
    }
    this.turn({ bandwidthTbS: fresh.bandwidthTbS, peakFlopS: fresh.peakFlopS });
  }

  /** The same program at another batch size: other calls, so nothing stays selected. */
  chooseRun(run: Run): void {
    const gpu = this.pricing;
    this.run = run;
    this.pricing =
      run.pricings.find((one) => one.gpu === gpu.gpu && one.l2Bytes === gpu.l2Bytes) ?? run.pricings[0];
    this.selection = null;
    this.region = null;
    this.traced = priced(run, run.pricings[0], knobsOf(run, run.pricings[0]), null);
    this.note("selection");
    this.turn({ repeats: 1, chain: knobsOf(run, this.pricing).chain });
  }

  reset(): void {
    this.pricing = this.run.pricings[0];
    this.region = null;
    this.turn(knobsOf(this.run, this.pricing));
  }

  get turned(): boolean {
    const fresh = knobsOf(this.run, this.run.pricings[0]);
    return (
      this.pricing !== this.run.pricings[0] ||
      (Object.keys(fresh) as (keyof Knobs)[]).some((name) => fresh[name] !== this.knobs[name])
    );
  }

  select(label: string, calls: ArrayLike<number>): void {
    if (!calls.length) return this.clear();
    const mask = new Uint8Array(this.run.structure.calls);
    const sorted = Uint32Array.from(calls).sort();
    for (const call of sorted) mask[call] = 1;
    this.selection = { label, calls: sorted, mask };
    this.note("selection");
  }

  selectCall(call: number): void {
    this.select(`%${call} ${this.run.structure.ops[this.run.structure.op[call]].label}`, [call]);
  }

  clear(): void {
    this.selection = null;
    this.note("selection");
  }

  look(change: () => void): void {
    change();
    this.note("look");
  }

  private note(change: Change): void {
    this.changed.add(change);
    this.frame ||= requestAnimationFrame(() => this.flush());
  }

  private flush(): void {
    this.frame = 0;
    const changed = this.changed;
    this.changed = new Set();
    if (changed.has("knobs")) this.result = priced(this.run, this.pricing, this.knobs, this.region);
    for (const listener of this.listeners) listener(changed);
  }
}
