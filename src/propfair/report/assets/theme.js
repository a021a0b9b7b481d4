// Colours: the reader's choice or the system's; Okabe and Ito's palette, safe for colour-blind readers.
"use strict";

const PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F"];
const DARK_PALETTE = ["#4DA3DA", "#FF8A47", "#2CC79A", "#E39BC5", "#F0B429", "#8ACDF5", "#FFFFFF", "#A9A9A9"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star"];
const DASH_ARRAYS = { solid: "", dash: "5 3", dot: "2 2", dashdot: "5 2 2 2" };
const SHAPES = {
  circle: "M11 3a4 4 0 1 0 .01 0z", square: "M7.5 3.5h7v7h-7z", diamond: "M11 2l5 5-5 5-5-5z",
  "triangle-up": "M11 2.5l4.5 8h-9z", cross: "M9.5 3h3v2.5H15v3h-2.5V11h-3V8.5H7v-3h2.5z",
  x: "M8.5 3l2.5 2.5L13.5 3l1.5 1.5L12.5 7 15 9.5 13.5 11 11 8.5 8.5 11 7 9.5 9.5 7 7 4.5z",
  "triangle-down": "M11 11.5l4.5-8h-9z", star: "M11 2l1.3 3.200 3.400.2-2.600 2.200.8 3.400L11 9.200 8.100 11l.8-3.400-2.600-2.200 3.400-.2z",
};

const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => document.documentElement.dataset.theme === "dark";
let chosenTheme = null; // "light", "dark" or null for the system's
try { chosenTheme = localStorage.getItem("propfair-theme"); } catch { /* a page opened as a file may have no storage */ }

function applyTheme() {
  const theme = chosenTheme || (systemDark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  const other = theme === "dark" ? "light" : "dark";
  $("theme").textContent = other === "dark" ? "Dark" : "Light";
  $("theme").setAttribute("aria-label", `Switch to ${other} colours`);
}

function switchTheme() {
  chosenTheme = isDark() ? "light" : "dark";
  try { localStorage.setItem("propfair-theme", chosenTheme); } catch { /* as above */ }
  applyTheme();
}

const colour = (position) => (isDark() ? DARK_PALETTE : PALETTE)[position % PALETTE.length];
const dash = (position) => DASHES[Math.floor(position / PALETTE.length) % DASHES.length];
const symbol = (position) => SYMBOLS[(position + Math.floor(position / PALETTE.length)) % SYMBOLS.length];
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The legend of all charts: line and marker of a group.
function swatch(position) {
  return svg("svg", { class: "swatch", viewBox: "0 0 22 14", "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 22, y1: 7, y2: 7, stroke: colour(position), "stroke-width": 2, "stroke-dasharray": DASH_ARRAYS[dash(position)] }),
    svg("path", { d: SHAPES[symbol(position)], fill: colour(position) }));
}
