// The summary table with its best values, the settings that differ, the commands, and the progress of live runs.
"use strict";

const MAIN_COLUMNS = ["mean", "std", "worst", "worst10", "best10", "jain", "gini", "nash_welfare"];
const ALL_COLUMNS = ["mean", "weighted_mean", "std", "worst", "worst10", "worst20", "worst30", "median", "best30", "best20", "best10", "best", "variance_of_percent", "jain", "gini", "entropy", "nash_welfare"];
const PLAIN = new Set(["jain", "gini", "entropy"]); // indices, no percentages
const LOW_IS_BETTER = new Set(["std", "gini", "variance_of_percent"]);
const MEANINGS = {
  mean: "Mean over clients, one client one vote", weighted_mean: "Mean over clients, weighted by training examples",
  std: "Population standard deviation over clients", worst: "The worst-off client", worst10: "Mean of the worst 10 % of clients",
  worst20: "Mean of the worst 20 % of clients", worst30: "Mean of the worst 30 % of clients", best: "The best-off client",
  best10: "Mean of the best 10 % of clients", best20: "Mean of the best 20 % of clients", best30: "Mean of the best 30 % of clients",
  median: "The middle client", variance_of_percent: "Population variance of the percentages", jain: "Jain's index, 1 if all are equal",
  gini: "Gini index, 0 if all are equal", entropy: "Entropy of the clients' shares of the total, in nats", nash_welfare: "Geometric mean over clients",
};

function shownNumber(name, value, measure) {
  if (!known(value)) return "–";
  if (PLAIN.has(name)) return value.toFixed(3);
  if (name === "variance_of_percent") return value.toFixed(1);
  return measured(value, measure.percent);
}

// Which way a column is better; losses turn all but the measures of spread around.
const wantsHigh = (name, measure) => (LOW_IS_BETTER.has(name) ? false : name === "jain" || name === "entropy" ? true : measure.higher);

function columnsOf(measure, all) {
  const meaningless = measure.percent ? [] : ["variance_of_percent"];
  return (all ? ALL_COLUMNS : MAIN_COLUMNS).filter((name) => !meaningless.includes(name));
}

function summaryTable(state) {
  const { trial, measure, listed, hidden, sort, seeds } = state;
  const columns = columnsOf(measure, state.allColumns);
  const value = (position, name) => trial.groups[position].statistics[measure.key]?.[name]?.[0];
  const rows = [...listed];
  if (sort.column) {
    const key = (position) => (sort.column === "run" ? trial.groups[position].label : value(position, sort.column));
    rows.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (typeof x === "string") return (sort.down ? -1 : 1) * x.localeCompare(y, undefined, { numeric: true });
      if (!known(x) || !known(y)) return known(y) - known(x);
      return (sort.down ? y - x : x - y) || a - b;
    });
  }
  // Best is whatever is not distinguishable from the best; where nothing is known of chance, nothing is marked.
  const best = (name) => (measure.standing[name]?.known ? measure.standing[name].best : []);
  const header = (name, label, title) => h("th", {
    scope: "col", title, "aria-sort": sort.column === name ? (sort.down ? "descending" : "ascending") : "none",
  }, h("button", { type: "button", class: "sort", "data-column": name, onclick: () => state.sortBy(name) }, label));
  const cell = (name, mean, std, position) => {
    const text = shownNumber(name, mean, measure);
    const isBest = position !== undefined && best(name).includes(position);
    return h("td", { class: isBest ? "best" : null }, text,
      std !== undefined && state.manySeeds && known(std) ? h("span", { class: "spread" }, ` ± ${shownNumber(name, std, measure)}`) : null,
      isBest ? h("span", { class: "sr" }, " (best)") : null);
  };
  const line = (position) => {
    const group = trial.groups[position];
    const runs = runsOf(trial, `g${position}`);
    const off = hidden.has(group.label);
    const found = group.statistics[measure.key];
    const rest = [...new Set(runs.map((run) => run.state).filter((said) => said !== "finished"))];
    const cells = h("tr", { class: off ? "off" : null, "data-group": position },
      h("th", { scope: "row" }, h("span", { class: "name" },
        h("input", { type: "checkbox", "aria-label": `Show ${group.label} in the charts`, onchange: () => state.toggle(group.label) }),
        swatch(position), h("span", { class: "text", title: group.label }, group.label),
        group.personal ? h("span", { class: "tag", title: "Each client has a model of its own, and that model is measured" }, "personal") : null,
        rest.map((said) => h("span", { class: `tag ${said === "failed" ? "failed" : ""}`, title: runs.map((run) => run.reason).filter(Boolean).join("; ") }, said)))),
      columns.map((name) => (found ? cell(name, found[name][0], found[name][1] ?? null, position) : h("td", {}, "–"))));
    cells.querySelector("input").checked = !off;
    if (!seeds) return [cells];
    return [cells, ...runs.map((run) => h("tr", { class: off ? "seed off" : "seed" }, h("th", { scope: "row" }, `seed ${run.seed}`),
      columns.map((name) => cell(name, run.statistics[measure.key]?.[name]))))];
  };
  return [
    h("caption", { class: "sr" }, `Statistics over clients of ${measure.label}; column headers sort.`),
    h("thead", {}, h("tr", {}, header("run", "run", "Algorithm and settings"), columns.map((name) => header(name, NAMES[name], MEANINGS[name])))),
    h("tbody", {}, rows.length ? rows.flatMap(line) : h("tr", {}, h("td", { class: "text", colspan: columns.length + 1 }, "No run matches the filter."))),
  ];
}

function aheadSentence(found, measure) {
  const words = { both: "seeds and test examples", examples: "test examples (other seeds left out)" };
  const drawn = [...new Set(found.over.flat().filter((over) => over && over !== "nothing"))].map((over) => words[over] || over);
  const points = measure.percent ? " in percentage points" : "";
  const said = `The row's run less the column's${points}, seed by seed where seeds are shared. `;
  if (!drawn.length) return `${said}Nothing is known of chance: one seed, and no answers to the same test examples.`;
  return `${said}Bold: ahead beyond chance (Holm, 5 %). In brackets, 95 % intervals over ${drawn.join(" or ")} that hold for all pairs at once; p is Holm's, whose test is sharper, so that 0 may lie in the brackets of what it finds.`;
}

// The difference of two statistics, in percentage points where the statistic is in percent.
function shownDifference(name, value, measure) {
  if (!known(value)) return "–";
  const plain = PLAIN.has(name) || !measure.percent;
  const text = plain ? value.toFixed(3) : (100 * value).toFixed(1);
  return Number(text) > 0 ? `+${text}` : text;
}

function aheadTable(trial, measure, standing, name) {
  const found = standing[name];
  const label = (position) => trial.groups[position].label;
  const cell = (a, b) => {
    if (a === b) return h("td", { class: "same", "aria-label": "the same run" }, "");
    if (!known(found.differences[a][b])) return h("td", { title: "no seed in common" }, "–");
    const text = shownDifference(name, found.differences[a][b], measure);
    const limits = known(found.low[a][b]) ? `[${shownDifference(name, found.low[a][b], measure)}, ${shownDifference(name, found.high[a][b], measure)}]` : "";
    const p = known(found.p[a][b]) ? (found.p[a][b] < 0.001 ? "p < 0.001" : `p = ${found.p[a][b].toFixed(3)}`) : "";
    const state_ = found.ahead[a][b] ? "ahead" : found.ahead[b][a] ? "behind" : null;
    return h("td", { class: state_ }, text, h("span", { class: "sr" }, state_ ? ` (${state_} beyond chance)` : ""),
      limits ? h("span", { class: "limits" }, `${limits} ${p}`) : null);
  };
  return [
    h("caption", { class: "sr" }, `Differences of ${NAMES[name]} of ${measure.label}, row less column.`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "row less column"), found.groups.map((position) =>
      h("th", { scope: "col", title: label(position) }, shortName(label(position), 24))))),
    h("tbody", {}, found.groups.map((position, a) => h("tr", {},
      h("th", { scope: "row" }, h("span", { class: "name" }, swatch(position), h("span", { class: "text", title: label(position) }, label(position)))),
      found.groups.map((_, b) => cell(a, b))))),
  ];
}

function settingsTable(trial, listed) {
  if (!trial.differing.length) {
    return [h("tbody", {}, h("tr", {}, h("td", { class: "text" }, trial.groups.length > 1 ? "Nowhere: these runs have the same settings." : "There is one set of settings; see below.")))];
  }
  return [
    h("caption", { class: "sr" }, "Settings in which the runs differ"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "run"), trial.differing.map((key) => h("th", { scope: "col", class: "text" }, key)))),
    h("tbody", {}, listed.map((position) => h("tr", {},
      h("th", { scope: "row" }, h("span", { class: "name" }, swatch(position), h("span", { class: "text", title: trial.groups[position].label }, trial.groups[position].label))),
      trial.differing.map((key) => h("td", { class: "text" }, shortened(trial.groups[position].settings[key] ?? "–", 60)))))),
  ];
}

function commandLine(text) {
  const button = h("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Select and copy"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } }, "Copy");
  return h("div", { class: "command" }, h("pre", { tabindex: "0" }, text), button);
}

function repeatList(trial, listed) {
  return listed.map((position) => {
    const runs = runsOf(trial, `g${position}`);
    const details = h("details", { class: "repeat" },
      h("summary", {}, `${trial.groups[position].label} `, h("span", { class: "muted" }, plural(runs.length, "run"))));
    details.addEventListener("toggle", () => {
      if (!details.open || details.childElementCount > 1) return;
      details.append(...runs.map((run) => h("div", {},
        h("h3", {}, `${run.name}: ${run.state} after ${plural(run.rounds, "round")}${run.dropped ? `, ${plural(run.dropped, "time")} a client diverged and was left out` : ""}`),
        run.repeat ? [h("p", { class: "muted small" }, "This run alone:"), commandLine(run.repeat)] : null,
        h("p", { class: "muted small" }, "The command that made it:"), commandLine(run.command),
        h("dl", {}, h("dt", {}, "folder"), h("dd", {}, run.folder), h("dt", {}, "seed"), h("dd", {}, run.seed),
          Object.entries(run.environment).filter(([, value]) => value).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)])),
        run.config ? h("details", {}, h("summary", {}, "The whole config"), h("pre", { tabindex: "0" }, run.config)) : null)));
    });
    return details;
  });
}

function progressList(trials) {
  return h("div", { class: "runs" }, trials.flatMap((trial) => trial.runs.map((run) => {
    const toGo = run.state === "running" && run.total && run.rounds ? (run.seconds / run.rounds) * (run.total - run.rounds) : 0;
    const left = toGo ? `, about ${duration(toGo)} left` : "";
    const done = run.total ? `${run.rounds} / ${run.total} rounds` : plural(run.rounds, "round");
    const measure = trial.measures[0];
    const mean = measure && run.curves[measure.key]?.mean.at(-1);
    return h("div", { class: "item" },
      h("span", { class: "text" }, run.name),
      h("progress", { max: run.total || Math.max(1, run.rounds), value: run.rounds, "aria-label": `Progress of ${run.name}` }),
      h("span", { class: "muted small" }, `${run.state}, ${done}${left}${known(mean) ? `, mean ${measured(mean, measure.percent)}${measure.percent ? " %" : ""}` : ""}`));
  })));
}

function duration(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
