// Pieces that several pages share.

import { asCurl, change, token } from "./api.js";
import { html, useEffect, useState } from "./vendor/preact-htm.js";

/** A state as text, shape and colour: `good`, `warn`, `bad` or `idle`. */
export function State({ is, children }) {
  const shape = { good: "●", warn: "▲", bad: "■", idle: "○" }[is];
  return html`<span class=${`state ${is}`}><span aria-hidden="true">${shape}</span> ${children}</span>`;
}

/** A table. `columns`: `[heading, (row) => cell, options]`; the option `number` aligns right. */
export function Table({ caption, columns, rows, empty, after, keyOf }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="unseen">${caption}</caption>
    <thead><tr>${columns.map(([name, , how]) => html`<th scope="col" class=${how?.number ? "number" : ""}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row, i) => html`
      <tr key=${keyOf?.(row) ?? i}>${columns.map(([, cell, how]) => html`<td class=${how?.number ? "number" : ""}>${cell(row)}</td>`)}</tr>
      ${after?.(row) ?? null}`)}</tbody>
  </table></div>`;
}

/** A figure with its name. */
export const Figure = ({ name, value, note, is }) =>
  html`<div class=${`figure ${is ?? ""}`}><dt>${name}</dt><dd>${value}${note ? html`<small>${note}</small>` : null}</dd></div>`;

/** Says that a page could not be read. */
export const Failure = ({ error }) => (error ? html`<p class="trouble" role="alert">${error}</p>` : null);

/** Follows the token of this tab. */
export function useToken() {
  const [value, setValue] = useState(token());
  useEffect(() => {
    const changed = () => setValue(token());
    addEventListener("signalbox-token", changed);
    return () => removeEventListener("signalbox-token", changed);
  }, []);
  return value;
}

/** A button that changes something: there only with a token, done after a second press, shown as a command too. */
export function Action({ label, method, path, body, done, disabled }) {
  const allowed = useToken();
  const [asked, setAsked] = useState(false);
  const [result, setResult] = useState(null);
  if (!allowed) return null;
  const run = async () => {
    setAsked(false);
    try {
      const answer = await change(method, path, body);
      setResult({ ok: true, text: `${label}: done.` });
      done?.(answer);
    } catch (error) {
      setResult({ ok: false, text: error.message });
    }
  };
  return html`<span class="action">
    ${asked
      ? html`<button class="do" onClick=${run}>Confirm: ${label}</button> <button class="quiet" onClick=${() => setAsked(false)}>Cancel</button>
          <code class="command">${asCurl(method, path, body)}</code>`
      : html`<button disabled=${disabled} onClick=${() => { setResult(null); setAsked(true); }}>${label}</button>`}
    ${result ? html`<span class=${result.ok ? "done" : "trouble"} role="status">${result.text}</span>` : null}
  </span>`;
}

/** A box to filter rows by text. */
export const Search = ({ label, value, onInput }) =>
  html`<label class="search">${label} <input type="search" value=${value} onInput=${(event) => onInput(event.target.value)} /></label>`;
