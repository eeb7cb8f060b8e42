// The program priced under the knobs: per-call times from the page's columns, replayed, summed by cause.

import { HOST_WAIT, UNPRICED, type Columns, type Numbers, type Pricing, type Run } from "./data";
import { emptySpans, simulate, type Spans, type Tasks } from "./queue";

export type Schedule = "eager" | "graph";

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
  /** Calls in the order they run; a call that is repeated stands in it several times. */
  sequence: Numbers;
  /** How often each call runs. */
  times: Uint32Array;
  /** By call, for one run of it. */
  deviceUs: Float64Array;
  hostUs: Float64Array;
  compute: Uint8Array;
  /** By call, over all its runs. */
  gapUs: Float64Array;
  exposedUs: Float64Array;
  waitUs: Float64Array;
  /** Number in the document's `bounds`. */
  bound: Uint8Array;
  /** By slot of `sequence`. */
  spans: Spans;
  wallUs: number;
  b2bUs: number;
  hostTailUs: number;
  hostUsTotal: number;
  causes: Record<Cause, number>;
  bottleneck: Cause | null;
  /** What a replayed CUDA graph of the same launches would take. */
  graphUs: number;
  eagerUs: number;
  launches: number;
  hbmBytes: number;
  flops: number;
  plain: { kernels: number; bytes: number; taxUs: number; trafficUs: number };
  unpriced: number;
}

const BOUND = { launch: 0, memory: 1, compute: 2, sync: 3, host: 4, unknown: 5 };

let versions = 0;

/** Price a run under the knobs. */
export function priced(run: Run, pricing: Pricing, knobs: Knobs, region: Region | null): Result {
  const columns = pricing.columns;
  const calls = run.structure.calls;
  const sequence = order(run, knobs, region);
  const deviceUs = new Float64Array(calls);
  const hostUs = new Float64Array(calls);
  const compute = new Uint8Array(calls);
  const tasks: Tasks = {
    beforeUs: new Float64Array(calls),
    launchUs: new Float64Array(calls),
    launches: columns.launches,
    deviceUs,
    stream: run.structure.stream,
    waits: new Uint8Array(calls),
  };
  const bytes = (knobs.size * pricing.bandwidthTbS) / knobs.bandwidthTbS;
  // The side of a square product grows with the root of its elements.
  const arithmetic = (run.block ? knobs.size ** 1.5 : knobs.size) * (mainPeak(pricing) / knobs.peakFlopS);
  for (let call = 0; call < calls; call++) {
    const launches = columns.launches[call];
    if (launches) {
      const memory = Math.max(columns.hbmUs[call] * bytes, columns.l2Us[call] * knobs.size);
      const math = columns.mathUs[call] * arithmetic;
      deviceUs[call] = columns.fixedUs[call] + Math.max(memory, math);
      compute[call] = math > memory ? 1 : 0;
    }
    tasks.beforeUs[call] =
      columns.pythonUs[call] +
      columns.autogradUs[call] +
      columns.heldDispatchUs[call] +
      columns.dispatches[call] * knobs.dispatchUs;
    tasks.launchUs[call] = launches * knobs.launchUs;
    tasks.waits[call] = columns.flags[call] & HOST_WAIT ? 1 : 0;
    hostUs[call] = tasks.beforeUs[call] + tasks.launchUs[call];
  }
  const eager = simulate(tasks, sequence, pricing.syncUs, pricing.queueDepth);
  let deviceTotal = 0;
  let launches = 0;
  for (let slot = 0; slot < sequence.length; slot++) {
    deviceTotal += eager.spans.exposed[slot];
    launches += columns.launches[sequence[slot]];
  }
  const graphUs = deviceTotal + pricing.graphReplayUs + pricing.graphLaunchUs * launches;
  const graphed = knobs.schedule === "graph";
  const spans = graphed ? replayed(eager.spans, sequence, columns, pricing) : eager.spans;
  const result: Result = {
    version: ++versions,
    pricing,
    columns,
    knobs,
    sequence,
    times: new Uint32Array(calls),
    deviceUs,
    hostUs,
    compute,
    gapUs: new Float64Array(calls),
    exposedUs: new Float64Array(calls),
    waitUs: new Float64Array(calls),
    bound: new Uint8Array(calls),
    spans,
    wallUs: graphed ? graphUs : eager.wallUs,
    b2bUs: graphed ? graphUs : eager.b2bUs,
    hostTailUs: graphed ? 0 : eager.hostTailUs,
    hostUsTotal: 0,
    causes: { launch: 0, memory: 0, compute: 0, sync: 0 },
    bottleneck: null,
    graphUs,
    eagerUs: eager.wallUs,
    launches,
    hbmBytes: 0,
    flops: 0,
    plain: { kernels: 0, bytes: 0, taxUs: 0, trafficUs: 0 },
    unpriced: 0,
  };
  sum(result, tasks, graphed);
  return result;
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

/** The launches of a CUDA graph: back to back behind the replay's own time, each with a little before it. */
function replayed(eager: Spans, sequence: Numbers, columns: Columns, pricing: Pricing): Spans {
  const spans = emptySpans(sequence.length);
  let clock = pricing.graphReplayUs;
  let first = true;
  for (let slot = 0; slot < sequence.length; slot++) {
    const launches = columns.launches[sequence[slot]];
    const gap = launches * pricing.graphLaunchUs;
    spans.start[slot] = clock + gap;
    clock += gap + eager.exposed[slot];
    spans.end[slot] = clock;
    spans.exposed[slot] = eager.exposed[slot];
    if (launches) {
      spans.gap[slot] = gap + (first ? pricing.graphReplayUs : 0);
      first = false;
    }
  }
  return spans;
}

function sum(result: Result, tasks: Tasks, graphed: boolean): void {
  const { columns, sequence, spans, knobs, causes, plain } = result;
  for (let slot = 0; slot < sequence.length; slot++) {
    const call = sequence[slot];
    result.times[call]++;
    result.gapUs[call] += spans.gap[slot];
    result.exposedUs[call] += spans.exposed[slot];
    result.waitUs[call] += spans.wait[slot];
    result.hostUsTotal += graphed ? 0 : result.hostUs[call];
    result.hbmBytes += (columns.hbmRead[call] + columns.hbmWritten[call]) * knobs.size;
    result.flops += columns.flops[call] * knobs.size;
    causes.launch += spans.gap[slot];
    causes.sync += spans.wait[slot];
    causes[result.compute[call] ? "compute" : "memory"] += spans.exposed[slot];
    plain.kernels += columns.plainKernels[call];
    plain.bytes += columns.plainBytes[call] * knobs.size;
  }
  plain.taxUs = plain.kernels * (knobs.dispatchUs + knobs.launchUs);
  plain.trafficUs = plain.bytes / (knobs.bandwidthTbS * 1e6);
  for (let call = 0; call < result.bound.length; call++) {
    const flags = columns.flags[call];
    if (flags & UNPRICED) result.unpriced++;
    result.bound[call] =
      tasks.waits[call] && !graphed
        ? BOUND.sync
        : flags & UNPRICED
          ? BOUND.unknown
          : !columns.launches[call]
            ? BOUND.host
            : result.gapUs[call] > result.deviceUs[call] * Math.max(1, result.times[call])
              ? BOUND.launch
              : result.compute[call]
                ? BOUND.compute
                : BOUND.memory;
  }
  let most = 0;
  for (const cause of ["memory", "launch", "compute", "sync"] as const) {
    if (causes[cause] > most) {
      most = causes[cause];
      result.bottleneck = cause;
    }
  }
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
  const { columns, knobs } = result;
  for (let i = 0; i < calls.length; i++) {
    const call = calls[i];
    const times = result.times[call];
    total.calls += times;
    total.launches += times * columns.launches[call];
    total.hbmRead += times * columns.hbmRead[call] * knobs.size;
    total.hbmWritten += times * columns.hbmWritten[call] * knobs.size;
    total.tensorBytes += times * columns.tensorBytes[call] * knobs.size;
    total.flops += times * columns.flops[call] * knobs.size;
    total.hostUs += times * result.hostUs[call];
    total.deviceUs += times * result.deviceUs[call];
    total.gapUs += result.gapUs[call];
    total.waitUs += result.waitUs[call];
    if (result.compute[call]) total.computeUs += result.exposedUs[call];
    else total.memoryUs += result.exposedUs[call];
    if (columns.flags[call] & UNPRICED) total.unpriced++;
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
