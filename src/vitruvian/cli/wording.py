"""What the library says of its keywords → what people type: ``Use device='cpu'.`` → ``Use --device cpu.``

The library speaks to people who write Python. All that a command prints of its errors and warnings goes through
`as_typed`, which knows the options of the command that runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

Names = Mapping[str, str]  # keyword -> option
# The options of the command that runs; asked for when there is something to say.
NAMES: ContextVar[Callable[[], Names]] = ContextVar("NAMES", default=dict)

# keyword -> the command's own name for it, where that differs
OTHERWISE = {
    "K": "intrinsics",
    "background": "over",
    "crops_n_layers": "crop_layers",
    "input_boxes": "boxes",
    "input_points": "points",
    "label_ids_to_fuse": "fuse",
    "overlap_mask_area_threshold": "keep_share",
    "points_per_crop": "points_per_side",
    "pred_iou_thresh": "quality",
    "size_hw": "size",
    "stability_score_thresh": "stability",
    "tile_hw": "tile",
}
# What no option stands for.
SAYINGS = (
    ("or pass token=…", "or set HF_TOKEN."),
    ("(local_files_only or HF_HUB_OFFLINE)", "(HF_HUB_OFFLINE)"),
    ("Pass config=… with it.", "Put it there."),
    ('Pass kind="yolox" or "rtmdet" to OnnxFinder, or put it into the file name.', "Put either into the file's name."),
    ("a checkpoint for mask-generation", "a checkpoint for masks"),
    ("a checkpoint for instance,", "a checkpoint for instances,"),
    ("RenderOptions: ", "pictures: "),
)
QUOTED = r"'[^']*'|\"[^\"]*\""
# people="whole", device='cpu', boxes=…, size_hw=(4, 4), model='one' or 'another'
SET = re.compile(rf"(?<![^\s(])(\w+)=({QUOTED}|…|\([^()]*\)|[\w.:/-]*\w)((?: or (?:{QUOTED}))*)")
ENTRY = re.compile(r"(\w+)\[(\d+)\]")  # boxes[0]


def option_names(command: Any, words: Sequence[str]) -> dict[str, str]:
    """Return the options of the command that some words of a command line call, by the keywords they stand for.

    Args:
        command: The command of the whole program.
        words: The command line. A name that is one of its words is left out: messages then mean what was typed.
    """
    for word in words:
        if hasattr(command, "commands") and not word.startswith("-"):
            command = command.commands.get(word)
    found = {}
    for parameter in getattr(command, "params", ()):
        long = [option for option in parameter.opts if option.startswith("--")]
        if long:
            found[str(parameter.name)] = str(long[0])
    found |= {keyword: found[name] for keyword, name in OTHERWISE.items() if name in found and keyword not in found}
    return {keyword: option for keyword, option in found.items() if keyword not in words}


def as_typed(error: BaseException | str) -> str:
    """Return what an error or a text says, on one line and in the words of the command line."""
    text = " ".join(str(error).split())
    if not text:
        return type(error).__name__
    names = NAMES.get()()
    for said, meant in SAYINGS:
        text = text.replace(said, meant)
    text = SET.sub(lambda match: setting(match, names), text)
    subject, mark, rest = text.partition(": ")
    return subject_of(subject, names) + mark + rest


def setting(match: re.Match[str], names: Names) -> str:
    """Say a keyword with its value as an option."""
    keyword, value, more = match.groups()
    if keyword not in names:
        return match[0]
    return f"{names[keyword]} {unquoted(value)}".removesuffix(" …") + unquoted(more)


def unquoted(text: str) -> str:
    """Return a text without the quotes around its words."""
    return re.sub(QUOTED, lambda match: match[0][1:-1], text)


def subject_of(subject: str, names: Names) -> str:
    """Say keywords that a message is about as options: ``K and fov`` → ``--intrinsics and --fov``."""
    words = []
    for part in re.split(r"( and |, )", subject):
        entry = ENTRY.fullmatch(part)
        if entry and entry[1] in names:
            words.append(f"{names[entry[1]]} number {int(entry[2]) + 1}")
        else:
            words.append(names.get(part, part))
    return "".join(words)
