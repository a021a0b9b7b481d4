// Small helpers: elements, numbers, text. Text from users only ever becomes text nodes.
"use strict";

const $ = (id) => document.getElementById(id);

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Options are [value, label] or {group, options}. Keeps the wanted value if it is still there.
function fill(select, options, wanted) {
  const option = ([value, label]) => h("option", { value }, label);
  select.replaceChildren(
    ...options.map((item) => (Array.isArray(item) ? option(item) : h("optgroup", { label: item.group }, item.options.map(option)))),
  );
  if (wanted !== undefined && wanted !== null) select.value = String(wanted);
  if (select.selectedIndex < 0 && select.options.length) select.selectedIndex = 0;
  return select.value;
}

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

// Percent for accuracies, plain numbers for losses; a dash for what is not known.
function measured(value, percent, digits) {
  if (!known(value)) return "–";
  return percent ? (100 * value).toFixed(digits ?? 1) : value.toPrecision(digits ? digits + 2 : 4);
}

const signed = (value, digits = 2) => (known(value) ? `${value > 0 ? "+" : ""}${(100 * value).toFixed(digits)} %` : "–");
const between = (low, high) => `${signed(low)} to ${known(high) ? signed(high) : "+∞"}`; // JSON has no infinity
// A number and its percent sign stay on one line.
const tied = (text) => text.replace(/(\d) %/g, "$1\u00a0%");
const plural = (count, one, many) => `${count} ${count === 1 ? one : many ?? `${one}s`}`;
const shortened = (text, length = 36) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

// Names that begin alike differ at their ends, so both are kept.
const shortName = (name, length = 14) => (name.length > length ? `${name.slice(0, Math.ceil(length / 2))}…${name.slice(1 - Math.floor(length / 2))}` : name);

// The plotting library reads some HTML in its texts: user text must be escaped for it, and only for it.
const forChart = (text, length) =>
  shortened(String(text), length).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// Names for an axis, as short as they can be without two of them looking alike.
function clientTicks(names) {
  const short = (length) => names.map((name) => shortName(name, length));
  const told = [14, 26, 60].map(short).find((some) => new Set(some).size === new Set(names).size) ?? names;
  return told.map((name) => forChart(name, 80));
}

function unpacked(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

function save(name, type, text) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csv(columns, rows) {
  const cell = (value) => {
    const said = value === null || value === undefined ? "" : String(value);
    const text = typeof value === "string" && /^([=@\t\r]|[+-](?!([\d.]+(e[+-]?\d+)?)?$))/.test(said) ? `'${said}` : said; // no formula
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
