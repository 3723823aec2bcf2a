/** Colors of classes, objects and depths, as RGB from 0 to 255. */

/** @typedef {[number, number, number]} Rgb */

/**
 * Return the color of an object; neighbouring numbers have hues far apart.
 * @param {number} number  from 0
 * @returns {Rgb}
 */
export function objectColor(number) {
  return hsl((210 + number * 137.508) % 360, 0.72, number % 2 ? 0.52 : 0.6);
}

/** @param {number} hue @param {number} saturation @param {number} lightness @returns {Rgb} */
function hsl(hue, saturation, lightness) {
  const spread = saturation * Math.min(lightness, 1 - lightness);
  const channel = (/** @type {number} */ offset) => {
    const k = (offset + hue / 30) % 12;
    return Math.round(255 * (lightness - spread * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [channel(0), channel(8), channel(4)];
}

const DEPTH_STOPS = [
  [253, 231, 37],
  [94, 201, 98],
  [33, 145, 140],
  [59, 82, 139],
  [68, 1, 84],
];

/**
 * Return the color of a depth.
 * @param {number} share  0 near, 1 far
 * @returns {Rgb}
 */
export function depthColor(share) {
  const at = Math.min(Math.max(share, 0), 1) * (DEPTH_STOPS.length - 1);
  const index = Math.min(Math.floor(at), DEPTH_STOPS.length - 2);
  const [low, high] = [DEPTH_STOPS[index], DEPTH_STOPS[index + 1]];
  return /** @type {Rgb} */ (low.map((value, i) => Math.round(value + (high[i] - value) * (at - index))));
}

/** @param {Rgb} rgb @param {number} alpha @returns {string} */
export function css([red, green, blue], alpha = 1) {
  return `rgb(${red} ${green} ${blue} / ${alpha})`;
}
