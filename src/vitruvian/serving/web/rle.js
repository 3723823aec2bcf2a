/** COCO run-length encoding of masks: runs column by column, background first. */

/**
 * Decode a mask.
 * @param {{size: [number, number], counts: string | number[]}} rle
 * @returns {Uint8Array}  1 inside, row by row
 */
export function decodeRle({ size: [height, width], counts }) {
  const mask = new Uint8Array(height * width);
  let at = 0;
  let inside = false;
  for (const count of typeof counts === "string" ? decompress(counts) : counts) {
    if (inside) {
      for (let i = at; i < at + count; i += 1) mask[(i % height) * width + Math.floor(i / height)] = 1;
    }
    at += count;
    inside = !inside;
  }
  return mask;
}

/**
 * Decode COCO's text: 5 bits a character, and each run from the third relative to the one before the last.
 * @param {string} text
 * @returns {number[]}
 */
function decompress(text) {
  const counts = [];
  let at = 0;
  while (at < text.length) {
    let value = 0;
    let shift = 0;
    let more = true;
    while (more) {
      const bits = text.charCodeAt(at) - 48;
      value |= (bits & 31) << shift;
      more = (bits & 32) !== 0;
      at += 1;
      shift += 5;
      if (!more && bits & 16) value |= -1 << shift;
    }
    if (counts.length > 2) value += counts[counts.length - 2];
    counts.push(value);
  }
  return counts;
}
