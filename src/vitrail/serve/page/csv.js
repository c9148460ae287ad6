// The table as a file: the columns, the digits and the guarded cells that `vitrail predict --to x.csv` writes.

const RISKY = /^[=+\-@\t\r']/; // a spreadsheet would not take it as plain text

export const CSV = { type: "text/csv;charset=utf-8" };

export function csvOf(rows) {
  if (!rows.length) return "";
  const columns = Object.keys(rows[0]);
  const lines = [columns.map(quoted), ...rows.map((row) => columns.map((column) => cell(row[column])))];
  return lines.map((line) => `${line.join(",")}\n`).join("");
}

function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return digits(value);
  if (Array.isArray(value)) return quoted(guarded(value.map(escaped).join("|") || "(none)"));
  return quoted(guarded(String(value)));
}

const guarded = (text) => (RISKY.test(text) ? `'${text}` : text);

const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function escaped(name) {
  const safe = name.replace(/[\\|=]/g, "\\$&");
  return /^[?(]/.test(safe) ? `\\${safe}` : safe;
}

// Nine digits, which give every float32 back, as Python's format ".9g" writes them: halves go to the even neighbour.
export function digits(value) {
  if (value === 0) return "0";
  const half = /^(-?\d\.\d{7}[02468])50*(e.+)$/.exec(value.toExponential(40));
  if (half) return digits(Number(half[1] + half[2]));
  const [mantissa, exponent] = value.toExponential(8).split("e");
  const power = Number(exponent);
  const shorter = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (power >= -4 && power < 9) return shorter(value.toFixed(8 - power));
  return `${shorter(mantissa)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

export function download(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
