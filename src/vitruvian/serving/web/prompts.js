/** Points and boxes on objects, with undo, and their masks. */

import { css, objectColor } from "./colors.js";

/**
 * @typedef {import("./viewer.js").PointPrompt} PointPrompt
 * @typedef {import("./viewer.js").Prompter} Prompter
 * @typedef {[number, number, number, number]} Box
 * @typedef {{id: number, frame: number, points: PointPrompt[], box: Box | null}} PromptedObject
 */

/** The prompts of an image, or of frames of a video. @implements {Prompter} */
export class Prompts {
  /**
   * @param {(ids: number[]) => void} onChange  called with the objects whose prompts changed; none if only the selection did
   */
  constructor(onChange) {
    this.onChange = onChange;
    /** @type {import("./viewer.js").Tool} */
    this.tool = "point";
    /** @type {PromptedObject[]} */
    this.objects = [];
    this.active = 1; // id of the object that gets the next prompt
    this.frame = 0; // frame that is shown
    /** @type {string[]} */
    this.history = [];
  }

  /** Remove everything. */
  clear() {
    this.tool = "point";
    this.objects = [];
    this.active = 1;
    this.frame = 0;
    this.history = [];
  }

  /** @private */
  remember() {
    this.history.push(JSON.stringify({ objects: this.objects, active: this.active }));
  }

  /** Take back the last change. */
  undo() {
    const last = this.history.pop();
    if (last === undefined) return;
    const before = this.objects;
    Object.assign(this, JSON.parse(last));
    const ids = new Set([...before, ...this.objects].map((object) => object.id));
    const own = (/** @type {PromptedObject[]} */ objects, /** @type {number} */ id) => JSON.stringify(objects.filter((object) => object.id === id));
    this.onChange([...ids].filter((id) => own(before, id) !== own(this.objects, id)));
  }

  /** Give the next prompt to a new object. */
  addObject() {
    if (!this.objects.some((object) => object.id === this.active)) return;
    this.remember();
    this.active = this.nextId();
    this.onChange([]);
  }

  /** @returns {number} */
  nextId() {
    return Math.max(0, ...this.objects.map((object) => object.id)) + 1;
  }

  /** @param {number} id */
  select(id) {
    this.active = id;
    this.onChange([]);
  }

  /** @param {number} id */
  remove(id) {
    this.remember();
    this.objects = this.objects.filter((object) => object.id !== id);
    this.active = this.objects.at(-1)?.id ?? 1;
    this.onChange([id]);
  }

  /** Return the prompts of an object in a frame, by default the one that is shown. @param {number} id @param {number} [frame] */
  find(id, frame = this.frame) {
    return this.objects.find((object) => object.id === id && object.frame === frame);
  }

  /** Return the prompts of the active object in this frame, made if there are none. @private */
  current() {
    let found = this.find(this.active);
    if (!found) {
      found = { id: this.active, frame: this.frame, points: [], box: null };
      this.objects.push(found);
    }
    return found;
  }

  /** @param {number} x @param {number} y @param {0 | 1} label */
  addPoint(x, y, label) {
    this.remember();
    this.current().points.push({ x: rounded(x), y: rounded(y), label });
    this.onChange([this.active]);
  }

  /** @param {Box} box */
  addBox(box) {
    this.remember();
    const object = this.current();
    object.box = /** @type {Box} */ (box.map(rounded));
    this.onChange([this.active]);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} scale */
  draw(context, scale) {
    for (const object of this.objects) {
      if (object.frame !== this.frame) continue;
      const color = objectColor(object.id - 1);
      if (object.box) {
        const [x1, y1, x2, y2] = object.box;
        context.lineWidth = (object.id === this.active ? 2.5 : 1.5) / scale;
        context.strokeStyle = css(color);
        context.strokeRect(x1, y1, x2 - x1, y2 - y1);
      }
      for (const point of object.points) drawPoint(context, scale, point, object.id === this.active);
    }
  }

  /**
   * Return the options of requests: objects with a box and objects without one need a request each.
   * @returns {{points?: number[][][], labels?: number[][], boxes?: Box[]}[]}
   */
  requests() {
    const groups = [this.objects.filter((object) => !object.box), this.objects.filter((object) => object.box)];
    return groups.filter((group) => group.length).flatMap((group) => {
      const pointed = group.filter((object) => object.points.length);
      const plain = group.filter((object) => !object.points.length);
      return [pointed, plain].filter((part) => part.length).map(promptOptions);
    });
  }
}

/**
 * Return the options of `segment` for objects that all have boxes or none, and points or none.
 * @param {PromptedObject[]} objects
 */
export function promptOptions(objects) {
  const pointed = objects[0].points.length > 0;
  return {
    ...(pointed && { points: objects.map((object) => object.points.map(({ x, y }) => [x, y])) }),
    ...(pointed && { labels: objects.map((object) => object.points.map(({ label }) => label)) }),
    ...(objects[0].box && { boxes: objects.map((object) => /** @type {Box} */ (object.box)) }),
  };
}

/**
 * Return the prompts of an object in a frame of a video, as the server takes them.
 * @param {PromptedObject} object
 */
export function trackPrompt({ id, frame, points, box }) {
  return {
    object_id: id,
    frame,
    ...(points.length && { points: points.map(({ x, y }) => [x, y]), labels: points.map(({ label }) => label) }),
    ...(box && { box }),
  };
}

/** @param {number} value @returns {number} */
function rounded(value) {
  return Math.round(value * 10) / 10;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} scale
 * @param {PointPrompt} point
 * @param {boolean} active
 */
function drawPoint(context, scale, { x, y, label }, active) {
  const radius = (active ? 7 : 5) / scale;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = label ? "#16a34a" : "#dc2626";
  context.fill();
  context.lineWidth = 1.8 / scale;
  context.strokeStyle = "#ffffff";
  context.stroke();
  context.beginPath();
  context.moveTo(x - radius * 0.5, y);
  context.lineTo(x + radius * 0.5, y);
  if (label) {
    context.moveTo(x, y - radius * 0.5);
    context.lineTo(x, y + radius * 0.5);
  }
  context.stroke();
}
