// Sizes and counts as kvplan prints them (kvplan/units.py).

const BINARY = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
const DECIMAL = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];

// Python rounds a tie to the even digit.
const grouped = (value, digits = 0) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits, roundingMode: "halfEven" });

// Four significant digits.
function decimal(value) {
  for (const [places, bound] of [[3, 9.9995], [2, 99.995], [1, 999.95]]) if (value < bound) return grouped(value, places);
  return grouped(value);
}

function scaled(count, units) {
  for (const [size, unit] of units) if (count >= size) return `${decimal(count / size)} ${unit}`;
  return `${count} B`;
}

export const tokens = (count) => grouped(count);
export const gib = (count) => scaled(count, BINARY);
export const gb = (count) => scaled(count, DECIMAL);
export const both = (count) => (count < 1024 ? gib(count) : `${gib(count)} (${gb(count)})`);

export function shortTokens(count) {
  for (const [size, letter] of [[2 ** 20, "M"], [2 ** 10, "k"]]) {
    if (count >= size && count % size === 0) return `${count / size}${letter}`;
  }
  return grouped(count);
}

export function factor(after, before) {
  if (!before || after === before) return "=";
  const ratio = after / before;
  const short = Number(ratio.toPrecision(3));
  return `x${short === 1 ? Number(ratio.toPrecision(5)) : short}`;
}
