"""The state of a video session as arrays, to stop a video and continue it later."""

from __future__ import annotations

import json

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.models.sam2.video_session import CONDITIONING, TRACKED, Sam2VideoInferenceSession

_STATE_INFO = "session"  # name of the entry of a state that describes the others

Arrays = dict[str, NDArray[np.generic]]


def session_state(session: Sam2VideoInferenceSession) -> Arrays:
    """Return what the model needs to continue after the last frame of a session, as arrays.

    Frames and prompts are not part of it: those that the model has read are not needed, others are added again.
    """
    arrays: Arrays = {}
    objects = []
    for index, obj_id in enumerate(session.obj_ids):
        outputs = session.output_dict_per_obj[index]
        frames = {kind: {} for kind in (CONDITIONING, TRACKED)}  # type: dict[str, dict[int, dict[str, str]]]
        for kind, by_frame in frames.items():
            for frame, tensors in outputs[kind].items():
                by_frame[frame] = {}
                for name, tensor in tensors.items():
                    key = f"{index}.{kind}.{frame}.{name}"
                    arrays[key], by_frame[frame][name] = _to_array(tensor)
        directions = {frame: way["reverse"] for frame, way in session.frames_tracked_per_obj[index].items()}
        objects.append({"id": obj_id, "outputs": frames, "reverse": directions})
    info = {"objects": objects, "num_frames": session.num_frames}
    return arrays | {_STATE_INFO: np.array(json.dumps(info))}


def restore_session(session: Sam2VideoInferenceSession, arrays: Arrays) -> None:
    """Continue a streaming session from what `session_state` returned."""
    if session.obj_ids or session.num_frames or not session.is_streaming:
        raise InputError("session: expected a new one without a video to restore a state into, got one in use.")
    try:
        info = json.loads(str(arrays[_STATE_INFO]))
        for stored in info["objects"]:
            index = session.obj_id_to_idx(int(stored["id"]))
            for kind in (CONDITIONING, TRACKED):
                for frame, names in stored["outputs"][kind].items():
                    tensors = {
                        name: _to_tensor(arrays[f"{index}.{kind}.{frame}.{name}"], dtype).to(session.inference_device)
                        for name, dtype in names.items()
                    }
                    session.store_output(index, int(frame), None, tensors, is_conditioning_frame=kind == CONDITIONING)
            session.frames_tracked_per_obj[index] = {
                int(frame): {"reverse": bool(way)} for frame, way in stored["reverse"].items()
            }
        session.skip_frames(int(info["num_frames"] or 0))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"state: expected what a session saved, got {type(error).__name__}: {error}. Start the video again."
        ) from error


def _to_array(tensor: Tensor) -> tuple[NDArray[np.generic], str]:
    """Return a tensor as an array, and the name of its data type; numpy has no bfloat16."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.detach().cpu().contiguous()
    return (plain.view(torch.int16) if tensor.dtype == torch.bfloat16 else plain).numpy().copy(), dtype


def _to_tensor(array: NDArray[np.generic], dtype: str) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
