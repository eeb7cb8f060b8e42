// Figures as people read them: optrace/rendering/units.py for the browser. `~` in front of every predicted figure.

const UNKNOWN = "?";
type Scale = [string, number][];
const TIME: Scale = [["us", 1], ["ms", 1e3], ["s", 1e6]];
const BYTES: Scale = [["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]];
const ALLOCATED: Scale = [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30], ["TiB", 2 ** 40]];
const PREFIX: Scale = [["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12], ["P", 1e15], ["E", 1e18]];

export function number(value: number): string {
  const size = Math.abs(value);
  if (size > 0 && size < 0.0009995) return "<0.001";
  if (size < 99.95) return String(Number(value.toPrecision(3)));
  const digits = Math.round(size).toString().length;
  const step = 10 ** Math.max(0, digits - 3);
  return (Math.round(value / step) * step).toLocaleString("en-US");
}

export const count = (value: number | null): string =>
  value === null ? UNKNOWN : Math.round(value).toLocaleString("en-US");

export const counted = (value: number, one: string, many = `${one}s`): string =>
  `${count(value)} ${value === 1 ? one : many}`;

export function share(part: number): string {
  const percent = 100 * part;
  if (percent >= 9.95 || percent === 0) return `${percent.toFixed(0)} %`;
  return percent >= 0.05 ? `${percent.toFixed(1)} %` : "<0.1 %";
}

function scaled(value: number, scale: Scale): string {
  let [unit, factor] = scale[0];
  for (const [largerUnit, largerFactor] of scale.slice(1)) {
    if (Math.abs(value) < 0.9995 * largerFactor) break;
    [unit, factor] = [largerUnit, largerFactor];
  }
  return `${number(value / factor)} ${unit}`;
}

/** A predicted time. */
export function predicted(us: number | null): string {
  if (us === null) return UNKNOWN;
  if (us > 0 && us < 0.0009995) return "~0 us";
  return us ? `~${scaled(us, TIME)}` : "0 us";
}

/** A measured time: no `~`. */
export const measured = (us: number): string => scaled(us, TIME);

/** A place on the clock: an axis tick. */
export const tick = (us: number): string => (us ? scaled(us, TIME) : "0");

export const moved = (bytes: number | null): string => (bytes === null ? UNKNOWN : scaled(bytes, BYTES));
export const allocated = (bytes: number): string => scaled(bytes, ALLOCATED);
export const flop = (value: number | null): string => (value === null ? UNKNOWN : `${scaled(value, PREFIX)}FLOP`);
export const flopRate = (value: number): string => `${scaled(value, PREFIX)}FLOP/s`;
export const byteRate = (tbS: number): string => (tbS < 0.9995 ? `${number(tbS * 1e3)} GB/s` : `${number(tbS)} TB/s`);
export const intensity = (value: number | null): string => (value === null ? UNKNOWN : `${number(value)} FLOP/B`);
