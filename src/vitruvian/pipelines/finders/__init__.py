"""Ways to find people, one a file; `vitruvian.pipelines.people.open_finder` picks one."""
