// The key of the API, for as long as the tab is open: it is in sessionStorage and nowhere else. A copy of the tab has
// it, too, and a browser that restores its tabs may write it to disk. Its name has the path of the daemon: several may
// stand behind one proxy, and none is sent the key of another.

import { ROOT } from "./root.js";

const NAME = `evergraph-key:${ROOT.pathname}`;
const listeners = new Set();

// What a key is made of; other text could not even be sent.
export const isKey = (text) => /^[\x21-\x7e]+$/.test(text);

export const key = {
  get: () => sessionStorage.getItem(NAME) ?? "",
  set(value) {
    if (value) sessionStorage.setItem(NAME, value);
    else sessionStorage.removeItem(NAME);
    listeners.forEach((listener) => listener());
  },
  // Calls `listener` at each change; returns what ends that.
  watch(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};
