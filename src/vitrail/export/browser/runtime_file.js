// The engine of a page in one file, where the one for graphics processors would take three times the room.

import * as ort from "./ort.wasm.bundle.min.mjs";

export const openRuntime = async () => ort;
