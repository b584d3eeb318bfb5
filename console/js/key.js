// The key of the API, for as long as the tab is open: it is in sessionStorage and nowhere else, so it is neither
// shared with other tabs nor on disk after the browser is closed.

const NAME = "evergraph-key";
const listeners = new Set();

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
