/** What the page knows about each task: its name, what it asks the server for, and the layer it makes of the answer. */

import { objectColor } from "./colors.js";
import { readable } from "./dom.js";
import {
  ColorLayer,
  DepthLayer,
  ImageLayer,
  LabelLayer,
  MaskLayer,
  MatteLayer,
  PoseLayer,
  describeColor,
  describeNormal,
} from "./layers.js";
import { readNpz } from "./npz.js";

/**
 * @typedef {import("./layers.js").Layer} Layer
 * @typedef {{keypoints: Object<string, any>, parts: {names: string[], colors: any[]}}} Layouts
 * @typedef {Object} TaskView
 * @property {string} title
 * @property {string} icon
 * @property {string} kind  of the answer that the layer is made of
 * @property {string} save  kind of file in the examples of code
 * @property {string[]} [copies]  kinds of files that equal another kind
 * @property {Object<string, any>} [options]  that the layer needs
 * @property {number} opacity  at first
 * @property {boolean} [onlyDetected]  whether the server by default leaves an image alone in which it detects no people
 * @property {(response: Response, layouts: Layouts) => Promise<Layer>} read
 */

/** @param {Response} response */
async function bitmap(response) {
  return createImageBitmap(await response.blob(), { colorSpaceConversion: "none", premultiplyAlpha: "none" });
}

/** @param {Response} response */
async function readMasks(response) {
  const { objects, size_hw: [height, width] } = await response.json();
  return new MaskLayer(objects, width, height);
}

/** @param {Response} response */
async function readDrawing(response) {
  const image = await bitmap(response);
  return new ImageLayer(image, image.width, image.height);
}

/** @param {number} area @param {number} whole */
function areaText(area, whole) {
  const share = (100 * area) / whole;
  return share < 0.1 ? "< 0.1 %" : `${share.toFixed(1)} %`;
}

/** Count each label. @param {ArrayLike<number>} labels @returns {Map<number, number>} */
function countLabels(labels) {
  const counts = new Map();
  for (let i = 0; i < labels.length; i += 1) counts.set(labels[i], (counts.get(labels[i]) ?? 0) + 1);
  return new Map([...counts].sort(([, a], [, b]) => b - a));
}

/** @param {Response} response */
async function readParts(response) {
  const { arrays: { labels, colors, score }, info } = await readNpz(await response.arrayBuffer());
  const [height, width] = labels.shape;
  const items = [...countLabels(labels.data)].filter(([id]) => id !== 0).map(([id, area]) => ({
    id,
    name: readable(info.names[id]),
    detail: areaText(area, labels.data.length),
    color: /** @type {any} */ (Array.from(colors.data.subarray(3 * id, 3 * id + 3))),
    on: true,
  }));
  return new LabelLayer(labels.data, width, height, items, score?.data ?? null);
}

/** @param {Response} response */
async function readSemantic(response) {
  const { arrays: { labels }, info } = await readNpz(await response.arrayBuffer());
  const [height, width] = labels.shape;
  const items = [...countLabels(labels.data)].map(([id, area]) => ({
    id,
    name: readable(info.id2label?.[id] ?? `class ${id}`),
    detail: areaText(area, labels.data.length),
    color: objectColor(id),
    on: true,
  }));
  return new LabelLayer(labels.data, width, height, items);
}

/** @param {Response} response */
async function readPanoptic(response) {
  const { arrays: { segmentation }, info } = await readNpz(await response.arrayBuffer());
  const [height, width] = segmentation.shape;
  const items = info.segments.map((/** @type {any} */ segment) => ({
    id: segment.id,
    name: readable(segment.label),
    detail: `score ${segment.score.toFixed(2)}`,
    color: objectColor(segment.id),
    on: true,
  }));
  return new LabelLayer(segmentation.data, width, height, items);
}

/** @param {Response} response */
async function readPointmap(response) {
  const { arrays: { points, mask }, info } = await readNpz(await response.arrayBuffer());
  const [height, width] = mask.shape;
  return new DepthLayer({ points: points.data, mask: mask.data, width, height, metric: info.metric });
}

/** Tasks in the order in which layers are drawn, the lowest first. @type {Object<string, TaskView>} */
export const TASK_VIEWS = {
  matte: {
    title: "Matte", icon: "matte", kind: "png", save: "png", opacity: 1,
    read: async (response) => new MatteLayer(await bitmap(response)),
  },
  albedo: {
    title: "Albedo", icon: "albedo", kind: "png", save: "png", opacity: 1, copies: ["plot"],
    read: async (response) => new ColorLayer(await bitmap(response), describeColor),
  },
  normals: {
    title: "Normals", icon: "normals", kind: "png", save: "png", opacity: 1, copies: ["plot"],
    read: async (response) => new ColorLayer(await bitmap(response), describeNormal),
  },
  pointmap: {
    title: "Points", icon: "points", kind: "npz", save: "ply", opacity: 0.9, copies: ["plot"], read: readPointmap,
  },
  embed: { title: "Features", icon: "features", kind: "plot", save: "npz", opacity: 0.8, read: readDrawing },
  semantic: { title: "Classes", icon: "classes", kind: "npz", save: "png", opacity: 0.6, read: readSemantic },
  panoptic: { title: "Panoptic", icon: "panoptic", kind: "npz", save: "json", opacity: 0.6, read: readPanoptic },
  parts: {
    title: "Body parts", icon: "parts", kind: "npz", save: "png", opacity: 0.65, options: { with_score: true },
    read: readParts,
  },
  instances: { title: "Instances", icon: "instances", kind: "json", save: "json", opacity: 0.7, read: readMasks },
  masks: { title: "Everything", icon: "everything", kind: "json", save: "json", opacity: 0.7, read: readMasks },
  segment: { title: "Click & segment", icon: "click", kind: "json", save: "json", opacity: 0.7, read: readMasks },
  track: { title: "Track", icon: "track", kind: "json", save: "mp4", opacity: 1, read: readMasks },
  pose: {
    title: "Pose", icon: "pose", kind: "json", save: "json", opacity: 1, onlyDetected: true, copies: ["png", "jpg"],
    read: async (response, layouts) => {
      const result = await response.json();
      return new PoseLayer(result, layouts.keypoints[result.layout]);
    },
  },
};

/** Tasks in the order in which they are listed. */
export const TASK_ORDER = [
  "pose", "parts", "matte", "normals", "pointmap", "albedo", "embed",
  "segment", "masks", "panoptic", "instances", "semantic", "track",
];
export const PEOPLE_TASKS = new Set(["pose", "parts", "matte", "normals", "pointmap", "albedo", "embed"]);
