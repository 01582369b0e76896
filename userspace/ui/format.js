// Numbers as text.

const UNITS = ["", "k", "M", "G", "T"];

/** A number with three digits and a unit of powers of 1000. */
export function short(value) {
  let unit = 0;
  let rest = Math.abs(value);
  while (rest >= 1000 && unit < UNITS.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  const digits = unit === 0 && Number.isInteger(rest) ? 0 : rest < 10 ? 2 : rest < 100 ? 1 : 0;
  return `${value < 0 ? "-" : ""}${rest.toFixed(digits)}${unit ? ` ${UNITS[unit]}` : ""}`;
}

/** The same with a unit, after a space where there is no prefix either. */
const withUnit = (value, unit) => (Math.abs(value) < 1000 ? `${short(value)} ${unit}` : `${short(value)}${unit}`);

export const bits = (bytesPerSecond) => withUnit(bytesPerSecond * 8, "bit/s");
export const bytes = (count) => withUnit(count, "B");
export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");

export function seconds(value) {
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${Math.round(value / 86400)} d`;
}

const two = (number) => String(number).padStart(2, "0");

/** Time of day, date, and both, as ISO 8601 writes them, by the reader's own clock. */
export function clock(unixMs) {
  const at = new Date(unixMs);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
}
export function date(unixMs) {
  const at = new Date(unixMs);
  return [at.getFullYear(), at.getMonth() + 1, at.getDate()].map(two).join("-");
}
export const dateTime = (unixMs) => `${date(unixMs)} ${clock(unixMs)}`;

/** Differences per second of a cumulative counter; `null` where there is no sample or the counter has begun anew. */
export function rates(at, values) {
  return values.map((value, i) => {
    const before = values[i - 1];
    if (value == null || before == null || value < before) return null;
    return ((value - before) * 1000) / Math.max(1, at[i] - at[i - 1]);
  });
}
