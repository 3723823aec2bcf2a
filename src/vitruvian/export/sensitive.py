"""Which products of a graph lose most in int8, for little time that it would save.

Those that read the pictures; light ones at the end, which write the results; and those that read a gated layer, where
a few large values leave the others little room. Measured on the built-in model: with them in floating point keypoints
move a fifth as far, and a call takes a tenth longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

PRODUCTS = ("MatMul", "Convolution", "GroupConvolution", "ConvolutionBackpropData")


def outer_products(graph: Any) -> list[str]:
    """Return the names of the products that read an input, and of the light ones before an output."""
    found = names_of(nearest_products(graph.get_parameters(), readers))
    ends = nearest_products(graph.get_results())
    while ends:
        light = [node for node in ends if is_light(node) and node.get_friendly_name() not in found]
        found |= names_of(light)
        ends = nearest_products([before for node in light for before in sources(node)])
    return sorted(found)


def gated_products(graph: Any) -> list[str]:
    """Return the names of the matrix products that read one product times another, as gated feed-forwards have it."""
    found = []
    for node in graph.get_ordered_ops():
        if node.get_type_name() != "MatMul" or sources(node)[0].get_type_name() != "Multiply":
            continue
        factors = [nearest_products([factor]) for factor in sources(sources(node)[0])]
        if all(len(products) == 1 for products in factors) and len(names_of(factors[0] + factors[1])) == 2:
            found.append(node.get_friendly_name())
    return found


def sources(node: Any) -> list[Any]:
    """Return the nodes that a node reads."""
    return [value.get_node() for value in node.input_values()]


def readers(node: Any) -> list[Any]:
    """Return the nodes that read a node."""
    return [target.get_node() for output in node.outputs() for target in output.get_target_inputs()]


def nearest_products(nodes: list[Any], neighbours: Callable[[Any], list[Any]] = sources) -> list[Any]:
    """Return the first products on every way from some nodes, themselves too; ways through mere shapes do not count."""
    found, seen, todo = [], set(), list(nodes)
    while todo:
        node = todo.pop()
        name, kind = node.get_friendly_name(), node.get_type_name()
        if name in seen or kind == "ShapeOf":
            continue
        seen.add(name)
        if kind in PRODUCTS:
            found.append(node)
        else:
            todo += neighbours(node)
    return found


def names_of(nodes: Iterable[Any]) -> set[str]:
    """Return the names of nodes."""
    return {node.get_friendly_name() for node in nodes}


def is_light(node: Any) -> bool:
    """Tell whether a product is a 1×1 convolution, or one of a single vector for each picture."""
    if node.get_type_name() == "MatMul":
        rank = node.get_output_partial_shape(0).rank
        return bool(rank.is_static and rank.get_length() == 2)
    kernel = node.get_input_partial_shape(1)
    return bool(node.get_type_name() == "Convolution" and kernel.is_static and list(kernel.to_shape())[2:] == [1, 1])
