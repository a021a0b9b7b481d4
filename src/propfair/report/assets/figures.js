// What is drawn: each function answers with {description, traces, layout, columns, rows} or {empty}.
"use strict";

const NAMES = {
  mean: "mean", weighted_mean: "mean by data", std: "std", worst: "worst", worst10: "worst 10 %", worst20: "worst 20 %",
  worst30: "worst 30 %", best: "best", best10: "best 10 %", best20: "best 20 %", best30: "best 30 %", median: "median",
  variance_of_percent: "variance", jain: "Jain", gini: "Gini", entropy: "entropy", nash_welfare: "Nash welfare",
};
const CURVES = {
  mean: "mean over clients", worst: "worst client", worst10: "worst 10 % of clients", best10: "best 10 % of clients",
  best: "best client", std: "standard deviation over clients", client: "one client",
};
const HEAT_NAMES = {
  relative_weight: "weight relative to data share", weight: "weight of the client's update",
  slope: "slope of the transformed loss", received_loss: "loss of the model received", past_threshold: "batches past the threshold",
};
const scaled = (measure) => (value) => (known(value) ? (measure.percent ? 100 * value : value) : null);
const unit = (measure) => (measure.percent ? `${measure.label}, %` : measure.label);
const MOST_DOUBLINGS = 3; // relative weights from an eighth to eight times have colours of their own
const COLOUR_BAR = { thickness: 12, outlinewidth: 0, tickfont: { size: 11 } };
const TRADE_PLOT = 392; // pixels between the axes of the scatter, from top to bottom
const FEW = 8; // so many labels or bands fit into a chart

function tradeFigure(trial, measure, visible, worst) {
  const points = visible
    .map((position) => ({ position, label: trial.groups[position].label, found: trial.groups[position].statistics[measure.key] }))
    .filter(({ found }) => found && known(found.mean[0]) && known(found[worst][0]));
  if (!points.length) return { empty: "No visible run has been evaluated yet." };
  const scale = scaled(measure);
  const few = points.length <= FEW;
  const trace = (some, bars) => ({
    type: "scatter", mode: few ? "markers+text" : "markers", showlegend: false, cliponaxis: false,
    x: some.map(({ found }) => scale(found.mean[0])), y: some.map(({ found }) => scale(found[worst][0])),
    text: some.map(({ label }) => forChart(label, 28)), textfont: { size: 12 },
    textposition: some.map(({ position }) => places.get(position)),
    marker: { size: 12, color: some.map(({ position }) => colour(position)), symbol: some.map(({ position }) => symbol(position)), line: { width: 1, color: variable("--ground") } },
    error_x: { type: "data", array: some.map(({ found }) => scale(found.mean[1])), thickness: 1.2, width: 4, color: bars },
    error_y: { type: "data", array: some.map(({ found }) => scale(found[worst][1])), thickness: 1.2, width: 4, color: bars },
    hovertemplate: `%{text}<br>mean %{x:.4g}<br>${NAMES[worst]} %{y:.4g}<extra></extra>`,
  });
  // Up and right are better: where less is better, both axes run the other way.
  const better = (range) => (measure.higher ? range : range.toReversed());
  const [left, right] = better(padded(points.map(({ found }) => found.mean), scale));
  const [bottom, top] = better(padded(points.map(({ found }) => found[worst]), scale));
  const width = $("trade-figure").clientWidth - 80;
  const [across, down] = [width / (right - left), TRADE_PLOT / (top - bottom)]; // pixels of a unit
  const places = labelPlaces(points.map(({ position, label, found }) => ({
    position, length: shortened(label, 28).length,
    x: (scale(found.mean[0]) - left) * across, y: (top - scale(found[worst][0])) * down,
    dx: Math.abs(scale(found.mean[1] ?? 0) * across), dy: Math.abs(scale(found[worst][1] ?? 0) * down),
  })), width);
  const best = points.reduce((a, b) => ((b.found[worst][0] > a.found[worst][0]) === measure.higher ? b : a));
  return {
    description: `Scatter of ${plural(points.length, "run")}: mean over clients against ${NAMES[worst]}. ` +
      `Best ${NAMES[worst]}: ${best.label}, ${measured(best.found[worst][0], measure.percent)}.`,
    traces: few ? points.map((point) => trace([point], colour(point.position))) : [trace(points, variable("--soft"))],
    layout: {
      height: TRADE_PLOT + 68, hovermode: "closest",
      xaxis: { title: { text: `mean over clients: ${unit(measure)}` }, range: [left, right] },
      yaxis: { title: { text: `${NAMES[worst]} of clients: ${unit(measure)}` }, range: [bottom, top] },
    },
    columns: ["run", "mean", "std over seeds", NAMES[worst], "std over seeds"],
    rows: points.map(({ label, found }) => [label, ...found.mean.map(scale), ...found[worst].map(scale)]),
  };
}

// Where labels stand beside their points so that they cover points, bars and each other as little as may be; in pixels.
function labelPlaces(points, width) {
  const boxes = points.flatMap(({ x, y, dx, dy }) => [[x - 5, y - 5, x + 5, y + 5], [x - dx, y - 1, x + dx, y + 1], [x - 1, y - dy, x + 1, y + dy]]);
  const covered = (a, b) => Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0])) * Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]));
  const places = new Map();
  for (const { position, length, x, y } of points) {
    const long = 7 * length;
    const candidates = {
      "top right": [x + 6, y - 20, x + 6 + long, y - 4], "top left": [x - 6 - long, y - 20, x - 6, y - 4],
      "bottom right": [x + 6, y + 4, x + 6 + long, y + 20], "bottom left": [x - 6 - long, y + 4, x - 6, y + 20],
      "top center": [x - long / 2, y - 26, x + long / 2, y - 10], "bottom center": [x - long / 2, y + 10, x + long / 2, y + 26],
      "middle right": [x + 9, y - 8, x + 9 + long, y + 8], "middle left": [x - 9 - long, y - 8, x - 9, y + 8],
    };
    const cost = ([x0, y0, x1, y1]) => boxes.reduce((sum, box) => sum + covered(box, [x0, y0, x1, y1]), 0) + 16 * (Math.max(0, -x0) + Math.max(0, x1 - width));
    const best = Object.keys(candidates).reduce((a, b) => (cost(candidates[b]) < cost(candidates[a]) ? b : a));
    places.set(position, best);
    boxes.push(candidates[best]);
  }
  return places;
}

// A range that holds values, their error bars and the labels above them.
function padded(pairs, scale) {
  const low = Math.min(...pairs.map(([mean, std]) => scale(mean) - scale(std ?? 0)));
  const high = Math.max(...pairs.map(([mean, std]) => scale(mean) + scale(std ?? 0)));
  const room = 0.14 * (high - low) || 0.05 * Math.abs(high) || 1;
  return [low - room, high + room];
}

// Positions, the worst-off first.
const worstFirst = (values, measure) => orderBy(measure.higher ? values : values.map((value) => (known(value) ? -value : null)));

function pairOrder(trial, measure, a, b, how) {
  if (how === "b") return worstFirst(b, measure);
  if (how === "change") return orderBy(b.map((value, k) => (known(value) && known(a[k]) ? value - a[k] : null)));
  if (how === "size") return orderBy(trial.sizes.train);
  if (how === "client") return a.map((_, k) => k);
  return worstFirst(a, measure);
}

function clientAxis(trial, order) {
  const shown = order.length <= 40;
  return {
    title: { text: shown ? "client" : `${order.length} clients` }, showgrid: false,
    tickmode: "array", tickvals: shown ? order.map((_, i) => i) : [], ticktext: shown ? clientTicks(order.map((k) => trial.clients[k])) : [],
    range: [-0.7, order.length - 0.3], zeroline: false, automargin: shown,
  };
}

function pairFigure(trial, measure, one, other, how) {
  const a = finals(trial, one, measure.key);
  const b = finals(trial, other, measure.key);
  if (!a || !b) return { empty: `${labelOf(trial, a ? other : one)} has no ${measure.label} yet.` };
  const order = pairOrder(trial, measure, a, b, how);
  const scale = scaled(measure);
  const many = order.length > 60;
  const positions = [groupOf(trial, one), groupOf(trial, other)];
  const colours = positions[0] % 8 === positions[1] % 8 ? [colour(0), colour(1)] : positions.map(colour);
  const hover = order.map((k) => `client ${forChart(trial.clients[k])}, ${trial.sizes.train[k]} training examples`);
  const trace = (entry, values, at) => ({
    x: order.map((_, i) => i), y: order.map((k) => scale(values[k])), name: forChart(labelOf(trial, entry)), text: hover, textposition: "none",
    hovertemplate: "%{text}<br>%{y:.4g}<extra>%{fullData.name}</extra>",
    ...(many && at === 1
      ? { type: "scatter", mode: "markers", marker: { color: colours[at], size: 4 } }
      : { type: "bar", marker: { color: colours[at], line: { width: 0 } }, opacity: many ? 0.6 : 1 }),
  });
  return {
    description: `${measure.label} of each of ${order.length} clients under ${labelOf(trial, one)} and ${labelOf(trial, other)}.`,
    traces: [trace(one, a, 0), trace(other, b, 1)],
    layout: { height: 380, barmode: "group", bargap: many ? 0 : 0.25, showlegend: true, hovermode: "closest",
      xaxis: clientAxis(trial, order), yaxis: { title: { text: unit(measure) }, rangemode: "tozero" } },
    columns: ["client", "training examples", labelOf(trial, one), labelOf(trial, other)],
    rows: order.map((k) => [trial.clients[k], trial.sizes.train[k], scale(a[k]), scale(b[k])]),
  };
}

// Each client's relative change, the mean over the seeds that both have: so the clients' changes, weighted by their
// shares, add up to the certificate. null where a client has nothing to change from, or where no seed is shared.
function relativeChanges(trial, measure, one, other) {
  const pairs = pairedRuns(trial, one, other);
  if (!pairs.length) return null;
  const changes = pairs.map((runs) => {
    const [a, b] = runs.map((run) => lastValues(trial, run, measure.key));
    return a && b ? a.map((value, k) => (known(value) && known(b[k]) && value > 0 ? (b[k] - value) / value : null)) : null;
  });
  if (changes.some((row) => !row)) return null;
  return trial.clients.map((_, k) => (changes.every((row) => known(row[k])) ? changes.reduce((sum, row) => sum + row[k], 0) / changes.length : null));
}

function relativeFigure(trial, measure, one, other) {
  if (!measure.higher) return { empty: "Relative changes are about utilities, such as accuracies; choose one as the measure." };
  const changes = relativeChanges(trial, measure, one, other);
  if (!changes) return { empty: "Both runs must have been evaluated, and share a seed." };
  const order = orderBy(changes).filter((k) => known(changes[k]));
  if (!order.length) return { empty: "A relative change from 0 is undefined, and here all clients start from 0." };
  return {
    description: `Relative change of each client from ${labelOf(trial, one)} to ${labelOf(trial, other)}, ` +
      `from ${signed(changes[order[0]], 1)} to ${signed(changes[order.at(-1)], 1)}.`,
    traces: [{
      type: "bar", x: order.map((_, i) => i), y: order.map((k) => 100 * changes[k]), showlegend: false,
      marker: { color: order.map((k) => (changes[k] < 0 ? colour(1) : colour(0))), line: { width: 0 } },
      text: order.map((k) => `client ${forChart(trial.clients[k])}`), textposition: "none", hovertemplate: "%{text}<br>%{y:+.3g} %<extra></extra>",
    }],
    layout: { height: 300, bargap: order.length > 100 ? 0 : 0.25, xaxis: clientAxis(trial, order), yaxis: { title: { text: "change, %" }, zeroline: true, zerolinecolor: variable("--soft") } },
    columns: ["client", "training examples", "relative change, %"],
    rows: order.map((k) => [trial.clients[k], trial.sizes.train[k], 100 * changes[k]]),
  };
}

function certificateFigure(trial, reference, visible) {
  const { values, low, high, over, reason } = trial.verdicts;
  if (reason) return { empty: reason };
  const rivals = visible.filter((k) => k !== reference);
  if (!rivals.length) return { empty: "There is no other visible run to compare with." };
  const others = rivals.filter((k) => known(values[reference][k])).sort((a, b) => values[reference][a] - values[reference][b]);
  if (!others.length) return { empty: "The average relative change of clients that leave this run has no value." };
  const at = others.map((k) => 100 * values[reference][k]);
  const reach = (k, end, sign) => (known(end[reference][k]) ? Math.max(0, sign * 100 * (end[reference][k] - values[reference][k])) : 0);
  return {
    description: `Average relative change of the clients when they leave ${trial.groups[reference].label}, for each other run. ` +
      `Above 0, the other run refutes proportional fairness. Largest: ${signed(Math.max(...at) / 100)}.`,
    traces: [{
      type: "scatter", mode: "markers", orientation: "h", x: at, y: others.map((_, i) => i), showlegend: false,
      marker: { size: 11, color: at.map((value) => (value > 0 ? colour(1) : colour(0))), symbol: at.map((value) => (value > 0 ? "diamond" : "circle")) },
      error_x: { type: "data", symmetric: false, array: others.map((k) => reach(k, high, 1)), arrayminus: others.map((k) => reach(k, low, -1)), color: variable("--soft"), thickness: 1.5, width: 5 },
      text: others.map((k) => forChart(trial.groups[k].label)),
      customdata: others.map((k) => (known(low[reference][k]) ? `95 % interval over ${over[reference][k]}: ${between(low[reference][k], high[reference][k])}` : "no interval computed")),
      hovertemplate: "%{text}<br>%{x:+.3f} %<br>%{customdata}<extra></extra>",
    }],
    layout: {
      height: Math.min(900, 110 + 34 * others.length), hovermode: "closest",
      xaxis: { title: { text: "average relative change of the clients, %" }, zeroline: true, zerolinewidth: 2, zerolinecolor: variable("--soft") },
      yaxis: { tickmode: "array", tickvals: others.map((_, i) => i), ticktext: others.map((k) => forChart(trial.groups[k].label, window.innerWidth < 600 ? 16 : 30)), automargin: true, showgrid: false, zeroline: false, range: [-0.7, others.length - 0.3] },
    },
    columns: ["other run", "average relative change, %", "low, %", "high, %", "interval over"],
    rows: others.toReversed().map((k) => [trial.groups[k].label, ...[values, low, high].map((of) => (known(of[reference][k]) ? 100 * of[reference][k] : null)), over[reference][k] || null]),
  };
}

function joiningFigure(trial, measure, found, one) {
  const scale = scaled(measure);
  const at = orderBy(one.gaps);
  const order = at.map((i) => one.clients[i]);
  const reach = (end, sign) => at.map((i) => (known(end[i]) ? Math.max(0, sign * scale(end[i] - one.gaps[i])) : 0));
  const points = measure.percent ? "percentage points" : measure.label;
  return {
    description: `What each of ${order.length} clients has under ${trial.groups[one.group].label} over its local-only model: ${one.words}.`,
    traces: [{
      type: "bar", x: order.map((_, i) => i), y: at.map((i) => scale(one.gaps[i])), showlegend: false,
      marker: { color: at.map((i) => (one.gaps[i] < 0 ? colour(1) : colour(0))), line: { width: 0 } },
      error_y: { type: "data", visible: order.length <= 100, symmetric: false, array: reach(one.high, 1), arrayminus: reach(one.low, -1), color: variable("--soft"), thickness: 1.2, width: 3 },
      text: order.map((k) => `client ${forChart(trial.clients[k])}`), textposition: "none", hovertemplate: "%{text}<br>%{y:+.3g}<extra></extra>",
    }],
    layout: { height: 320, bargap: order.length > 100 ? 0 : 0.25, xaxis: clientAxis(trial, order), yaxis: { title: { text: `gain over being alone, ${points}` }, zeroline: true, zerolinecolor: variable("--soft") } },
    columns: ["client", "gain over being alone", "low", "high"],
    rows: at.map((i, place) => [trial.clients[order[place]], scale(one.gaps[i]), scale(one.low[i]), scale(one.high[i])]),
  };
}

function curvesFigure(trial, measure, visible, statistic, client) {
  const scale = scaled(measure);
  const lines = visible
    .map((position) => ({ position, label: trial.groups[position].label, line: curve(trial, `g${position}`, measure.key, statistic, client) }))
    .filter(({ line }) => line && line.rounds.length);
  if (!lines.length) return { empty: "No visible run has been evaluated yet." };
  const what = statistic === "client" ? `client ${trial.clients[client]}` : CURVES[statistic];
  const band = ({ position, line }) => ({
    type: "scatter", mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: colour(position) + "22", hoverinfo: "skip", showlegend: false,
    x: [...line.rounds, ...line.rounds.toReversed()],
    y: [...line.mean.map((value, i) => scale(value + line.std[i])), ...line.mean.map((value, i) => scale(value - line.std[i])).toReversed()],
  });
  const rounds = [...new Set(lines.flatMap(({ line }) => line.rounds))].sort((a, b) => a - b);
  const at = lines.map(({ line }) => new Map(line.rounds.map((round, i) => [round, line.mean[i]])));
  return {
    description: `${measure.label}, ${what}, over rounds, for ${plural(lines.length, "run")}. ` + lines.slice(0, FEW)
      .map(({ label, line }) => `${label} ends at ${measured(line.mean.at(-1), measure.percent)}`).join("; ") + ".",
    traces: [
      ...(lines.length <= FEW ? lines.filter(({ line }) => line.seeds > 1).map(band) : []),
      ...lines.map(({ position, label, line }) => ({
        type: "scatter", mode: line.rounds.length < 30 ? "lines+markers" : "lines", name: forChart(label), showlegend: lines.length <= FEW,
        x: line.rounds, y: line.mean.map(scale), line: { color: colour(position), dash: dash(position), width: 2 },
        marker: { size: 6, symbol: symbol(position), color: colour(position) },
        hovertemplate: "round %{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
      })),
    ],
    layout: { height: 420, hovermode: lines.length <= FEW ? "x unified" : "closest", xaxis: { title: { text: "round" }, rangemode: "tozero" },
      yaxis: { title: { text: `${forChart(what)}: ${unit(measure)}` } } },
    columns: ["round", ...lines.map(({ label }) => label)],
    rows: rounds.map((round) => [String(round), ...at.map((line) => scale(line.get(round)))]),
  };
}

function heatFigure(trial, run, metric, how, measure) {
  if (!run || !metric) return { empty: "This run has no record of what its rounds did." };
  const rows = heat(trial, run, metric);
  const relative = metric === "relative_weight";
  const scale = relative ? ratioScale(rows.flat().filter(known)) : null;
  const shown = (value) => (relative && known(value) ? scale.place(value) : value);
  const colours = relative ? scale.colours : { colorscale: "Cividis", colorbar: COLOUR_BAR };
  const share = shares(trial);
  const last = measure && run.clients[measure.key] ? finals(trial, `r${trial.runs.indexOf(run)}`, measure.key) : trial.clients.map((_, k) => k);
  const order = how === "share" ? orderBy(share) : how === "served" && measure ? worstFirst(last, measure) : trial.clients.map((_, k) => trial.clients.length - 1 - k);
  const { rounds, thinned } = run.heat[metric];
  const few = order.length <= 40;
  const name = HEAT_NAMES[metric] ?? metric;
  return {
    description: `Heat map of ${name} for ${plural(order.length, "client")} over rounds ${rounds[0]} to ${rounds.at(-1)}${thinned ? ", averaged over blocks of rounds" : ""}.`,
    traces: [{
      type: "heatmap", x: rounds, y: order.map((_, i) => i), z: order.map((k) => rows[k].map(shown)), hoverongaps: false, ...colours,
      text: order.map((k) => rows[k].map((value) => `client ${forChart(trial.clients[k])}: ${known(value) ? Number(value.toPrecision(4)) : "–"}`)),
      hovertemplate: "%{text}<br>round %{x}<extra></extra>",
    }],
    layout: {
      height: Math.max(320, Math.min(640, 90 + 18 * order.length)), xaxis: { title: { text: "round" }, showgrid: false },
      yaxis: { title: { text: few ? "client" : `${order.length} clients` }, showgrid: false, tickmode: "array",
        tickvals: few ? order.map((_, i) => i) : [], ticktext: few ? clientTicks(order.map((k) => trial.clients[k])) : [], automargin: few },
    },
    columns: ["client", "data share, %", ...rounds.map((round) => `round ${round}`)],
    rows: order.toReversed().map((k) => [trial.clients[k], 100 * share[k], ...rows[k]]),
  };
}

// Colours for ratios, by powers of two: blue below 1, orange above, as far as nine in ten of them reach, so that a single
// ratio does not take the colours from the others. 0 has a colour of its own, and what is absent has none.
function ratioScale(ratios) {
  const powers = ratios.filter((ratio) => ratio > 0).map((ratio) => Math.abs(Math.log2(ratio))).sort((a, b) => a - b);
  const common = powers.length ? powers[Math.min(powers.length - 1, Math.floor(0.9 * powers.length))] : 0;
  const reach = Math.min(MOST_DOUBLINGS, Math.max(0.5, common));
  const ticks = [-reach, -reach / 2, 0, reach / 2, reach];
  const said = ticks.map((power) => `${Number((2 ** power).toPrecision(2))} ×`);
  if (powers.length && 2 ** powers.at(-1) > 2 ** reach * 1.01) [said[0], said[4]] = [`≤ ${said[0]}`, `≥ ${said[4]}`];
  const zero = ratios.some((ratio) => ratio <= 0);
  const room = zero ? 0.2 * reach : 0; // below the blue end
  const least = -reach - room;
  const at = (power) => (power - least) / (reach - least);
  return {
    place: (ratio) => (ratio <= 0 ? least : Math.max(-reach, Math.min(reach, Math.log2(ratio)))),
    colours: {
      colorscale: [...(zero ? [[0, variable("--text")], [at(-reach - room / 2), variable("--text")]] : []), [zero ? at(-reach - room / 2) : 0, PALETTE[0]],
        [at(0), variable("--raised")], [1, PALETTE[1]]],
      zmin: least, zmax: reach,
      colorbar: { ...COLOUR_BAR, tickvals: zero ? [least + room / 4, ...ticks] : ticks, ticktext: zero ? ["0", ...said] : said },
    },
  };
}

function equalityFigure(trial, measure, visible) {
  if (!measure.higher) return { empty: "A Lorenz curve is about shares of a total; choose an accuracy as the measure." };
  const lines = visible.map((position) => ({ position, values: finals(trial, `g${position}`, measure.key)?.filter(known) }))
    .filter(({ values }) => values && values.length && values.some((value) => value > 0));
  if (!lines.length) return { empty: "No visible run has been evaluated yet." };
  const lorenz = (values) => {
    const sorted = values.toSorted((a, b) => a - b);
    const total = sorted.reduce((sum, value) => sum + value, 0);
    let sum = 0;
    return [0, ...sorted.map((value) => 100 * (sum += value) / total)];
  };
  const index = (position, name) => trial.groups[position].statistics[measure.key][name][0];
  return {
    description: `Lorenz curves of ${measure.label} for ${plural(lines.length, "run")}. ` + lines.slice(0, FEW)
      .map(({ position }) => `${trial.groups[position].label}: Gini ${measured(index(position, "gini"), false)}`).join("; ") + ".",
    traces: [
      { type: "scatter", mode: "lines", x: [0, 100], y: [0, 100], line: { color: variable("--soft"), dash: "dot", width: 1.5 }, name: "all equal", showlegend: lines.length <= FEW, hoverinfo: "skip" },
      ...lines.map(({ position, values }) => ({
        type: "scatter", mode: "lines", name: forChart(trial.groups[position].label), showlegend: lines.length <= FEW,
        x: [0, ...values.map((_, i) => (100 * (i + 1)) / values.length)], y: lorenz(values), line: { color: colour(position), dash: dash(position), width: 2 },
        hovertemplate: "the worst-off %{x:.0f} % of clients<br>have %{y:.1f} % of the total<extra>%{fullData.name}</extra>",
      })),
    ],
    layout: { height: 420, hovermode: "closest", xaxis: { title: { text: "clients, worst-off first, %" }, range: [0, 100] }, yaxis: { title: { text: `share of all ${measure.label}, %` }, range: [0, 102] } },
    columns: ["run", "Jain", "Gini", "entropy", "Nash welfare"],
    rows: lines.map(({ position }) => [trial.groups[position].label, ...["jain", "gini", "entropy", "nash_welfare"].map((name) => index(position, name))]),
  };
}

function partitionFigure(trial, how) {
  if (!trial.labels) return { empty: "These clients have no class labels to count." };
  const order = trial.clients.map((_, k) => trial.clients.length - 1 - k);
  const classes = trial.labels[0].map((_, c) => c);
  const part = trial.labels.map((counts, k) => counts.map((count) => (how === "share" ? (100 * count) / trial.sizes.train[k] : count)));
  const few = order.length <= 40;
  const missing = trial.labels.reduce((sum, counts) => sum + counts.filter((count) => count === 0).length, 0) / trial.clients.length;
  return {
    description: `Heat map of ${plural(order.length, "client")} by ${classes.length} classes; a client lacks ${missing.toFixed(1)} classes on average.`,
    traces: [{
      type: "heatmap", x: classes, y: order.map((_, i) => i), z: order.map((k) => part[k]), colorscale: "Cividis", xgap: classes.length <= 30 ? 1 : 0, ygap: few ? 1 : 0,
      colorbar: COLOUR_BAR,
      text: order.map((k) => classes.map((c) => `client ${forChart(trial.clients[k])}, class ${c}: ${trial.labels[k][c]} of ${trial.sizes.train[k]}`)),
      hovertemplate: "%{text}<extra></extra>",
    }],
    layout: {
      height: Math.max(320, Math.min(640, 90 + 18 * order.length)),
      xaxis: { title: { text: "class" }, showgrid: false, dtick: classes.length <= 20 ? 1 : undefined },
      yaxis: { title: { text: few ? "client" : `${order.length} clients` }, showgrid: false, tickmode: "array",
        tickvals: few ? order.map((_, i) => i) : [], ticktext: few ? clientTicks(order.map((k) => trial.clients[k])) : [], automargin: few },
    },
    columns: ["client", "training examples", ...classes.map((c) => `class ${c}`)],
    rows: trial.clients.map((name, k) => [name, trial.sizes.train[k], ...trial.labels[k]]),
  };
}
