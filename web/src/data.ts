// The page's data: a JSON header that speaks of typed columns, packed by optrace/rendering/page/columns.py.

type ColumnType = "Uint8" | "Uint16" | "Uint32" | "Int32" | "Float32" | "Float64";
type Column = [ColumnType, number, number];
export type Numbers = Uint8Array | Uint16Array | Uint32Array | Int32Array | Float32Array | Float64Array;

const ARRAYS = {
  Uint8: Uint8Array,
  Uint16: Uint16Array,
  Uint32: Uint32Array,
  Int32: Int32Array,
  Float32: Float32Array,
  Float64: Float64Array,
};

export interface Paint {
  fill: string;
  text: string;
  border: string;
  meaning: string;
}

/** Of errors up to `most` (signed, relative); null: of all above. */
export interface Shade {
  most: number | null;
  fill: string;
  text: string;
  meaning: string;
}

export interface Structure {
  calls: number;
  ops: { name: string; label: string }[];
  phases: string[];
  modules: { path: string; cls: string }[];
  lines: [string, number, string][];
  inputs: string[];
  outputs: string[];
  arguments: string[];
  op: Numbers;
  phase: Numbers;
  stream: Numbers;
  module: Numbers;
  line: Numbers;
  input: Numbers;
  output: Numbers;
  argument: Numbers;
  edges: { src: Numbers; dst: Numbers; kind: Numbers; bytes: Numbers };
  /** The folded run: a row an item, each before those inside it. */
  tree: {
    /** The call that each call is drawn with, or -1. */
    joins: Numbers;
    kinds: string[];
    texts: string[];
    kind: Numbers;
    name: Numbers;
    cls: Numbers;
    differs: Numbers;
    /** How many items are directly inside. */
    inside: Numbers;
    /** How often it is there in the item around it, and in all. */
    count: Numbers;
    copies: Numbers;
    /** Of items that are calls, one after the other, copy by copy. */
    calls: Numbers;
  };
  storages: {
    /** What storages are for; the last is what libraries keep and calls allocate inside, which are none. */
    uses: string[];
    bytes: Numbers;
    born: Numbers;
    died: Numbers;
    use: Numbers;
    names: Record<string, string>;
  };
  sources: Record<string, string>;
}

export interface Columns {
  launches: Numbers;
  flags: Numbers;
  kind: Numbers;
  source: Numbers;
  tensorBytes: Numbers;
  hbmRead: Numbers;
  hbmWritten: Numbers;
  flops: Numbers;
  fixedUs: Numbers;
  workUs: Numbers;
  hbmUs: Numbers;
  l2Us: Numbers;
  /** A row a launch that takes the longer of arithmetic and bytes: those of call n end at `overlapEnd[n]`. */
  overlapEnd: Numbers;
  overlapFixedUs: Numbers;
  overlapHbmUs: Numbers;
  overlapL2Us: Numbers;
  overlapProduct: Numbers;
  overlapComputing: Numbers;
  /** Arithmetic is straight between knots: microseconds at peaks so many times slower. */
  knotEnd: Numbers;
  knotSlower: Numbers;
  knotUs: Numbers;
  pythonUs: Numbers;
  autogradUs: Numbers;
  /** As traced; at another dispatch time `heldDispatchUs` and so many dispatch times. */
  dispatchUs: Numbers;
  heldDispatchUs: Numbers;
  dispatches: Numbers;
  scratch: Numbers;
  /** Only of eager calls. */
  plainKernels: Numbers;
  plainBytes: Numbers;
}

/** The compiled program, a step of it as a call; step n stands for the members up to `memberEnd[n]`. */
export interface Fused {
  peakBytes: number;
  /** Steps with which a compiled function begins, and the host time before each: guards, the way into it. */
  entryStep: Numbers;
  entryUs: Numbers;
  stream: Numbers;
  memberEnd: Numbers;
  member: Numbers;
  columns: Columns;
}

export interface Pricing {
  gpu: string;
  gpuName: string;
  gpuMeasured: boolean;
  l2Bytes: number;
  bandwidthTbS: number;
  l2BandwidthTbS: number;
  mathDtype: string;
  peaks: { name: string; flopS: number }[];
  graphReplayUs: number;
  graphLaunchUs: number;
  memoryBytes: number;
  hostName: string;
  hostMeasured: boolean;
  dispatchUs: number;
  launchUs: number;
  syncUs: number;
  tailUs: number;
  synchronizeUs: number;
  queueDepth: number;
  peakBytes: number;
  peakCall: number;
  baseBytes: number;
  libraryBytes: number;
  reservedBytes: number;
  columns: Columns;
  fused?: Fused;
}

export interface Block {
  elements: number;
  product: number;
  chain: number[];
}

export interface Finding {
  title: string;
  severity: string;
  place: string;
  why: string;
  change: string;
  claim: string;
  calls: Numbers;
}

export interface Cure {
  name: string;
  wallUs: number;
  speedUp: number;
  launches: number;
  hbmBytes: number;
  peakBytes: number;
  bottleneck: string;
  complete: boolean;
}

export interface FusedRegion {
  calls: Numbers;
  launchesSaved: number;
  bytesBefore: number;
  bytesAfter: number;
  savedUs: number | null;
}

/** A run of the same calls on a device: microseconds by call, and of the step by the clock. */
export interface Measured {
  device: string;
  callUs: Numbers;
  wallUs: number;
}

export interface Run {
  batch: number | null;
  measured?: Measured;
  structure: Structure;
  pricings: Pricing[];
  verdict: string;
  scoreboard: { label: string; value: string; detail: string }[];
  missing: string[];
  block?: Block;
  findings: Finding[];
  cures?: Cure[];
  blockers?: { reason: string; stops: boolean; calls: Numbers }[];
  regions?: FusedRegion[];
  regionsInAll?: number;
}

export interface Document {
  program: string;
  mode: string;
  torch: string;
  steps: number;
  paint: Record<string, Paint>;
  bounds: string[];
  /** How errors are coloured, from far too fast to far too slow; only beside a measured run. */
  shades?: Shade[];
  kinds: string[];
  costSources: string[];
  runs: Run[];
  notes: string[];
}

export const UNPRICED = 1;
export const HOST_WAIT = 2;
export const UNKNOWN_FLOPS = 4;

/** Decode the packed data of the page. */
export async function load(base64: string): Promise<Document> {
  const text = atob(base64.trim());
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = await new Response(stream).arrayBuffer();
  const length = new DataView(bytes).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
  return fill(header, bytes, 4 + length) as Document;
}

function isColumn(value: unknown): value is Column {
  return Array.isArray(value) && value.length === 3 && typeof value[0] === "string" && value[0] in ARRAYS;
}

/** Put the columns where the header speaks of them. */
function fill(value: unknown, bytes: ArrayBuffer, base: number): unknown {
  if (isColumn(value)) {
    const [kind, offset, count] = value;
    return new ARRAYS[kind](bytes, base + offset, count);
  }
  if (Array.isArray(value)) {
    return value.length && typeof value[0] === "object" ? value.map((item) => fill(item, bytes, base)) : value;
  }
  if (value && typeof value === "object") {
    const filled: Record<string, unknown> = {};
    for (const [name, item] of Object.entries(value)) {
      // Program text: taken as it is, whatever it looks like.
      filled[name] = TEXTS.has(name) ? item : fill(item, bytes, base);
    }
    return filled;
  }
  return value;
}

const TEXTS = new Set(["lines", "inputs", "outputs", "arguments", "sources", "names", "ops", "modules"]);
