// The roofline: each call by arithmetic intensity and achieved rate. Circles are predictions and hollow; their area is
// time. Calls in the same place are one circle.

import { scaleLog } from "d3-scale";
import { bottomAxis, leftAxis } from "../axes";
import { CanvasView, font, hideTip, showTip } from "../canvas";
import { mainPeak, sumOf } from "../costs";
import type { Pricing } from "../data";
import { announce, el } from "../dom";
import type { Store } from "../store";
import type { Theme } from "../theme";
import * as units from "../units";
import { callTitle, costLines } from "../words";

interface Dot {
  x: number;
  y: number;
  radius: number;
  us: number;
  bound: number;
  calls: number[];
}

const AREA = { left: 78, top: 30, right: 16, bottom: 26 };

export class RooflineView extends CanvasView {
  private dots: Dot[] = [];
  private dotsOf = "";
  private focus = -1;
  private readonly note = el("span", { class: "quiet" });
  private domain = { low: 0.01, high: 1000, bottom: 1e9, top: 1e15 };

  constructor(
    place: HTMLElement,
    toolbar: HTMLElement,
    private readonly store: Store,
    private readonly theme: Theme,
  ) {
    super(place, "Roofline. Left and right move between circles, largest first.");
    toolbar.append(this.note);
    this.canvas.addEventListener("click", (event) => {
      const dot = this.at(event);
      if (dot) this.choose(dot);
      else this.store.clear();
    });
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => hideTip());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    store.listen(() => {
      if (this.visible) this.paint();
    });
    theme.listen(() => this.invalidate());
  }

  private get scales() {
    const { low, high, bottom, top } = this.domain;
    return {
      x: scaleLog([low, high], [AREA.left, this.width - AREA.right]),
      y: scaleLog([bottom, top], [this.height - AREA.bottom, AREA.top]),
    };
  }

  private get roofs() {
    const { knobs, pricing } = this.store;
    const factor = knobs.peakFlopS / mainPeak(pricing);
    return {
      hbm: knobs.bandwidthTbS * 1e12,
      l2: pricing.l2BandwidthTbS * 1e12,
      peaks: levels(pricing.peaks).map(({ name, flopS }) => ({ name, flopS: flopS * factor })),
    };
  }

  private layDots(): void {
    const { result } = this.store;
    const key = `${result.version} ${this.width} ${this.height}`;
    if (key === this.dotsOf) return;
    this.dotsOf = key;
    const points: { call: number; x: number; y: number; us: number }[] = [];
    let without = 0;
    let withoutUs = 0;
    let [low, high, least, most] = [0.1, 100, Infinity, 0];
    for (let call = 0; call < result.deviceUs.length; call++) {
      const us = result.deviceUs[call];
      if (!us) continue;
      const bytes = result.hbmRead[call] + result.hbmWritten[call];
      const flops = result.flops[call];
      if (!flops || !bytes) {
        without++;
        withoutUs += us;
        continue;
      }
      const rate = flops / (us * 1e-6);
      const intensity = flops / bytes;
      low = Math.min(low, intensity);
      high = Math.max(high, intensity);
      least = Math.min(least, rate);
      most = Math.max(most, rate);
      points.push({ call, x: intensity, y: rate, us });
    }
    const { hbm, peaks } = this.roofs;
    const highest = Math.max(1e9, ...peaks.map((peak) => peak.flopS), most);
    this.domain = {
      low: low / 2,
      high: Math.max(high, (2 * highest) / hbm) * 4,
      bottom: Math.min(highest / 1e4, (least || 1e9) / 2),
      top: highest * 2.5,
    };
    const { x, y } = this.scales;
    const byPlace = new Map<string, Dot>();
    for (const point of points) {
      const bound = result.bound[point.call];
      const at = { x: Math.round(x(point.x)), y: Math.round(y(point.y)) };
      const place = `${at.x} ${at.y} ${bound}`;
      let dot = byPlace.get(place);
      if (!dot) byPlace.set(place, (dot = { ...at, radius: 0, us: 0, bound, calls: [] }));
      dot.us += point.us;
      dot.calls.push(point.call);
    }
    this.dots = [...byPlace.values()].sort((a, b) => b.us - a.us);
    const total = result.deviceUs.reduce((sum, us) => sum + us, 0) || 1;
    const largest = Math.min(this.width, this.height) / 7;
    for (const dot of this.dots) dot.radius = Math.max(3, largest * Math.sqrt(dot.us / total));
    this.note.textContent = without
      ? `${units.counted(without, "call")} without arithmetic or HBM traffic (${units.predicted(withoutUs)}) cannot stand here`
      : "";
  }

  protected draw(): void {
    this.layDots();
    const { context, theme, store } = this;
    const { look } = theme;
    const { x, y } = this.scales;
    const area = { left: AREA.left, right: this.width - AREA.right, top: AREA.top, bottom: this.height - AREA.bottom };
    const decades = (scale: typeof x) => scale.ticks().filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9);
    bottomAxis(context, look, decades(x).map((value) => ({ at: x(value), text: plain(value) })), "FLOP/B through HBM", area);
    leftAxis(context, look, decades(y).map((value) => ({ at: y(value), text: units.flopRate(value) })), "achieved rate (predicted)", area);
    context.save();
    context.beginPath();
    context.rect(area.left, area.top - 12, area.right - area.left, area.bottom - area.top + 12);
    context.clip();
    this.drawRoofs(area);
    for (const dot of this.dots) {
      const marked = store.selection ? dot.calls.some((call) => store.selection!.mask[call]) : false;
      context.globalAlpha = store.selection && !marked ? 0.25 : 1;
      context.beginPath();
      context.arc(dot.x, dot.y, dot.radius, 0, 2 * Math.PI);
      context.globalAlpha *= 0.45;
      context.fillStyle = theme.fill(dot.bound);
      context.fill();
      context.globalAlpha /= 0.45;
      context.strokeStyle = marked ? look.accent : theme.border(dot.bound);
      context.lineWidth = marked ? 3 : 1.4;
      if (!marked) context.setLineDash(DASHES[dot.bound]);
      context.stroke();
      context.setLineDash([]);
      context.globalAlpha = 1;
    }
    context.font = font(11, 600);
    context.fillStyle = look.ink;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const { ops, op } = store.run.structure;
    let taken: { x: number; y: number }[] = [];
    for (const dot of this.dots.slice(0, 12)) {
      if (taken.some((other) => Math.abs(other.x - dot.x) < 110 && Math.abs(other.y - dot.y) < 16)) continue;
      taken = [...taken, dot];
      const names = new Set(dot.calls.map((call) => ops[op[call]].label));
      const more = names.size > 1 ? ` +${names.size - 1}` : "";
      const label = `${[...names][0]}${more}`;
      const half = context.measureText(label).width / 2;
      const at = Math.min(Math.max(dot.x, area.left + half + 2), area.right - half - 2);
      context.fillText(label, at, dot.y - (dot.radius > 16 ? 0 : dot.radius + 9));
    }
    context.restore();
    if (!this.dots.length) {
      context.fillStyle = look.quiet;
      context.fillText("no call both computes and moves bytes", (area.left + area.right) / 2, (area.top + area.bottom) / 2);
    }
  }

  private drawRoofs(area: { left: number; right: number; top: number; bottom: number }): void {
    const { context } = this;
    const { look } = this.theme;
    const { x, y } = this.scales;
    const { hbm, l2, peaks } = this.roofs;
    const highest = Math.max(...peaks.map((peak) => peak.flopS), 0) || this.domain.top;
    context.font = font(11);
    const slope = (rate: number, name: string, dash: number[], above: boolean) => {
      const from = this.domain.low;
      const to = highest / rate;
      context.strokeStyle = look.quiet;
      context.lineWidth = 1.6;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(x(from), y(rate * from));
      context.lineTo(x(to), y(highest));
      context.stroke();
      context.setLineDash([]);
      const angle = Math.atan2(y(highest) - y(rate * from), x(to) - x(from));
      const middle = Math.max(from * 1.3, this.domain.bottom / rate);
      context.save();
      context.translate(x(middle), y(rate * middle));
      context.rotate(angle);
      context.fillStyle = look.quiet;
      context.textAlign = "left";
      context.textBaseline = above ? "bottom" : "top";
      context.fillText(name, 14, above ? -4 : 4);
      context.restore();
    };
    slope(hbm, `HBM ${units.byteRate(hbm / 1e12)}`, [], false);
    // L2 bytes are not HBM bytes: the roof shows what a call could reach whose traffic stayed in L2.
    if (l2 > hbm) slope(l2, `L2 ${units.byteRate(l2 / 1e12)}`, [6, 4], true);
    for (const peak of peaks) {
      const ridge = peak.flopS / hbm;
      context.strokeStyle = look.quiet;
      context.lineWidth = 1.6;
      context.beginPath();
      context.moveTo(x(ridge), y(peak.flopS));
      context.lineTo(area.right, y(peak.flopS));
      context.stroke();
      context.fillStyle = look.quiet;
      context.textAlign = "right";
      context.textBaseline = "bottom";
      context.fillText(`${peak.name} ${units.flopRate(peak.flopS)}`, area.right - 4, y(peak.flopS) - 3);
      context.beginPath();
      context.arc(x(ridge), y(peak.flopS), 3.5, 0, 2 * Math.PI);
      context.fill();
      context.setLineDash([2, 4]);
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x(ridge), y(peak.flopS));
      context.lineTo(x(ridge), area.bottom);
      context.stroke();
      context.setLineDash([]);
      context.textAlign = "left";
      context.fillText(`ridge ${units.number(ridge)}`, x(ridge) + 4, area.bottom - 3);
    }
  }

  private at(event: MouseEvent): Dot | null {
    // The smallest under the pointer: it may lie on a larger one.
    let best: Dot | null = null;
    for (const dot of this.dots) {
      const far = Math.hypot(dot.x - event.offsetX, dot.y - event.offsetY);
      if (far <= dot.radius + 3 && (!best || dot.radius < best.radius)) best = dot;
    }
    return best;
  }

  private choose(dot: Dot): void {
    this.focus = this.dots.indexOf(dot);
    if (dot.calls.length === 1) this.store.selectCall(dot.calls[0]);
    else this.store.select(`${callTitle(this.store.run, dot.calls[0])} and ${units.count(dot.calls.length - 1)} beside it`, dot.calls);
  }

  private hover(event: PointerEvent): void {
    const dot = this.at(event);
    this.canvas.style.cursor = dot ? "pointer" : "default";
    if (!dot) return hideTip();
    const { result, run } = this.store;
    const more = dot.calls.length > 1 ? ` and ${units.count(dot.calls.length - 1)} more` : "";
    const { x, y } = this.scales;
    showTip(
      [
        `${callTitle(run, dot.calls[0])}${more}`,
        `${units.intensity(x.invert(dot.x))}, ~${units.flopRate(y.invert(dot.y))}`,
        ...costLines(this.store, sumOf(result, dot.calls), dot.calls),
      ],
      event.clientX,
      event.clientY,
    );
  }

  private key(event: KeyboardEvent): void {
    if (event.key === "Escape") this.store.clear();
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const to = this.focus + (event.key === "ArrowRight" ? 1 : -1);
      if (to < 0 || to >= this.dots.length) return;
      this.choose(this.dots[to]);
      announce(`${callTitle(this.store.run, this.dots[to].calls[0])}, ${units.predicted(this.dots[to].us)}`);
    } else return;
    event.preventDefault();
  }
}

/** Peaks of one rate are one roof, with all their names. */
function levels(peaks: Pricing["peaks"]): Pricing["peaks"] {
  const byRate = new Map<number, string[]>();
  for (const { name, flopS } of peaks) byRate.set(flopS, [...(byRate.get(flopS) ?? []), name]);
  return [...byRate].map(([flopS, names]) => ({ name: names.join(", "), flopS }));
}

/** Outlines by bound: colours alone do not tell circles apart in print. */
const DASHES: number[][] = [[5, 3], [], [1, 2], [8, 2, 2, 2], [], []];

function plain(value: number): string {
  return value >= 0.01 && value < 1e5 ? String(Number(value.toPrecision(1))) : value.toExponential(0);
}
