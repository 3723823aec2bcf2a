"""Sapiens2: a vision transformer for people, with heads for pose, parts, normals, pointmaps, mattes and albedo."""
