// A canvas that fills its place, sharp on any screen, drawn at most once a frame; and a tooltip for all of them.

import { el } from "./dom";

export abstract class CanvasView {
  readonly canvas: HTMLCanvasElement;
  protected context: CanvasRenderingContext2D;
  protected width = 0;
  protected height = 0;
  private frame = 0;

  constructor(
    readonly place: HTMLElement,
    label: string,
  ) {
    this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": label });
    place.append(this.canvas);
    this.context = this.canvas.getContext("2d")!;
    new ResizeObserver(() => this.resize()).observe(place);
  }

  protected abstract draw(): void;
  protected resized(): void {}

  get visible(): boolean {
    return this.width > 0 && this.height > 0;
  }

  invalidate(): void {
    if (this.visible) this.frame ||= requestAnimationFrame(() => this.paint());
  }

  /** Draw now: for callers that are in a frame already. */
  paint(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (!this.visible) return;
    const ratio = devicePixelRatio || 1;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, this.width, this.height);
    this.draw();
  }

  private resize(): void {
    const { clientWidth, clientHeight } = this.place;
    if (clientWidth === this.width && clientHeight === this.height) return;
    this.width = clientWidth;
    this.height = clientHeight;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    this.canvas.style.width = `${clientWidth}px`;
    this.canvas.style.height = `${clientHeight}px`;
    if (this.visible) {
      this.resized();
      this.paint();
    }
  }
}

export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
export const font = (size: number, weight = 400): string => `${weight} ${size}px ${FONT}`;

/** `text`, or as much of it as is `width` wide. */
export function clipped(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (width <= 0) return "";
  if (context.measureText(text).width <= width) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}\u2026`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low ? `${text.slice(0, low)}\u2026` : "";
}

/** Slanted lines over a rectangle: the device stands idle. */
export function hatch(context: CanvasRenderingContext2D, colour: string, x: number, y: number, w: number, h: number): void {
  context.save();
  context.beginPath();
  context.rect(x, y, w, h);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  const from = Math.floor((x - h) / 7) * 7;
  for (let at = from; at < x + w; at += 7) {
    context.moveTo(at, y + h);
    context.lineTo(at + h, y);
  }
  context.stroke();
  context.restore();
}

const tip = el("div", { class: "tip", role: "status", hidden: true });

export function showTip(lines: string[], x: number, y: number): void {
  if (!tip.isConnected) document.body.append(tip);
  tip.replaceChildren(...lines.map((line, n) => el("div", { class: n ? "" : "tip-head" }, line)));
  tip.hidden = false;
  const { offsetWidth, offsetHeight } = tip;
  tip.style.left = `${Math.max(4, Math.min(innerWidth - offsetWidth - 4, x + 14))}px`;
  tip.style.top = `${y + 18 + offsetHeight > innerHeight ? Math.max(4, y - offsetHeight - 10) : y + 18}px`;
}

export function hideTip(): void {
  tip.hidden = true;
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});
