// Axes on canvases.

import type { Look } from "./theme";
import { font } from "./canvas";

export interface Tick {
  at: number;
  text: string;
}

/** Ticks below a plot, with the axis's name at its right end. */
export function bottomAxis(
  context: CanvasRenderingContext2D, look: Look, ticks: Tick[], name: string,
  area: { left: number; right: number; top: number; bottom: number },
): void {
  context.font = font(11);
  context.textBaseline = "top";
  context.strokeStyle = look.faint;
  context.lineWidth = 1;
  const nameWidth = context.measureText(name).width;
  context.beginPath();
  for (const { at } of ticks) {
    context.moveTo(Math.round(at) + 0.5, area.top);
    context.lineTo(Math.round(at) + 0.5, area.bottom);
  }
  context.stroke();
  context.fillStyle = look.quiet;
  context.textAlign = "center";
  let free = -Infinity;
  for (const { at, text } of ticks) {
    const width = context.measureText(text).width;
    if (at - width / 2 < free || at + width / 2 > area.right - nameWidth - 10 || at - width / 2 < area.left - 16) continue;
    context.fillText(text, at, area.bottom + 5);
    free = at + width / 2 + 10;
  }
  context.textAlign = "right";
  context.fillText(name, area.right, area.bottom + 5);
}

/** Ticks left of a plot, with the axis's name above them. */
export function leftAxis(
  context: CanvasRenderingContext2D, look: Look, ticks: Tick[], name: string,
  area: { left: number; right: number; top: number; bottom: number },
): void {
  context.font = font(11);
  context.strokeStyle = look.faint;
  context.lineWidth = 1;
  context.beginPath();
  for (const { at } of ticks) {
    context.moveTo(area.left, Math.round(at) + 0.5);
    context.lineTo(area.right, Math.round(at) + 0.5);
  }
  context.stroke();
  context.fillStyle = look.quiet;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const { at, text } of ticks) context.fillText(text, area.left - 6, at);
  context.textAlign = "left";
  context.textBaseline = "bottom";
  context.fillText(name, 6, area.top - 5);
}
