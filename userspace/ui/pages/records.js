// Objects of the API as a table: one column for each field, nested ones as short text.

import { Table } from "../parts.js";
import { html } from "../vendor/preact-htm.js";

/** Fields that say which object it is: these columns come first. */
const NAMES = ["id", "name", "subject", "node", "label"];

const words = (name) => name.replaceAll("_", " ");

/** Any value as text. */
function text(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (Array.isArray(value)) return value.length ? value.map(text).join(", ") : "–";
  if (typeof value === "object") return Object.entries(value).filter(([, inner]) => inner !== null).map(([name, inner]) => `${words(name)} ${text(inner)}`).join(" · ") || "–";
  return typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(3) : String(value);
}

export function Records({ caption, rows, empty, hide = [], cells = {} }) {
  const all = [...new Set(rows.flatMap(Object.keys))].filter((name) => !hide.includes(name));
  const names = [...NAMES.filter((name) => all.includes(name)), ...all.filter((name) => !NAMES.includes(name))];
  const columns = names.map((name) => [words(name), (row) => (cells[name] ? cells[name](row) : text(row[name])), { number: rows.every((row) => typeof row[name] === "number") }]);
  return html`<${Table} caption=${caption} rows=${rows} columns=${columns} empty=${empty} />`;
}

/** Troubles that the API reports. */
export const Troubles = ({ list }) => (list ?? []).map((one) => html`<p class="trouble bad" role="alert">${text(one)}</p>`);
