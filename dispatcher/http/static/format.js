// Numbers and times as people read them.

const COUNT = new Intl.NumberFormat("en");
const NONE = "–";

export function count(value) {
  return value === null || value === undefined ? NONE : COUNT.format(value);
}

export function percent(share) {
  return share === null || share === undefined ? NONE : `${(share * 100).toFixed(1)} %`;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return NONE;
  return `${perSecond < 10 ? perSecond.toFixed(1) : COUNT.format(Math.round(perSecond))}/s`;
}

/** A time that something takes, with its fractions. */
export function latency(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (ms < 10) return `${ms.toFixed(2)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** A time that passes. */
export function span(ms) {
  if (ms === null || ms === undefined) return NONE;
  const s = ms / 1000;
  if (s < 1) return `${Math.round(ms)} ms`;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

export function orNone(value) {
  return value === null || value === undefined || value === "" ? NONE : value;
}
