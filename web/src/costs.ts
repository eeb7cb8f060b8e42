// The program priced under the knobs: per-call times from the page's columns, replayed, summed by cause.

import { HOST_WAIT, UNPRICED, type Columns, type Fused, type Numbers, type Pricing, type Run } from "./data";
import { emptySpans, simulate, type Spans, type Tasks } from "./queue";

export type Schedule = "eager" | "graph" | "fused" | "both";

export interface Knobs {
  dispatchUs: number;
  launchUs: number;
  bandwidthTbS: number;
  /** FLOP/s of the program's main dtype; all peaks go with it. */
  peakFlopS: number;
  /** All tensors at this times their size. */
  size: number;
  /** How often `region` is run. */
  repeats: number;
  schedule: Schedule;
  /** Elementwise ops behind the product, for a program that is such a block. */
  chain: number | null;
}

/** Calls that are run several times in a row. */
export interface Region {
  first: number;
  last: number;
  label: string;
}

export function knobsOf(run: Run, pricing: Pricing): Knobs {
  return {
    dispatchUs: pricing.dispatchUs,
    launchUs: pricing.launchUs,
    bandwidthTbS: pricing.bandwidthTbS,
    peakFlopS: mainPeak(pricing),
    size: 1,
    repeats: 1,
    schedule: "eager",
    chain: run.block ? run.block.chain.length : null,
  };
}

/** Peak of the dtype that most arithmetic is done in; the highest where it does none. */
export function mainPeak(pricing: Pricing): number {
  const main = pricing.peaks.find((peak) => peak.name.startsWith(pricing.mathDtype) && peak.name.endsWith("matrix"));
  return (main ?? pricing.peaks.at(-1))?.flopS ?? 1e12;
}

export const CAUSES = ["launch", "memory", "compute", "sync"] as const;
export type Cause = (typeof CAUSES)[number];

export interface Result {
  version: number;
  pricing: Pricing;
  columns: Columns;
  knobs: Knobs;
  /** Whether the launches come from a replayed CUDA graph, and whether they are those of the compiled program. */
  graphed: boolean;
  fused: boolean;
  /** How often each call runs. */
  times: Uint32Array;
  /** By call, over all its runs; of a call that was fused, its part of the kernel. */
  launches: Float64Array;
  hbmRead: Float64Array;
  hbmWritten: Float64Array;
  tensorBytes: Float64Array;
  flops: Float64Array;
  deviceUs: Float64Array;
  hostUs: Float64Array;
  gapUs: Float64Array;
  memoryUs: Float64Array;
  computeUs: Float64Array;
  waitUs: Float64Array;
  /** Number in the document's `bounds`. */
  bound: Uint8Array;
  slots: Slots;
  wallUs: number;
  b2bUs: number;
  hostTailUs: number;
  hostUsTotal: number;
  causes: Record<Cause, number>;
  bottleneck: Cause | null;
  /** What a replayed CUDA graph of the same launches would take, and the launches one by one. */
  graphUs: number;
  /** Host time before such a graph runs, or the first of several. */
  replayUs: number;
  eagerUs: number;
  launchesTotal: number;
  hbmBytes: number;
  flopsTotal: number;
  peakBytes: number;
  plain: { kernels: number; bytes: number; taxUs: number; trafficUs: number };
  unpriced: number;
}

/** What runs, in order: a call, or a step of the compiled program that stands for several. */
export interface Slots {
  length: number;
  /** Calls of a slot; at least one, but for a kernel that the compiler adds. */
  calls: (slot: number) => ArrayLike<number>;
  spans: Spans;
  launches: (slot: number) => number;
  stream: (slot: number) => number;
  waits: (slot: number) => boolean;
  bound: Uint8Array;
}

const BOUND = { launch: 0, memory: 1, compute: 2, sync: 3, host: 4, unknown: 5 };

let versions = 0;

/** Price a run under the knobs. */
export function priced(run: Run, pricing: Pricing, knobs: Knobs, region: Region | null): Result {
  const compiled = (knobs.schedule === "fused" || knobs.schedule === "both") && pricing.fused ? pricing.fused : null;
  const graphed = knobs.schedule === "graph" || knobs.schedule === "both";
  const eager = hostAndDevice(run, pricing, pricing.columns, run.structure.stream, knobs);
  const rows = compiled ? hostAndDevice(run, pricing, compiled.columns, compiled.stream, knobs) : eager;
  const sequence = compiled ? Uint32Array.from(compiled.memberEnd, (_, step) => step) : order(run, knobs, region);
  const replay = simulate(rows.tasks, sequence, pricing);
  const { columns, tasks } = rows;
  let deviceTotal = 0;
  let launches = 0;
  for (let slot = 0; slot < sequence.length; slot++) {
    deviceTotal += replay.spans.exposed[slot];
    launches += columns.launches[sequence[slot]];
  }
  const replays = replayed(replay.spans, sequence, rows, pricing, compiled);
  const { replayUs, graphUs } = replays;
  const spans = graphed ? replays.spans : replay.spans;
  const calls = run.structure.calls;
  const column = () => new Float64Array(calls);
  const result: Result = {
    version: ++versions,
    pricing,
    columns: pricing.columns,
    knobs: { ...knobs },
    graphed,
    fused: !!compiled,
    times: new Uint32Array(calls),
    launches: column(),
    hbmRead: column(),
    hbmWritten: column(),
    tensorBytes: column(),
    flops: column(),
    deviceUs: column(),
    hostUs: column(),
    gapUs: column(),
    memoryUs: column(),
    computeUs: column(),
    waitUs: column(),
    bound: new Uint8Array(calls),
    slots: {
      length: sequence.length,
      calls: compiled ? (slot) => membersOf(compiled, slot) : (slot) => [sequence[slot]],
      spans,
      launches: (slot) => columns.launches[sequence[slot]],
      stream: (slot) => tasks.stream[sequence[slot]],
      waits: (slot) => tasks.waits[sequence[slot]] === 1 && !graphed,
      bound: new Uint8Array(sequence.length),
    },
    wallUs: graphed ? graphUs : replay.wallUs,
    b2bUs: graphed ? graphUs : replay.b2bUs,
    hostTailUs: graphed ? 0 : replay.hostTailUs,
    hostUsTotal: graphed ? replays.hostUs : 0,
    replayUs,
    causes: { launch: 0, memory: 0, compute: 0, sync: 0 },
    bottleneck: null,
    graphUs,
    eagerUs: replay.wallUs,
    launchesTotal: launches,
    hbmBytes: 0,
    flopsTotal: 0,
    peakBytes: (compiled ?? pricing).peakBytes * knobs.size,
    plain: { kernels: 0, bytes: 0, taxUs: 0, trafficUs: 0 },
    unpriced: 0,
  };
  sum(result, rows, sequence, compiled, eager);
  return result;
}

interface Rows {
  columns: Columns;
  tasks: Tasks;
  compute: Uint8Array;
  /** What arithmetic is multiplied with. */
  work: number;
}

/** Host and device time of each row of columns at the knobs' rates. */
function hostAndDevice(run: Run, pricing: Pricing, columns: Columns, stream: Numbers, knobs: Knobs): Rows {
  const count = columns.launches.length;
  const tasks: Tasks = {
    beforeUs: new Float64Array(count),
    launchUs: new Float64Array(count),
    launches: columns.launches,
    deviceUs: new Float64Array(count),
    stream,
    waits: new Uint8Array(count),
  };
  const compute = new Uint8Array(count);
  const bytes = (knobs.size * pricing.bandwidthTbS) / knobs.bandwidthTbS;
  // The side of a square product grows with the root of its elements.
  const work = run.block ? knobs.size ** 1.5 : knobs.size;
  const computing = arithmetic(columns, mainPeak(pricing) / knobs.peakFlopS);
  const asTraced = knobs.dispatchUs === pricing.dispatchUs;
  let overlap = 0;
  for (let row = 0; row < count; row++) {
    let us =
      columns.fixedUs[row] + columns.hbmUs[row] * bytes + (columns.workUs[row] + columns.l2Us[row]) * knobs.size;
    let byMemory = us;
    for (; overlap < columns.overlapEnd[row]; overlap++) {
      const moving = columns.overlapHbmUs[overlap] * bytes + columns.overlapL2Us[overlap] * knobs.size;
      const reached = columns.overlapFixedUs[overlap] + moving;
      const math = computing[columns.overlapComputing[overlap]] * work;
      const both = Math.max(math, reached);
      us += both;
      if (columns.overlapProduct[overlap] ? 2 * moving > both : math <= reached) byMemory += both;
    }
    tasks.deviceUs[row] = columns.launches[row] ? us : 0;
    compute[row] = us && 2 * byMemory < us ? 1 : 0;
    tasks.beforeUs[row] =
      columns.pythonUs[row] +
      columns.autogradUs[row] +
      (asTraced ? columns.dispatchUs[row] : columns.heldDispatchUs[row] + columns.dispatches[row] * knobs.dispatchUs);
    tasks.launchUs[row] = columns.launches[row] * knobs.launchUs;
    tasks.waits[row] = columns.flags[row] & HOST_WAIT ? 1 : 0;
  }
  return { columns, tasks, compute, work };
}

/** Each distinct arithmetic at peaks `slower` times slower: straight between its knots. */
function arithmetic(columns: Columns, slower: number): Float64Array {
  const { knotEnd, knotSlower, knotUs } = columns;
  return Float64Array.from(knotEnd, (end, n) => {
    const first = n ? knotEnd[n - 1] : 0;
    let right = first + 1;
    while (right < end - 1 && knotSlower[right] < slower) right++;
    const left = right - 1;
    const part = (slower - knotSlower[left]) / (knotSlower[right] - knotSlower[left]);
    return knotUs[left] + part * (knotUs[right] - knotUs[left]);
  });
}

function membersOf(fused: Fused, step: number): Numbers {
  return fused.member.subarray(step ? fused.memberEnd[step - 1] : 0, fused.memberEnd[step]);
}

/** Calls in the order they run. */
function order(run: Run, knobs: Knobs, region: Region | null): Numbers {
  const calls = run.structure.calls;
  const chain = run.block?.chain;
  if (chain && knobs.chain !== null && knobs.chain !== chain.length) {
    const sequence: number[] = [];
    for (let call = 0; call <= run.block!.product; call++) sequence.push(call);
    for (let n = 0; n < knobs.chain; n++) sequence.push(chain[n % chain.length]);
    return Uint32Array.from(sequence);
  }
  const more = region && knobs.repeats > 1 ? (region.last - region.first + 1) * (knobs.repeats - 1) : 0;
  const sequence = new Uint32Array(calls + more);
  let slot = 0;
  for (let call = 0; call < calls; call++) {
    sequence[slot++] = call;
    if (more && region && call === region.last) {
      for (let n = 1; n < knobs.repeats; n++) {
        for (let again = region.first; again <= region.last; again++) sequence[slot++] = again;
      }
    }
  }
  return sequence;
}

/**
 * The launches from CUDA graphs, back to back, each with a little before it. What is compiled has a graph a compiled
 * function, cut where the host waits: the host goes on to the next one while the device runs (parts_us of
 * optrace/diagnosis/cuda_graph.py).
 */
function replayed(eager: Spans, sequence: Numbers, { columns, tasks }: Rows, pricing: Pricing, compiled: Fused | null) {
  const spans = emptySpans(sequence.length);
  const entries = new Map(Array.from(compiled?.entryStep ?? [], (step, n) => [step, compiled!.entryUs[n]]));
  let host = 0;
  let clock = 0;
  let hostUs = 0;
  let replayUs = 0;
  let waited = false;
  for (let slot = 0; slot < sequence.length; slot++) {
    const row = sequence[slot];
    if (!slot || (compiled && (waited || entries.has(row)))) {
      const before = (entries.get(row) ?? 0) + pricing.graphReplayUs;
      host += before;
      hostUs += before;
      if (!slot) replayUs = before;
    }
    const launches = columns.launches[row];
    const gap = launches ? launches * pricing.graphLaunchUs + Math.max(0, host - clock) : 0;
    spans.gap[slot] = gap;
    spans.start[slot] = clock + gap;
    clock += gap + eager.exposed[slot];
    spans.end[slot] = clock;
    spans.exposed[slot] = eager.exposed[slot];
    waited = tasks.waits[row] === 1;
    if (waited && compiled) host = Math.max(host, clock) + pricing.syncUs;
  }
  return { spans, hostUs, replayUs, graphUs: Math.max(host, clock) };
}

function sum(result: Result, rows: Rows, sequence: Numbers, compiled: Fused | null, eager: Rows): void {
  const { slots, knobs, causes, plain, pricing } = result;
  const { spans } = slots;
  const { columns, tasks } = rows;
  const math = rows.work;
  for (let slot = 0; slot < sequence.length; slot++) {
    const row = sequence[slot];
    const { gap, exposed, wait } = spans;
    const host = result.graphed ? 0 : tasks.beforeUs[row] + tasks.launchUs[row];
    const isCompute = rows.compute[row];
    causes.launch += gap[slot];
    causes.sync += wait[slot];
    causes[isCompute ? "compute" : "memory"] += exposed[slot];
    result.hostUsTotal += host;
    result.hbmBytes += (columns.hbmRead[row] + columns.hbmWritten[row]) * knobs.size;
    result.flopsTotal += columns.flops[row] * math;
    slots.bound[slot] = boundOf(columns.flags[row], columns.launches[row], slots.waits(slot), gap[slot] > tasks.deviceUs[row], isCompute);
    const members = compiled ? membersOf(compiled, row) : null;
    const give = (call: number, part: number, first: boolean) => {
      result.times[call]++;
      // A kernel is launched once, however many calls it stands for.
      if (first) result.launches[call] += columns.launches[row];
      result.hbmRead[call] += part * columns.hbmRead[row] * knobs.size;
      result.hbmWritten[call] += part * columns.hbmWritten[row] * knobs.size;
      result.tensorBytes[call] += part * columns.tensorBytes[row] * knobs.size;
      result.flops[call] += part * columns.flops[row] * math;
      result.deviceUs[call] += part * tasks.deviceUs[row];
      result.hostUs[call] += part * host;
      result.gapUs[call] += part * gap[slot];
      result.waitUs[call] += part * wait[slot];
      (isCompute ? result.computeUs : result.memoryUs)[call] += part * exposed[slot];
      result.bound[call] = slots.bound[slot];
    };
    if (!members) give(row, 1, true);
    else {
      let whole = 0;
      for (const call of members) whole += eager.tasks.deviceUs[call];
      for (let n = 0; n < members.length; n++) {
        give(members[n], whole ? eager.tasks.deviceUs[members[n]] / whole : 1 / members.length, n === 0);
      }
    }
  }
  const eagerColumns = pricing.columns;
  const plainOf = (call: number) => {
    plain.kernels += eagerColumns.plainKernels[call];
    plain.bytes += eagerColumns.plainBytes[call] * knobs.size;
  };
  if (compiled) for (let call = 0; call < result.bound.length; call++) plainOf(call);
  else for (const call of sequence) plainOf(call);
  plain.taxUs = plain.kernels * (knobs.dispatchUs + knobs.launchUs);
  plain.trafficUs = plain.bytes / (knobs.bandwidthTbS * 1e6);
  for (let call = 0; call < result.bound.length; call++) {
    const flags = eagerColumns.flags[call];
    if (flags & UNPRICED) result.unpriced++;
    // What ran several times is bound by what bound all of them; what does not run any more launches nothing.
    if (!result.times[call]) result.bound[call] = flags & UNPRICED ? BOUND.unknown : BOUND.host;
    else if (!compiled) {
      const waits = tasks.waits[call] === 1 && !result.graphed;
      const idle = result.gapUs[call] > result.deviceUs[call];
      result.bound[call] = boundOf(flags, eagerColumns.launches[call], waits, idle, rows.compute[call]);
    }
  }
  let most = 0;
  for (const cause of ["memory", "launch", "compute", "sync"] as const) {
    if (causes[cause] > most) {
      most = causes[cause];
      result.bottleneck = cause;
    }
  }
}

function boundOf(flags: number, launches: number, waits: boolean, idle: boolean, compute: number): number {
  if (waits) return BOUND.sync;
  if (flags & UNPRICED) return BOUND.unknown;
  if (!launches) return BOUND.host;
  return idle ? BOUND.launch : compute ? BOUND.compute : BOUND.memory;
}

/** What several calls take together. */
export interface Sum {
  calls: number;
  launches: number;
  hbmBytes: number;
  hbmRead: number;
  hbmWritten: number;
  tensorBytes: number;
  flops: number;
  hostUs: number;
  deviceUs: number;
  gapUs: number;
  waitUs: number;
  memoryUs: number;
  computeUs: number;
  wallUs: number;
  unpriced: number;
  bound: number;
}

/** The costs of several calls together, all their runs counted. */
export function sumOf(result: Result, calls: ArrayLike<number>): Sum {
  const total: Sum = {
    calls: 0, launches: 0, hbmBytes: 0, hbmRead: 0, hbmWritten: 0, tensorBytes: 0, flops: 0, hostUs: 0, deviceUs: 0,
    gapUs: 0, waitUs: 0, memoryUs: 0, computeUs: 0, wallUs: 0, unpriced: 0, bound: BOUND.host,
  };
  for (let i = 0; i < calls.length; i++) {
    const call = calls[i];
    total.calls += result.fused ? 1 : result.times[call];
    total.launches += result.launches[call];
    total.hbmRead += result.hbmRead[call];
    total.hbmWritten += result.hbmWritten[call];
    total.tensorBytes += result.tensorBytes[call];
    total.flops += result.flops[call];
    total.hostUs += result.hostUs[call];
    total.deviceUs += result.deviceUs[call];
    total.gapUs += result.gapUs[call];
    total.waitUs += result.waitUs[call];
    total.computeUs += result.computeUs[call];
    total.memoryUs += result.memoryUs[call];
    if (result.columns.flags[call] & UNPRICED) total.unpriced++;
  }
  total.hbmBytes = total.hbmRead + total.hbmWritten;
  total.wallUs = total.gapUs + total.waitUs + total.memoryUs + total.computeUs;
  total.bound = calls.length === 1 ? result.bound[calls[0]] : sharedBound(total);
  return total;
}

/** The cause with the largest part of the wall time; `host` where it takes none. */
function sharedBound(total: Sum): number {
  const parts: [number, number][] = [
    [total.memoryUs, BOUND.memory],
    [total.gapUs, BOUND.launch],
    [total.computeUs, BOUND.compute],
    [total.waitUs, BOUND.sync],
  ];
  let [most, bound] = [0, total.unpriced ? BOUND.unknown : BOUND.host];
  for (const [us, cause] of parts) if (us > most) [most, bound] = [us, cause];
  return bound;
}
