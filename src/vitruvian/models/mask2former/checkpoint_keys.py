"""Names of Mask2Former's weights in files (transformers 4) and in memory (transformers 5)."""

from vitruvian.models.swin import checkpoint_keys as swin
from vitruvian.weights import KeyRenames

RENAMED_KEYS: KeyRenames = (
    *swin.RENAMED_KEYS,
    (r"(pixel_level_module\.encoder)\.(embeddings|encoder\.layers)\.", r"\1.swin.\2."),
)
SAVED_KEYS: KeyRenames = (*swin.SAVED_KEYS, (r"(pixel_level_module\.encoder)\.swin\.", r"\1."))
