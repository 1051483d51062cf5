"""Index expressions as text: `d0 floordiv 512 * 2 + d1`, spelled as in MLIR's affine maps."""

from __future__ import annotations

from treadle.index.atom import Atom, Div, Mod, Monomial
from treadle.index.expr import Expr


def expression_text(e: Expr) -> str:
    """The text of an expression; a variable is written as its key. Equal expressions have equal texts.

    Products, quotients and remainders bind equally, from left to right, and more than sums, as in MLIR.
    """
    terms = sorted((_monomial(monomial), k) for monomial, k in e.terms)
    signed = [(k < 0, product if abs(k) == 1 else f"{product} * {abs(k)}") for product, k in terms]
    # Text that begins with a minus would be read as one of a number: what is added comes first.
    signed.sort(key=lambda term: term[0])
    if e.constant or not signed:
        signed.append((e.constant < 0, str(abs(e.constant))))
    (negative, first), *rest = signed
    text = f"0 - {first}" if negative and terms else f"-{first}" if negative else first
    return text + "".join(f" {'-' if minus else '+'} {term}" for minus, term in rest)


def _monomial(monomial: Monomial) -> str:
    first, *others = sorted(map(_atom, monomial))
    return " * ".join([first, *(f"({other})" if " " in other else other for other in others)])


def _atom(atom: Atom) -> str:
    if isinstance(atom, Div | Mod):
        argument = expression_text(atom.arg)
        dividend = argument if _is_one_term(atom.arg) else f"({argument})"
        return f"{dividend} {'floordiv' if isinstance(atom, Div) else 'mod'} {atom.divisor}"
    return str(atom)


def _is_one_term(e: Expr) -> bool:
    return not e.constant and len(e.terms) == 1 and e.terms[0][1] > 0


__all__ = ["expression_text"]
