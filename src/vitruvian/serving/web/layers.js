/**
 * Results as layers over an image: each draws itself in pixels of the image, and tells what is at a pixel.
 *
 * @typedef {import("./colors.js").Rgb} Rgb
 * @typedef {{name: string, detail: string, color?: Rgb}} Hover
 * @typedef {{id: number, name: string, detail: string, color?: Rgb, on: boolean}} Item  a switch in a list
 * @typedef {Item & {color: Rgb}} ColoredItem
 * @typedef {Object} Layer
 * @property {(context: CanvasRenderingContext2D, scale: number) => void} draw  `scale`: screen pixels in an image pixel
 * @property {(x: number, y: number) => Hover | null} hover
 * @property {Item[]} [items]
 * @property {() => void} [refresh]  after items were switched
 * @property {boolean} [isEmpty]  whether nothing was found that it could show
 */

import { css, depthColor, objectColor } from "./colors.js";
import { readable } from "./dom.js";
import { decodeRle } from "./rle.js";

const HOVER_PIXELS = 12; // on the screen, around keypoints
const PERSON_ALPHA = 127; // more is a person
const MIN_SHARE = 1 / 5000; // of the pixels: with fewer, a result shows nothing

/** @param {number} score @returns {string} */
function scoreText(score) {
  return `score ${score.toFixed(2)}`;
}

/** @param {number} width @param {number} height */
function makeCanvas(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
}

/** Return whether enough pixels to be seen have more than some alpha. @param {ImageData} pixels @param {number} alpha */
function hasAlpha({ data }, alpha) {
  let count = 0;
  for (let i = 3; i < data.length; i += 4) if (data[i] > alpha) count += 1;
  return count > MIN_SHARE * (data.length / 4);
}

/** An image as large as the photo. @implements {Layer} */
export class ImageLayer {
  /**
   * @param {CanvasImageSource} image
   * @param {number} width
   * @param {number} height
   */
  constructor(image, width, height) {
    this.image = image;
    this.width = width;
    this.height = height;
  }

  /** @param {CanvasRenderingContext2D} context */
  draw(context) {
    context.drawImage(this.image, 0, 0, this.width, this.height);
  }

  /** @type {Layer["hover"]} */
  hover(_x, _y) {
    return null;
  }
}

/** A drawing whose unknown pixels, exactly mid-gray, are transparent: normals and albedo. */
export class ColorLayer extends ImageLayer {
  /**
   * @param {ImageBitmap} bitmap
   * @param {(rgb: Rgb) => Hover} describe
   */
  constructor(bitmap, describe) {
    const canvas = makeCanvas(bitmap.width, bitmap.height);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
    context.drawImage(bitmap, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
    const { data } = pixels;
    for (let i = 0; i < data.length; i += 4) {
      if (data[i] === 128 && data[i + 1] === 128 && data[i + 2] === 128) data[i + 3] = 0;
    }
    context.putImageData(pixels, 0, 0);
    super(canvas, bitmap.width, bitmap.height);
    this.pixels = pixels;
    this.isEmpty = !hasAlpha(pixels, 0);
    this.describe = describe;
  }

  /** @param {number} x @param {number} y @returns {Hover | null} */
  hover(x, y) {
    const at = 4 * (y * this.width + x);
    const [red, green, blue, alpha] = this.pixels.data.subarray(at, at + 4);
    return alpha ? this.describe([red, green, blue]) : null;
  }
}

/** @param {Rgb} rgb @returns {Hover} */
export function describeNormal(rgb) {
  const [x, y, z] = rgb.map((value) => ((value - 127.5) / 127.5).toFixed(2));
  return { name: "Normal", detail: `right ${x}, up ${y}, front ${z}`, color: rgb };
}

/** @param {Rgb} rgb @returns {Hover} */
export function describeColor(rgb) {
  return { name: "Albedo", detail: `RGB ${rgb.join(", ")}`, color: rgb };
}

/** A class or segment for each pixel: parts, classes, panoptic segments. @implements {Layer} */
export class LabelLayer {
  /**
   * @param {ArrayLike<number>} labels  [height × width]
   * @param {number} width
   * @param {number} height
   * @param {ColoredItem[]} items  labels that are none of them are transparent
   * @param {Float32Array | null} scores  of each pixel
   */
  constructor(labels, width, height, items, scores = null) {
    this.labels = labels;
    this.width = width;
    this.height = height;
    this.items = items;
    this.scores = scores;
    this.isEmpty = !items.length;
    this.byId = new Map(items.map((item) => [item.id, item]));
    this.canvas = makeCanvas(width, height);
    this.refresh();
  }

  /** Draw what is switched on, with darker outlines. */
  refresh() {
    const { labels, width, height } = this;
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    const pixels = context.createImageData(width, height);
    for (let y = 0, i = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1, i += 1) {
        const item = this.byId.get(labels[i]);
        if (!item?.on) continue;
        const edge = (x + 1 < width && labels[i + 1] !== labels[i]) || (y + 1 < height && labels[i + width] !== labels[i]);
        const share = edge ? 0.6 : 1;
        pixels.data[4 * i] = item.color[0] * share;
        pixels.data[4 * i + 1] = item.color[1] * share;
        pixels.data[4 * i + 2] = item.color[2] * share;
        pixels.data[4 * i + 3] = 255;
      }
    }
    context.putImageData(pixels, 0, 0);
  }

  /** @param {CanvasRenderingContext2D} context */
  draw(context) {
    context.drawImage(this.canvas, 0, 0);
  }

  /** @param {number} x @param {number} y @returns {Hover | null} */
  hover(x, y) {
    const at = y * this.width + x;
    const item = this.byId.get(this.labels[at]);
    if (!item?.on) return null;
    const detail = this.scores ? scoreText(this.scores[at]) : item.detail;
    return { name: item.name, detail, color: item.color };
  }
}

/** Masks that may overlap: objects of SAM 2, instances. @implements {Layer} */
export class MaskLayer {
  /**
   * @param {any[]} objects  of the server
   * @param {number} width
   * @param {number} height
   * @param {number[]} numbers  of the objects, for their names and colors
   */
  constructor(objects, width, height, numbers = objects.map((_, index) => index + 1)) {
    this.width = width;
    this.height = height;
    this.masks = objects.map((object) => decodeRle(object.rle));
    this.areas = objects.map((object) => object.area);
    this.order = objects.map((_, index) => index).sort((a, b) => this.areas[b] - this.areas[a]); // large ones below
    /** @type {ColoredItem[]} */
    this.items = objects.map((object, index) => ({
      id: index,
      name: object.label ? readable(object.label) : `Object ${numbers[index]}`,
      detail: scoreText(object.score),
      color: objectColor(numbers[index] - 1),
      on: true,
    }));
    this.canvas = makeCanvas(width, height);
    this.refresh();
  }

  /** Draw what is switched on. */
  refresh() {
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    const pixels = context.createImageData(this.width, this.height);
    for (const index of this.order) {
      if (this.items[index].on) paintMask(pixels, this.masks[index], this.items[index].color);
    }
    context.putImageData(pixels, 0, 0);
  }

  /** @param {CanvasRenderingContext2D} context */
  draw(context) {
    context.drawImage(this.canvas, 0, 0);
  }

  /** @param {number} x @param {number} y @returns {Hover | null} */
  hover(x, y) {
    const at = y * this.width + x;
    const index = this.order.findLast((one) => this.items[one].on && this.masks[one][at]);
    return index === undefined ? null : this.items[index];
  }
}

/** @param {ImageData} pixels @param {Uint8Array} mask @param {Rgb} color */
function paintMask({ data, width, height }, mask, [red, green, blue]) {
  for (let i = 0; i < mask.length; i += 1) {
    if (!mask[i]) continue;
    const x = i % width;
    const edge =
      x === 0 || x === width - 1 || i < width || i >= width * (height - 1) ||
      !(mask[i - 1] && mask[i + 1] && mask[i - width] && mask[i + width]);
    data[4 * i] = red;
    data[4 * i + 1] = green;
    data[4 * i + 2] = blue;
    data[4 * i + 3] = edge ? 255 : 190;
  }
}

/** Skeletons and keypoints. @implements {Layer} */
export class PoseLayer {
  /**
   * @param {any} result  of the server
   * @param {{bones: {name: string, start: number, end: number}[]}} layout
   */
  constructor(result, layout) {
    this.names = result.names;
    this.poses = result.poses;
    this.bones = layout?.bones ?? [];
    this.threshold = 0.3;
    this.scale = 1;
    this.isEmpty = !result.poses.length;
    /** @type {Item[]} */
    this.items = result.poses.map((/** @type {any} */ _, /** @type {number} */ index) => ({
      id: index,
      name: `Person ${index + 1}`,
      detail: result.people ? `score ${result.people.scores[index].toFixed(2)}` : "",
      on: true,
    }));
    this.pointColors = this.names.map(sideColor);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} scale */
  draw(context, scale) {
    this.scale = scale;
    context.lineCap = "round";
    this.poses.forEach((/** @type {any} */ pose, /** @type {number} */ index) => {
      if (!this.items[index].on) return;
      const shown = (/** @type {number} */ point) =>
        pose.scores[point] >= this.threshold && pose.keypoints[point][0] !== null;
      for (const { name, start, end } of this.bones) {
        if (!shown(start) || !shown(end)) continue;
        context.strokeStyle = css(sideColor(name));
        context.lineWidth = 3 / scale;
        context.beginPath();
        context.moveTo(...toPair(pose.keypoints[start]));
        context.lineTo(...toPair(pose.keypoints[end]));
        context.stroke();
      }
      const jointed = new Set(this.bones.flatMap((bone) => [bone.start, bone.end]));
      for (let point = 0; point < this.names.length; point += 1) {
        if (!shown(point)) continue;
        const [x, y] = pose.keypoints[point];
        context.beginPath();
        context.arc(x, y, (jointed.has(point) ? 3.2 : 1.8) / scale, 0, 2 * Math.PI);
        context.fillStyle = css(this.pointColors[point]);
        context.fill();
        context.lineWidth = 0.8 / scale;
        context.strokeStyle = "rgb(0 0 0 / 0.55)";
        context.stroke();
      }
    });
  }

  /** @param {number} x @param {number} y @returns {Hover | null} */
  hover(x, y) {
    let nearest = HOVER_PIXELS / this.scale;
    let found = null;
    this.poses.forEach((/** @type {any} */ pose, /** @type {number} */ index) => {
      if (!this.items[index].on) return;
      pose.keypoints.forEach((/** @type {number[]} */ [px, py], /** @type {number} */ point) => {
        if (px === null || pose.scores[point] < this.threshold) return;
        const distance = Math.hypot(px - x - 0.5, py - y - 0.5);
        if (distance >= nearest) return;
        nearest = distance;
        const color = this.pointColors[point];
        found = { name: readable(this.names[point]), detail: scoreText(pose.scores[point]), color };
      });
    });
    return found;
  }
}

/** The sides of the body, and the colors of their keypoints and bones. @type {{name: string, color: Rgb}[]} */
export const SIDES = [
  { name: "Left", color: [56, 163, 255] },
  { name: "Right", color: [255, 138, 31] },
  { name: "Middle", color: [255, 255, 255] },
];

/** Return the color of a side of the body. @param {string} name  of a keypoint or bone @returns {Rgb} */
function sideColor(name) {
  const [left, right, middle] = SIDES;
  if (/(^|_)left_/.test(name)) return left.color;
  return /(^|_)right_/.test(name) ? right.color : middle.color;
}

/** @param {number[]} point @returns {[number, number]} */
function toPair([x, y]) {
  return [x, y];
}

/** What is seen behind people that are cut out. */
export class Backdrop {
  constructor() {
    /** @type {string | ImageBitmap | null} a CSS color, an image, or null for a checkerboard */
    this.fill = null;
    this.pattern = checkerboard();
  }

  /** @param {CanvasRenderingContext2D} context @param {number} scale @param {number} width @param {number} height */
  draw(context, scale, width, height) {
    if (this.fill instanceof ImageBitmap) {
      const fit = Math.max(width / this.fill.width, height / this.fill.height);
      const [w, h] = [width / fit, height / fit]; // the middle of the image that has the shape of the photo
      const [x, y] = [(this.fill.width - w) / 2, (this.fill.height - h) / 2];
      context.drawImage(this.fill, x, y, w, h, 0, 0, width, height);
    } else {
      const pattern = /** @type {CanvasPattern} */ (context.createPattern(this.pattern, "repeat"));
      pattern.setTransform(new DOMMatrix().scale(1 / scale));
      context.fillStyle = this.fill ?? pattern;
      context.fillRect(0, 0, width, height);
    }
  }
}

/** People over a color or another image. @implements {Layer} */
export class MatteLayer {
  /**
   * @param {ImageBitmap} cutout  with alpha
   */
  constructor(cutout) {
    this.cutout = cutout;
    this.backdrop = new Backdrop();
    const canvas = makeCanvas(cutout.width, cutout.height);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
    context.drawImage(cutout, 0, 0);
    this.pixels = context.getImageData(0, 0, cutout.width, cutout.height);
    this.isEmpty = !hasAlpha(this.pixels, PERSON_ALPHA);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} scale */
  draw(context, scale) {
    this.backdrop.draw(context, scale, this.cutout.width, this.cutout.height);
    context.drawImage(this.cutout, 0, 0);
  }

  /** @param {number} x @param {number} y @returns {Hover} */
  hover(x, y) {
    const alpha = this.pixels.data[4 * (y * this.pixels.width + x) + 3] / 255;
    return { name: alpha > PERSON_ALPHA / 255 ? "Person" : "Background", detail: `alpha ${alpha.toFixed(2)}` };
  }
}

/** @returns {HTMLCanvasElement} */
function checkerboard() {
  const canvas = makeCanvas(20, 20);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, 20, 20);
  context.fillStyle = "#d9d9de";
  context.fillRect(0, 0, 10, 10);
  context.fillRect(10, 10, 10, 10);
  return canvas;
}

/** The depth of each pixel, from a pointmap. */
export class DepthLayer extends ImageLayer {
  /**
   * @param {{points: Float32Array, mask: Uint8Array, width: number, height: number, metric: boolean}} cloud
   */
  constructor(cloud) {
    const canvas = makeCanvas(cloud.width, cloud.height);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const pixels = context.createImageData(cloud.width, cloud.height);
    const [near, far] = depthRange(cloud);
    for (let i = 0; i < cloud.mask.length; i += 1) {
      if (!cloud.mask[i]) continue;
      pixels.data.set([...depthColor((cloud.points[3 * i + 2] - near) / (far - near)), 255], 4 * i);
    }
    context.putImageData(pixels, 0, 0);
    super(canvas, cloud.width, cloud.height);
    this.cloud = cloud;
    this.isEmpty = !hasAlpha(pixels, 0);
  }

  /** @param {number} x @param {number} y @returns {Hover | null} */
  hover(x, y) {
    const at = y * this.width + x;
    if (!this.cloud.mask[at]) return null;
    const depth = this.cloud.points[3 * at + 2];
    return { name: "Depth", detail: `${depth.toFixed(2)}${this.cloud.metric ? " m" : ""}` };
  }
}

/**
 * Return near and far depths, without the outermost twentieths, where points of other things are.
 * @param {{points: Float32Array, mask: Uint8Array}} cloud
 * @returns {[number, number]}
 */
export function depthRange({ points, mask }) {
  const depths = [];
  const step = Math.max(1, Math.floor(mask.length / 50_000));
  for (let i = 0; i < mask.length; i += step) if (mask[i]) depths.push(points[3 * i + 2]);
  depths.sort((a, b) => a - b);
  if (!depths.length) return [0, 1];
  const near = depths[Math.floor(depths.length * 0.05)];
  const far = depths[Math.min(depths.length - 1, Math.floor(depths.length * 0.95))];
  return [near, far > near ? far : near + 1];
}
