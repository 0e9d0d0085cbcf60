"""The README's claims that a machine can check: every file it names is there, and every file is named."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
NAMED = set(re.findall(r"`([\w/]+\.py)`", README))
MODULES = [path for path in sorted((ROOT / "flashlab").rglob("*.py")) if path.name != "__init__.py" and path.parent.name != "questions"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_module_is_named(path):
    relative = path.relative_to(ROOT / "flashlab").as_posix()
    assert relative in NAMED or path.name in NAMED, f"README.md does not name flashlab/{relative}"


def test_every_module_named_is_there():
    known = {path.relative_to(ROOT / "flashlab").as_posix() for path in MODULES} | {path.name for path in MODULES}
    assert NAMED <= known


def test_every_lesson_is_linked_and_every_link_leads_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", README)
    assert [link for link in links if not (ROOT / link).is_file()] == []
    lessons = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert lessons <= set(links)


def test_the_picture_has_alt_text_that_says_what_it_shows():
    [(alt, path)] = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", README)
    assert len(alt.split()) > 10
    assert (ROOT / path).read_bytes().startswith(b"\x89PNG")


def test_the_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (lab|test-gpu|test|record)\b", README)):
        assert re.search(rf"^[\w -]*\b{target}\b[\w -]*:", makefile, re.M), target
    command_line = (ROOT / "flashlab/cli.py").read_text()
    for command in set(re.findall(r"`?flashlab (lab|doctor|reset)\b", README)):
        assert f'"{command}"' in command_line
