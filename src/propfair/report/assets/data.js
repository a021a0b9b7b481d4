// Questions to the embedded document. "g2" is the third group (mean over its seeds), "r5" the sixth run.
"use strict";

const decoded = new WeakMap();

// [rounds][clients] as one Float32Array, row by row.
function table(packed) {
  if (!decoded.has(packed)) decoded.set(packed, new Float32Array(unpacked(packed.values).buffer));
  return decoded.get(packed);
}

const runsOf = (trial, entry) => {
  const position = Number(entry.slice(1));
  return entry[0] === "r" ? [trial.runs[position]] : trial.runs.filter((run) => run.group === position);
};

const groupOf = (trial, entry) => (entry[0] === "r" ? trial.runs[Number(entry.slice(1))].group : Number(entry.slice(1)));

function labelOf(trial, entry) {
  const group = trial.groups[groupOf(trial, entry)].label;
  return entry[0] === "r" ? `${group}, seed ${trial.runs[Number(entry.slice(1))].seed}` : group;
}

// The groups, and each run where some group has several seeds.
function entries(trial) {
  const groups = trial.groups.map((group, position) => [`g${position}`, group.label]);
  if (trial.runs.length === trial.groups.length) return groups;
  return [
    { group: "mean over seeds", options: groups },
    { group: "single runs", options: trial.runs.map((_, position) => [`r${position}`, labelOf(trial, `r${position}`)]) },
  ];
}

// The runs of two entries seed by seed; with one run each, these two.
function pairedRuns(trial, one, other) {
  const [first, second] = [runsOf(trial, one), runsOf(trial, other)];
  const found = first.flatMap((run) => second.filter((its) => its.seed === run.seed).map((its) => [run, its]));
  return found.length || first.length !== 1 || second.length !== 1 ? found : [[first[0], second[0]]];
}

// The last value of every client under one run; null if it has none.
function lastValues(trial, run, key) {
  if (!run.clients[key]) return null;
  const values = [...table(run.clients[key]).slice(-trial.clients.length)];
  return values.map((value) => (Number.isNaN(value) ? null : value));
}

// The last value of every client, mean over the runs of the entry; null if a run has none.
function finals(trial, entry, key) {
  const rows = runsOf(trial, entry).map((run) => lastValues(trial, run, key));
  if (!rows.length || rows.some((row) => !row)) return null;
  return trial.clients.map((_, k) => (rows.every((row) => known(row[k])) ? rows.reduce((sum, row) => sum + row[k], 0) / rows.length : null));
}

// A statistic, or one client's value, over rounds: {rounds, mean, std} over the runs of the entry, at rounds all have.
function curve(trial, entry, key, statistic, client) {
  const lines = runsOf(trial, entry)
    .filter((run) => run.curves[key])
    .map((run) => (statistic === "client" ? clientLine(trial, run.clients[key], client) : statisticLine(run.curves[key], statistic)));
  if (!lines.length) return null;
  const rounds = [...lines[0].keys()].filter((round) => lines.every((line) => known(line.get(round))));
  const mean = rounds.map((round) => lines.reduce((sum, line) => sum + line.get(round), 0) / lines.length);
  const std = rounds.map((round, i) =>
    Math.sqrt(lines.reduce((sum, line) => sum + (line.get(round) - mean[i]) ** 2, 0) / lines.length));
  return { rounds, mean, std, seeds: lines.length };
}

const statisticLine = (curves, statistic) => new Map(curves.rounds.map((round, i) => [round, curves[statistic][i]]));

function clientLine(trial, packed, client) {
  const values = table(packed);
  return new Map(packed.rounds.map((round, i) => [round, values[i * trial.clients.length + client]]));
}

// Rows of the heat map, one for each client; mean over runs would hide what a round did, so one run at a time.
function heat(trial, run, metric) {
  const packed = run.heat[metric];
  const values = table(packed);
  const n = trial.clients.length;
  return trial.clients.map((_, k) => packed.rounds.map((_, t) => {
    const value = values[t * n + k];
    return Number.isNaN(value) ? null : value;
  }));
}

const shares = (trial) => {
  const total = trial.sizes.train.reduce((sum, size) => sum + size, 0);
  return trial.sizes.train.map((size) => size / total);
};

// Positions sorted by a number each; what is not known comes last.
function orderBy(values) {
  const positions = values.map((_, k) => k);
  return positions.sort((a, b) => (known(values[a]) ? values[a] : Infinity) - (known(values[b]) ? values[b] : Infinity) || a - b);
}
