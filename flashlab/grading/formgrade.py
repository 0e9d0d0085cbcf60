"""For nbgrader's formgrader: a student's notebook as text that runs nothing in the browser of whoever grades it.

Formgrader shows HTML in Markdown as it is, from the address of the instructor's own Jupyter server: a script in an answer
could start a kernel there. nbgrader_config.py puts PlainAnswers last in autograde. Needs the extra `instructor`.
"""

from __future__ import annotations

import re

from nbgrader.exchange import ExchangeError
from nbgrader.exchange.default import ExchangeList
from nbgrader.preprocessors import NbGraderPreprocessor

TAG = re.compile(r"<(?=[A-Za-z/!?])")  # only these begin HTML; "a < b" stays
SCHEME = re.compile(r"(?i)\b(javascript|vbscript|data|file)(\s*(?::|&colon;|&#0*58;?|&#x0*3a;?))")
KEPT = ("kernelspec", "language_info")


class PlainAnswers(NbGraderPreprocessor):
    """Escapes tags and the addresses that run code; drops outputs, attachments and all metadata but nbgrader's."""

    def preprocess(self, nb, resources):
        nb.metadata = {key: value for key, value in nb.metadata.items() if key in KEPT}
        for place, cell in enumerate(nb.cells):
            nb.cells[place], resources = self.preprocess_cell(cell, resources, place)
        return nb, resources

    def preprocess_cell(self, cell, resources, cell_index):
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "nbgrader"}
        cell.pop("attachments", None)
        if cell.cell_type == "code":
            cell.outputs = []
        else:
            cell.source = SCHEME.sub(r"\1 \2", TAG.sub("&lt;", cell.source))
        return cell, resources


class NoExchange(ExchangeList):
    """nbgrader's exchange folder, which this course has none of: formgrader is told so, and logs no error at every page."""

    def ensure_root(self):
        raise ExchangeError("this course is handed in on a learning platform")
