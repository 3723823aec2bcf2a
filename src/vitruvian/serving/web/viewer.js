/** The image with its layers: zoom, pan, before and after, and what is under the pointer or the keyboard's cursor. */

import { announce, colorSwatch, find, make } from "./dom.js";

/**
 * @typedef {import("./layers.js").Layer} Layer
 * @typedef {import("./layers.js").Hover} Hover
 * @typedef {{x: number, y: number, label: 0 | 1}} PointPrompt
 * @typedef {"point" | "remove" | "box"} Tool
 * @typedef {Object} Prompter  takes clicks and boxes in pixels of the image
 * @property {Tool} tool
 * @property {(x: number, y: number, label: 0 | 1) => void} addPoint
 * @property {(box: [number, number, number, number]) => void} addBox
 * @property {(context: CanvasRenderingContext2D, scale: number) => void} draw
 */

const MAX_ZOOM = 40; // screen pixels in an image pixel
const CLICK_PIXELS = 4; // a pointer that moves less clicks
const KEY_ZOOM = 1.25;
const MIN_IN_SIGHT = 64; // screen pixels of the image that stay on the stage
const HANDLE_PIXELS = 20; // from the middle of the divider's handle to its edge

export class Viewer {
  constructor() {
    this.stage = find("#stage");
    this.canvas = /** @type {HTMLCanvasElement} */ (find("#canvas"));
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.divider = find("#divider");
    this.tooltip = find("#tooltip");
    /** @type {CanvasImageSource | null} */
    this.base = null;
    this.size = { width: 0, height: 0 };
    /** @type {{layer: Layer, opacity: number}[]} the lowest first */
    this.layers = [];
    /** @type {Prompter | null} */
    this.prompter = null;
    this.scale = 1;
    this.offset = { x: 0, y: 0 };
    this.compare = false;
    this.split = 0.5; // of the stage's width
    this.fitted = true;
    /** @type {{x: number, y: number} | null} in pixels of the image */
    this.cursor = null;
    /** @type {[number, number, number, number] | null} a box that is being drawn */
    this.box = null;
    /** @type {Map<number, {x: number, y: number}>} */
    this.pointers = new Map();
    /** @type {{x: number, y: number, moved: boolean, tool: Tool | null} | null} */
    this.drag = null;
    this.frame = 0;
    new ResizeObserver(() => this.resize()).observe(this.stage);
    this.listen();
  }

  /**
   * Show another image or video.
   * @param {CanvasImageSource | null} base
   * @param {number} width
   * @param {number} height
   */
  setBase(base, width, height) {
    this.base = base;
    this.size = { width, height };
    this.cursor = null;
    this.box = null;
    this.hideTooltip();
    this.fit();
  }

  /** @param {{layer: Layer, opacity: number}[]} layers */
  setLayers(layers) {
    this.layers = layers;
    this.render();
  }

  /** @param {boolean} on */
  setCompare(on) {
    this.compare = on;
    this.divider.hidden = !on;
    this.placeDivider(this.split);
  }

  /** Show the whole image. */
  fit() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!this.base || !width || !height) return this.render();
    const margin = width < 600 ? 12 : 24;
    const covered = this.canvas.getBoundingClientRect().bottom - this.lowestFree(); // by the bars below
    const room = [(width - 2 * margin) / this.size.width, (height - covered - 2 * margin) / this.size.height];
    this.scale = Math.min(...room, MAX_ZOOM);
    this.offset.x = (width - this.size.width * this.scale) / 2;
    this.offset.y = (height - covered - this.size.height * this.scale) / 2;
    this.fitted = true;
    return this.render();
  }

  /** Return the top of the bars over the stage, on the screen. @private */
  lowestFree() {
    const bars = [find(".toolbar"), find("#player")].filter((bar) => bar.offsetHeight);
    return Math.min(this.canvas.getBoundingClientRect().bottom, ...bars.map((bar) => bar.getBoundingClientRect().top));
  }

  /**
   * Zoom about a place on the stage, by default its middle.
   * @param {number} factor
   * @param {{x: number, y: number}} [center]
   */
  zoom(factor, center = { x: this.canvas.clientWidth / 2, y: this.canvas.clientHeight / 2 }) {
    if (!this.base) return;
    const smallest = Math.min(1, 100 / Math.max(this.size.width, this.size.height));
    const scale = Math.min(Math.max(this.scale * factor, smallest), MAX_ZOOM);
    const change = scale / this.scale;
    this.offset.x = center.x - (center.x - this.offset.x) * change;
    this.offset.y = center.y - (center.y - this.offset.y) * change;
    this.scale = scale;
    this.fitted = false;
    this.keepInSight();
    this.render();
  }

  /** @param {number} x @param {number} y  in pixels of the screen */
  pan(x, y) {
    this.offset.x += x;
    this.offset.y += y;
    this.fitted = false;
    this.keepInSight();
    this.render();
  }

  /** Move the image back where it would leave the stage. @private */
  keepInSight() {
    const bottom = this.lowestFree() - this.canvas.getBoundingClientRect().top;
    const within = (/** @type {number} */ offset, /** @type {number} */ size, /** @type {number} */ room) => {
      const rest = Math.min(MIN_IN_SIGHT, size, room);
      return Math.min(Math.max(offset, rest - size), room - rest);
    };
    this.offset.x = within(this.offset.x, this.size.width * this.scale, this.canvas.clientWidth);
    this.offset.y = within(this.offset.y, this.size.height * this.scale, bottom);
  }

  /** Draw with the next frame of the screen. */
  render() {
    if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
    }
  }

  /** @private */
  draw() {
    const { context, canvas } = this;
    const ratio = canvas.width / Math.max(1, canvas.clientWidth);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    this.stage.dataset.view = [this.offset.x, this.offset.y, this.scale].map((value) => value.toFixed(3)).join();
    find("#zoom-level").textContent = this.base ? `${Math.round(this.scale * 100)} %` : "";
    if (!this.base) return;
    context.setTransform(ratio * this.scale, 0, 0, ratio * this.scale, ratio * this.offset.x, ratio * this.offset.y);
    context.imageSmoothingEnabled = this.scale < 3;
    context.drawImage(this.base, 0, 0, this.size.width, this.size.height);
    context.save();
    if (this.compare) this.clip();
    for (const { layer, opacity } of this.layers) {
      context.globalAlpha = opacity;
      layer.draw(context, this.scale);
    }
    context.restore();
    this.prompter?.draw(context, this.scale);
    this.drawCursor();
  }

  /** Keep layers to the right of the divider, and inside of the image. @private */
  clip() {
    const left = (this.split * this.canvas.clientWidth - this.offset.x) / this.scale;
    this.context.beginPath();
    this.context.rect(left, 0, Math.max(0, this.size.width - left), this.size.height);
    this.context.clip();
  }

  /** @private */
  drawCursor() {
    const { context, scale } = this;
    const strokes = [[3.5, "rgb(0 0 0 / 0.6)"], [1.5, "#ffffff"]];
    for (const [width, color] of strokes) {
      context.lineWidth = Number(width) / scale;
      context.strokeStyle = String(color);
      context.beginPath();
      if (this.box) {
        const [x1, y1, x2, y2] = this.box;
        context.rect(Math.min(x1, x2), Math.min(y1, y2), Math.abs(x2 - x1), Math.abs(y2 - y1));
      }
      if (this.cursor) {
        const [x, y] = [this.cursor.x + 0.5, this.cursor.y + 0.5];
        for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
          context.moveTo(x + (4 * dx) / scale, y + (4 * dy) / scale);
          context.lineTo(x + (14 * dx) / scale, y + (14 * dy) / scale);
        }
      }
      context.stroke();
    }
  }

  /**
   * Draw the image with its layers at its own size.
   * @returns {Promise<Blob>}
   */
  async snapshot() {
    const canvas = document.createElement("canvas");
    canvas.width = this.size.width;
    canvas.height = this.size.height;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.drawImage(/** @type {CanvasImageSource} */ (this.base), 0, 0, canvas.width, canvas.height);
    for (const { layer, opacity } of this.layers) {
      context.globalAlpha = opacity;
      layer.draw(context, 1);
    }
    return new Promise((resolve) => {
      canvas.toBlob((blob) => resolve(/** @type {Blob} */ (blob)), "image/png");
    });
  }

  /** @private */
  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.placeDivider(this.split);
    if (this.fitted) return this.fit();
    this.keepInSight();
    return this.draw();
  }

  /** @param {number} split  share of the stage's width */
  placeDivider(split) {
    this.split = Math.min(Math.max(split, 0), 1);
    const [x, width] = [this.split * this.canvas.clientWidth, this.canvas.clientWidth];
    this.divider.style.left = `${this.split * 100}%`;
    this.divider.style.setProperty("--handle", `${Math.min(Math.max(x, HANDLE_PIXELS), width - HANDLE_PIXELS) - x}px`);
    this.divider.setAttribute("aria-valuenow", String(Math.round(this.split * 100)));
    this.render();
  }

  // ------------------------------------------------------------------------------------------ pointers and keys

  /** @private */
  listen() {
    const { canvas, stage, divider } = this;
    canvas.addEventListener("pointerdown", (event) => this.pointerDown(event));
    canvas.addEventListener("pointermove", (event) => this.pointerMove(event));
    canvas.addEventListener("pointerup", (event) => this.pointerUp(event));
    canvas.addEventListener("pointercancel", (event) => {
      this.pointers.delete(event.pointerId);
      this.drag = null;
      this.box = null;
    });
    canvas.addEventListener("pointerleave", () => this.hideTooltip());
    canvas.addEventListener("contextmenu", (event) => {
      if (this.prompter) event.preventDefault();
    });
    canvas.addEventListener("dblclick", () => {
      if (!this.prompter) this.fit();
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!this.base) return;
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), this.place(event));
      },
      { passive: false },
    );
    stage.addEventListener("keydown", (event) => this.keyDown(event));
    stage.addEventListener("blur", () => {
      this.cursor = null;
      this.hideTooltip();
      this.render();
    });
    divider.addEventListener("pointerdown", (event) => divider.setPointerCapture(event.pointerId));
    divider.addEventListener("pointermove", (event) => {
      if (divider.hasPointerCapture(event.pointerId)) this.placeDivider(this.place(event).x / canvas.clientWidth);
    });
    divider.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -0.02, ArrowRight: 0.02, PageDown: -0.1, PageUp: 0.1, Home: -1, End: 1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      this.placeDivider(this.split + step);
    });
  }

  /** Return where a pointer is on the stage. @param {PointerEvent | WheelEvent} event @private */
  place(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  /** Return the image's coordinates of a place on the stage. @param {{x: number, y: number}} place @private */
  toImage({ x, y }) {
    return { x: (x - this.offset.x) / this.scale, y: (y - this.offset.y) / this.scale };
  }

  /** @param {{x: number, y: number}} point @private */
  isInside({ x, y }) {
    return x >= 0 && y >= 0 && x < this.size.width && y < this.size.height;
  }

  /** @param {PointerEvent} event @private */
  pointerDown(event) {
    if (!this.base) return;
    this.canvas.setPointerCapture(event.pointerId);
    const place = this.place(event);
    this.pointers.set(event.pointerId, place);
    this.cursor = null;
    if (this.pointers.size > 1) {
      this.drag = null;
      this.box = null;
      return;
    }
    const inside = this.isInside(this.toImage(place));
    const tool = this.prompter && inside && event.button !== 1 ? this.prompter.tool : null;
    this.drag = { ...place, moved: false, tool };
  }

  /** @param {PointerEvent} event @private */
  pointerMove(event) {
    const place = this.place(event);
    const last = this.pointers.get(event.pointerId);
    if (!last) return this.hover(place);
    if (this.pointers.size === 2) {
      const other = /** @type {{x: number, y: number}} */ (
        [...this.pointers].find(([id]) => id !== event.pointerId)?.[1]
      );
      const before = Math.hypot(last.x - other.x, last.y - other.y);
      const now = Math.hypot(place.x - other.x, place.y - other.y);
      this.zoom(now / Math.max(1, before), { x: (place.x + other.x) / 2, y: (place.y + other.y) / 2 });
      this.pan((place.x - last.x) / 2, (place.y - last.y) / 2);
    } else if (this.drag) {
      this.drag.moved ||= Math.hypot(place.x - this.drag.x, place.y - this.drag.y) > CLICK_PIXELS;
      if (this.drag.moved && this.drag.tool === "box") this.dragBox(place);
      else if (this.drag.moved) this.pan(place.x - last.x, place.y - last.y);
    }
    this.pointers.set(event.pointerId, place);
    return undefined;
  }

  /** @param {{x: number, y: number}} place @private */
  dragBox(place) {
    const start = this.toImage(/** @type {{x: number, y: number}} */ (this.drag));
    const end = this.toImage(place);
    this.box = [start.x, start.y, ...this.clamped(end)];
    this.render();
  }

  /** @param {{x: number, y: number}} point @returns {[number, number]} @private */
  clamped({ x, y }) {
    return [Math.min(Math.max(x, 0), this.size.width), Math.min(Math.max(y, 0), this.size.height)];
  }

  /** @param {PointerEvent} event @private */
  pointerUp(event) {
    const drag = this.drag;
    this.pointers.delete(event.pointerId);
    this.drag = null;
    if (!drag?.tool || !this.prompter) return;
    if (this.box) this.finishBox();
    else if (!drag.moved) {
      const { x, y } = this.toImage(drag);
      const off = drag.tool === "remove" || event.altKey || event.button === 2;
      this.prompter.addPoint(x, y, off ? 0 : 1);
    }
  }

  /** @private */
  finishBox() {
    const [x1, y1, x2, y2] = /** @type {number[]} */ (this.box);
    this.box = null;
    this.render();
    if (Math.abs(x2 - x1) < 1 || Math.abs(y2 - y1) < 1) return;
    this.prompter?.addBox([Math.min(x1, x2), Math.min(y1, y2), Math.max(x1, x2), Math.max(y1, y2)]);
  }

  /** @param {KeyboardEvent} event @private */
  keyDown(event) {
    if (!this.base || event.target !== this.stage || event.ctrlKey || event.metaKey) return;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[/** @type {keyof typeof moves} */ (event.key)];
    if (move && event.shiftKey) this.pan(-60 * move[0], -60 * move[1]);
    else if (move) this.moveCursor(move, event.altKey ? 1 : 10);
    else if (event.key === "+" || event.key === "=") this.zoom(KEY_ZOOM);
    else if (event.key === "-") this.zoom(1 / KEY_ZOOM);
    else if (event.key === "0") this.fit();
    else if (event.key === "Escape") {
      this.box = null;
      this.cursor = null;
      this.hideTooltip();
      this.render();
    } else if (event.key === "Enter" && this.prompter && this.cursor) this.promptAtCursor(event.shiftKey);
    else return;
    event.preventDefault();
  }

  /** @param {number[]} move @param {number} pixels  of the screen @private */
  moveCursor([dx, dy], pixels) {
    const step = Math.max(1, Math.round(pixels / this.scale));
    const { width, height } = this.size;
    const { x, y } = this.cursor ?? { x: Math.floor(width / 2), y: Math.floor(height / 2) };
    this.cursor = {
      x: Math.min(Math.max(x + dx * step, 0), width - 1),
      y: Math.min(Math.max(y + dy * step, 0), height - 1),
    };
    if (this.box) this.box = [this.box[0], this.box[1], this.cursor.x + 0.5, this.cursor.y + 0.5];
    const found = this.describe(this.cursor);
    this.showTooltip(found, this.toStage(this.cursor));
    announce(`${this.cursor.x}, ${this.cursor.y}${found ? `: ${found.name}, ${found.detail}` : ""}`);
    this.render();
  }

  /** @param {boolean} off @private */
  promptAtCursor(off) {
    const { x, y } = /** @type {{x: number, y: number}} */ (this.cursor);
    if (this.prompter?.tool !== "box") this.prompter?.addPoint(x + 0.5, y + 0.5, off || this.prompter.tool === "remove" ? 0 : 1);
    else if (this.box) this.finishBox();
    else {
      this.box = [x + 0.5, y + 0.5, x + 0.5, y + 0.5];
      announce("Corner of a box. Move to the other corner and press Enter.");
    }
  }

  // ------------------------------------------------------------------------------------------ tooltip

  /** @param {{x: number, y: number}} place @private */
  hover(place) {
    if (!this.base) return;
    this.showTooltip(this.describe(this.toImage(place)), place);
  }

  /** Return what the uppermost layer has at a point. @param {{x: number, y: number}} point @returns {Hover | null} @private */
  describe(point) {
    if (!this.isInside(point)) return null;
    const left = (this.split * this.canvas.clientWidth - this.offset.x) / this.scale;
    if (this.compare && point.x < left) return null;
    for (const { layer } of this.layers.toReversed()) {
      const found = layer.hover(Math.floor(point.x), Math.floor(point.y));
      if (found) return found;
    }
    return null;
  }

  /** @param {{x: number, y: number}} point @private */
  toStage({ x, y }) {
    return { x: (x + 0.5) * this.scale + this.offset.x, y: (y + 0.5) * this.scale + this.offset.y };
  }

  /** @param {Hover | null} found @param {{x: number, y: number}} place @private */
  showTooltip(found, { x, y }) {
    if (!found) return this.hideTooltip();
    this.tooltip.replaceChildren(found.color ? colorSwatch(found.color) : "", make("strong", {}, found.name), make("span", {}, found.detail));
    this.tooltip.hidden = false;
    const right = x + this.tooltip.offsetWidth + 28 > this.canvas.clientWidth;
    this.tooltip.style.left = `${right ? x - this.tooltip.offsetWidth - 14 : x + 14}px`;
    this.tooltip.style.top = `${Math.max(4, y - 40)}px`;
    return undefined;
  }

  /** @private */
  hideTooltip() {
    this.tooltip.hidden = true;
  }
}
