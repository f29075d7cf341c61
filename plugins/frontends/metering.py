"""Puts a template's own steps on its budget: rewrites its syntax tree before compiling."""

from typing import Final

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

STEP: Final = "step"
JOINED_TEXT: Final = "joined_text"
"""Methods of the environment that metered templates call."""


class Metering(NodeTransformer):
    """A step in every loop iteration and macro call; ``a ~ b`` through a bounded join."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        return self._counted(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._counted(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._counted(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call(JOINED_TEXT, node.nodes, node.lineno)

    def _counted(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        step = nodes.ExprStmt(_call(STEP, [], node.lineno)).set_lineno(node.lineno)
        node.body.insert(0, step)
        return node


def _call(method: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    target = nodes.EnvironmentAttribute(method)
    call = nodes.Call(target, args, [], None, None)
    call.set_lineno(line)
    return call
