// The replayed clock: a host lane and a lane a stream, idle gaps hatched, waits marked. Calls narrower than a pixel
// are drawn together, each cause with its part of the pixel's height.

import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { zoom, zoomIdentity, type ZoomBehavior, type ZoomTransform } from "d3-zoom";
import { bottomAxis } from "../axes";
import { CanvasView, clipped, font, hatch, hideTip, showTip } from "../canvas";
import { sumOf } from "../costs";
import { announce } from "../dom";
import type { Store } from "../store";
import type { Theme } from "../theme";
import * as units from "../units";
import { callSignature, callTitle, costLines, lineOf, moduleOf } from "../words";

interface Lane {
  name: string;
  slots: Uint32Array;
  start: Float64Array;
  end: Float64Array;
  host: boolean;
}

const LEFT = 78;
const RIGHT = 12;
const AXIS = 22;
const IDLE = 6;
const KINDS = 7;

export class TimelineView extends CanvasView {
  private transform: ZoomTransform = zoomIdentity;
  private readonly zoom: ZoomBehavior<HTMLCanvasElement, unknown>;
  private lanes: Lane[] = [];
  private lanesOf = -1;
  private cursor = 0;
  private drag: { from: number; to: number } | null = null;

  constructor(
    place: HTMLElement,
    private readonly store: Store,
    private readonly theme: Theme,
  ) {
    super(place, "Timeline. Left and right move between calls, plus and minus zoom, F shows all.");
    this.zoom = zoom<HTMLCanvasElement, unknown>()
      .filter((event) => !event.shiftKey && !event.button)
      .on("zoom", (event) => {
        this.transform = event.transform;
        hideTip();
        this.invalidate();
      });
    select(this.canvas).call(this.zoom).on("dblclick.zoom", null);
    this.canvas.addEventListener("dblclick", () => this.fit());
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => hideTip());
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointerup", () => this.release());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    store.listen(() => {
      if (this.visible) this.paint();
    });
    theme.listen(() => this.invalidate());
  }

  protected resized(): void {
    const right = Math.max(LEFT + 1, this.width - RIGHT);
    this.zoom
      .extent([[LEFT, 0], [right, this.height]])
      .translateExtent([[LEFT, 0], [right, this.height]])
      // Down to a twentieth of a microsecond a pixel.
      .scaleExtent([1, Math.max(2, (20 * this.store.result.wallUs) / (right - LEFT))]);
  }

  private get scale() {
    const base = scaleLinear([0, this.store.result.wallUs || 1], [LEFT, Math.max(LEFT + 1, this.width - RIGHT)]);
    return this.transform.rescaleX(base);
  }

  private layLanes(): Lane[] {
    const { result } = this.store;
    if (this.lanesOf === result.version) return this.lanes;
    this.lanesOf = result.version;
    const { slots: all, graphed } = result;
    const { spans, length } = all;
    const lanes: Lane[] = [];
    if (graphed) {
      lanes.push({ name: "host", slots: new Uint32Array(0), start: new Float64Array(0), end: new Float64Array(0), host: true });
    } else {
      const slots = Uint32Array.from({ length }, (_, slot) => slot);
      lanes.push({ name: "host", slots, start: spans.hostStart, end: spans.hostEnd, host: true });
    }
    const streams = new Map<number, number[]>();
    for (let slot = 0; slot < length; slot++) {
      if (!all.launches(slot)) continue;
      const stream = all.stream(slot);
      const known = streams.get(stream);
      if (known) known.push(slot);
      else streams.set(stream, [slot]);
    }
    for (const [stream, found] of [...streams].sort(([a], [b]) => a - b)) {
      const slots = Uint32Array.from(found);
      lanes.push({
        name: `stream ${stream}`,
        slots,
        start: Float64Array.from(slots, (slot) => spans.start[slot]),
        end: Float64Array.from(slots, (slot) => spans.end[slot]),
        host: false,
      });
    }
    this.lanes = lanes;
    return lanes;
  }

  private laneBox(n: number, lanes: number): { y: number; height: number } {
    const each = Math.min(64, (this.height - AXIS - 8) / lanes);
    return { y: 6 + n * each, height: Math.max(6, each - 6) };
  }

  fit(): void {
    select(this.canvas).call(this.zoom.transform, zoomIdentity);
  }

  protected draw(): void {
    const { context, theme, store } = this;
    const { look } = theme;
    const { result } = store;
    const lanes = this.layLanes();
    const scale = this.scale;
    const right = this.width - RIGHT;
    const bottom = this.height - AXIS;
    const ticks = scale.ticks(Math.max(2, this.width / 110)).map((at) => ({ at: scale(at), text: units.tick(at) }));
    bottomAxis(context, look, ticks, "time (predicted)", { left: LEFT, right, top: 2, bottom });
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, right - LEFT, bottom);
    context.clip();
    lanes.forEach((lane, n) => this.drawLane(lane, this.laneBox(n, lanes.length)));
    if (result.graphed) this.drawReplay(this.laneBox(0, lanes.length));
    else this.drawWaits(bottom);
    if (this.drag) {
      context.fillStyle = look.accent;
      context.globalAlpha = 0.2;
      context.fillRect(Math.min(this.drag.from, this.drag.to), 0, Math.abs(this.drag.to - this.drag.from), bottom);
      context.globalAlpha = 1;
    }
    context.restore();
    context.font = font(11);
    context.fillStyle = look.quiet;
    context.textAlign = "left";
    context.textBaseline = "middle";
    lanes.forEach((lane, n) => {
      const { y, height } = this.laneBox(n, lanes.length);
      context.fillText(lane.name, 8, y + height / 2);
    });
    if (!result.slots.length) {
      context.textAlign = "center";
      context.fillText("nothing was dispatched", (LEFT + right) / 2, bottom / 2);
    }
  }

  private drawLane(lane: Lane, { y, height }: { y: number; height: number }): void {
    const { context, theme, store } = this;
    const { look } = theme;
    const { result, selection } = store;
    const scale = this.scale;
    const [from, to] = scale.domain();
    context.fillStyle = look.faint;
    context.fillRect(LEFT, y, this.width - LEFT - RIGHT, height);
    const pixel = (to - from) / (this.width - LEFT - RIGHT);
    // Time by cause inside the pixel that is being filled, and how much of it is selected.
    const parts = new Float64Array(KINDS);
    let column = -1;
    let filled = false;
    let chosen = false;
    const flush = () => {
      if (!filled) return;
      let at = y + height;
      const total = Math.max(pixel, parts.reduce((sum, part) => sum + part, 0));
      if (parts[IDLE]) {
        context.globalAlpha = 0.28;
        context.fillStyle = theme.fill(0);
        context.fillRect(column, y, 1, height);
        context.globalAlpha = 1;
      }
      context.globalAlpha = selection && !chosen ? 0.3 : 1;
      for (let kind = 0; kind < KINDS; kind++) {
        if (!parts[kind] || kind === IDLE) continue;
        const high = (height * parts[kind]) / total;
        context.fillStyle = lane.host ? look.line : theme.fill(kind);
        context.fillRect(column, at - high, 1, high);
        at -= high;
      }
      context.globalAlpha = 1;
      if (chosen) {
        context.fillStyle = look.accent;
        context.fillRect(column, y + height, 1, 4);
      }
      parts.fill(0);
      filled = chosen = false;
    };
    let n = firstAfter(lane.end, from);
    let previous = n > 0 ? lane.end[n - 1] : 0;
    for (; n < lane.slots.length && lane.start[n] <= to; n++) {
      const slot = lane.slots[n];
      const x = scale(lane.start[n]);
      const wide = scale(lane.end[n]) - x;
      const bound = result.slots.bound[slot];
      const marked = selection ? some(result.slots.calls(slot), selection.mask) : false;
      let idle = 0;
      if (!lane.host) {
        const gap = Math.min(result.slots.spans.gap[slot] + result.slots.spans.wait[slot], lane.start[n] - previous);
        const gapWide = scale(lane.start[n]) - scale(lane.start[n] - gap);
        if (gapWide < 1) idle = gap;
        if (gapWide > 3) hatch(context, theme.border(0), x - gapWide, y, gapWide, height);
      }
      previous = lane.end[n];
      if (wide < 1) {
        const at = Math.floor(x);
        if (at !== column) {
          flush();
          column = at;
        }
        filled = true;
        parts[lane.host ? 0 : bound] += lane.end[n] - lane.start[n];
        parts[IDLE] += idle;
        chosen ||= marked;
        continue;
      }
      flush();
      const drawnX = Math.max(LEFT - 2, x);
      const drawnWide = Math.min(this.width, x + wide) - drawnX;
      context.globalAlpha = selection && !marked ? 0.3 : 1;
      if (lane.host) {
        context.fillStyle = look.raised;
        context.strokeStyle = look.line;
      } else {
        context.fillStyle = theme.fill(bound);
        context.strokeStyle = theme.border(bound);
      }
      context.fillRect(drawnX, y, Math.max(0.5, drawnWide - 0.5), height);
      if (wide > 5) {
        context.lineWidth = 1;
        context.strokeRect(drawnX + 0.5, y + 0.5, drawnWide - 1.5, height - 1);
      }
      if (drawnWide > 34 && height > 11) {
        context.fillStyle = lane.host ? look.ink : theme.text(bound);
        context.font = font(11);
        context.textAlign = "left";
        context.textBaseline = "middle";
        context.fillText(clipped(context, this.nameOf(slot), drawnWide - 8), drawnX + 4, y + height / 2);
      }
      context.globalAlpha = 1;
      if (marked) {
        context.fillStyle = look.accent;
        context.fillRect(drawnX, y + height, drawnWide, 4);
      }
    }
    flush();
  }

  private drawReplay({ y, height }: { y: number; height: number }): void {
    const { context, theme, store } = this;
    const { replayUs } = store.result;
    const scale = this.scale;
    const [x, end] = [scale(0), scale(replayUs)];
    context.fillStyle = theme.look.raised;
    context.strokeStyle = theme.look.line;
    context.fillRect(x, y, end - x, height);
    context.strokeRect(x + 0.5, y + 0.5, end - x - 1, height - 1);
    context.fillStyle = theme.look.ink;
    context.font = font(11);
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillText(clipped(context, "graph replay", end - x - 8), x + 4, y + height / 2);
  }

  /** A line where the host goes on after it waited. */
  private drawWaits(bottom: number): void {
    const { context, theme, store } = this;
    const { result } = store;
    const scale = this.scale;
    const [from, to] = scale.domain();
    context.strokeStyle = theme.border(3);
    context.fillStyle = theme.border(3);
    context.lineWidth = 1.5;
    const { slots } = result;
    const { hostEnd } = slots.spans;
    let last = -10;
    for (let slot = firstAfter(hostEnd, from); slot < slots.length && hostEnd[slot] <= to; slot++) {
      if (!slots.waits(slot)) continue;
      const x = scale(hostEnd[slot]);
      if (x - last < 3) continue;
      last = x;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, bottom);
      context.stroke();
      context.beginPath();
      context.moveTo(x - 5, 0);
      context.lineTo(x + 5, 0);
      context.lineTo(x, 7);
      context.fill();
    }
  }

  private at(event: MouseEvent): { slot: number; lane: Lane } | null {
    const lanes = this.layLanes();
    const index = lanes.findIndex((_, n) => {
      const { y, height } = this.laneBox(n, lanes.length);
      return event.offsetY >= y && event.offsetY <= y + height;
    });
    if (index < 0 || event.offsetX < LEFT) return null;
    const lane = lanes[index];
    const us = this.scale.invert(event.offsetX);
    const pixel = this.scale.invert(event.offsetX + 1) - us;
    const n = firstAfter(lane.end, us - pixel);
    if (n >= lane.slots.length || lane.start[n] > us + pixel) return null;
    return { slot: lane.slots[n], lane };
  }

  private click(event: MouseEvent): void {
    if (event.defaultPrevented || event.shiftKey) return;
    const found = this.at(event);
    if (!found) return this.store.clear();
    this.cursor = found.slot;
    this.choose(found.slot);
  }

  private press(event: PointerEvent): void {
    if (event.shiftKey && event.offsetX >= LEFT) {
      this.drag = { from: event.offsetX, to: event.offsetX };
      this.canvas.setPointerCapture(event.pointerId);
    }
  }

  /** Shift and drag selects what starts inside. */
  private release(): void {
    if (!this.drag) return;
    const { from, to } = this.drag;
    this.drag = null;
    const { result } = this.store;
    const first = this.scale.invert(Math.min(from, to));
    const last = this.scale.invert(Math.max(from, to));
    const calls = new Set<number>();
    const { slots } = result;
    for (let slot = 0; slot < slots.length; slot++) {
      const at = slots.launches(slot) ? slots.spans.start[slot] : slots.spans.hostStart[slot];
      if (at >= first && at <= last) for (const call of Array.from(slots.calls(slot))) calls.add(call);
    }
    this.store.select(`${units.predicted(first)} to ${units.predicted(last)}`, [...calls]);
  }

  private hover(event: PointerEvent): void {
    if (this.drag) {
      this.drag.to = event.offsetX;
      return this.invalidate();
    }
    const found = event.buttons ? null : this.at(event);
    this.canvas.style.cursor = found ? "pointer" : "grab";
    if (!found) return hideTip();
    const { run, result } = this.store;
    const calls = result.slots.calls(found.slot);
    const { spans } = result.slots;
    const [start, end] = found.lane.host
      ? [spans.hostStart[found.slot], spans.hostEnd[found.slot]]
      : [spans.start[found.slot], spans.end[found.slot]];
    const one = calls.length === 1 ? calls[0] : null;
    const lines = [
      ...(one === null
        ? [this.nameOf(found.slot), ...Array.from(calls).slice(0, 8).map((call) => callTitle(run, call))]
        : [callTitle(run, one), callSignature(run, one), moduleOf(run, one), lineOf(run, one)]),
      `${found.lane.name}: ${units.predicted(end - start)} from ${units.predicted(start)}`,
      ...costLines(this.store, sumOf(result, calls), calls),
    ];
    showTip(lines.filter(Boolean), event.clientX, event.clientY);
  }

  /** Bring a call into sight. */
  reveal(call: number): void {
    const { slots } = this.store.result;
    for (let slot = 0; slot < slots.length; slot++) {
      if (Array.prototype.includes.call(slots.calls(slot), call)) return this.bring(slot);
    }
  }

  /** The op, or what was fused. */
  private nameOf(slot: number): string {
    const { ops, op } = this.store.run.structure;
    const calls = this.store.result.slots.calls(slot);
    if (!calls.length) return "seeds";
    const more = calls.length > 1 ? ` +${calls.length - 1}` : "";
    return `${ops[op[calls[0]]].label}${more}`;
  }

  private choose(slot: number): void {
    const calls = this.store.result.slots.calls(slot);
    if (calls.length === 1) this.store.selectCall(calls[0]);
    else this.store.select(this.nameOf(slot), calls);
  }

  private bring(slot: number): void {
    const { slots } = this.store.result;
    const { spans } = slots;
    const launched = slots.launches(slot) > 0;
    const [start, end] = launched ? [spans.start[slot], spans.end[slot]] : [spans.hostStart[slot], spans.hostEnd[slot]];
    const [from, to] = this.scale.domain();
    if (start >= from && end <= to) return;
    const base = scaleLinear([0, this.store.result.wallUs || 1], [LEFT, this.width - RIGHT]);
    const { k } = this.transform;
    const x = (LEFT + this.width - RIGHT) / 2 - base((start + end) / 2) * k;
    select(this.canvas).call(this.zoom.transform, zoomIdentity.translate(x, 0).scale(k));
  }

  private key(event: KeyboardEvent): void {
    const { result } = this.store;
    const zoomed = (factor: number) => select(this.canvas).call(this.zoom.scaleBy, factor);
    if (event.key === "+" || event.key === "=") zoomed(1.5);
    else if (event.key === "-") zoomed(1 / 1.5);
    else if (event.key === "f" || event.key === "F") this.fit();
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const step = event.key === "ArrowRight" ? 1 : -1;
      const to = this.cursor + (this.store.selection ? step : 0);
      if (to < 0 || to >= result.slots.length) return;
      this.cursor = to;
      this.choose(to);
      this.bring(to);
      const sum = sumOf(result, result.slots.calls(to));
      announce(`${this.nameOf(to)}, ${units.predicted(sum.wallUs)}, bound by ${this.theme.name(sum.bound)}`);
    } else if (event.key === "Escape") this.store.clear();
    else return;
    event.preventDefault();
  }
}

function some(calls: ArrayLike<number>, mask: Uint8Array): boolean {
  for (let n = 0; n < calls.length; n++) if (mask[calls[n]]) return true;
  return false;
}

/** The first place in a rising column whose number is at least `value`. */
export function firstAfter(rising: Float64Array, value: number): number {
  let low = 0;
  let high = rising.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rising[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
