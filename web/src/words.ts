// What is said of calls, the same in tooltips, lists and the panel.

import type { Sum } from "./costs";
import type { Run } from "./data";
import { compared, comparedLine } from "./measured";
import type { Store } from "./store";
import * as units from "./units";

export function callTitle(run: Run, call: number): string {
  return `%${call} ${run.structure.ops[run.structure.op[call]].name}`;
}

export function callSignature(run: Run, call: number): string {
  const { structure } = run;
  const made = structure.outputs[structure.output[call]];
  const given = structure.inputs[structure.input[call]];
  return `${given || "no tensors"} \u2192 ${made || "nothing new"}`;
}

export function moduleOf(run: Run, call: number): string {
  const module = run.structure.module[call];
  if (module < 0) return "";
  const { path, cls } = run.structure.modules[module];
  return cls ? `${path} (${cls})` : path;
}

export function fileName(file: string): string {
  return file.replaceAll("\\", "/").split("/").at(-1)!;
}

export function lineOf(run: Run, call: number): string {
  const line = run.structure.line[call];
  if (line < 0) return "";
  const [file, at] = run.structure.lines[line];
  return `${fileName(file)}:${at}`;
}

export function time(sum: Sum, us: number): string {
  if (sum.unpriced && sum.unpriced === sum.calls) return "?";
  return sum.unpriced ? `${units.predicted(us)} + ?` : units.predicted(us);
}

export function costLines(store: Store, sum: Sum, calls: ArrayLike<number>): string[] {
  const wall = store.result.wallUs;
  const beside = compared(store, calls);
  return [
    `wall clock ${time(sum, sum.wallUs)}${wall ? `, ${units.share(sum.wallUs / wall)} of the run` : ""}`,
    `${units.counted(sum.launches, "launch", "launches")}, ${units.moved(sum.hbmBytes)} through HBM, ${units.flop(sum.flops)}`,
    `device ${time(sum, sum.deviceUs)}, idle before ${units.predicted(sum.gapUs)}, host ${units.predicted(sum.hostUs)}`,
    ...(beside ? [comparedLine(beside)] : []),
  ];
}
