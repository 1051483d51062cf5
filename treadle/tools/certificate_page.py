"""The page that `treadle certify --report` writes: one HTML file without scripts, fonts or files from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from treadle.tools.certificate import Certificate, Losses
from treadle.tools.certificate_chart import PREDICTION_STYLE, predicted_times
from treadle.tools.report_chart import CHART_STYLE
from treadle.tools.report_page import PAGE_STYLE

LOSS_HEADINGS = ("points", "worst loss", "mean loss")


def certificate_page(title: str, symbols: str, certificates: Sequence[Certificate], others: Sequence[str]) -> str:
    """The whole page: for each dispatch its leaves, a picture of the predictions, and their numbers; then the kernels
    that every call runs.

    symbols: the range, as text; others: the kernels that no dispatch chooses
    """
    root = Element("html", {"lang": "en"})
    head = SubElement(root, "head")
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width,initial-scale=1"})
    SubElement(head, "title").text = f"{title}: certificate"
    SubElement(head, "style").text = PAGE_STYLE + CHART_STYLE + PREDICTION_STYLE
    body = SubElement(root, "body")
    SubElement(body, "h1").text = f"{title}: certificate"
    proved = f"Every call of {symbols} takes exactly one kernel of each group, which was proved from the artifact's IR."
    SubElement(body, "p").text = proved
    main = SubElement(body, "main")
    for number, certificate in enumerate(certificates):
        _add(main, number, certificate)
    if others:
        section = SubElement(main, "section")
        SubElement(section, "h2").text = "without a dispatch"
        _table(section, "Kernels that every call runs, in order", ("kernel",), [(name,) for name in others])
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def loss_texts(loss: Losses | None) -> tuple[str, str, str]:
    """What stands below LOSS_HEADINGS."""
    return ("0", "", "") if loss is None else (str(loss.points), f"{loss.worst:.1%}", f"{loss.mean:.1%}")


def _add(main: Element, number: int, certificate: Certificate) -> None:
    section = SubElement(main, "section")
    SubElement(section, "h2").text = f"dispatch {number}: {', '.join(dict.fromkeys(certificate.kernels))}"
    names = "; ".join(f"e{n} is {name}" for n, name in enumerate(certificate.names))
    paragraph = SubElement(section, "p", {"class": "faint"})
    SubElement(paragraph, "code").text = certificate.tree
    SubElement(paragraph, "span").text = f", where {names}"
    leaves = [
        (*(f"{low} to {high}" for low, high in leaf.extents), leaf.kernel, *loss_texts(Losses.of(certificate.at(leaf))))
        for leaf in certificate.leaves
    ]
    _table(section, "The leaves", (*certificate.names, "kernel", *LOSS_HEADINGS), leaves)
    if not certificate.points:
        SubElement(section, "p").text = "Nothing was predicted of its kernels."
        return
    figure = SubElement(section, "figure")
    figure.append(predicted_times(certificate, f"dispatch {number}"))
    points = [
        (
            *map(str, point.extents), f"{point.weight:.1%}", certificate.kernels[point.kernel],
            *(f"{seconds * 1e6:.1f}" for seconds in (*point.seconds, point.best)), f"{point.loss:.1%}",
        )
        for point in certificate.points
    ]  # fmt: skip
    times = (*(f"{kernel}, µs" for kernel in certificate.kernels), "best micro-kernel, µs")
    headings = (*certificate.names, "weight", "takes", *times, "loss")
    _table(section, "What was predicted, or measured by a search", headings, points)


def _table(parent: Element, caption: str, headings: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    table = SubElement(SubElement(parent, "div", {"class": "scroll"}), "table")
    SubElement(table, "caption").text = caption
    head = SubElement(SubElement(table, "thead"), "tr")
    for heading in headings:
        SubElement(head, "th", {"scope": "col"}).text = heading
    body = SubElement(table, "tbody")
    for row in rows:
        line = SubElement(body, "tr")
        for cell in row:
            kind = {"class": "number"} if cell[:1].isdigit() else {}
            SubElement(line, "td", kind).text = cell


__all__ = ["LOSS_HEADINGS", "certificate_page", "loss_texts"]
