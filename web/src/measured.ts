// What was really measured, beside what was predicted of it as traced: the knobs change no measurement.

import { sumOf } from "./costs";
import type { Shade } from "./data";
import type { Store } from "./store";
import * as units from "./units";

export interface Compared {
  predictedUs: number;
  measuredUs: number;
  /** Relative and signed; infinite where nothing was launched and something predicted. */
  error: number;
}

/** Device time of calls; null where the program was not measured. */
export function compared(store: Store, calls: ArrayLike<number>): Compared | null {
  const { measured } = store.run;
  if (!measured) return null;
  let measuredUs = 0;
  for (let i = 0; i < calls.length; i++) measuredUs += measured.callUs[calls[i]];
  const predictedUs = sumOf(store.traced, calls).deviceUs;
  const error = measuredUs ? predictedUs / measuredUs - 1 : predictedUs ? Infinity : 0;
  return { predictedUs, measuredUs, error };
}

/** As optrace/rendering/validation.py writes it. */
export function errorText({ error }: Compared): string {
  if (error === Infinity) return "not launched";
  const percent = Math.round(100 * error);
  return percent ? `${percent > 0 ? "+" : "\u2212"}${Math.abs(percent)} %` : "0 %";
}

export function shadeOf(shades: Shade[], { error }: Compared): Shade {
  return shades.find(({ most }) => most === null || error <= most)!;
}

export function comparedLine(one: Compared): string {
  return `device ${units.predicted(one.predictedUs)} as traced, ${units.measured(one.measuredUs)} measured (${errorText(one)})`;
}
