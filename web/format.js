// Formatting of numbers, sizes and times, each with its unit. Used by every module that shows a value; the elements are
// created in `dom.js`.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const hundredths = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
export const UNKNOWN = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return known(value) ? whole.format(value) : UNKNOWN;
}

/** Number with its noun: 1 message, 2 messages. */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function rate(value) {
  if (!known(value)) return UNKNOWN;
  return `${(value < 10 ? tenths : whole).format(value)}/s`;
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  let power = 0;
  let rest = value;
  while (Math.abs(rest) >= 1024 && power < SIZES.length - 1) {
    rest /= 1024;
    power += 1;
  }
  return `${(power === 0 || rest >= 100 ? whole : tenths).format(rest)} ${SIZES[power]}`;
}

export function percent(share) {
  if (!known(share)) return UNKNOWN;
  return `${(share > 0 && share < 0.1 ? tenths : whole).format(share * 100)} %`;
}

export function milliseconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value >= 1000) return `${tenths.format(value / 1000)} s`;
  return `${(value < 10 ? hundredths : value < 100 ? tenths : whole).format(value)} ms`;
}

export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value > 0 && value < 1) return "< 1 s";
  const total = Math.max(0, Math.floor(value));
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${Math.floor(total / 60)} min ${total % 60} s`;
  if (total < 86400) return `${Math.floor(total / 3600)} h ${Math.floor((total % 3600) / 60)} min`;
  return `${whole.format(Math.floor(total / 86400))} d ${Math.floor((total % 86400) / 3600)} h`;
}

/** Duration of `value` milliseconds, in units from milliseconds to hours. */
export function duration(value) {
  return known(value) && value >= 60_000 ? seconds(value / 1000) : milliseconds(value);
}

const two = (value) => String(value).padStart(2, "0");

function day(date, utc) {
  return utc
    ? `${date.getUTCFullYear()}-${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())}`
    : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

export function clock(date, utc) {
  return utc
    ? `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())}`
    : `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** Time of day, with the date unless it is today. */
export function moment(wallSeconds, utc, now = new Date()) {
  if (!known(wallSeconds)) return UNKNOWN;
  const date = new Date(wallSeconds * 1000);
  if (Number.isNaN(date.getTime())) return UNKNOWN;
  const time = clock(date, utc) + (utc ? " UTC" : "");
  return day(date, utc) === day(now, utc) ? time : `${day(date, utc)} ${time}`;
}

/** Local time and UTC with the date, for tooltips and screen readers. */
export function bothTimes(wallSeconds) {
  if (!known(wallSeconds)) return "";
  const date = new Date(wallSeconds * 1000);
  if (Number.isNaN(date.getTime())) return "";
  return `${day(date, false)} ${clock(date, false)} local, ${day(date, true)} ${clock(date, true)} UTC`;
}
