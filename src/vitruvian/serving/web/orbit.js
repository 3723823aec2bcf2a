/** Points in space, seen from all sides. three.js is loaded when it is first needed. */

import { depthColor } from "./colors.js";
import { depthRange } from "./layers.js";

const MAX_POINTS = 400_000;
const LINES = 1200; // normals that are drawn
const SMOOTH_JUMP = 0.05; // share of the depth: neighbours farther apart are another surface

/**
 * @typedef {{points: Float32Array, mask: Uint8Array, width: number, height: number}} Cloud
 * @typedef {"photo" | "normals" | "depth"} Coloring
 */

export class OrbitView {
  /**
   * @param {HTMLElement} host
   * @returns {Promise<OrbitView>}
   */
  static async open(host) {
    const three = await import("./vendor/three/three.module.min.js");
    const { OrbitControls } = await import("./vendor/three/OrbitControls.js");
    return new OrbitView(host, three, OrbitControls);
  }

  /** @param {HTMLElement} host @param {any} three @param {any} OrbitControls @private */
  constructor(host, three, OrbitControls) {
    this.host = host;
    this.three = three;
    this.renderer = new three.WebGLRenderer({ antialias: true, alpha: true, preserveDrawingBuffer: true });
    this.renderer.setPixelRatio(window.devicePixelRatio);
    this.camera = new three.PerspectiveCamera(40, 1, 0.01, 1000);
    this.scene = new three.Scene();
    const element = this.renderer.domElement;
    element.tabIndex = 0;
    element.setAttribute("role", "application");
    element.setAttribute("aria-label", "Points in 3D. Arrow keys turn, plus and minus zoom, 0 resets the view.");
    host.replaceChildren(element);
    this.controls = new OrbitControls(this.camera, element);
    this.controls.addEventListener("change", () => this.render());
    element.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.keyDown(event));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(host);
    /** @type {any} */
    this.points = null;
    /** @type {any} */
    this.lines = null;
    /** @type {number[]} pixels of the image whose points are shown */
    this.indices = [];
    this.radius = 1;
  }

  /**
   * Show points.
   * @param {Cloud} cloud
   * @param {CanvasImageSource} photo
   * @param {CanvasImageSource | null} normals  a drawing of normals, for their colors
   */
  show(cloud, photo, normals) {
    this.cloud = cloud;
    this.photo = readPixels(photo, cloud);
    this.normals = normals ? readPixels(normals, cloud) : null;
    const count = cloud.mask.reduce((sum, one) => sum + one, 0);
    const step = Math.max(1, Math.ceil(count / MAX_POINTS));
    const indices = [];
    for (let i = 0, seen = 0; i < cloud.mask.length; i += 1) {
      if (cloud.mask[i] && seen++ % step === 0) indices.push(i);
    }
    this.indices = indices;
    const positions = new Float32Array(3 * indices.length);
    indices.forEach((index, i) => positions.set(this.position(index), 3 * i));
    const { three } = this;
    const geometry = new three.BufferGeometry();
    geometry.setAttribute("position", new three.BufferAttribute(positions, 3));
    const material = new three.PointsMaterial({ size: 2.6 * this.spacing() * step, vertexColors: true });
    if (this.points) this.scene.remove(this.points);
    this.points = new three.Points(geometry, material);
    this.scene.add(this.points);
    this.setColors("photo");
    this.showLines(false);
    this.reset();
    this.host.dataset.points = String(indices.length);
  }

  /** Set the normals of the points. @param {CanvasImageSource} drawing */
  setNormals(drawing) {
    this.normals = readPixels(drawing, /** @type {Cloud} */ (this.cloud));
    if (this.lines) this.showLines(true);
  }

  /** Return the usual distance of neighbouring points. @private */
  spacing() {
    const { Vector3 } = this.three;
    const distances = [];
    for (let i = 0; i + 1 < this.indices.length; i += 50) {
      if (this.indices[i + 1] !== this.indices[i] + 1) continue;
      distances.push(new Vector3(...this.position(this.indices[i])).distanceTo(new Vector3(...this.position(this.indices[i + 1]))));
    }
    return distances.sort((a, b) => a - b)[Math.floor(distances.length / 2)] ?? 0.01;
  }

  /** Return a point in the axes of three.js: y is up and the camera looks along −z. @param {number} index @private */
  position(index) {
    const { points } = /** @type {Cloud} */ (this.cloud);
    return [points[3 * index], -points[3 * index + 1], -points[3 * index + 2]];
  }

  /** @param {Coloring} coloring */
  setColors(coloring) {
    const { three, indices, cloud } = this;
    const colors = new Float32Array(3 * indices.length);
    const [near, far] = depthRange(/** @type {Cloud} */ (cloud));
    const image = coloring === "normals" ? this.normals : this.photo;
    const color = new three.Color();
    indices.forEach((index, i) => {
      const [red, green, blue] =
        coloring === "depth" || !image
          ? depthColor((/** @type {Cloud} */ (cloud).points[3 * index + 2] - near) / (far - near))
          : image.subarray(4 * index, 4 * index + 3);
      color.setRGB(red / 255, green / 255, blue / 255, three.SRGBColorSpace);
      colors.set([color.r, color.g, color.b], 3 * i);
    });
    this.points.geometry.setAttribute("color", new three.BufferAttribute(colors, 3));
    this.host.dataset.colors = coloring;
    this.render();
  }

  /** Draw the normals of some points as lines. @param {boolean} on */
  showLines(on) {
    if (this.lines) this.scene.remove(this.lines);
    this.lines = null;
    if (on) {
      const { three } = this;
      const length = this.radius * 0.035;
      const step = Math.max(1, Math.floor(this.indices.length / LINES));
      const ends = [];
      for (let i = 0; i < this.indices.length; i += step) {
        const normal = this.normalAt(this.indices[i]);
        if (!normal) continue;
        const start = this.position(this.indices[i]);
        ends.push(...start, ...start.map((value, axis) => value + length * normal[axis]));
      }
      const geometry = new three.BufferGeometry();
      geometry.setAttribute("position", new three.BufferAttribute(new Float32Array(ends), 3));
      this.lines = new three.LineSegments(geometry, new three.LineBasicMaterial({ color: 0x5b8def }));
      this.scene.add(this.lines);
    }
    this.host.dataset.lines = String(on);
    this.render();
  }

  /** Return the normal of a point: of the model where it was asked, otherwise of the surface. @param {number} index @private */
  normalAt(index) {
    if (this.normals) {
      const rgba = this.normals.subarray(4 * index, 4 * index + 4);
      return rgba[3] ? Array.from(rgba.subarray(0, 3), (value) => (value - 127.5) / 127.5) : null;
    }
    const { mask, width, height } = /** @type {Cloud} */ (this.cloud);
    const [x, y] = [index % width, Math.floor(index / width)];
    if (x + 1 >= width || y + 1 >= height || !mask[index + 1] || !mask[index + width]) return null;
    const { Vector3 } = this.three;
    const [here, right, below] = [index, index + 1, index + width].map((i) => new Vector3(...this.position(i)));
    if (Math.max(here.distanceTo(right), here.distanceTo(below)) > SMOOTH_JUMP * Math.abs(here.z)) return null;
    const normal = below.sub(here).cross(right.sub(here)).normalize();
    return [normal.x, normal.y, normal.z];
  }

  /** Look from the camera of the photo, at most of the points: single ones may be far away. */
  reset() {
    const step = Math.max(1, Math.floor(this.indices.length / 20_000));
    const sample = this.indices.filter((_, i) => i % step === 0).map((index) => this.position(index));
    const axes = [0, 1, 2].map((axis) => sample.map((point) => point[axis]).sort((a, b) => a - b));
    const at = (/** @type {number[]} */ values, /** @type {number} */ share) => values[Math.floor(values.length * share)] ?? 0;
    const [x, y] = axes.map((values) => (at(values, 0.04) + at(values, 0.96)) / 2);
    this.radius = Math.max(...axes.slice(0, 2).map((values) => (at(values, 0.96) - at(values, 0.04)) / 2), 1e-3);
    const center = new this.three.Vector3(x, y - 0.1 * this.radius, at(axes[2], 0.5)); // the tools are below
    this.controls.target.copy(center);
    this.camera.position.set(center.x, center.y, center.z + this.radius * 3.8);
    this.camera.near = this.radius / 100;
    this.camera.far = this.radius * 100;
    this.controls.update();
    this.resize();
  }

  /** @param {KeyboardEvent} event @private */
  keyDown(event) {
    const offset = this.camera.position.clone().sub(this.controls.target);
    const angles = new this.three.Spherical().setFromVector3(offset);
    if (event.key === "ArrowLeft") angles.theta -= 0.15;
    else if (event.key === "ArrowRight") angles.theta += 0.15;
    else if (event.key === "ArrowUp") angles.phi -= 0.15;
    else if (event.key === "ArrowDown") angles.phi += 0.15;
    else if (event.key === "+" || event.key === "=") angles.radius /= 1.2;
    else if (event.key === "-") angles.radius *= 1.2;
    else if (event.key === "0") return this.reset();
    else return undefined;
    event.preventDefault();
    angles.makeSafe();
    this.camera.position.copy(this.controls.target).add(new this.three.Vector3().setFromSpherical(angles));
    this.controls.update();
    return this.render();
  }

  /** Return the view as it is shown. @returns {Promise<Blob>} */
  snapshot() {
    const view = this.renderer.domElement;
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [view.width, view.height];
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.fillStyle = getComputedStyle(/** @type {HTMLElement} */ (this.host.parentElement)).backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(view, 0, 0);
    return new Promise((resolve) => {
      canvas.toBlob((blob) => resolve(/** @type {Blob} */ (blob)), "image/png");
    });
  }

  /** @private */
  resize() {
    const { clientWidth: width, clientHeight: height } = this.host;
    if (!width || !height) return;
    this.renderer.setSize(width, height);
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
    this.render();
  }

  /** @private */
  render() {
    this.renderer.render(this.scene, this.camera);
    this.host.dataset.view = this.camera.position.toArray().map((/** @type {number} */ value) => value.toFixed(3)).join();
  }
}

/** @param {CanvasImageSource} image @param {Cloud} cloud @returns {Uint8ClampedArray} */
function readPixels(image, { width, height }) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
  context.drawImage(image, 0, 0, width, height);
  return context.getImageData(0, 0, width, height).data;
}
