// The op graph: the module hierarchy, opened by clicks; pan, zoom, minimap.

import { select } from "d3-selection";
import { zoom, zoomIdentity, type ZoomBehavior, type ZoomTransform } from "d3-zoom";
import { CanvasView, clipped, font, hideTip, showTip } from "../canvas";
import { sumOf, type Sum } from "../costs";
import { announce, el } from "../dom";
import { Edges } from "../edges";
import { HEAD, layOut, type Box, type Link } from "../layout";
import { compared, errorText, shadeOf } from "../measured";
import type { ColourBy, Store } from "../store";
import { ramp, type Theme } from "../theme";
import { Tree, type Item } from "../tree";
import * as units from "../units";
import { callSignature, callTitle, costLines, lineOf, moduleOf, time } from "../words";

interface Placed {
  box: Box;
  x: number;
  y: number;
  parent: Placed | null;
}

/** Everything but errors, which have shades of their own. */
const COLOURS: Record<Exclude<ColourBy, "error">, { title: string; of: (view: GraphView, item: Item, sum: Sum) => number; show: (value: number) => string }> = {
  bound: { title: "what bounds it", of: () => 0, show: () => "" },
  time: { title: "wall time", of: (_, __, sum) => sum.wallUs, show: units.predicted },
  bytes: { title: "HBM traffic", of: (_, __, sum) => sum.hbmBytes, show: units.moved },
  launches: { title: "launches", of: (_, __, sum) => sum.launches, show: units.count },
  memory: { title: "memory allocated", of: (view, item) => view.allocated(item), show: units.allocated },
};

const MINIMAP = { width: 168, height: 116 };

export class GraphView extends CanvasView {
  private tree!: Tree;
  private edges!: Edges;
  private root!: Box;
  private placed: Placed[] = [];
  private links: { link: Link; x: number; y: number }[] = [];
  private transform: ZoomTransform = zoomIdentity;
  private readonly zoom: ZoomBehavior<HTMLCanvasElement, unknown>;
  private focus: Item | null = null;
  private hovered: Placed | null = null;
  private sums = new Map<Item, Sum>();
  private sumsOf = -1;
  private made!: Float64Array;
  private run: unknown = null;
  private fitted = false;
  private largest = 1;
  private readonly legend = el("div", { class: "legend" });

  constructor(
    place: HTMLElement,
    toolbar: HTMLElement,
    private readonly store: Store,
    private readonly theme: Theme,
  ) {
    super(place, "Op graph. Arrow keys move between nodes, Enter opens or closes a module, plus and minus zoom, F shows all.");
    this.zoom = zoom<HTMLCanvasElement, unknown>()
      .scaleExtent([0.02, 4])
      .on("zoom", (event) => {
        this.transform = event.transform;
        hideTip();
        this.invalidate();
      });
    select(this.canvas).call(this.zoom).on("dblclick.zoom", null);
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("dblclick", (event) => this.open(this.at(event)?.box.item ?? null));
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => this.hover(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    toolbar.append(
      el(
        "label",
        {},
        "colour ",
        el(
          "select",
          { id: "colour-by", change: (event: Event) => this.colour((event.target as HTMLSelectElement).value) },
          ...Object.entries(COLOURS).map(([name, { title }]) => el("option", { value: name }, title)),
          this.store.run.measured ? el("option", { value: "error" }, "error of prediction") : null,
        ),
      ),
      el("button", { type: "button", click: () => this.fit() }, "Show all"),
      el("button", { type: "button", id: "collapse", click: () => this.collapse() }, "Collapse"),
      el("button", { type: "button", "aria-label": "Zoom in", click: () => this.scale(1.4) }, "+"),
      el("button", { type: "button", "aria-label": "Zoom out", click: () => this.scale(1 / 1.4) }, "\u2212"),
      this.legend,
    );
    this.rebuild();
    store.listen(() => {
      if (this.run !== store.run) this.rebuild();
      this.drawLegend();
      if (this.visible) this.paint();
    });
    theme.listen(() => {
      this.drawLegend();
      this.invalidate();
    });
  }

  private rebuild(): void {
    const { run } = this.store;
    this.run = run;
    const { structure } = run;
    this.edges = new Edges(structure);
    this.tree = new Tree(structure);
    this.made = new Float64Array(structure.calls);
    const { born, bytes } = structure.storages;
    for (let n = 0; n < born.length; n++) if (born[n] >= 0) this.made[born[n]] += bytes[n];
    this.fitted = false;
    this.sumsOf = -1;
    this.focus = null;
    this.layOut();
  }

  get dependences(): Edges {
    return this.edges;
  }

  allocated(item: Item): number {
    let total = 0;
    for (const call of item.calls) total += this.made[call];
    return total;
  }

  /** The innermost node in sight that holds a call; used by tests and by other views. */
  nodeOf(call: number): Item | null {
    const drawn = this.edges.drawnWith(call);
    if (drawn < 0) return null;
    let last: Item | null = null;
    for (const item of this.tree.path(drawn)) {
      last = item;
      if (!item.open) break;
    }
    return last;
  }

  /** Open everything around a call and bring it into sight. */
  reveal(call: number): void {
    const drawn = this.edges.drawnWith(call);
    if (drawn < 0) return;
    let item: Item = this.tree.root;
    for (const next of this.tree.path(drawn)) {
      if (next.canOpen) next.open = true;
      item = next;
    }
    this.focus = item;
    this.layOut();
    this.centre(item);
    this.drawLegend();
  }

  private sum(item: Item): Sum {
    if (this.sumsOf !== this.store.result.version) {
      this.sums.clear();
      this.sumsOf = this.store.result.version;
    }
    let sum = this.sums.get(item);
    if (!sum) this.sums.set(item, (sum = sumOf(this.store.result, item.calls)));
    return sum;
  }

  private layOut(): void {
    this.context.font = font(13, 600);
    const widths = (item: Item) => {
      const wide = this.context.measureText(this.title(item)).width + 28;
      return Math.min(320, Math.max(item.canOpen ? 196 : 182, wide + (item.canOpen ? 16 : 0)));
    };
    this.root = layOut(this.tree.root, this.edges, widths);
    this.placed = [];
    this.links = [];
    const walk = (box: Box, x: number, y: number, parent: Placed | null) => {
      const own = { box, x: x + box.x, y: y + box.y, parent };
      this.placed.push(own);
      for (const link of box.links) this.links.push({ link, x: own.x, y: own.y });
      for (const inner of box.boxes) walk(inner, own.x, own.y, own);
    };
    walk(this.root, 0, 0, null);
    this.canvas.dataset.nodes = String(this.placed.length);
    this.invalidate();
  }

  private title(item: Item): string {
    const times = item.count > 1 ? ` \u00d7${item.count}` : "";
    return `${item.name || this.stretch(item)}${times}`;
  }

  private stretch(item: Item): string {
    const { calls } = item;
    return `calls ${calls[0]}\u2013${calls[calls.length - 1]}`;
  }

  protected resized(): void {
    if (!this.fitted) this.fit();
  }

  fit(): void {
    if (!this.visible) return;
    this.fitted = true;
    const scale = Math.min(1.1, (this.width - 32) / this.root.width, (this.height - 32) / this.root.height);
    // A tall graph is read from its top; whole pictures that are too small say nothing.
    const readable = Math.max(scale, Math.min(0.8, (this.width - 32) / this.root.width));
    const x = (this.width - this.root.width * readable) / 2;
    const y = readable > scale ? 16 : (this.height - this.root.height * readable) / 2;
    select(this.canvas).call(this.zoom.transform, zoomIdentity.translate(Math.max(16, x), y).scale(readable));
  }

  private scale(factor: number): void {
    select(this.canvas).call(this.zoom.scaleBy, factor);
  }

  private centre(item: Item, gently = false): void {
    const found = this.placed.find(({ box }) => box.item === item);
    if (!found || !this.visible) return;
    const { k } = this.transform;
    const [left, top] = this.transform.apply([found.x, found.y]);
    const inside =
      left >= 0 && top >= 0 && left + found.box.width * k <= this.width && top + found.box.height * k <= this.height;
    if (gently && inside) return;
    const scale = gently ? k : Math.max(0.8, k);
    const x = this.width / 2 - (found.x + Math.min(found.box.width, this.width / scale) / 2) * scale;
    const y = this.height / 2 - (found.y + Math.min(found.box.height, this.height / scale) / 2) * scale;
    select(this.canvas).call(this.zoom.transform, zoomIdentity.translate(x, y).scale(scale));
  }

  private collapse(): void {
    const close = (item: Item) => {
      if (!item.open) return;
      for (const child of item.children) close(child);
      item.open = item.depth === 0;
    };
    close(this.tree.root);
    this.tree.root.open = true;
    this.layOut();
    this.fit();
  }

  /** Open or close; what was clicked stays where it was. */
  private open(item: Item | null): void {
    if (!item?.canOpen) return;
    const before = this.placed.find(({ box }) => box.item === item)!;
    item.open = !item.open;
    if (!item.children.length) item.open = false;
    this.layOut();
    const after = this.placed.find(({ box }) => box.item === item)!;
    const { k } = this.transform;
    select(this.canvas).call(
      this.zoom.transform,
      zoomIdentity
        .translate(this.transform.x + (before.x - after.x) * k, this.transform.y + (before.y - after.y) * k)
        .scale(k),
    );
    this.drawLegend();
    announce(`${this.title(item)} ${item.open ? `opened, ${units.counted(item.children.length, "node")}` : "closed"}`);
  }

  private colour(by: string): void {
    this.store.look(() => (this.store.colourBy = by as Store["colourBy"]));
  }

  private drawLegend(): void {
    const { colourBy } = this.store;
    this.largest = 0;
    if (colourBy === "error") {
      this.legend.replaceChildren(
        ...this.store.document.shades!.map(({ fill, meaning }) => {
          const dot = el("span", { class: "swatch" });
          dot.style.background = fill;
          return el("span", {}, dot, meaning);
        }),
      );
      return;
    }
    if (colourBy !== "bound") {
      for (const { box } of this.placed) {
        if (!box.item.open) this.largest = Math.max(this.largest, COLOURS[colourBy].of(this, box.item, this.sum(box.item)));
      }
      const swatch = el("span", { class: "ramp" });
      swatch.style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map((part) => ramp(part).fill).join(",")})`;
      this.legend.replaceChildren("0", swatch, COLOURS[colourBy].show(this.largest));
      return;
    }
    this.legend.replaceChildren(
      ...[0, 1, 2, 3].map((bound) => {
        const dot = el("span", { class: "swatch" });
        dot.style.background = this.theme.fill(bound);
        return el("span", { title: this.theme.meaning(bound) }, dot, this.theme.name(bound));
      }),
    );
  }

  private paintOf(item: Item, sum: Sum): { fill: string; text: string; border: string } {
    const { colourBy } = this.store;
    if (colourBy === "bound") {
      return { fill: this.theme.fill(sum.bound), text: this.theme.text(sum.bound), border: this.theme.border(sum.bound) };
    }
    if (colourBy === "error") {
      const beside = compared(this.store, item.calls)!;
      if (beside.measuredUs || beside.predictedUs) {
        return { ...shadeOf(this.store.document.shades!, beside), border: this.theme.look.line };
      }
    }
    const value = colourBy === "error" ? 0 : COLOURS[colourBy].of(this, item, sum);
    if (!value) return { fill: this.theme.look.raised, text: this.theme.look.quiet, border: this.theme.look.line };
    // The root spreads the small ones: most nodes are small beside the largest.
    return { ...ramp(Math.sqrt(value / (this.largest || 1))), border: this.theme.look.line };
  }

  protected draw(): void {
    const { context, transform, theme } = this;
    const { look } = theme;
    context.save();
    context.translate(transform.x, transform.y);
    context.scale(transform.k, transform.k);
    const left = -transform.x / transform.k;
    const top = -transform.y / transform.k;
    const right = left + this.width / transform.k;
    const bottom = top + this.height / transform.k;
    const inSight = (one: Placed) =>
      one.x < right && one.y < bottom && one.x + one.box.width > left && one.y + one.box.height > top;
    for (const one of this.placed) if (one.box.item.open && inSight(one)) this.drawOpened(one);
    this.drawLinks(left, top, right, bottom);
    for (const one of this.placed) if (!one.box.item.open && inSight(one)) this.drawNode(one);
    if (this.focus && document.activeElement === this.canvas) {
      const one = this.placed.find(({ box }) => box.item === this.focus);
      if (one) {
        context.strokeStyle = look.accent;
        context.lineWidth = 3 / transform.k;
        context.setLineDash([6 / transform.k, 3 / transform.k]);
        context.strokeRect(one.x - 5, one.y - 5, one.box.width + 10, one.box.height + 10);
        context.setLineDash([]);
      }
    }
    context.restore();
    this.drawMinimap();
  }

  /** How much of an item is selected: 0 none, 1 part, 2 all. */
  private selected(item: Item): 0 | 1 | 2 {
    const { selection } = this.store;
    if (!selection) return 0;
    let inside = 0;
    const { calls } = item;
    for (const call of calls) inside += selection.mask[call];
    if (!inside) {
      // A call without a node of its own shows in the one it is drawn with.
      return selection.calls.length === 1 && calls.length === 1 && this.edges.drawnWith(selection.calls[0]) === calls[0] ? 2 : 0;
    }
    return inside === calls.length ? 2 : 1;
  }

  private drawOpened({ box, x, y }: Placed): void {
    const { context, theme } = this;
    const { look } = theme;
    const sum = this.sum(box.item);
    context.fillStyle = box.item.depth % 2 ? look.surface : look.faint;
    context.strokeStyle = this.selected(box.item) === 2 ? look.accent : look.line;
    context.lineWidth = this.selected(box.item) === 2 ? 3 : 1;
    context.beginPath();
    context.roundRect(x, y, box.width, box.height, 8);
    context.fill();
    context.stroke();
    if (this.transform.k < 0.25) return;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = look.quiet;
    context.font = font(11);
    const cost = `${time(sum, sum.wallUs)}${this.share(sum)}`;
    const wide = context.measureText(cost).width;
    context.textAlign = "right";
    context.fillText(cost, x + box.width - 12, y + HEAD / 2);
    context.textAlign = "left";
    context.fillStyle = look.ink;
    context.font = font(13, 600);
    const title = clipped(context, `\u25be ${this.title(box.item)}`, box.width - wide - 36);
    context.fillText(title, x + 12, y + HEAD / 2);
    const used = context.measureText(title).width;
    context.fillStyle = look.quiet;
    context.font = font(11);
    context.fillText(clipped(context, box.item.cls, box.width - wide - used - 48), x + 20 + used, y + HEAD / 2 + 1);
  }

  private share(sum: Sum): string {
    const wall = this.store.result.wallUs;
    return sum.wallUs && wall ? ` \u00b7 ${units.share(sum.wallUs / wall)}` : "";
  }

  private drawNode({ box, x, y }: Placed): void {
    const { context, theme, store } = this;
    const { look } = theme;
    const { item, width, height } = box;
    const sum = this.sum(item);
    const paint = this.paintOf(item, sum);
    const marked = this.selected(item);
    context.globalAlpha = store.selection && !marked ? 0.42 : 1;
    if (item.count > 1) {
      context.fillStyle = look.surface;
      context.strokeStyle = paint.border;
      context.lineWidth = 1;
      context.beginPath();
      context.roundRect(x + 5, y + 5, width, height, 6);
      context.fill();
      context.stroke();
    }
    context.fillStyle = paint.fill;
    context.strokeStyle = paint.border;
    context.lineWidth = 1.2;
    if (sum.unpriced) context.setLineDash([5, 3]);
    context.beginPath();
    context.roundRect(x, y, width, height, item.canOpen ? 6 : 14);
    context.fill();
    context.stroke();
    context.setLineDash([]);
    if (marked) {
      context.strokeStyle = look.accent;
      context.lineWidth = marked === 2 ? 3.5 : 2;
      if (marked === 1) context.setLineDash([3, 3]);
      context.stroke();
      context.setLineDash([]);
    }
    if (this.transform.k > 0.28) {
      context.fillStyle = paint.text;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.font = font(13, 600);
      const title = `${item.canOpen ? "\u25b8 " : ""}${this.title(item)}`;
      context.fillText(clipped(context, title, width - 20), x + 11, y + 14);
      if (this.transform.k > 0.45) {
        context.font = font(10.5);
        context.fillText(clipped(context, this.subtitle(item), width - 22), x + 11, y + (item.canOpen ? 29 : 27));
        const beside = store.colourBy === "error" ? compared(store, item.calls) : null;
        const bound = sum.wallUs ? ` \u00b7 ${this.theme.name(sum.bound)}` : "";
        const cost = beside
          ? `${errorText(beside)}: ${units.predicted(beside.predictedUs)}, measured ${units.measured(beside.measuredUs)}`
          : `${time(sum, sum.wallUs)}${this.share(sum)}${bound}`;
        context.fillText(clipped(context, cost, width - 22), x + 11, y + (item.canOpen ? 43 : 38));
      }
    }
    context.globalAlpha = 1;
  }

  private subtitle(item: Item): string {
    const { structure } = this.store.run;
    if (item.kind === "call") return structure.outputs[structure.output[item.lead]] || structure.inputs[structure.input[item.lead]];
    const sum = this.sum(item);
    const cls = item.cls && item.cls !== item.name ? `${item.cls}, ` : "";
    return `${cls}${units.counted(sum.calls, "call")}, ${units.counted(sum.launches, "launch", "launches")}`;
  }

  private drawLinks(left: number, top: number, right: number, bottom: number): void {
    const { context, theme, transform } = this;
    const { look } = theme;
    for (const { link, x, y } of this.links) {
      const { points } = link;
      if (points.length < 2) continue;
      const [from, to] = [points[0], points[points.length - 1]];
      if (Math.max(from.y, to.y) + y < top || Math.min(from.y, to.y) + y > bottom) continue;
      if (Math.max(...points.map((p) => p.x)) + x < left || Math.min(...points.map((p) => p.x)) + x > right) continue;
      context.strokeStyle = look.line;
      context.lineWidth = link.order ? 1 : 1 + 0.55 * Math.max(0, Math.log10(Math.max(1, link.bytes) / 1e3));
      if (link.order || link.back) context.setLineDash([4, 4]);
      context.beginPath();
      context.moveTo(x + from.x, y + from.y);
      for (let n = 1; n < points.length - 1; n++) {
        const middle = { x: (points[n].x + points[n + 1].x) / 2, y: (points[n].y + points[n + 1].y) / 2 };
        const end = n === points.length - 2 ? points[n + 1] : middle;
        context.quadraticCurveTo(x + points[n].x, y + points[n].y, x + end.x, y + end.y);
      }
      if (points.length === 2) context.lineTo(x + to.x, y + to.y);
      context.stroke();
      context.setLineDash([]);
      if (transform.k > 0.3 && !link.order) {
        const before = points[points.length - 2];
        const angle = Math.atan2(to.y - before.y, to.x - before.x);
        context.fillStyle = look.line;
        context.beginPath();
        context.moveTo(x + to.x, y + to.y);
        context.lineTo(x + to.x - 8 * Math.cos(angle - 0.45), y + to.y - 8 * Math.sin(angle - 0.45));
        context.lineTo(x + to.x - 8 * Math.cos(angle + 0.45), y + to.y - 8 * Math.sin(angle + 0.45));
        context.fill();
      }
    }
  }

  private minimapScale(): number {
    return Math.min(MINIMAP.width / this.root.width, MINIMAP.height / this.root.height);
  }

  private minimapAt(): { x: number; y: number } | null {
    const { k } = this.transform;
    const all = this.root.width * k <= this.width && this.root.height * k <= this.height;
    if (all || this.width < 480) return null;
    return { x: this.width - MINIMAP.width - 12, y: this.height - MINIMAP.height - 12 };
  }

  private drawMinimap(): void {
    const at = this.minimapAt();
    if (!at) return;
    const { context, theme, transform } = this;
    const { look } = theme;
    const scale = this.minimapScale();
    context.save();
    context.translate(at.x, at.y);
    context.fillStyle = look.surface;
    context.strokeStyle = look.line;
    context.lineWidth = 1;
    context.globalAlpha = 0.94;
    context.beginPath();
    context.roundRect(-4, -4, MINIMAP.width + 8, MINIMAP.height + 8, 5);
    context.fill();
    context.stroke();
    context.globalAlpha = 1;
    for (const { box, x, y } of this.placed) {
      const wide = Math.max(1, box.width * scale);
      const high = Math.max(1, box.height * scale);
      if (box.item.open) {
        context.strokeRect(x * scale, y * scale, wide, high);
      } else {
        context.fillStyle = this.paintOf(box.item, this.sum(box.item)).fill;
        context.fillRect(x * scale, y * scale, wide, high);
      }
    }
    context.beginPath();
    context.rect(-4, -4, MINIMAP.width + 8, MINIMAP.height + 8);
    context.clip();
    context.strokeStyle = look.accent;
    context.lineWidth = 2;
    context.strokeRect(
      (-transform.x / transform.k) * scale,
      (-transform.y / transform.k) * scale,
      (this.width / transform.k) * scale,
      (this.height / transform.k) * scale,
    );
    context.restore();
  }

  private at(event: MouseEvent): Placed | null {
    const [x, y] = this.transform.invert([event.offsetX, event.offsetY]);
    for (let n = this.placed.length - 1; n >= 0; n--) {
      const one = this.placed[n];
      if (x >= one.x && y >= one.y && x <= one.x + one.box.width && y <= one.y + one.box.height) return one;
    }
    return null;
  }

  private click(event: MouseEvent): void {
    if (event.defaultPrevented) return;
    const map = this.minimapAt();
    if (map && event.offsetX >= map.x && event.offsetY >= map.y) {
      const scale = this.minimapScale();
      const { k } = this.transform;
      const x = this.width / 2 - ((event.offsetX - map.x) / scale) * k;
      const y = this.height / 2 - ((event.offsetY - map.y) / scale) * k;
      select(this.canvas).call(this.zoom.transform, zoomIdentity.translate(x, y).scale(k));
      return;
    }
    const found = this.at(event);
    if (!found) return this.store.clear();
    const { item } = found.box;
    const again = this.focus === item && this.selected(item) === 2;
    this.focus = item;
    this.choose(item);
    // The head of an opened box and the body of a closed one open and close it.
    const [, y] = this.transform.invert([event.offsetX, event.offsetY]);
    if (item.canOpen && (!item.open || (again && y - found.y < HEAD)) && item !== this.tree.root && event.detail === 1) {
      this.open(item);
    }
  }

  private choose(item: Item): void {
    if (item.kind === "call" && item.calls.length === 1) this.store.selectCall(item.calls[0]);
    else this.store.select(this.pathOf(item), item.calls);
  }

  private pathOf(item: Item): string {
    const names: string[] = [];
    for (let at: Item | null = item; at && at.parent; at = at.parent) names.unshift(this.title(at));
    return names.join(".") || this.title(item);
  }

  private hover(event: PointerEvent | null): void {
    const found = event && !event.buttons ? this.at(event) : null;
    this.hovered = found;
    this.canvas.style.cursor = found ? "pointer" : "grab";
    if (!event || !found || found.box.item === this.tree.root) return hideTip();
    const { item } = this.hovered!.box;
    const sum = this.sum(item);
    const { run } = this.store;
    const call = item.lead;
    const lines =
      item.kind === "call"
        ? [callTitle(run, call), callSignature(run, call), moduleOf(run, call), lineOf(run, call), ...costLines(this.store, sum, item.calls)]
        : [this.pathOf(item), item.cls, item.differs, `${units.counted(sum.calls, "call")}; click to ${item.open ? "select" : "open"}`, ...costLines(this.store, sum, item.calls)];
    showTip(lines.filter(Boolean), event.clientX, event.clientY);
  }

  private key(event: KeyboardEvent): void {
    const step: Record<string, [number, number]> = {
      ArrowRight: [1, 0],
      ArrowLeft: [-1, 0],
      ArrowDown: [0, 1],
      ArrowUp: [0, -1],
    };
    if (event.key in step) this.move(...step[event.key]);
    else if (event.key === "Enter" && this.focus) this.open(this.focus);
    else if (event.key === "+" || event.key === "=") this.scale(1.3);
    else if (event.key === "-") this.scale(1 / 1.3);
    else if (event.key === "f" || event.key === "F") this.fit();
    else if (event.key === "Escape") this.store.clear();
    else return;
    event.preventDefault();
  }

  /** To the nearest node in a direction. */
  private move(dx: number, dy: number): void {
    const nodes = this.placed.filter(({ box }) => !box.item.open || box.item === this.focus);
    const from = nodes.find(({ box }) => box.item === this.focus);
    let best = from ? null : (nodes[0] ?? null);
    let least = Infinity;
    for (const one of from ? nodes : []) {
      const x = one.x + one.box.width / 2 - (from!.x + from!.box.width / 2);
      const y = one.y + one.box.height / 2 - (from!.y + from!.box.height / 2);
      const along = x * dx + y * dy;
      const across = Math.abs(x * dy) + Math.abs(y * dx);
      if (one === from || along <= 0) continue;
      const far = along + 2.5 * across;
      if (far < least) [least, best] = [far, one];
    }
    if (!best) return;
    this.focus = best.box.item;
    this.choose(this.focus);
    this.centre(this.focus, true);
    const sum = this.sum(this.focus);
    announce(`${this.title(this.focus)}, ${time(sum, sum.wallUs)}, bound by ${this.theme.name(sum.bound)}`);
  }
}
