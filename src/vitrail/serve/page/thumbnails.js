// Small pictures for the page, made in the browser one after the other so that large ones do not fill its memory.

const LONGEST = 480;
const SHORTEST = 96; // below it every pixel becomes a square of pixels, so that nothing is blurred
let last = Promise.resolve();

// Gives an address that <img> shows, or null for a kind of file that browsers cannot read (TIFF, DICOM).
export function thumbnail(file) {
  const made = last.then(() => make(file)).catch(() => null);
  last = made;
  return made;
}

export function forget(picture) {
  if (picture.thumb?.startsWith("blob:")) URL.revokeObjectURL(picture.thumb);
}

async function make(file) {
  const whole = await createImageBitmap(file); // upright: browsers apply EXIF orientation here
  const longest = Math.max(whole.width, whole.height);
  const scale = longest < SHORTEST ? Math.ceil(SHORTEST / longest) : Math.min(1, LONGEST / longest);
  const sheet = document.createElement("canvas");
  sheet.width = Math.max(1, Math.round(whole.width * scale));
  sheet.height = Math.max(1, Math.round(whole.height * scale));
  const pen = sheet.getContext("2d");
  pen.imageSmoothingEnabled = scale < 1;
  pen.imageSmoothingQuality = "high";
  pen.drawImage(whole, 0, 0, sheet.width, sheet.height);
  whole.close();
  const blob = await new Promise((done) => sheet.toBlob(done, "image/png"));
  return URL.createObjectURL(blob);
}
