"""SAM 2 for images: masks of objects from clicks, boxes or earlier masks, and automatic masks."""
