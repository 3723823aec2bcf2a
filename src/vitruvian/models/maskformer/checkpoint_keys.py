"""Names of MaskFormer's weights in files (transformers 4) and in memory (transformers 5)."""

from vitruvian.models.swin import checkpoint_keys as swin
from vitruvian.weights import KeyRenames

RENAMED_KEYS: KeyRenames = (
    *swin.SAVED_KEYS,  # the backbone has the names of files in memory too
    (r"(decoder\.layers\.\d+\.\w+_attn)\.out_proj\.", r"\1.o_proj."),
    (r"(decoder\.layers\.\d+)\.(fc[12])\.", r"\1.mlp.\2."),
)
SAVED_KEYS: KeyRenames = (
    (r"(decoder\.layers\.\d+\.\w+_attn)\.o_proj\.", r"\1.out_proj."),
    (r"(decoder\.layers\.\d+)\.mlp\.(fc[12])\.", r"\1.\2."),
)
