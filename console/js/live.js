// The stream of figures, for all pages of the console at once. It opens itself again when it breaks off, and rests
// while nobody looks: a browser opens few connections to a server, and tabs in the background should not hold them.

import { forgetInfo, open } from "./api.js";
import { History } from "./history.js";
import { key } from "./key.js";
import { Latest } from "./latest.js";

// Figures come every second. Without any for so long, what the page shows is out of date.
const STALE_MS = 3500;
// A connection that is silent for so long is given up: the other end may be gone without a word.
const SILENT_MS = 10_000;
const RETRY_MS = [500, 1000, 2000, 5000];
// No event is as long as that: what keeps growing is not our stream.
const EVENT_CHARS_MAX = 16 << 20;

// What another key can help against. All else that the daemon refuses has other reasons, which its words state.
const KEY_PROBLEMS = ["unauthenticated", "forbidden"];

const listeners = new Set();

// What the pages show. `condition` is `connecting`, `live`, `stale` or `refused`, which `problem` explains. `latest`
// has rates as of now, `history` the curves.
export const live = {
  condition: "connecting",
  figures: null,
  history: null,
  latest: new Latest(),
  problem: null,
  receivedAt: 0,
};

export function watch(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function change(changes) {
  Object.assign(live, changes);
  listeners.forEach((listener) => listener());
}

function receive(name, data) {
  if (name === "history") live.history = new History(data);
  if (name !== "status") return;
  const shown = live.figures?.status.version;
  // An upgrade of the daemon brings other files of this page.
  if (shown !== undefined && shown !== data.status.version) return location.reload();
  live.history?.add(data);
  live.latest.add(data);
  change({ condition: "live", figures: data, problem: null, receivedAt: performance.now() });
}

// Hands on each event of a stream; lines other than `event` and `data` are comments.
async function read(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    if (text.length > EVENT_CHARS_MAX) throw new Error("the stream of figures has an event without an end");
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const field = (name) =>
        event
          .split("\n")
          .find((line) => line.startsWith(`${name}: `))
          ?.slice(name.length + 2);
      if (field("data")) receive(field("event"), JSON.parse(field("data")));
    }
  }
}

let current = new AbortController();
let connection = { end: () => {}, begun: 0 };

// Ends the stream and the pause before the next one.
const restart = () => current.abort();

const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()));
  });

const visible = () =>
  document.visibilityState === "visible"
    ? Promise.resolve()
    : new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));

async function follow() {
  for (let failures = 0; ;) {
    await visible();
    current = new AbortController();
    const { signal } = current;
    const opened = new AbortController();
    const end = () => opened.abort();
    signal.addEventListener("abort", end);
    const begun = performance.now();
    connection = { end: () => opened.abort(new Error("the daemon sends nothing")), begun };
    // It may have been started anew, with other settings.
    forgetInfo();
    try {
      const response = await open("ui/live", { signal: opened.signal });
      await read(response.body);
      failures = 0;
    } catch (problem) {
      if (live.receivedAt > begun) failures = 0;
      if (!signal.aborted) {
        const refused = KEY_PROBLEMS.includes(problem.type);
        change({ condition: refused ? "refused" : live.figures ? "stale" : "connecting", problem });
        // Another key has to be given first.
        if (refused) await new Promise((resolve) => signal.addEventListener("abort", resolve));
        failures += 1;
      }
    } finally {
      // What is not read to its end would hold one of the few connections to a server.
      end();
    }
    if (!signal.aborted) await pause(RETRY_MS[Math.min(failures, RETRY_MS.length) - 1] ?? RETRY_MS[0], signal);
  }
}

export function start() {
  key.watch(restart);
  document.addEventListener("visibilitychange", () => document.visibilityState === "hidden" && restart());
  setInterval(() => {
    const isVisible = document.visibilityState === "visible";
    const silent = performance.now() - Math.max(live.receivedAt, connection.begun);
    if (isVisible && silent > SILENT_MS) connection.end();
    const isOld = performance.now() - live.receivedAt > STALE_MS;
    if (live.condition === "live" && isOld && isVisible) change({ condition: "stale" });
    // The age of what is shown is shown, too.
    else if (live.condition === "stale") change({});
  }, 1000);
  follow();
}
