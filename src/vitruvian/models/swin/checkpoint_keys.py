"""Names of Swin's weights in files, which are those of transformers 4, and in memory: those of transformers 5.

MaskFormer's Swin has the names of files in memory too.
"""

import re

from vitruvian.weights import KeyRenames

_NAMES = (  # of a block's weights: in files, in memory
    ("attention.self.query.", "attention.q_proj."),
    ("attention.self.key.", "attention.k_proj."),
    ("attention.self.value.", "attention.v_proj."),
    ("attention.self.relative_position_", "attention.relative_position_bias.relative_position_"),
    ("attention.output.dense.", "attention.o_proj."),
    ("intermediate.dense.", "mlp.fc1."),
    ("output.dense.", "mlp.fc2."),
)
RENAMED_KEYS: KeyRenames = tuple((rf"(blocks\.\d+\.){re.escape(old)}", rf"\g<1>{new}") for old, new in _NAMES)
SAVED_KEYS: KeyRenames = tuple((rf"(blocks\.\d+\.){re.escape(new)}", rf"\g<1>{old}") for old, new in _NAMES)
BACKBONE_RENAMED_KEYS: KeyRenames = (*RENAMED_KEYS, (r"^(embeddings|encoder)\.", r"swin.\1."))
BACKBONE_SAVED_KEYS: KeyRenames = (*SAVED_KEYS, (r"^swin\.", ""))
