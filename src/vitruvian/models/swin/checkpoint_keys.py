"""Names of Swin's weights in files, which are those of transformers 4, and in memory: those of transformers 5.

MaskFormer's Swin has the names of files in memory too.
"""

from vitruvian.weights import KeyRenames

RENAMED_KEYS: KeyRenames = (
    (r"\.attention\.self\.query\.", ".attention.q_proj."),
    (r"\.attention\.self\.key\.", ".attention.k_proj."),
    (r"\.attention\.self\.value\.", ".attention.v_proj."),
    (r"\.attention\.self\.relative_position_", ".attention.relative_position_bias.relative_position_"),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"(blocks\.\d+)\.intermediate\.dense\.", r"\1.mlp.fc1."),
    (r"(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
)
SAVED_KEYS: KeyRenames = (
    (r"\.attention\.q_proj\.", ".attention.self.query."),
    (r"\.attention\.k_proj\.", ".attention.self.key."),
    (r"\.attention\.v_proj\.", ".attention.self.value."),
    (r"\.attention\.relative_position_bias\.", ".attention.self."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"(blocks\.\d+)\.mlp\.fc1\.", r"\1.intermediate.dense."),
    (r"(blocks\.\d+)\.mlp\.fc2\.", r"\1.output.dense."),
)
BACKBONE_RENAMED_KEYS: KeyRenames = (*RENAMED_KEYS, (r"^(embeddings|encoder)\.", r"swin.\1."))
BACKBONE_SAVED_KEYS: KeyRenames = (*SAVED_KEYS, (r"^swin\.", ""))
