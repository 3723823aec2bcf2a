"""SAM 2 for pictures: any object by click, box or earlier mask, or all of them at once."""
