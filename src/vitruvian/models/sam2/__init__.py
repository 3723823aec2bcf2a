"""SAM 2: masks from clicks, boxes or masks, automatic masks, and objects tracked through videos."""
