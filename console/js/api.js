// Requests to the daemon that served this page.

import { key } from "./key.js";
import { ROOT } from "./root.js";

// What the daemon says when it refuses: its words, its word for programs, its details.
export class ApiError extends Error {
  constructor(status, body) {
    // The page pushes one event at a time: why it was rejected says more than that none was accepted.
    super(body.details?.rejected?.[0]?.detail ?? body.error ?? `the daemon responded with status ${status}`);
    Object.assign(this, { status, type: body.error_type ?? "", details: body.details ?? {} });
  }
}

function headers(more) {
  const sent = key.get();
  return sent ? { ...more, authorization: `Bearer ${sent}` } : { ...more };
}

// A response, once its header is there; an ApiError if it is none of success.
export async function open(path, { method = "GET", text, signal, more } = {}) {
  const kind = text === undefined ? {} : { "content-type": "application/json" };
  const request = { method, headers: headers({ ...kind, ...more }), body: text, signal, cache: "no-store" };
  let response;
  try {
    response = await fetch(new URL(path, ROOT), request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { error: "the daemon cannot be reached", error_type: "unreachable" });
  }
  if (response.ok) return response;
  throw new ApiError(response.status, await response.json().catch(() => ({})));
}

export const get = async (path, options) => (await open(path, options)).json();

export const send = async (method, path, body, options) =>
  (await open(path, { method, text: body === undefined ? "" : JSON.stringify(body), ...options })).json();

let known = null;
export const forgetInfo = () => (known = null);

// The settings of the daemon that matter to clients, asked for once, and again after a failure.
export const info = () =>
  (known ??= get("v1/info").catch((error) => {
    forgetInfo();
    throw error;
  }));

// So many items, or as many as the daemon takes in one request.
export const atMost = async (wanted) => Math.min(wanted, (await info()).limits.batch_items_max);

// A node key in a path. A number and its digits as text are one node, so all keys can be text.
export const inPath = (node) => encodeURIComponent(String(node));

// Where the page of a node is.
export const pageOf = (node) => `#/node/${inPath(node)}`;
