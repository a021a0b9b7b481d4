// One chart: drawn by Plotly, described for screen readers, with its numbers as a table and as CSV.
"use strict";

// The library is packed into the page; unpacking it keeps the page at half the size.
async function loadLibrary() {
  const text = await new Response(new Blob([unpacked($("library").textContent)]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(Object.assign(document.createElement("script"), { textContent: text }));
  $("library").remove();
}

function baseLayout(layout) {
  const axis = {
    gridcolor: variable("--grid"), linecolor: variable("--line"), zerolinecolor: variable("--line"),
    tickfont: { size: 12 }, title: { standoff: 10, font: { size: 13 } },
  };
  const narrow = window.innerWidth < 600;
  const merged = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: variable("--text") },
    margin: { l: narrow ? 48 : 64, r: 16, t: 16, b: 52 },
    hoverlabel: { bgcolor: variable("--raised"), bordercolor: variable("--line"), font: { color: variable("--text"), size: 13 }, align: "left" },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 }, itemclick: false, itemdoubleclick: false },
    dragmode: narrow ? false : "zoom",
    uirevision: "keep",
    ...layout,
  };
  for (const name of ["xaxis", "yaxis"]) {
    merged[name] = { ...axis, ...layout[name], title: { ...axis.title, ...(layout[name]?.title ?? {}) } };
  }
  return merged;
}

// No mode bar: its buttons would hide inside a picture. Dragging zooms, a double click goes back; files are saved below.
const CONFIG = { responsive: true, displayModeBar: false };

// figure: {description, traces, layout, columns, rows}; or {empty: "why there is nothing to see"}.
async function draw(id, figure) {
  const place = $(id);
  if (figure.empty) {
    place.querySelectorAll(".js-plotly-plot").forEach((chart) => Plotly.purge(chart));
    place.replaceChildren(h("p", { class: "empty" }, figure.empty));
    return;
  }
  let chart = place.querySelector(".chart");
  if (!chart) {
    chart = h("div", { class: "chart", role: "img" });
    place.replaceChildren(chart, numbers(id, place));
  }
  place.figure = figure;
  chart.setAttribute("aria-label", `${figure.description} The numbers are in the table below the chart.`);
  const details = place.querySelector("details");
  if (details.open) showNumbers(place, details);
  await Plotly.react(chart, figure.traces, baseLayout(figure.layout), CONFIG);
}

function numbers(id, place) {
  const name = id.replace("-figure", "");
  const details = h("details", {},
    h("summary", {}, "Show the numbers"),
    h("div", { class: "tools" },
      h("button", { type: "button", onclick: () => save(`${name}.csv`, "text/csv", csv(place.figure.columns, place.figure.rows)) }, "Save as CSV"),
      h("button", { type: "button", onclick: () => Plotly.downloadImage(place.querySelector(".chart"),
        { format: "svg", filename: `propfair-${name}`, width: 1000, height: 500 }) }, "Save as SVG")),
    h("div", { class: "numbers" }));
  details.addEventListener("toggle", () => { if (details.open) showNumbers(place, details); });
  return details;
}

const MOST_ROWS = 1000;

function showNumbers(place, details) {
  const { columns, rows, description } = place.figure;
  const cell = (value, position) => {
    const text = typeof value === "number" ? String(Number(value.toPrecision(5))) : value ?? "–";
    return position === 0 ? h("th", { scope: "row" }, text) : h("td", {}, text);
  };
  details.querySelector(".numbers").replaceChildren(
    h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "The numbers of the chart" },
      h("table", {}, h("caption", { class: "sr" }, description),
        h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col" }, column)))),
        h("tbody", {}, rows.slice(0, MOST_ROWS).map((row) => h("tr", {}, row.map(cell)))))),
    ...(rows.length > MOST_ROWS ? [h("p", { class: "muted small" }, `The first ${MOST_ROWS} of ${rows.length} rows; the CSV has all.`)] : []));
}
