// The resize and crop of `vitrail predict`, in whole numbers for pixels of 8 bits: the same levels, pixel by pixel.

const SUPPORT = { bilinear: 1, bicubic: 2 }; // half of a kernel, in pixels of the smaller picture
const LARGEST = 1 << 15; // whole weights stay below it
const BITS = 22; // that a weight has behind its point, at most

// What the model reads of a picture {values, height, width, channels}; spec: as the metadata of the ONNX file has it.
export function fit(picture, spec) {
  if (picture.height === spec.height && picture.width === spec.width && spec.crop_fraction === 1) return picture;
  const resized = resize(picture, resizedSize(picture, spec), spec);
  return spec.fit === "pad" ? pad(resized, spec) : crop(resized, spec);
}

// Rows and columns of the picture's own pixels that the model sees.
export function visibleSize({ height, width }, spec) {
  const [tall, wide] = spec.resize_size;
  if (spec.fit === "squash") {
    if (Math.max(height, width) > spec.max_aspect * Math.min(height, width)) return [spec.height, spec.width];
    return [(height * spec.height) / tall, (width * spec.width) / wide];
  }
  const scale =
    spec.fit === "crop" ? Math.max(tall / height, wide / width) : Math.min(spec.height / height, spec.width / width);
  return [spec.height / scale, spec.width / scale];
}

// Whole numbers as Python and NumPy round: halves go to the even neighbour.
export function rint(value) {
  const below = Math.floor(value);
  const rest = value - below;
  if (rest !== 0.5) return rest < 0.5 ? below : below + 1;
  return below % 2 === 0 ? below : below + 1;
}

function resizedSize({ height, width }, spec) {
  const [tall, wide] = spec.resize_size;
  if (spec.fit === "squash") return [tall, wide];
  if (spec.fit === "crop") {
    const short = Math.min(height, width);
    if (tall === wide) return [Math.floor((tall * height) / short), Math.floor((wide * width) / short)];
    const scale = Math.max(tall / height, wide / width);
    return [Math.max(tall, rint(height * scale)), Math.max(wide, rint(width * scale))];
  }
  const scale = Math.min(spec.height / height, spec.width / width);
  const side = (old, most) => Math.min(most, Math.max(1, rint(old * scale)));
  return [side(height, spec.height), side(width, spec.width)];
}

function resize(picture, [height, width], spec) {
  if (picture.height === height && picture.width === width) return picture;
  const { interpolation, antialias } = spec;
  if (antialias && picture.values instanceof Uint8Array) {
    const columns = resizeAxis(picture, 1, width, quantized(interpolation), addWhole);
    return resizeAxis(columns, 0, height, quantized(interpolation), addWhole);
  }
  const taps = antialias ? (old, size) => coefficients(old, size, interpolation) : nearest(interpolation);
  const columns = resizeAxis(picture, 1, width, taps, addExact);
  const exact = resizeAxis(columns, 0, height, taps, addExact);
  const values = picture.values.constructor.from(exact.values, (value) => Math.min(spec.white, Math.max(0, rint(value))));
  return { ...exact, values };
}

// One axis of a picture anew. taps(old, size): {first, weights, count}; add: the sums of one line of outputs.
function resizeAxis(picture, axis, size, taps, add) {
  const old = axis === 0 ? picture.height : picture.width;
  if (old === size) return picture;
  const { values, height, width, channels } = picture;
  const table = taps(old, size);
  const after = axis === 0 ? { height: size, width } : { height, width: size };
  const step = axis === 0 ? width * channels : channels; // from one pixel along the axis to the next
  const lines = axis === 0 ? 1 : height; // along the axis
  const made = add(values, table, { old, size, step, lines });
  return { ...picture, ...after, values: made };
}

function addWhole(values, { first, weights, count, precision }, { old, size, step, lines }) {
  const made = new Uint8Array(lines * size * step);
  const half = 1 << (precision - 1);
  for (let line = 0; line < lines; line += 1) {
    for (let place = 0; place < size; place += 1) {
      for (let part = 0; part < step; part += 1) {
        let total = half;
        for (let tap = 0; tap < count; tap += 1) {
          const weight = weights[place * count + tap];
          if (weight !== 0) total += values[(line * old + Math.min(first[place] + tap, old - 1)) * step + part] * weight;
        }
        made[(line * size + place) * step + part] = Math.min(255, Math.max(0, total >> precision));
      }
    }
  }
  return made;
}

function addExact(values, { first, weights, count }, { old, size, step, lines }) {
  const made = new Float64Array(lines * size * step);
  for (let line = 0; line < lines; line += 1) {
    for (let place = 0; place < size; place += 1) {
      for (let part = 0; part < step; part += 1) {
        let total = 0;
        for (let tap = 0; tap < count; tap += 1) {
          const from = Math.min(Math.max(first[place] + tap, 0), old - 1);
          total += values[(line * old + from) * step + part] * weights[place * count + tap];
        }
        made[(line * size + place) * step + part] = total;
      }
    }
  }
  return made;
}

// For each new pixel the first old one that it covers, and the weights from there on, which sum to 1.
function coefficients(old, size, interpolation) {
  const scale = old / size;
  const wide = Math.max(scale, 1);
  const reach = SUPPORT[interpolation] * wide;
  const first = new Int32Array(size);
  const beyond = new Int32Array(size);
  for (let place = 0; place < size; place += 1) {
    const centre = scale * (place + 0.5);
    first[place] = Math.max(Math.trunc(centre - reach + 0.5), 0);
    beyond[place] = Math.min(Math.trunc(centre + reach + 0.5), old);
  }
  const count = first.reduce((most, begin, place) => Math.max(most, beyond[place] - begin), 0);
  const weights = new Float64Array(size * count);
  for (let place = 0; place < size; place += 1) {
    const centre = scale * (place + 0.5);
    let total = 0;
    for (let tap = 0; tap < beyond[place] - first[place]; tap += 1) {
      const weight = kernel(Math.abs((first[place] + tap - centre + 0.5) / wide), interpolation, -0.5);
      weights[place * count + tap] = weight;
      total += weight;
    }
    for (let tap = 0; tap < count; tap += 1) weights[place * count + tap] /= total;
  }
  return { first, weights, count };
}

// The same with weights in fixed point: as many bits behind the point as fit into 16 bits.
const quantized = (interpolation) => (old, size) => {
  const { first, weights, count } = coefficients(old, size, interpolation);
  const largest = weights.reduce((most, weight) => Math.max(most, weight), -Infinity);
  let precision = 0;
  while (precision < BITS && Math.trunc(0.5 + largest * 2 ** (precision + 1)) < LARGEST) precision += 1;
  const whole = Int32Array.from(weights, (weight) => {
    const scaled = weight * 2 ** precision;
    return Math.trunc(scaled + (scaled < 0 ? -0.5 : 0.5));
  });
  return { first, weights: whole, count, precision };
};

// Without antialiasing: the nearest pixels alone, and the edge repeated.
const nearest = (interpolation) => (old, size) => {
  const near = SUPPORT[interpolation];
  const count = 2 * near;
  const first = new Int32Array(size);
  const weights = new Float64Array(size * count);
  for (let place = 0; place < size; place += 1) {
    let at = (place + 0.5) * (old / size) - 0.5;
    if (interpolation === "bilinear") at = Math.max(at, 0);
    const below = Math.floor(at);
    first[place] = below + 1 - near;
    for (let tap = 0; tap < count; tap += 1) {
      weights[place * count + tap] = kernel(Math.abs(at - below - (tap + 1 - near)), interpolation, -0.75);
    }
  }
  return { first, weights, count };
};

// Bicubic: Keys 1981, with its free parameter a.
function kernel(distance, interpolation, a) {
  if (interpolation === "bilinear") return Math.max(1 - distance, 0);
  if (distance < 1) return ((a + 2) * distance - (a + 3)) * distance * distance + 1;
  return distance < 2 ? (((distance - 5) * distance + 8) * distance - 4) * a : 0;
}

function crop(picture, spec) {
  const half = spec.crop_start === "even" ? rint : Math.floor;
  const top = half((picture.height - spec.height) / 2);
  const left = half((picture.width - spec.width) / 2);
  const values = new picture.values.constructor(spec.height * spec.width * picture.channels);
  const row = spec.width * picture.channels;
  for (let y = 0; y < spec.height; y += 1) {
    const from = ((top + y) * picture.width + left) * picture.channels;
    values.set(picture.values.subarray(from, from + row), y * row);
  }
  return { ...picture, height: spec.height, width: spec.width, values };
}

function pad(picture, spec) {
  const top = Math.floor((spec.height - picture.height) / 2);
  const left = Math.floor((spec.width - picture.width) / 2);
  const values = new picture.values.constructor(spec.height * spec.width * picture.channels);
  const row = picture.width * picture.channels;
  for (let y = 0; y < picture.height; y += 1) {
    values.set(picture.values.subarray(y * row, (y + 1) * row), ((top + y) * spec.width + left) * picture.channels);
  }
  return { ...picture, height: spec.height, width: spec.width, values };
}
