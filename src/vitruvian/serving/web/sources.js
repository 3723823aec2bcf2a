/** Where images and videos come from: dropped, pasted, chosen, the camera, or the example. */

import { ApiError, request } from "./api.js";
import { find } from "./dom.js";

/**
 * Listen to every way in which a file comes to the page.
 * @param {(file: File) => void} onFile
 * @param {(error: Error) => void} onError
 */
export function listenForFiles(onFile, onError) {
  const input = /** @type {HTMLInputElement} */ (find("#file"));
  input.addEventListener("change", () => {
    if (input.files?.[0]) onFile(input.files[0]);
    input.value = "";
  });
  for (const button of document.querySelectorAll("[data-action=choose]")) {
    button.addEventListener("click", () => input.click());
  }
  for (const button of document.querySelectorAll("[data-action=example]")) {
    button.addEventListener("click", () => openExample().then(onFile, onError));
  }
  for (const button of document.querySelectorAll("[data-action=paste]")) {
    button.addEventListener("click", () => readClipboard().then(onFile, onError));
  }
  for (const button of document.querySelectorAll("[data-action=camera]")) {
    button.addEventListener("click", () => openCamera(onFile).catch(onError));
  }
  listenForDrops(onFile);
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find(isMedia);
    if (!file) return;
    event.preventDefault();
    onFile(file);
  });
}

/** @param {File} file @returns {boolean} */
function isMedia(file) {
  return /^(image|video)\//.test(file.type) || isVideo(file);
}

/** @param {File} file @returns {boolean} */
export function isVideo(file) {
  return file.type.startsWith("video/") || /\.(mp4|mov|m4v|webm|mkv|avi)$/i.test(file.name);
}

/** @param {(file: File) => void} onFile */
function listenForDrops(onFile) {
  let depth = 0; // of nested elements that a file was dragged into
  const mark = () => document.body.classList.toggle("dropping", depth > 0);
  const holdsFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragenter", (event) => {
    if (!holdsFiles(event)) return;
    depth += 1;
    mark();
  });
  document.addEventListener("dragleave", (event) => {
    if (!holdsFiles(event)) return;
    depth -= 1;
    mark();
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    mark();
    const file = event.dataTransfer?.files[0];
    if (file) onFile(file);
  });
}

/** @returns {Promise<File>} */
async function openExample() {
  const blob = await (await request("web/example.jpg")).blob();
  return new File([blob], "astronaut.jpg", { type: "image/jpeg" });
}

/** @returns {Promise<File>} */
async function readClipboard() {
  let items;
  try {
    items = await navigator.clipboard.read();
  } catch {
    throw new ApiError("The browser does not allow reading the clipboard.", { hint: "Press Ctrl+V or ⌘V instead." });
  }
  for (const item of items) {
    const type = item.types.find((one) => one.startsWith("image/"));
    if (type) return new File([await item.getType(type)], `pasted.${type.split("/")[1]}`, { type });
  }
  throw new ApiError("There is no image in the clipboard.", { hint: "Copy an image first." });
}

/** Show the camera until a photo is taken or the dialog is closed. @param {(file: File) => void} onPhoto */
async function openCamera(onPhoto) {
  const dialog = /** @type {HTMLDialogElement} */ (find("#camera"));
  const video = /** @type {HTMLVideoElement} */ (find("#camera video"));
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1920 } }, audio: false });
  } catch {
    throw new ApiError("The camera cannot be used.", { hint: "Connect one, and allow this page to use it." });
  }
  video.srcObject = stream;
  dialog.showModal();
  dialog.addEventListener(
    "close",
    async () => {
      if (dialog.returnValue === "photo") onPhoto(await takePhoto(video));
      dialog.returnValue = "";
      stream.getTracks().forEach((track) => track.stop());
      video.srcObject = null;
    },
    { once: true },
  );
}

/** @param {HTMLVideoElement} video @returns {Promise<File>} */
async function takePhoto(video) {
  const canvas = document.createElement("canvas");
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d")?.drawImage(video, 0, 0);
  /** @type {Blob} */
  const blob = await new Promise((resolve) => {
    canvas.toBlob((made) => resolve(/** @type {Blob} */ (made)), "image/jpeg", 0.95);
  });
  return new File([blob], "photo.jpg", { type: "image/jpeg" });
}
