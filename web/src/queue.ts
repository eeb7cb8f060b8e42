// The host/device queue of optrace/timeline.py: one host clock, one device clock a stream. A call's k-th launch is
// issued at the end of its dispatch plus k launch costs; it starts once it is issued and the launch before it on its
// stream has ended. tests/page compares every figure with Python's.

import type { Numbers } from "./data";

/** What the queue is told of each call; indexed by call. */
export interface Tasks {
  /** Host time up to the first launch, and of all launches, us. */
  beforeUs: Float64Array;
  launchUs: Float64Array;
  launches: Numbers;
  deviceUs: Float64Array;
  stream: Numbers;
  /** Whether the host waits for the call. */
  waits: Uint8Array;
}

/** One row a slot: the n-th call that is run, in the order of `sequence`. Microseconds from the start. */
export interface Spans {
  hostStart: Float64Array;
  hostEnd: Float64Array;
  start: Float64Array;
  end: Float64Array;
  gap: Float64Array;
  exposed: Float64Array;
  wait: Float64Array;
}

export interface Timeline {
  spans: Spans;
  wallUs: number;
  issueUs: number;
  b2bUs: number;
  hostTailUs: number;
}

export function emptySpans(length: number): Spans {
  const column = () => new Float64Array(length);
  return {
    hostStart: column(),
    hostEnd: column(),
    start: column(),
    end: column(),
    gap: column(),
    exposed: column(),
    wait: column(),
  };
}

export interface Host {
  /** What a wait costs the host beyond the waiting, and its time after the last call, us. */
  syncUs: number;
  tailUs: number;
  /** What the final synchronize costs beyond the waiting, us. */
  synchronizeUs: number;
  /** Launches that may be pending on a stream before the host waits for the oldest. */
  queueDepth: number;
}

/** Replay calls through the queue. */
export function simulate(tasks: Tasks, sequence: Numbers, { syncUs, queueDepth, tailUs, synchronizeUs }: Host): Timeline {
  const queue = new Queue(syncUs, queueDepth, tailUs, true);
  const spans = emptySpans(sequence.length);
  queue.run(tasks, sequence, spans);
  const issue = queue.hostClock;
  const deviceEnd = queue.deviceClock;
  const wall = Math.max(issue, deviceEnd) + synchronizeUs;
  let period: number;
  if (sequence.some((call) => tasks.waits[call] === 1)) {
    const free = emptySpans(sequence.length);
    new Queue(syncUs, queueDepth, tailUs, false).run(tasks, sequence, free);
    chargeWaits(tasks, sequence, spans, free);
    const scratch = emptySpans(sequence.length);
    queue.run(tasks, sequence, scratch);
    const before = queue.clock;
    queue.run(tasks, sequence, scratch);
    period = queue.clock - before;
  } else {
    // Without a wait, host and device only push each other forward: the slower one sets the pace.
    const streams = new Map<number, number>();
    for (const call of sequence) {
      streams.set(tasks.stream[call], (streams.get(tasks.stream[call]) ?? 0) + tasks.deviceUs[call]);
    }
    period = Math.max(issue, ...streams.values());
  }
  return { spans, wallUs: wall, issueUs: issue, b2bUs: period, hostTailUs: wall - deviceEnd };
}

/** Idle time that a run without waits would not have belongs to the last wait before it. */
function chargeWaits(tasks: Tasks, sequence: Numbers, spans: Spans, free: Spans): void {
  let waiter = -1;
  for (let slot = 0; slot < sequence.length; slot++) {
    if (waiter >= 0 && spans.gap[slot] > free.gap[slot]) {
      spans.wait[waiter] += spans.gap[slot] - free.gap[slot];
      spans.gap[slot] = free.gap[slot];
    }
    if (tasks.waits[sequence[slot]]) waiter = slot;
  }
}

/** Ends of launches that the host may still have to wait for. */
class Pending {
  private ends = new Float64Array(64);
  private head = 0;
  size = 0;

  get first(): number {
    return this.ends[this.head];
  }

  shift(): number {
    const end = this.ends[this.head];
    this.head = (this.head + 1) & (this.ends.length - 1);
    this.size--;
    return end;
  }

  push(end: number): void {
    if (this.size === this.ends.length) {
      const larger = new Float64Array(2 * this.size);
      for (let i = 0; i < this.size; i++) larger[i] = this.ends[(this.head + i) & (this.ends.length - 1)];
      this.ends = larger;
      this.head = 0;
    }
    this.ends[(this.head + this.size) & (this.ends.length - 1)] = end;
    this.size++;
  }
}

/** The clocks. Running calls again goes on where the last run stopped. */
class Queue {
  hostClock = 0;
  deviceClock = 0;
  private streamEnd = new Map<number, number>();
  private pending = new Map<number, Pending>();

  constructor(
    private syncUs: number,
    private depth: number,
    private tailUs: number,
    private waits: boolean,
  ) {}

  get clock(): number {
    return Math.max(this.hostClock, this.deviceClock);
  }

  run(tasks: Tasks, sequence: Numbers, spans: Spans): void {
    for (let slot = 0; slot < sequence.length; slot++) {
      const call = sequence[slot];
      const stream = tasks.stream[call];
      spans.hostStart[slot] = this.hostClock;
      this.hostClock += tasks.beforeUs[call];
      if (tasks.launches[call]) {
        this.launch(tasks, call, slot, spans);
      } else {
        this.hostClock += tasks.launchUs[call];
        const at = Math.max(this.hostClock, this.streamEnd.get(stream) ?? 0);
        spans.start[slot] = spans.end[slot] = at;
        spans.gap[slot] = spans.exposed[slot] = 0;
      }
      if (this.waits && tasks.waits[call]) {
        this.hostClock = Math.max(this.hostClock, this.streamEnd.get(stream) ?? 0) + this.syncUs;
      }
      spans.hostEnd[slot] = this.hostClock;
    }
    this.hostClock += this.tailUs;
  }

  private launch(tasks: Tasks, call: number, slot: number, spans: Spans): void {
    const stream = tasks.stream[call];
    let pending = this.pending.get(stream);
    if (!pending) this.pending.set(stream, (pending = new Pending()));
    const launches = tasks.launches[call];
    const launchUs = tasks.launchUs[call] / launches;
    const kernelUs = tasks.deviceUs[call] / launches;
    let streamEnd = this.streamEnd.get(stream) ?? 0;
    let gap = 0;
    let exposed = 0;
    for (let k = 0; k < launches; k++) {
      while (pending.size && pending.first <= this.hostClock) pending.shift();
      if (pending.size >= this.depth) this.hostClock = Math.max(this.hostClock, pending.shift());
      this.hostClock += launchUs;
      const start = Math.max(this.hostClock, streamEnd);
      streamEnd = start + kernelUs;
      pending.push(streamEnd);
      if (k === 0) spans.start[slot] = start;
      gap += Math.max(0, start - this.deviceClock);
      exposed += Math.max(0, streamEnd - Math.max(start, this.deviceClock));
      this.deviceClock = Math.max(this.deviceClock, streamEnd);
    }
    this.streamEnd.set(stream, streamEnd);
    spans.end[slot] = streamEnd;
    spans.gap[slot] = gap;
    spans.exposed[slot] = exposed;
  }
}
