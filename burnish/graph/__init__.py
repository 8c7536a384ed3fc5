"""The graph of operators, its verifier, its reference evaluation and its passes."""

from burnish.graph.graph import Attribute, Graph, GraphBuilder, Node, TensorType

__all__ = ["Attribute", "Graph", "GraphBuilder", "Node", "TensorType"]
