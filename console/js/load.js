// Data of a page that comes on request: what was loaded, or why it could not be.

import { useEffect, useState } from "./html.js";

// Loads anew whenever one of `reasons` changes. A response that is not wanted any more is not waited for. What was
// loaded stays beside a later error, unless that says that it is gone.
export function useLoaded(load, reasons) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  useEffect(() => {
    const wanted = new AbortController();
    setState((before) => ({ ...before, loading: true }));
    load(wanted.signal).then(
      (data) => wanted.signal.aborted || setState({ data, error: null, loading: false }),
      (error) =>
        wanted.signal.aborted ||
        setState(({ data }) => ({ data: error.status === 404 ? null : data, error, loading: false })),
    );
    return () => wanted.abort();
  }, reasons);
  return state;
}

// A number that grows every so many milliseconds, or not as long as that is null: a reason to load again.
export function useTurns(every) {
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (every === null) return undefined;
    const timer = setInterval(() => document.visibilityState === "visible" && setTurn((number) => number + 1), every);
    return () => clearInterval(timer);
  }, [every]);
  return turn;
}
