// Colors for canvases, which cannot use the names of console.css by themselves.

export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const series = () => [1, 2, 3, 4, 5, 6].map((number) => color(`series-${number}`));

// Calls `listener` when the system changes between light and dark; returns what ends that.
export function watchScheme(listener) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", listener);
  return () => dark.removeEventListener("change", listener);
}
