// Where the parts of the page are: inside it, in blocks of text that are dropped once they are read.

export function openWorker() {
  const script = new Blob([readBlocks("worker.js")], { type: "text/javascript" });
  return new Worker(URL.createObjectURL(script)); // no module: Chromium starts none from a page on the disk
}

export const readPart = async (name) => readBlocks(name).buffer;

export const findGraphics = async () => ({ why: "a page in one file has no engine for it, a folder has" });

export const prepare = async () => {};

function readBlocks(name) {
  const blocks = [...document.querySelectorAll(`script[data-part="${name}"]`)];
  const bytes = new Uint8Array(Number(blocks[0].dataset.size));
  let place = 0;
  for (const block of blocks) {
    const text = atob(block.textContent);
    for (let at = 0; at < text.length; at += 1) bytes[place + at] = text.charCodeAt(at);
    place += text.length;
    block.remove();
  }
  return bytes;
}
