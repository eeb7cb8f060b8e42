// Where nodes of opened items stand: dagre inside each box, parts that nothing connects side by side in rows.

import { Graph, layout as dagreLayout } from "@dagrejs/dagre";
import type { Edges } from "./edges";
import type { Item } from "./tree";

export interface Box {
  item: Item;
  /** Inside the parent's box. */
  x: number;
  y: number;
  width: number;
  height: number;
  boxes: Box[];
  links: Link[];
}

export interface Link {
  src: number;
  dst: number;
  bytes: number;
  order: boolean;
  back: boolean;
  points: { x: number; y: number }[];
}

export const HEAD = 34;
const PAD = 16;
const GAP = 18;
const NODE_HEIGHT = 54;
const OP_HEIGHT = 46;
/** Of an opened box's head, besides its name: its time. */
const OPENED = 90;

/** Sizes and places of everything that is open, outermost box first. */
export function layOut(item: Item, edges: Edges, widthOf: (item: Item) => number): Box {
  const own = widthOf(item);
  if (!item.open) {
    return { item, x: 0, y: 0, width: own, height: item.canOpen ? NODE_HEIGHT : OP_HEIGHT, boxes: [], links: [] };
  }
  const boxes = item.children.map((child) => layOut(child, edges, widthOf));
  const links: Link[] = edges.between(item).map((edge) => ({ ...edge, back: edge.src > edge.dst, points: [] }));
  const size = arrange(boxes, links);
  return {
    item,
    x: 0,
    y: 0,
    width: Math.max(own + OPENED, size.width + 2 * PAD),
    height: size.height + HEAD + PAD,
    boxes,
    links,
  };
}

function arrange(boxes: Box[], links: Link[]): { width: number; height: number } {
  const parts = connected(boxes.length, links);
  const blocks = parts.map((members) => {
    const inside = new Set(members);
    return arrangePart(members, boxes, links.filter((link) => inside.has(link.src)));
  });
  // Rows about as wide as all of them together are high.
  const area = blocks.reduce((sum, block) => sum + (block.width + GAP) * (block.height + GAP), 0);
  const limit = Math.max(...blocks.map((block) => block.width), Math.sqrt(area) * 1.5);
  let [x, y, rowHeight, width] = [0, 0, 0, 0];
  for (const block of blocks) {
    if (x > 0 && x + block.width > limit) {
      [x, y, rowHeight] = [0, y + rowHeight + GAP, 0];
    }
    for (const member of block.members) {
      boxes[member].x += x + PAD;
      boxes[member].y += y + HEAD;
    }
    for (const link of block.links) {
      for (const point of link.points) {
        point.x += x + PAD;
        point.y += y + HEAD;
      }
    }
    x += block.width + GAP;
    rowHeight = Math.max(rowHeight, block.height);
    width = Math.max(width, x - GAP);
  }
  return { width, height: y + rowHeight };
}

interface Block {
  members: number[];
  links: Link[];
  width: number;
  height: number;
}

function arrangePart(members: number[], boxes: Box[], links: Link[]): Block {
  if (members.length === 1) {
    const box = boxes[members[0]];
    return { members, links: [], width: box.width, height: box.height };
  }
  const graph = new Graph({ multigraph: true });
  graph.setGraph({ rankdir: "TB", nodesep: GAP, ranksep: 26, edgesep: 8, marginx: 0, marginy: 0 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const member of members) {
    graph.setNode(String(member), { width: boxes[member].width, height: boxes[member].height });
  }
  links.forEach((link, n) => {
    if (!link.back) graph.setEdge(String(link.src), String(link.dst), { weight: link.order ? 1 : 3 }, String(n));
  });
  dagreLayout(graph);
  for (const member of members) {
    const placed = graph.node(String(member));
    boxes[member].x = placed.x - placed.width / 2;
    boxes[member].y = placed.y - placed.height / 2;
  }
  links.forEach((link, n) => {
    if (link.back) {
      const from = boxes[link.src];
      const to = boxes[link.dst];
      link.points = [
        { x: from.x + from.width, y: from.y + from.height / 2 },
        { x: Math.max(from.x + from.width, to.x + to.width) + GAP, y: (from.y + to.y) / 2 },
        { x: to.x + to.width, y: to.y + to.height / 2 },
      ];
    } else {
      link.points = graph.edge(String(link.src), String(link.dst), String(n)).points.map((at: { x: number; y: number }) => ({ x: at.x, y: at.y }));
    }
  });
  const size = graph.graph() as { width: number; height: number };
  return { members, links, width: size.width, height: size.height };
}

/** Connected parts, each in order. */
function connected(count: number, links: Link[]): number[][] {
  const parent = Array.from({ length: count }, (_, n) => n);
  const find = (n: number): number => {
    while (parent[n] !== n) n = parent[n] = parent[parent[n]];
    return n;
  };
  for (const link of links) parent[find(link.src)] = find(link.dst);
  const parts = new Map<number, number[]>();
  for (let n = 0; n < count; n++) {
    const root = find(n);
    const part = parts.get(root);
    if (part) part.push(n);
    else parts.set(root, [n]);
  }
  return [...parts.values()];
}
