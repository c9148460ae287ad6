// What stands before the pixels of a JPEG file. Browsers know no orientation by XMP, and read colours of four inks each
// in its own way; so the file is turned upright here, and the browser gets it without what says how it lies.

import { orientationOf, orientationOfXmp } from "./orientation.js";
import { Refusal } from "./refusal.js";

const XMP = "http://ns.adobe.com/xap/1.0/\0";
const [SOF, APP1, ADOBE, SCAN] = [0xc0, 0xe1, 0xee, 0xda];
const NO_FRAME = [0xc4, 0xc8, 0xcc]; // tables among the markers of frames

const begins = (block, letters) => new TextDecoder("latin1").decode(block.subarray(0, letters.length)) === letters;

// Its orientation, and its parts without the blocks that say it.
export function readJpeg(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const [exif, packets, parts] = [[], [], [bytes.subarray(0, 2)]];
  let [place, inks, adobe] = [2, 0, false];
  while (place + 4 <= bytes.length && bytes[place] === 0xff && bytes[place + 1] !== SCAN) {
    const marker = bytes[place + 1];
    const end = marker === 0xff ? place + 1 : place + 2 + view.getUint16(place + 2); // 0xff fills up
    const block = bytes.subarray(place + 4, end);
    if (marker === APP1 && begins(block, "Exif\0\0")) exif.push(block);
    else if (marker === APP1 && begins(block, XMP)) packets.push(block);
    else parts.push(bytes.subarray(place, end));
    if (marker === ADOBE && begins(block, "Adobe")) adobe = true;
    if (marker >= SOF && marker < SOF + 16 && !NO_FRAME.includes(marker)) inks = block[5];
    place = end;
  }
  if (inks === 4 && !adobe) throw new Refusal("a JPEG file in CMYK that does not say which way; save it as PNG.", 415);
  const said = [...exif.map(orientationOf), ...packets.map(orientationOfXmp)];
  return { parts: [...parts, bytes.subarray(place)], orientation: said.find((one) => one) ?? 1 };
}
