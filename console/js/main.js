// The frame around every page: which page is shown, whether what it shows is current, and the key.

import { Events } from "./events.js";
import { count, joined, percent, seconds } from "./format.js";
import { html, render, useEffect, useRef, useState } from "./html.js";
import { isKey, key } from "./key.js";
import { live, start, watch } from "./live.js";
import { MapPage } from "./map.js";
import { Node } from "./node.js";
import { Operations } from "./operations.js";
import { Overview } from "./overview.js";
import { Notice, Problem, sentence } from "./parts.js";

const PAGES = [
  ["", "Overview", Overview],
  ["node", "Node", Node],
  ["map", "Map", MapPage],
  ["events", "Events", Events],
  ["operations", "Operations", Operations],
];

// The part of the address behind `#/`, word by word.
function words() {
  return location.hash.replace(/^#\/?/, "").split("/").map(decode);
}

function decode(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

function useWords() {
  const [route, setRoute] = useState(words);
  useEffect(() => {
    const moved = () => setRoute(words());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return route;
}

// Renders with the figures as they are at the next frame, however many came since the last one.
function useLive() {
  const [, setTurn] = useState(0);
  useEffect(() => {
    let frame = 0;
    const later = () => {
      frame ||= requestAnimationFrame(() => ((frame = 0), setTurn((turn) => turn + 1)));
    };
    const end = watch(later);
    return () => (end(), cancelAnimationFrame(frame));
  }, []);
  return live;
}

// The state of the daemon in a word, with the color of its dot, why, and for how long.
function state({ condition, figures, problem, receivedAt }) {
  if (condition === "refused") return ["bad", "Key needed", ""];
  if (condition === "connecting") {
    return problem ? ["bad", "Not connected", sentence(problem.message)] : ["", "Connecting …", ""];
  }
  if (condition === "stale") {
    const age = joined(seconds((performance.now() - receivedAt) / 1000));
    return ["bad", "Stale", sentence(problem?.message ?? "the daemon sends nothing"), `no figures for ${age}`];
  }
  const daemon = figures.health.checks.daemon;
  if (figures.restoring) return ["warn", "Restoring", restored(figures.restoring)];
  if (daemon && daemon.state !== "ok") return ["warn", `The daemon is ${daemon.detail}`, ""];
  if (figures.health.status === "failed") return ["bad", "Live, failing", ""];
  if (figures.health.status !== "ok") return ["warn", "Live, degraded", ""];
  return ["good", "Live", ""];
}

function restored({ position, end_position: end }) {
  if (end <= 0) return "The daemon opens its data.";
  const share = percent(Math.min(1, position / end));
  return `The daemon reads its log: ${count(position)} of ${count(end)} events, ${share}.`;
}

// What changes every second is not announced.
const Pulse = ({ shown: [kind, word, , since] }) => html`
  <div class="pulse" id="pulse">
    <span class="dot ${kind}" aria-hidden="true"></span><span role="status">${word}</span>
    ${since && html`<span>${since}</span>`}
  </div>
`;

function KeyForm({ problem }) {
  const input = useRef(null);
  const [error, setError] = useState(null);
  const submit = (event) => {
    event.preventDefault();
    const text = input.current.value.trim();
    if (!isKey(text)) return setError(new Error("a key consists of printable ASCII characters without spaces"));
    setError(null);
    key.set(text);
  };
  return html`
    <section class="panel" aria-label="Key">
      <header><h1>This daemon asks for a key</h1></header>
      <form class="line" onSubmit=${submit}>
        <label class="field">API key<input type="password" autocomplete="off" required ref=${input} /></label>
        <button>Open</button>
      </form>
      <p class="empty">
        A key from the daemon's <code>api.keys_file</code>. With the role <code>read</code> it shows everything; with
        ${" "}the role <code>admin</code> it also pushes events and operates. It stays in this tab until the tab is
        ${" "}closed.
      </p>
      <${Problem} error=${error ?? (key.get() ? problem : null)} />
    </section>
  `;
}

// What is degraded or has failed, and why: the words of the health checks.
function Checks({ figures }) {
  if (!figures || figures.restoring) return null;
  const wrong = Object.entries(figures.health.checks).filter(([, check]) => check.state !== "ok");
  const item = ([name, { state, detail }]) => html`<li><b>${name}</b>, ${state}: ${detail}</li>`;
  const kind = figures.health.status === "failed" ? "bad" : "";
  return wrong.length > 0 && html`<${Notice} kind=${kind}><ul>${wrong.map(item)}</ul><//>`;
}

function Frame() {
  const route = useWords();
  const shown = useLive();
  const main = useRef(null);
  const [path, name, Page] = PAGES.find(([page]) => page === route[0]) ?? PAGES[0];
  useEffect(() => {
    document.title = `${name} · Evergraph`;
  }, [name]);
  const about = state(shown);
  const { figures, condition, problem } = shown;
  const skip = (event) => (event.preventDefault(), main.current.focus());
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <header class="head">
      <div class="head-inner">
        <div class="head-top">
          <span class="brand"><img src="icon.svg" alt="" />Evergraph</span>
          <span class="quiet small">${figures && `${figures.status.version} · ${figures.status.learner.model}`}</span>
          <${Pulse} shown=${about} />
          ${
            key.get() &&
            condition !== "refused" &&
            html`<button class="plain small" onClick=${() => key.set("")}>Forget the key</button>`
          }
        </div>
        <nav aria-label="Pages">
          <ul>
            ${PAGES.map(
              ([page, title]) =>
                html`<li><a href="#/${page}" aria-current=${page === path ? "page" : undefined}>${title}</a></li>`,
            )}
          </ul>
        </nav>
      </div>
    </header>
    <main id="main" tabindex="-1" ref=${main}>
      ${about[2] && condition !== "live" && html`<${Notice} kind=${about[0] === "bad" ? "bad" : ""}>${about[2]}<//>`}
      ${condition === "live" && figures.restoring && html`<${Notice}>${about[2]}<//>`}
      ${condition === "refused" ? html`<${KeyForm} problem=${problem} />` : html`<${Checks} figures=${figures} />`}
      ${condition !== "refused" && html`<${Page} live=${shown} route=${route} />`}
    </main>
    <footer><a href="../docs/">API reference</a></footer>
  `;
}

start();
render(html`<${Frame} />`, document.getElementById("console"));
