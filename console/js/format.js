// Values for people: a number and its unit, apart, so that figures can stand below one another.

const LOCALE = "en-US";
const whole = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat(LOCALE, {
  notation: "compact",
  minimumFractionDigits: 1,
  maximumFractionDigits: 1,
});

export const NONE = "–";
const isThere = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const count = (value) => (isThere(value) ? whole.format(value) : NONE);
export const short = (value) =>
  isThere(value) ? (Math.abs(value) < 10_000 ? whole.format(value) : compact.format(value)) : NONE;
export const fixed = (value, digits) => (isThere(value) ? value.toFixed(digits) : NONE);
// Average precision and its like: differences in the third digit matter.
export const quality = (value) => fixed(value, 4);
export const signed = (value, digits) =>
  isThere(value) ? `${value >= 0 ? "+" : "−"}${Math.abs(value).toFixed(digits)}` : NONE;
export const percent = (share) => (isThere(share) ? `${(100 * share).toFixed(1)} %` : NONE);

export function bytes(value) {
  if (!isThere(value)) return [NONE, ""];
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const step = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), units.length - 1);
  const scaled = value / 1024 ** step;
  return [scaled.toFixed(step === 0 || scaled >= 100 ? 0 : 1), units[step]];
}

// Digits behind the point that a number has, if they are few.
function decimals(number, most) {
  let [digits, scaled] = [0, number];
  while (digits < most && Math.abs(scaled - Math.round(scaled)) > 1e-6 * scaled) {
    [digits, scaled] = [digits + 1, scaled * 10];
  }
  return digits;
}

// Values of an axis whose ticks are `step` apart, with the digits that tell one from the next.
export const tick = (value, step) => {
  const isShort = Math.abs(value) < 10_000;
  const unit = isShort ? 1 : 10 ** (3 * Math.floor(Math.log10(Math.abs(value)) / 3));
  const digits = decimals(step / unit, 6);
  const format = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat(LOCALE, isShort ? format : { notation: "compact", ...format }).format(value);
};

const SECOND_UNITS = [
  [1e-3, 1e-6, "µs"],
  [1, 1e-3, "ms"],
  [120, 1, "s"],
  [7200, 60, "min"],
  [172_800, 3600, "h"],
  [Infinity, 86_400, "days"],
];

export function tickSeconds(value, step) {
  if (value === 0) return "0 s";
  const [, unit, name] = SECOND_UNITS.find(([below]) => value < below);
  return `${(value / unit).toFixed(decimals(step / unit, 3))} ${name}`;
}

// A moment of the wall clock, with its date where the time of day could be that of another one.
export function moment(unixSeconds, withDate) {
  const date = new Date(unixSeconds * 1000);
  const time = date.toLocaleTimeString("en-GB");
  return withDate ? `${date.toLocaleDateString("en-CA")} ${time}` : time;
}

export function seconds(value) {
  if (!isThere(value)) return [NONE, ""];
  if (value === 0) return ["0", "s"];
  if (value < 1e-3) return [(value * 1e6).toFixed(0), "µs"];
  if (value < 1) return [(value * 1e3).toFixed(value < 0.01 ? 1 : 0), "ms"];
  if (value < 120) return [value.toFixed(1), "s"];
  if (value < 7200) return [(value / 60).toFixed(0), "min"];
  if (value < 172_800) return [(value / 3600).toFixed(1), "h"];
  return [(value / 86_400).toFixed(1), "days"];
}

export const joined = ([value, unit]) => (unit ? `${value} ${unit}` : value);

const PER_SECOND = { seconds: 1, milliseconds: 1e3, microseconds: 1e6, nanoseconds: 1e9 };

// A difference of event times: a duration where the settings state the unit, else a number.
export const span = (difference, unit) =>
  PER_SECOND[unit] ? joined(seconds(difference / PER_SECOND[unit])) : count(difference);

// An event time: a date where the unit is known and the date is one of our days, else the number itself.
export function eventTime(time, unit) {
  if (!isThere(time)) return NONE;
  const date = PER_SECOND[unit] ? new Date((time / PER_SECOND[unit]) * 1000) : null;
  const isDate = date && date.getUTCFullYear() >= 1990 && date.getUTCFullYear() < 2200;
  return isDate ? date.toISOString().replace("T", " ").slice(0, 19) : count(time);
}
