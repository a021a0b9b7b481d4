// What the reader chose, and what follows from it.
"use strict";

const LINKS = [["summary", "Summary"], ["ahead", "Differences"], ["trade", "Trade-off"], ["pair", "Clients"], ["certificate", "Certificate"], ["curves", "Rounds"],
  ["weights", "Weights"], ["equality", "Equality"], ["partition", "Partition"], ["settings", "Settings"], ["repeat", "Repeat"]];

const MANY = 20; // rows; more of them scroll within their box

const state = {
  document: null, trial: null, measure: null, hidden: new Set(), listed: [], query: "", sort: { column: null, down: true },
  seeds: false, allColumns: false, manySeeds: false,
  sortBy(column) {
    const down = column !== "run" && wantsHigh(column, state.measure);
    state.sort = state.sort.column === column ? { column, down: !state.sort.down } : { column, down };
    showSummary();
    document.querySelector(`button.sort[data-column="${column}"]`)?.focus();
  },
  toggle(label) {
    if (!state.hidden.delete(label)) state.hidden.add(label);
    showRuns();
  },
};

const visible = () => state.listed.filter((position) => !state.hidden.has(state.trial.groups[position].label));

// A chart that fails must not take the others with it; one at a time, so that the page stays responsive.
let waiting = new Map();
let drawing = false;
function later(id, make) {
  waiting.delete(id);
  waiting.set(id, make);
  if (!drawing) drawAll();
}
async function drawAll() {
  drawing = true;
  await library;
  while (waiting.size) {
    const [id, make] = waiting.entries().next().value;
    waiting.delete(id);
    try { await draw(id, make()); } catch (error) {
      console.error(error);
      $(id).replaceChildren(h("p", { class: "empty" }, `This chart could not be drawn: ${error.message}`));
    }
    await new Promise((resume) => setTimeout(resume));
  }
  drawing = false;
  document.documentElement.dataset.drawn = "yes";
}

function open_(content) {
  state.document = content;
  document.title = content.title;
  $("title").textContent = content.title;
  $("problems").replaceChildren(...(content.problems.length
    ? [h("div", { class: "notice" }, h("strong", {}, content.problems.length === 1 ? "One folder could not be read" : `${content.problems.length} folders could not be read`),
        h("ul", {}, content.problems.map((text) => h("li", {}, text))))] : []),
    ...content.notes.map((text) => h("p", { class: "notice" }, text)));
  $("foot").textContent = `Written ${content.written.replace("T", " ").replace("+00:00", " UTC")} by propfair ${content.propfair}, from the records of the runs alone.`;
  const chosen = fill($("trial"), content.trials.map((trial, position) => [String(position), trial.title]), $("trial").value || "0");
  $("trial-setting").hidden = content.trials.length < 2;
  document.querySelectorAll("main > section:not(#glance, #progress)").forEach((section) => { section.hidden = !content.trials.length; });
  document.querySelector("nav.bar").hidden = !content.trials.length;
  if (!content.trials.length) {
    $("facts").textContent = "";
    $("glance").replaceChildren(h("p", { class: "empty" }, LIVE ? "No run yet. The page fills as soon as one starts." : "There is no run to show."));
    document.documentElement.dataset.drawn = "yes";
    return;
  }
  openTrial(content.trials[Number(chosen)]);
}

function openTrial(trial) {
  state.trial = trial;
  state.manySeeds = trial.runs.length > trial.groups.length;
  $("seeds").closest("label").hidden = !state.manySeeds;
  const key = fill($("measure"), trial.measures.map(({ key, label }) => [key, label]), $("measure").value);
  $("measure-setting").hidden = !trial.measures.length;
  const seeds = new Set(trial.runs.map((run) => run.seed)).size;
  $("facts").textContent = [trial.title, `${plural(trial.groups.length, "setting")} × ${plural(seeds, "seed")}`, trial.title.startsWith(trial.note) ? "" : trial.note].filter(Boolean).join(" · ");
  const going = trial.runs.some((run) => run.state === "running");
  $("progress").hidden = !(LIVE || going);
  $("progress-list").replaceChildren(progressList(state.document.trials));

  const all = entries(trial);
  const best = trial.verdicts.best ?? 0;
  const [from, to] = firstPair(trial);
  fill($("pair-a"), all, $("pair-a").value || `g${from}`);
  fill($("pair-b"), all, $("pair-b").value || `g${to}`);
  fill($("reference"), trial.groups.map((group, position) => [String(position), group.label]), $("reference").value || String(best));
  fill($("client"), trial.clients.map((name, k) => [String(k), name]), $("client").value);
  const weighed = trial.runs.filter((run) => run.heat.relative_weight); // where every client trains alone nobody weighs anything
  const first = weighed.find((run) => run.group === to) ?? weighed.at(-1) ?? trial.runs.find((run) => run.group === to);
  fill($("heat-run"), trial.runs.map((_, position) => [String(position), labelOf(trial, state.manySeeds ? `r${position}` : `g${trial.runs[position].group}`)]),
    $("heat-run").value || String(trial.runs.indexOf(first)));
  fillHeat();
  $("partition-said").textContent = `${plural(trial.clients.length, "client")}, ${[...new Set([Math.min(...trial.sizes.train), Math.max(...trial.sizes.train)])].join(" to ")} training examples each.`;
  state.measure = trial.measures.find((measure) => measure.key === key) ?? null;
  showMeasure();
  later("partition-figure", () => partitionFigure(trial, $("partition-unit").value));
}

// What a first look compares: plain averaging (else the best mean) with whoever serves the worst-off best.
function firstPair(trial) {
  const key = trial.measures[0]?.key;
  const value = (k, name) => (trial.groups[k].statistics[key]?.[name][0] ?? -Infinity) * (trial.measures[0]?.higher === false ? -1 : 1);
  const best = (name, among) => among.reduce((a, b) => (value(b, name) > value(a, name) ? b : a), among[0]);
  const all = trial.groups.map((_, k) => k);
  const plain = all.find((k) => (trial.groups[k].settings["algorithm.name"] ?? trial.groups[k].label) === "fedavg");
  const from = plain ?? best("mean", all);
  return [from, best("worst10", all.length > 1 ? all.filter((k) => k !== from) : all)];
}

function fillHeat() {
  const run = state.trial.runs[Number($("heat-run").value)];
  fill($("heat-metric"), Object.keys(run.heat).map((name) => [name, HEAT_NAMES[name] ?? name]), $("heat-metric").value || undefined);
}

// Everything that depends on the measure.
function showMeasure() {
  const { trial, measure } = state;
  const { verdicts } = trial;
  const cards = measure ? [h("div", { class: "card" }, h("h2", {}, `Who is served how well: ${measure.label}`),
    measure.headline.map((sentence, i) => h("p", { class: i ? null : "strong" }, tied(sentence))))] : [];
  cards.push(h("div", { class: "card" }, h("h2", {}, "Is it proportionally fair?"),
    verdicts.reason ? h("p", {}, verdicts.reason)
      : [h("p", { class: "strong" }, trial.groups[verdicts.best].label, h("br"), verdictBadge(verdicts.said[verdicts.best])), h("p", {}, tied(`${verdicts.said[verdicts.best].reason}.`))]));
  $("glance").replaceChildren(h("div", { class: "glance" }, cards));
  applyFilter();
}

const BADGES = { fair: ["good", "✓"], refuted: ["bad", "✗"], undecided: ["doubt", "?"], undefined: ["doubt", "?"] };
const verdictBadge = ({ kind, finding }) => h("span", { class: `badge ${BADGES[kind][0]}` }, `${BADGES[kind][1]} ${finding}`);

function applyFilter() {
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  const names = (position) => state.trial.runs.filter((run) => run.group === position).map((run) => run.name);
  const settings = (group) => Object.entries(group.settings).map(([key, value]) => `${key}=${value}`);
  const text = (group, position) => [group.label, ...names(position), ...settings(group)].join(" ").toLowerCase();
  state.listed = state.trial.groups.map((_, position) => position)
    .filter((position) => words.every((word) => text(state.trial.groups[position], position).includes(word)));
  showRuns();
}

// Everything that depends on which runs are shown.
function showRuns() {
  const { trial, measure, listed } = state;
  showSummary();
  $("filter-said").textContent = `${visible().length} of ${trial.groups.length} runs shown`;
  for (const id of ["summary-table", "settings-table"]) $(id).parentElement.classList.toggle("tall", listed.length > MANY);
  $("repeat-list").classList.toggle("tall", listed.length > MANY);
  $("settings-table").replaceChildren(...settingsTable(trial, listed));
  $("repeat-list").replaceChildren(...repeatList(trial, listed));
  $("trade-said").textContent = `Up is fairer to the worst-off, right is better on average${measure && !measure.higher ? "; less is better, so the axes run down" : ""}. Bars show one standard deviation over seeds.`;
  if (measure) {
    later("trade-figure", () => tradeFigure(trial, measure, visible(), $("trade-y").value));
    later("equality-figure", () => equalityFigure(trial, measure, visible()));
  } else {
    for (const id of ["trade-figure", "pair-figure", "relative-figure", "curves-figure", "equality-figure"]) later(id, () => ({ empty: "No run has been evaluated yet." }));
  }
  showAhead();
  showPair();
  showCertificate();
  showJoining();
  showCurves();
  showHeat();
}

function showAhead() {
  const { measure } = state;
  const found = measure?.standing ?? "No run has been evaluated yet.";
  const none = typeof found === "string";
  $("ahead-statistic").closest("label").hidden = none;
  if (!none) fill($("ahead-statistic"), Object.keys(found).map((name) => [name, NAMES[name]]), $("ahead-statistic").value || undefined);
  $("ahead-said").textContent = none ? found : tied(aheadSentence(found[$("ahead-statistic").value], measure));
  $("ahead-table").replaceChildren(...(none ? [] : aheadTable(state.trial, measure, found, $("ahead-statistic").value)));
}

function showJoining() {
  const { trial, measure } = state;
  const found = measure?.joining;
  $("joining").hidden = !found?.groups.length;
  if ($("joining").hidden) return;
  fill($("joining-run"), found.groups.map(({ group }, at) => [String(at), trial.groups[group].label]), $("joining-run").value || undefined);
  const one = found.groups[Number($("joining-run").value)];
  $("joining-said").textContent = tied(`Against ${trial.groups[found.alone].label}: ${one.words}. Bars are the limits for all clients at once.`);
  later("joining-figure", () => joiningFigure(trial, measure, found, one));
}

function showSummary() {
  if (!state.measure) {
    $("summary-table").replaceChildren(h("tbody", {}, h("tr", {}, h("td", { class: "text" }, "No run has been evaluated yet."))));
    return;
  }
  $("summary-table").replaceChildren(...summaryTable(state));
  $("summary-note").textContent = `${state.measure.percent ? "Percent; Jain and Gini are indices. " : ""}${state.manySeeds ? "± is one population standard deviation over seeds. " : ""}Marked: not distinguishable from the best (Holm, 5 %). Ticks choose what the charts show. ${state.trial.cautions.join(" ")}`;
}

function showPair() {
  const { trial, measure } = state;
  if (!measure) return;
  const [a, b] = [$("pair-a").value, $("pair-b").value];
  $("relative-said").textContent = tied(relativeSentence(trial, measure, a, b));
  later("pair-figure", () => pairFigure(trial, measure, a, b, $("pair-order").value));
  later("relative-figure", () => relativeFigure(trial, measure, a, b));
}

function relativeSentence(trial, measure, a, b) {
  const changes = measure.higher ? relativeChanges(trial, measure, a, b) : null;
  if (!changes) return "";
  const gain = changes.filter((change) => known(change) && change > 0).length;
  const lose = changes.filter((change) => known(change) && change < 0).length;
  const undefined_ = changes.filter((change) => !known(change)).length;
  const [from, to] = [groupOf(trial, a), groupOf(trial, b)];
  const { verdicts } = trial;
  const whole = a[0] === "g" && b[0] === "g" && from !== to && verdicts.measure === measure.key;
  const value = whole ? verdicts.values[from][to] : null;
  const interval = whole && known(verdicts.low[from][to]) ? ` (95 % interval over ${verdicts.over[from][to]}: ${between(verdicts.low[from][to], verdicts.high[from][to])})` : "";
  return `From ${labelOf(trial, a)} to ${labelOf(trial, b)}, ${plural(gain, "client")} gain and ${lose} lose${undefined_ ? `; for ${undefined_} the change is undefined` : ""}.` +
    (known(value) ? ` Weighted by data, the average relative change is ${signed(value)}${interval}.` : "");
}

function showCertificate() {
  const { trial } = state;
  const { verdicts } = trial;
  const reference = Number($("reference").value);
  $("reference").closest("label").hidden = Boolean(verdicts.reason);
  $("verdict").replaceChildren(...(verdicts.reason ? [] : [verdictBadge(verdicts.said[reference]), document.createTextNode(`: ${tied(verdicts.said[reference].reason)}.`)]));
  $("verdict-note").textContent = verdicts.reason ? "" : `A model is proportionally fair if no other makes the average relative change of the clients positive (by data share, on ${verdicts.measure.replace("/", " ")}). ` +
    "Other runs are a sample of what is possible: one above 0 refutes it, none above 0 supports it, and cannot prove it." + (verdicts.leftOut ? ` ${plural(verdicts.leftOut, "client")} without test data left out.` : "");
  later("certificate-figure", () => certificateFigure(trial, reference, visible()));
}

function showCurves() {
  const { trial, measure } = state;
  $("client-setting").hidden = $("curve").value !== "client";
  if (measure) later("curves-figure", () => curvesFigure(trial, measure, visible(), $("curve").value, Number($("client").value)));
}

const TRANSFORMED = "Where the loss is transformed on the client, as in PropFair, the slope of the transform counts as well: weight times slope is what a client's data counted for.";
const WEIGHTS_SAID = {
  relative_weight: `How much more (orange) or less (blue) a client counted in a round than its share of the data. ${TRANSFORMED} Black or white: 0, it was not listened to. Empty: the client did not take part.`,
  weight: "What the server gave each client's update, round by round. Empty: the client did not take part.",
};

function showHeat() {
  const { trial, measure } = state;
  const run = trial.runs[Number($("heat-run").value)];
  const metric = $("heat-metric").value;
  $("weights-said").textContent = WEIGHTS_SAID[metric] ?? "What each round did, client by client. Empty: the client did not take part.";
  later("weights-figure", () => heatFigure(trial, run, metric, $("heat-order").value, measure));
}

function connect() {
  $("links").replaceChildren(...LINKS.map(([id, label]) => h("li", {}, h("a", { href: `#${id}` }, label))));
  fill($("trade-y"), ["worst10", "worst20", "worst30", "worst"].map((name) => [name, NAMES[name]]));
  fill($("pair-order"), [["a", "worst-off under the first run first"], ["b", "worst-off under the second run first"], ["change", "by change"], ["size", "by training examples"], ["client", "by client"]]);
  fill($("curve"), Object.entries(CURVES));
  fill($("heat-order"), [["client", "in order"], ["share", "by data share"], ["served", "by how well they are served"]]);
  fill($("partition-unit"), [["share", "share of the client's examples, %"], ["count", "number of examples"]]);
  const on = (id, action) => $(id).addEventListener("change", action);
  on("trial", () => {
    for (const id of ["pair-a", "pair-b", "reference", "heat-run", "measure", "joining-run"]) $(id).replaceChildren();
    state.hidden.clear();
    openTrial(state.document.trials[Number($("trial").value)]);
  });
  on("measure", () => { state.measure = state.trial.measures.find(({ key }) => key === $("measure").value); showMeasure(); });
  on("trade-y", () => showRuns());
  for (const id of ["pair-a", "pair-b", "pair-order"]) on(id, showPair);
  on("reference", showCertificate);
  on("ahead-statistic", showAhead);
  on("joining-run", showJoining);
  for (const id of ["curve", "client"]) on(id, showCurves);
  on("heat-run", () => { fillHeat(); showHeat(); });
  for (const id of ["heat-metric", "heat-order"]) on(id, showHeat);
  on("partition-unit", () => later("partition-figure", () => partitionFigure(state.trial, $("partition-unit").value)));
  on("seeds", () => { state.seeds = $("seeds").checked; showSummary(); });
  on("all-columns", () => { state.allColumns = $("all-columns").checked; showSummary(); });
  $("filter").addEventListener("input", () => { state.query = $("filter").value; applyFilter(); });
  $("check-all").addEventListener("click", () => { state.hidden.clear(); showRuns(); });
  $("check-none").addEventListener("click", () => { state.trial.groups.forEach((group) => state.hidden.add(group.label)); showRuns(); });
  $("theme").addEventListener("click", () => { switchTheme(); if (state.trial) openTrial(state.trial); });
  systemDark.addEventListener("change", () => { applyTheme(); if (state.trial) openTrial(state.trial); });
}

// While runs go on: ask for the document again, and redraw when it has changed.
async function follow() {
  $("kind").textContent = "watch";
  $("live").hidden = false;
  let tag = null;
  let failures = 0;
  for (;;) {
    await new Promise((resume) => setTimeout(resume, LIVE.interval));
    try {
      const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      if (answer.status !== 304) {
        if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
        tag = answer.headers.get("ETag");
        open_(await answer.json());
      }
      failures = 0;
      $("live").replaceChildren();
    } catch (error) {
      failures += 1;
      if (failures === 2) $("live").replaceChildren(h("p", { class: "notice calm" }, `No connection to propfair watch (${error.message}). The page shows what was last seen and goes on asking.`));
    }
  }
}

function giveUp(error) {
  console.error(error);
  $("problems").append(h("p", { class: "notice" }, `This page could not be shown in full: ${error.message}. It needs a browser of 2023 or later.`));
}

// Words and tables first; the charts come when the library is unpacked.
const content = JSON.parse($("data").textContent);
const LIVE = content.live ?? null;
const library = new Promise((resume) => setTimeout(resume)).then(loadLibrary);
library.catch(giveUp);
try {
  applyTheme();
  connect();
  open_(content);
  if (LIVE) follow();
} catch (error) {
  giveUp(error);
}
