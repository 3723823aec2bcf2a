/** Reads NPZ files: ZIP archives of NumPy arrays. */

/**
 * An array.
 * @typedef {{data: any, shape: number[]}} NumpyArray
 */

const END_OF_DIRECTORY = 0x06054b50;
const DEFLATED = 8;

/**
 * Read all arrays, and the entry `info`, which is JSON.
 * @param {ArrayBuffer} buffer
 * @returns {Promise<{arrays: Object<string, NumpyArray>, info: any}>}
 */
export async function readNpz(buffer) {
  /** @type {Object<string, NumpyArray>} */
  const arrays = {};
  let info = {};
  for (const { name, bytes } of await readZip(buffer)) {
    const array = readNpy(bytes);
    if (name === "info.npy") info = JSON.parse(array.data);
    else arrays[name.replace(/\.npy$/, "")] = array;
  }
  return { arrays, info };
}

/** @param {ArrayBuffer} buffer @returns {Promise<{name: string, bytes: ArrayBuffer}[]>} */
async function readZip(buffer) {
  const view = new DataView(buffer);
  let end = buffer.byteLength - 22;
  while (end >= 0 && view.getUint32(end, true) !== END_OF_DIRECTORY) end -= 1;
  if (end < 0) throw new Error("The answer is damaged.");
  const files = [];
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left -= 1) {
    const method = view.getUint16(at + 10, true);
    const size = view.getUint32(at + 20, true);
    const [nameSize, extraSize, commentSize] = [28, 30, 32].map((offset) => view.getUint16(at + offset, true));
    const local = view.getUint32(at + 42, true);
    const name = new TextDecoder().decode(new Uint8Array(buffer, at + 46, nameSize));
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const packed = buffer.slice(start, start + size);
    files.push({ name, bytes: method === DEFLATED ? await inflate(packed) : packed });
    at += 46 + nameSize + extraSize + commentSize;
  }
  return files;
}

/** @param {ArrayBuffer} packed @returns {Promise<ArrayBuffer>} */
function inflate(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).arrayBuffer();
}

/** @param {ArrayBuffer} buffer @returns {NumpyArray} */
function readNpy(buffer) {
  const view = new DataView(buffer);
  const long = view.getUint8(6) >= 2;
  const start = long ? 12 : 10;
  const length = long ? view.getUint32(8, true) : view.getUint16(8, true);
  const header = new TextDecoder().decode(new Uint8Array(buffer, start, length));
  const type = header.match(/'descr': '([^']*)'/)?.[1] ?? "";
  const shape = (header.match(/'shape': \(([^)]*)\)/)?.[1] ?? "").split(",").filter((part) => part.trim()).map(Number);
  return { data: readValues(buffer.slice(start + length), type), shape };
}

/** @param {ArrayBuffer} bytes @param {string} type  NumPy's name, such as "<f4" */
function readValues(bytes, type) {
  switch (type) {
    case "|u1":
    case "|b1":
      return new Uint8Array(bytes);
    case "<i4":
      return new Int32Array(bytes);
    case "<i8":
      return new BigInt64Array(bytes);
    case "<f4":
      return new Float32Array(bytes);
    case "<f2":
      return Float32Array.from(new Uint16Array(bytes), halfToNumber);
    default:
      if (type.startsWith("<U")) return readText(bytes);
      throw new Error(`Arrays of the type ${type} are not known.`);
  }
}

/** @param {ArrayBuffer} bytes  of UTF-32, padded with zeros @returns {string} */
function readText(bytes) {
  return Array.from(new Uint32Array(bytes), (code) => (code ? String.fromCodePoint(code) : "")).join("");
}

/** @param {number} bits  of an IEEE half-precision number @returns {number} */
function halfToNumber(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
