// Colours for canvases: those of the page's style sheet, and the bounds' own from optrace/rendering/palette.py.

import type { Document } from "./data";

export interface Look {
  dark: boolean;
  ink: string;
  quiet: string;
  faint: string;
  line: string;
  surface: string;
  raised: string;
  accent: string;
}

export class Theme {
  look!: Look;
  private chosen: string | null = null;
  private listeners: (() => void)[] = [];

  constructor(private readonly paint: Document["paint"], private readonly bounds: string[]) {
    try {
      this.chosen = localStorage.getItem("optrace-theme");
    } catch {
      // A sandboxed frame has no storage.
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.apply());
    this.apply();
  }

  listen(listener: () => void): void {
    this.listeners.push(listener);
  }

  get dark(): boolean {
    return this.chosen ? this.chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  toggle(): void {
    this.chosen = this.dark ? "light" : "dark";
    try {
      localStorage.setItem("optrace-theme", this.chosen);
    } catch {
      // As above: the choice lasts as long as the page.
    }
    this.apply();
  }

  private apply(): void {
    document.documentElement.dataset.theme = this.dark ? "dark" : "light";
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
    this.look = {
      dark: this.dark,
      ink: colour("ink"),
      quiet: colour("quiet"),
      faint: colour("faint"),
      line: colour("line"),
      surface: colour("surface"),
      raised: colour("raised"),
      accent: colour("accent"),
    };
    for (const listener of this.listeners) listener();
  }

  name(bound: number): string {
    return this.bounds[bound];
  }

  meaning(bound: number): string {
    return this.paint[this.bounds[bound]].meaning;
  }

  /** Nothing launched and not priced have no colour of their own: they take the page's. */
  private plain(bound: number): boolean {
    return this.bounds[bound] === "host" || this.bounds[bound] === "unknown";
  }

  fill(bound: number): string {
    return this.plain(bound) ? this.look.raised : this.paint[this.bounds[bound]].fill;
  }

  text(bound: number): string {
    return this.plain(bound) ? this.look.quiet : readableOn(this.paint[this.bounds[bound]].fill);
  }

  border(bound: number): string {
    if (this.plain(bound)) return this.look.line;
    return this.look.dark ? this.paint[this.bounds[bound]].fill : this.paint[this.bounds[bound]].border;
  }
}

/** Black or white, whichever has more contrast on a colour (#rrggbb), by WCAG's relative luminance. */
function readableOn(fill: string): string {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const part = Number.parseInt(fill.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return (luminance + 0.05) ** 2 > 1.05 * 0.05 ? "#10151a" : "#ffffff";
}

/** Cividis: even in lightness, the same to colour-blind readers and in print. `part` is 0 to 1. */
const RAMP = [
  [0, 34, 78], [42, 63, 108], [87, 92, 109], [125, 124, 120], [166, 157, 117], [211, 193, 100], [254, 232, 56],
];

export function ramp(part: number): { fill: string; text: string } {
  const at = Math.min(0.9999, Math.max(0, part)) * (RAMP.length - 1);
  const low = RAMP[Math.floor(at)];
  const high = RAMP[Math.floor(at) + 1];
  const mixed = low.map((value, i) => Math.round(value + (high[i] - value) * (at % 1)));
  return { fill: `rgb(${mixed.join(",")})`, text: part > 0.5 ? "#10151a" : "#ffffff" };
}

/** Of memory by use, bottom to top: hues of Okabe and Ito, lightness in turn. */
export const MEMORY_COLOURS = ["#1c5f88", "#8fbfe0", "#f0a878", "#a63d0f", "#6e6e6e", "#12966f", "#f7c65b", "#c8a2d8"];
