// The knobs: rates slide, GPU, L2 and batch switch between what Python priced, schedules switch the replay. Below them
// what the wall clock is made of, and the plain sum beside it.

import { CAUSES, knobsOf, type Cause, type Knobs, type Schedule } from "./costs";
import { HOST_WAIT } from "./data";
import { el } from "./dom";
import type { Store } from "./store";
import type { Theme } from "./theme";
import * as units from "./units";

interface Slider {
  input: HTMLInputElement;
  output: HTMLOutputElement;
  show: () => void;
}

/** Tensors at this part of their size: launches stay, bytes and arithmetic all but vanish. */
const SMALL = 1 / 4096;
/** Elements of the small block: 64 x 64. */
const SMALL_ELEMENTS = 64 * 64;

const SHOWN: Record<Cause, string> = { launch: "launch", memory: "memory", compute: "compute", sync: "sync" };

export class Profiler {
  private readonly sliders: Slider[] = [];
  private readonly selects: (() => void)[] = [];
  private readonly bars = new Map<string, { bar: HTMLElement; ghost: HTMLElement; value: HTMLElement; row: HTMLElement }>();
  private readonly total = el("output", { id: "out-wall", class: "total" });
  private readonly bottleneck = el("output", { id: "out-bottleneck", class: "pill" });
  private readonly before = el("span", { class: "quiet" });
  private readonly plain = el("div", { class: "plain" });
  private readonly cures = el("div", { class: "cures" });
  private readonly controls = el("div", { class: "controls" });
  private readonly small = el("input", { type: "checkbox", id: "small", change: () => this.toggleSmall() });
  private readonly reset = el("button", { type: "button", id: "reset", click: () => this.store.reset() }, "As traced");

  constructor(
    knobs: HTMLElement,
    outcome: HTMLElement,
    private readonly store: Store,
    private readonly theme: Theme,
  ) {
    knobs.append(this.controls);
    outcome.append(
      el("div", { class: "total-row" }, el("h2", {}, "Wall clock"), this.total, this.before),
      el("div", { class: "total-row" }, el("span", { class: "quiet" }, "bottleneck"), this.bottleneck, this.reset),
      ...CAUSES.map((cause) => this.bar(cause, SHOWN[cause])),
      this.bar("tail", "host tail"),
      this.cures,
      this.plain,
    );
    this.build();
    let run = store.run;
    store.listen(() => {
      if (run !== store.run) {
        run = store.run;
        this.build();
      }
      this.show();
    });
    theme.listen(() => this.show());
    this.show();
  }

  private build(): void {
    const { store } = this;
    this.sliders.length = this.selects.length = 0;
    this.controls.replaceChildren();
    const { runs } = store.document;
    const { pricings } = store.run;
    const base = pricings[0];
    const gpus = pricings.filter((one, n) => pricings.findIndex((other) => other.gpu === one.gpu) === n);
    this.choice("gpu", "GPU", gpus.map((one) => [one.gpu, one.gpuName]), () => store.pricing.gpu, (key) =>
      store.choosePricing(gpus.find((one) => one.gpu === key)!),
    );
    const sizes = pricings.filter((one) => one.gpu === base.gpu).sort((a, b) => a.l2Bytes - b.l2Bytes);
    if (sizes.length > 1) {
      this.choice(
        "l2",
        "L2",
        sizes.map((one) => [String(one.l2Bytes), units.allocated(one.l2Bytes)]),
        () => (store.pricing.gpu === base.gpu ? String(store.pricing.l2Bytes) : ""),
        (key) => store.choosePricing(sizes.find((one) => String(one.l2Bytes) === key)!),
      );
    }
    if (runs.length > 1) {
      this.choice("batch", "batch", runs.map((run, n) => [String(n), String(run.batch)]), () => String(runs.indexOf(store.run)), (key) =>
        store.chooseRun(runs[Number(key)]),
      );
    }
    this.choice(
      "schedule",
      "schedule",
      [
        ["eager", "eager"],
        ["graph", "CUDA graph"],
        ...(base.fused ? ([["fused", "fused"], ["both", "fused, CUDA graph"]] as [string, string][]) : []),
      ],
      () => store.knobs.schedule,
      (key) => store.turn({ schedule: key as Schedule }),
    );
    const number = (name: keyof Knobs) => () => store.knobs[name] as number;
    this.slider("dispatch", "dispatch", linear(0, 40, 0.1), number("dispatchUs"), (value) => ({ dispatchUs: value }), (us) => `${units.number(us)} us an op`);
    this.slider("launch", "launch", linear(0, 40, 0.1), number("launchUs"), (value) => ({ launchUs: value }), (us) => `${units.number(us)} us a kernel`);
    this.slider("bandwidth", "bandwidth", log(0.05, 20), number("bandwidthTbS"), (value) => ({ bandwidthTbS: value }), units.byteRate);
    this.slider("peak", `peak ${base.mathDtype}`, log(1e11, 1e16), number("peakFlopS"), (value) => ({ peakFlopS: value }), units.flopRate);
    const block = store.run.block;
    if (block) {
      this.slider("elements", "elements", log(SMALL_ELEMENTS / 4, block.elements * 16), () => block.elements * store.knobs.size, (value) => ({ size: value / block.elements }), (value) => units.count(value));
      this.slider("chain", "elementwise ops", linear(0, 24, 1), () => store.knobs.chain!, (value) => ({ chain: value }), (value) => String(value));
    } else {
      this.slider("size", "tensor size", log(SMALL, 16), number("size"), (value) => ({ size: value }), (value) => `\u00d7 ${units.number(value)}`);
    }
    this.slider("repeats", "run selection", linear(1, 64, 1), number("repeats"), (value) => ({ repeats: value }), (value) => `\u00d7 ${value}`);
    this.controls.append(
      el("label", { class: "check", for: "small" }, this.small, "small-model regime"),
    );
  }

  private choice(id: string, title: string, options: [string, string][], get: () => string, set: (key: string) => void): void {
    const chosen = el(
      "select",
      { id: `knob-${id}`, change: () => set(chosen.value) },
      ...options.map(([value, text]) => el("option", { value }, text)),
    );
    this.selects.push(() => {
      const value = get();
      chosen.value = value;
      chosen.disabled = options.length < 2;
    });
    this.controls.append(el("div", { class: "knob" }, el("label", { for: `knob-${id}` }, title), chosen));
  }

  private slider(
    id: string, title: string, scale: SliderScale, get: () => number, set: (value: number) => Partial<Knobs>,
    text: (value: number) => string,
  ): void {
    const input = el("input", {
      type: "range",
      id: `knob-${id}`,
      min: scale.min,
      max: scale.max,
      step: scale.step,
      input: () => this.turned(id, set(scale.value(Number(input.value)))),
      dblclick: () => this.turned(id, this.fresh(id)),
    });
    const output = el("output", { id: `out-${id}`, for: `knob-${id}` });
    const show = () => {
      const value = get();
      const place = scale.place(value);
      // A knob that was set elsewhere, a profile's own rate, need not lie on the slider's steps.
      if (Math.abs(Number(input.value) - place) > scale.step / 2) input.value = String(place);
      output.textContent = text(value);
      output.dataset.value = String(value);
      input.setAttribute("aria-valuetext", text(value));
    };
    this.sliders.push({ input, output, show });
    this.controls.append(el("div", { class: "knob" }, el("label", { for: `knob-${id}` }, title), output, input));
  }

  private fresh(id: string): Partial<Knobs> {
    const knobs = knobsOf(this.store.run, this.store.pricing);
    return {
      dispatch: { dispatchUs: knobs.dispatchUs },
      launch: { launchUs: knobs.launchUs },
      bandwidth: { bandwidthTbS: knobs.bandwidthTbS },
      peak: { peakFlopS: knobs.peakFlopS },
      elements: { size: 1 },
      size: { size: 1 },
      chain: { chain: knobs.chain },
      repeats: { repeats: 1 },
    }[id]!;
  }

  private turned(id: string, knobs: Partial<Knobs>): void {
    if (id === "repeats") this.store.region = this.stretch();
    this.store.turn(knobs);
  }

  /** The selection as one stretch of calls, if it is one; a region that is being repeated stays. */
  private stretch() {
    const { selection, region, knobs, run } = this.store;
    if (region && knobs.repeats > 1) return region;
    if (!selection) return null;
    const first = selection.calls[0];
    const last = selection.calls[selection.calls.length - 1];
    for (let call = first; call <= last; call++) {
      // Views need no selecting: they have no node of their own.
      if (!selection.mask[call] && run.pricings[0].columns.launches[call]) return null;
    }
    return { first, last, label: selection.label };
  }

  private toggleSmall(): void {
    const { block } = this.store.run;
    this.store.turn({ size: this.small.checked ? (block ? SMALL_ELEMENTS / block.elements : SMALL) : 1 });
  }

  private bar(id: string, title: string): HTMLElement {
    const bar = el("span", { class: "bar" });
    const ghost = el("span", { class: "ghost", title: "as traced" });
    const value = el("output", { id: `out-${id}` });
    const row = el("div", { class: "bar-row" }, el("span", {}, title), el("span", { class: "track" }, bar, ghost), value);
    this.bars.set(id, { bar, ghost, value, row });
    return row;
  }

  private show(): void {
    const { store, theme } = this;
    const { result, traced, knobs } = store;
    for (const option of this.controls.querySelectorAll<HTMLOptionElement>("#knob-schedule option")) {
      option.disabled = !store.pricing.fused && (option.value === "fused" || option.value === "both");
    }
    for (const slider of this.sliders) slider.show();
    for (const show of this.selects) show();
    const region = this.stretch();
    const repeats = this.sliders.at(-1)!;
    repeats.input.disabled = !region || result.fused || (knobs.chain !== null && knobs.chain !== store.run.block?.chain.length);
    repeats.output.textContent = region ? `${region.label} \u00d7 ${knobs.repeats}` : store.selection ? "not one stretch of calls" : "select a stretch of calls";
    repeats.output.title = repeats.output.textContent;
    this.small.checked = knobs.size < 0.01;
    this.reset.disabled = !store.turned;
    set(this.total, result.wallUs, units.predicted(result.wallUs) + (result.unpriced ? " + ?" : ""));
    this.before.textContent = store.turned ? `${units.predicted(traced.wallUs)} as traced` : "predicted";
    this.bottleneck.textContent = result.bottleneck ?? "nothing runs on the device";
    this.bottleneck.dataset.value = result.bottleneck ?? "";
    const cause = result.bottleneck ? CAUSES.indexOf(result.bottleneck) : 4;
    this.bottleneck.style.background = theme.fill(cause);
    this.bottleneck.style.color = theme.text(cause);
    const scale = Math.max(result.wallUs, traced.wallUs) || 1;
    CAUSES.forEach((name, n) => this.fill(name, result.causes[name], traced.causes[name], scale, result.wallUs, theme.fill(n), theme.border(n)));
    this.fill("tail", result.hostTailUs, traced.hostTailUs, scale, result.wallUs, theme.look.line, theme.look.quiet);
    this.bars.get("sync")!.row.hidden = !result.causes.sync && !traced.causes.sync;
    this.bars.get("tail")!.row.hidden = !result.hostTailUs && !traced.hostTailUs;
    this.showCures();
    this.showPlain();
  }

  private fill(id: string, us: number, was: number, scale: number, wall: number, colour: string, border: string): void {
    const { bar, ghost, value } = this.bars.get(id)!;
    bar.style.width = `${(100 * us) / scale}%`;
    bar.style.background = colour;
    bar.style.borderColor = border;
    ghost.style.left = `${(100 * was) / scale}%`;
    ghost.hidden = !this.store.turned;
    set(value, us, units.predicted(us));
    value.append(el("span", { class: "part" }, wall ? units.share(us / wall) : ""));
  }

  private showCures(): void {
    const { result } = this.store;
    let waits = 0;
    for (const flags of result.columns.flags) if (flags & HOST_WAIT) waits++;
    const saved = result.eagerUs - result.graphUs;
    const effect = saved > 0 ? `saves ${units.predicted(saved)}` : "nothing to gain";
    const line = el("p", {}, "As a CUDA graph ", set(el("output", { id: "out-graph" }), result.graphUs, units.predicted(result.graphUs)), `: ${effect}.`);
    if (waits) line.append(` ${units.counted(waits, "call")} that ${waits === 1 ? "makes" : "make"} the host wait must go first.`);
    this.cures.replaceChildren(line);
  }

  private showPlain(): void {
    const { plain } = this.store.result;
    const larger = Math.max(plain.taxUs, plain.trafficUs) || 1;
    const row = (id: string, title: string, us: number, bound: number) => {
      const bar = el("span", { class: "bar" });
      bar.style.width = `${(100 * us) / larger}%`;
      bar.style.background = this.theme.fill(bound);
      bar.style.borderColor = this.theme.border(bound);
      return el("div", { class: "bar-row" }, el("span", {}, title), el("span", { class: "track" }, bar), set(el("output", { id }), us, units.predicted(us)));
    };
    const ceiling = plain.trafficUs >= plain.taxUs ? "bandwidth" : "launch";
    this.plain.replaceChildren(
      el("h3", { title: "a tax a kernel, bytes over bandwidth; no overlap, no cache, free math" }, "The plain sum"),
      el(
        "p",
        { class: "quiet" },
        set(el("output", { id: "out-plain-kernels" }), plain.kernels, units.counted(plain.kernels, "kernel")),
        ", ",
        set(el("output", { id: "out-plain-bytes" }), plain.bytes, units.moved(plain.bytes)),
        `: ${ceiling}`,
      ),
      row("out-plain-tax", "launch tax", plain.taxUs, 0),
      row("out-plain-traffic", "traffic", plain.trafficUs, 1),
    );
  }
}

function set<E extends HTMLElement>(element: E, value: number, text: string): E {
  element.dataset.value = String(value);
  element.textContent = text;
  return element;
}

interface SliderScale {
  min: number;
  max: number;
  step: number;
  value: (place: number) => number;
  place: (value: number) => number;
}

const linear = (min: number, max: number, step: number): SliderScale => ({
  min,
  max,
  step,
  value: (place) => place,
  place: (value) => Math.min(max, Math.max(min, value)),
});

/** A thousand steps from `min` to `max`, each the same factor. */
const log = (min: number, max: number): SliderScale => ({
  min: 0,
  max: 1000,
  step: 1,
  value: (place) => Number((min * (max / min) ** (place / 1000)).toPrecision(3)),
  place: (value) => Math.min(1000, Math.max(0, Math.round((1000 * Math.log(value / min)) / Math.log(max / min)))),
});
