// Live bytes over the calls, stacked by use, the peak marked, and what is alive there.

import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { zoom, zoomIdentity, type ZoomBehavior, type ZoomTransform } from "d3-zoom";
import { bottomAxis, leftAxis } from "../axes";
import { CanvasView, font, hideTip, showTip } from "../canvas";
import { announce, el } from "../dom";
import { Grid } from "../grid";
import type { Store } from "../store";
import { MEMORY_COLOURS, type Theme } from "../theme";
import * as units from "../units";
import { callTitle } from "../words";

interface Alive {
  row: number;
  bytes: number;
  use: number;
  maker: number;
}

const AREA = { left: 74, top: 26, right: 14, bottom: 26 };

export class MemoryView extends CanvasView {
  private transform: ZoomTransform = zoomIdentity;
  private readonly zoom: ZoomBehavior<HTMLCanvasElement, unknown>;
  private run: unknown = null;
  /** Live bytes during each call, from the bottom of the stack up: one array a use, cumulative. */
  private stack: Float64Array[] = [];
  private highest = 0;
  private at = -1;
  private readonly grid: Grid<Alive>;
  private readonly title = el("h3", {}, "");
  private readonly legend = el("div", { class: "legend" });

  constructor(
    place: HTMLElement,
    toolbar: HTMLElement,
    side: HTMLElement,
    private readonly store: Store,
    private readonly theme: Theme,
  ) {
    super(place, "Live device memory by call. Left and right move between calls, P goes to the peak, plus and minus zoom.");
    this.zoom = zoom<HTMLCanvasElement, unknown>().on("zoom", (event) => {
      this.transform = event.transform;
      this.invalidate();
    });
    select(this.canvas).call(this.zoom).on("dblclick.zoom", null);
    this.canvas.addEventListener("click", (event) => {
      if (!event.defaultPrevented) this.go(Math.round(this.scale.invert(event.offsetX)));
    });
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => hideTip());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    toolbar.append(el("button", { type: "button", click: () => this.peak() }, "Go to the peak"), this.legend);
    this.grid = new Grid<Alive>({
      label: "What is alive",
      columns: [
        { title: "what", width: "minmax(120px, 1fr)", text: (one) => this.nameOf(one), colour: (one) => MEMORY_COLOURS[one.use % MEMORY_COLOURS.length] },
        { title: "use", width: "110px", text: (one) => this.uses[one.use] },
        { title: "size", width: "84px", numeric: true, text: (one) => units.allocated(one.bytes), value: (one) => one.bytes },
      ],
      sort: { column: 2, down: true },
      selected: (one) => !!store.selection && one.maker >= 0 && store.selection.mask[one.maker] === 1,
      choose: (one) => one.maker >= 0 && store.selectCall(one.maker),
    });
    side.append(this.title, this.grid.element);
    store.listen(() => {
      if (this.run !== store.run) this.build();
      if (this.visible) {
        this.paint();
        this.grid.paint();
      }
    });
    theme.listen(() => this.invalidate());
    this.build();
  }

  private get uses(): string[] {
    return this.store.run.structure.storages.uses;
  }

  private nameOf({ row, maker }: Alive): string {
    const name = this.store.run.structure.storages.names[row];
    return name || (maker >= 0 ? callTitle(this.store.run, maker) : "there before the first call");
  }

  private build(): void {
    const { run } = this.store;
    this.run = run;
    const { calls, storages } = run.structure;
    const { bytes, born, died, use, uses } = storages;
    // Place n of a level is what is live during call n - 1; place 0, before the first.
    const levels = uses.map(() => new Float64Array(calls + 3));
    for (let row = 0; row < bytes.length; row++) {
      levels[use[row]][born[row] + 1] += bytes[row];
      levels[use[row]][Math.min(calls, died[row]) + 2] -= bytes[row];
    }
    const used = uses.map(() => false);
    const { libraryBytes, columns } = this.store.pricing;
    for (const level of levels) for (let n = 1; n < level.length; n++) level[n] += level[n - 1];
    const workspace = levels[levels.length - 1];
    for (let n = 0; n < workspace.length; n++) workspace[n] += libraryBytes + (n && n <= calls ? columns.scratch[n - 1] : 0);
    for (let n = 0; n < levels.length; n++) {
      used[n] = levels[n].some((value) => value > 0);
      if (n) for (let at = 0; at < levels[n].length; at++) levels[n][at] += levels[n - 1][at];
    }
    this.stack = levels;
    this.highest = Math.max(1, ...[levels.at(-1)!.reduce((most, value) => Math.max(most, value), 0)]);
    this.legend.replaceChildren(
      ...uses.flatMap((name, n) => {
        if (!used[n]) return [];
        const dot = el("span", { class: "swatch" });
        dot.style.background = MEMORY_COLOURS[n % MEMORY_COLOURS.length];
        return [el("span", {}, dot, name)];
      }),
    );
    this.at = this.store.pricing.peakCall;
    this.list();
  }

  private list(): void {
    const { bytes, born, died, use } = this.store.run.structure.storages;
    const alive: Alive[] = [];
    for (let row = 0; row < bytes.length; row++) {
      if (born[row] <= this.at && died[row] >= this.at) alive.push({ row, bytes: bytes[row], use: use[row], maker: born[row] });
    }
    const where = this.at < 0 ? "before the first call" : `in ${callTitle(this.store.run, this.at)}`;
    const peak = this.at === this.store.pricing.peakCall ? "at the peak, " : "";
    this.title.textContent = `Alive ${peak}${where}`;
    this.grid.show(alive);
  }

  protected resized(): void {
    const right = Math.max(AREA.left + 1, this.width - AREA.right);
    this.zoom
      .extent([[AREA.left, 0], [right, this.height]])
      .translateExtent([[AREA.left, 0], [right, this.height]])
      .scaleExtent([1, Math.max(2, this.store.run.structure.calls / 8)]);
    this.grid.paint();
  }

  private get scale() {
    const base = scaleLinear([-1, Math.max(1, this.store.run.structure.calls)], [AREA.left, this.width - AREA.right]);
    return this.transform.rescaleX(base);
  }

  protected draw(): void {
    const { context, theme, store } = this;
    const { look } = theme;
    const { pricing, knobs } = store;
    const x = this.scale;
    const top = Math.max(this.highest, pricing.peakBytes) * knobs.size;
    const y = scaleLinear([0, top * 1.06], [this.height - AREA.bottom, AREA.top]);
    const area = { left: AREA.left, right: this.width - AREA.right, top: AREA.top, bottom: this.height - AREA.bottom };
    const step = 2 ** Math.round(Math.log2((top || 1) / 4));
    const ticks = Array.from({ length: 12 }, (_, n) => n * step).filter((value) => value <= top * 1.06);
    leftAxis(context, look, ticks.map((value) => ({ at: y(value), text: units.allocated(value) })), "live device memory", area);
    const whole = x.ticks(Math.max(2, this.width / 110)).filter((value) => Number.isInteger(value) && value >= 0);
    bottomAxis(context, look, whole.map((value) => ({ at: x(value), text: `%${value}` })), "call", area);
    context.save();
    context.beginPath();
    context.rect(area.left, 0, area.right - area.left, this.height);
    context.clip();
    // A column a pixel: of the calls that fall into it, the one with most alive.
    const total = this.stack.at(-1)!;
    const columns: number[] = [];
    const { calls } = store.run.structure;
    for (let px = area.left; px <= area.right; px++) {
      const from = Math.max(0, Math.min(calls, Math.round(x.invert(px)) + 1));
      const to = Math.max(from, Math.min(calls, Math.round(x.invert(px + 1)) + 1));
      let best = from;
      for (let n = from; n < to; n++) if (total[n] > total[best]) best = n;
      columns.push(best);
    }
    for (let n = this.stack.length - 1; n >= 0; n--) {
      context.fillStyle = MEMORY_COLOURS[n % MEMORY_COLOURS.length];
      context.beginPath();
      context.moveTo(area.left, y(0));
      columns.forEach((at, px) => {
        context.lineTo(area.left + px, y(this.stack[n][at] * knobs.size));
        context.lineTo(area.left + px + 1, y(this.stack[n][at] * knobs.size));
      });
      context.lineTo(area.right, y(0));
      context.fill();
      context.strokeStyle = look.surface;
      context.lineWidth = 1;
      context.stroke();
    }
    if (store.selection) {
      context.fillStyle = look.accent;
      let last = -2;
      for (const call of store.selection.calls) {
        const at = Math.round(x(call));
        if (at === last || at < area.left || at > area.right) continue;
        last = at;
        context.fillRect(at - 1, area.bottom - 6, 2, 6);
      }
    }
    const peakX = x(pricing.peakCall);
    const peakY = y(pricing.peakBytes * knobs.size);
    context.strokeStyle = look.ink;
    context.lineWidth = 1.5;
    context.setLineDash([5, 3]);
    context.beginPath();
    context.moveTo(area.left, peakY);
    context.lineTo(area.right, peakY);
    context.moveTo(peakX, peakY);
    context.lineTo(peakX, area.bottom);
    context.stroke();
    context.setLineDash([]);
    context.font = font(12, 600);
    context.fillStyle = look.ink;
    context.textBaseline = "bottom";
    context.textAlign = peakX > this.width / 2 ? "right" : "left";
    const part = (pricing.peakBytes * knobs.size) / pricing.memoryBytes;
    context.fillText(
      `peak ${units.allocated(pricing.peakBytes * knobs.size)}, ${units.share(part)} of ${pricing.gpuName}`,
      Math.max(area.left + 4, Math.min(area.right - 4, peakX + (peakX > this.width / 2 ? -6 : 6))),
      peakY - 3,
    );
    if (this.at >= 0) {
      context.strokeStyle = look.accent;
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(x(this.at), area.top);
      context.lineTo(x(this.at), area.bottom);
      context.stroke();
    }
    context.restore();
  }

  private go(call: number): void {
    const last = this.store.run.structure.calls - 1;
    this.at = Math.max(-1, Math.min(last, call));
    this.list();
    if (this.at >= 0) this.store.selectCall(this.at);
    else this.invalidate();
  }

  private peak(): void {
    this.go(this.store.pricing.peakCall);
  }

  private hover(event: PointerEvent): void {
    const call = Math.round(this.scale.invert(event.offsetX));
    const { structure } = this.store.run;
    if (event.buttons || call < -1 || call >= structure.calls) return hideTip();
    const lines = this.uses.flatMap((name, n) => {
      const bytes = this.stack[n][call + 1] - (n ? this.stack[n - 1][call + 1] : 0);
      return bytes > 0 ? [`${name} ${units.allocated(bytes * this.store.knobs.size)}`] : [];
    });
    const title = call < 0 ? "before the first call" : callTitle(this.store.run, call);
    showTip([title, `alive ${units.allocated(this.stack.at(-1)![call + 1] * this.store.knobs.size)}`, ...lines.reverse()], event.clientX, event.clientY);
  }

  private key(event: KeyboardEvent): void {
    if (event.key === "ArrowRight") this.go(this.at + 1);
    else if (event.key === "ArrowLeft") this.go(this.at - 1);
    else if (event.key === "p" || event.key === "P") this.peak();
    else if (event.key === "+" || event.key === "=") select(this.canvas).call(this.zoom.scaleBy, 1.5);
    else if (event.key === "-") select(this.canvas).call(this.zoom.scaleBy, 1 / 1.5);
    else if (event.key === "Escape") this.store.clear();
    else return;
    if (this.at >= 0) announce(callTitle(this.store.run, this.at));
    event.preventDefault();
  }
}
