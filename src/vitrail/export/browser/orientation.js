// Which way up a picture is, by its EXIF block or XMP packet, and turning it upright.

const ORIENTATION = 0x0112;
const WIDTHS = { 1: "getUint8", 3: "getUint16", 4: "getUint32" };

// 1 to 8; 0 where the block says nothing, or nothing that can be read.
export function orientationOf(block) {
  const start = new TextDecoder("latin1").decode(block.subarray(0, 6)) === "Exif\0\0" ? 6 : 0;
  const tiff = new DataView(block.buffer, block.byteOffset + start, block.length - start);
  try {
    const order = tiff.getUint32(0);
    if (order !== 0x49492a00 && order !== 0x4d4d002a) return 0;
    const little = order === 0x49492a00;
    const first = tiff.getUint32(4, little);
    const count = tiff.getUint16(first, little);
    for (let place = first + 2; place < first + 2 + 12 * count; place += 12) {
      if (tiff.getUint16(place, little) !== ORIENTATION) continue;
      const value = tiff[WIDTHS[tiff.getUint16(place + 2, little)]](place + 8, little);
      return value >= 1 && value <= 8 ? value : 0;
    }
  } catch {
    return 0; // beyond its end, or of no type that an orientation has
  }
  return 0;
}

export function orientationOfXmp(packet) {
  const text = new TextDecoder("latin1").decode(packet).replaceAll("\0", ""); // UTF-16 as well
  const found = /tiff:Orientation\s*(?:=\s*["']|>)\s*([1-8])\s*["'<]/.exec(text);
  return found ? Number(found[1]) : 0;
}

export function turn(stored, orientation) {
  if (orientation === 1) return stored;
  const { height, width, channels } = stored;
  const sideways = orientation >= 5;
  const [tall, wide] = sideways ? [width, height] : [height, width];
  const mirrored = { columns: [2, 3, 6, 7].includes(orientation), rows: [3, 4, 7, 8].includes(orientation) };
  const turned = (values, parts) => {
    const made = new values.constructor(values.length);
    for (let row = 0; row < tall; row += 1) {
      for (let column = 0; column < wide; column += 1) {
        const y = mirrored.rows ? tall - 1 - row : row;
        const x = mirrored.columns ? wide - 1 - column : column;
        const from = (sideways ? x * width + y : y * width + x) * parts;
        for (let part = 0; part < parts; part += 1) made[(row * wide + column) * parts + part] = values[from + part];
      }
    }
    return made;
  };
  const alpha = stored.alpha && turned(stored.alpha, 1);
  return { ...stored, height: tall, width: wide, values: turned(stored.values, channels), alpha };
}
