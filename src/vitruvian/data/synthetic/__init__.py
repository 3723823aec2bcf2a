"""Synthetic people: bodies, poses and clothes from one small pack, and the pictures drawn of them."""
