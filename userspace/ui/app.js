// The frame of all pages: navigation, theme, token, and the page that the address names.

import { setToken, unlock } from "./api.js";
import { live, staleSeconds, start, useLive } from "./live.js";
import { About } from "./pages/about.js";
import { Events } from "./pages/events.js";
import { Flows } from "./pages/flows.js";
import { Ha } from "./pages/ha.js";
import { Hosts } from "./pages/hosts.js";
import { Migrate } from "./pages/migrate.js";
import { Overview } from "./pages/overview.js";
import { Rotation } from "./pages/rotation.js";
import { Routes } from "./pages/routes.js";
import { Services } from "./pages/services.js";
import { Shield } from "./pages/shield.js";
import { Failure, useToken } from "./parts.js";
import { html, render, useEffect, useState } from "./vendor/preact-htm.js";

const PAGES = [
  ["overview", "Overview", Overview],
  ["hosts", "Hosts", Hosts],
  ["routes", "Routes", Routes],
  ["flows", "Flows", Flows],
  ["services", "Services", Services],
  ["shield", "Shield", Shield],
  ["ha", "HA", Ha],
  ["rotation", "Rotation", Rotation],
  ["migrate", "Migrate", Migrate],
  ["events", "Events", Events],
  ["about", "About", About],
];

const THEME_KEY = "signalbox.theme";

/** The page of the address; the first one for an unknown name. */
const named = () => PAGES.find(([name]) => `#${name}` === location.hash) ?? PAGES[0];

function useTheme() {
  const preferred = matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
  const [theme, setTheme] = useState(localStorage.getItem(THEME_KEY) ?? preferred);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event("signalbox-theme"));
  }, [theme]);
  const set = (next) => {
    localStorage.setItem(THEME_KEY, next);
    setTheme(next);
  };
  return [theme, () => set(theme === "dark" ? "light" : "dark")];
}

function Token() {
  const value = useToken();
  const [open, setOpen] = useState(false);
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(null);
  if (value) return html`<button class="quiet" onClick=${() => setToken("")} title="Forget the token of this tab">Changes allowed · lock</button>`;
  if (!open) return html`<button class="quiet" onClick=${() => setOpen(true)} title="Enter the token of admin.token_file">Unlock changes</button>`;
  const submit = async (event) => {
    event.preventDefault();
    try {
      await unlock(typed.trim());
      setOpen(false);
      setError(null);
    } catch (problem) {
      setError(problem.message);
    }
    setTyped("");
  };
  return html`<form onSubmit=${submit}><label>Token <input type="password" autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label> <button>Unlock</button><${Failure} error=${error} /></form>`;
}

/** Says that what the page shows is old. */
function Banner() {
  const { error } = useLive();
  const stale = staleSeconds();
  return html`<div aria-live="polite">${error || stale
    ? html`<p class="banner" role="status">${live.locked ? "This balancer shows itself only with its token: unlock it above. " : ""}${stale ? `Stale since ${stale} s. ` : ""}${error && !live.locked ? `The balancer does not answer: ${error}. Trying again.` : ""}</p>`
    : null}</div>`;
}

function App() {
  const [[name, title, Page], setPage] = useState(named());
  const [theme, switchTheme] = useTheme();
  const [paused, setPaused] = useState(false);
  useEffect(() => {
    const go = () => {
      setPage(named());
      // The bar of pages stays in view, with the chosen one.
      document.getElementById("main")?.focus({ preventScroll: true });
      scrollTo(0, 0);
    };
    addEventListener("hashchange", go);
    return () => removeEventListener("hashchange", go);
  }, []);
  useEffect(() => {
    document.title = `${title} · signalbox`;
  }, [title]);
  const pause = () => {
    live.paused = !paused;
    setPaused(!paused);
  };
  return html`
    <header class="top">
      <a class="brand" href="#overview"><img src="icon.svg" alt="" width="22" height="22" /> signalbox</a>
      <nav aria-label="Pages">${PAGES.map(([id, text]) => html`<a href=${`#${id}`} aria-current=${id === name ? "page" : null}>${text}</a>`)}</nav>
      <div class="tools">
        <${Token} />
        <button class="quiet" aria-pressed=${paused} onClick=${pause}>${paused ? "Go on" : "Pause"}</button>
        <button class="quiet" onClick=${switchTheme}>${theme === "dark" ? "Light" : "Dark"}</button>
      </div>
    </header>
    <${Banner} />
    <main id="main" tabindex="-1"><${Page} /></main>`;
}

start();
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
