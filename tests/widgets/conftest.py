"""The browser harness: one real JupyterLab and one headless Chromium for a test session, a notebook for each test.

    def test_it(open_notebook):
        lab = open_notebook(["from flashlab.widgets.quiz import Quiz", "w = Quiz(...); w"], theme="dark")
        lab.page.get_by_role("button", name="Check").click()      Playwright's page
        assert lab.kernel("w.done") == "True"                     evaluated in the notebook's own kernel
        lab.screenshot("quiz-dark")                               test-artefacts/quiz-dark.png

Without Chromium or Playwright such a test is skipped with a reason; with FLASHLAB_REQUIRE_BROWSER=1 it fails. Nothing of
the user's Jupyter configuration is read: HOME and all JUPYTER_* folders lie in a temporary folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from flashlab.doctor import chromium

REPOSITORY = Path(__file__).resolve().parents[2]
ARTEFACTS = REPOSITORY / "test-artefacts"
START_S, CELLS_S = 120, 180  # how long the server may take to start, and a notebook to run
CHROMIUM_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


def _no_browser(why: str) -> None:
    if os.environ.get("FLASHLAB_REQUIRE_BROWSER") == "1":
        pytest.fail(f"FLASHLAB_REQUIRE_BROWSER=1, but {why}")
    pytest.skip(f"no browser test: {why}")


class Server:
    """A running `jupyter lab` with its own root folder, token and port; `request` talks to its REST interface."""

    def __init__(self, folder: Path) -> None:
        self.root, self.token = folder / "root", secrets.token_hex(16)
        self._settings = folder / "settings"
        self._log_path = folder / "jupyterlab.log"
        for path in (self.root, self._settings):
            path.mkdir(parents=True)
        # No news prompt over the page: a reader would click it away.
        self.set("@jupyterlab/apputils-extension/notification", fetchNews="false", checkForUpdates=False)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))}
        environment |= {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
        environment |= {"HOME": str(folder), "IPYTHONDIR": str(folder / "ipython"), "JUPYTERLAB_SETTINGS_DIR": str(self._settings)}
        environment |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "JUPYTER_PLATFORM_DIRS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
        command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0"]
        command += [f"--ServerApp.root_dir={self.root}", f"--IdentityProvider.token={self.token}"]
        self._log = self._log_path.open("wb")
        self.process = subprocess.Popen(command, cwd=self.root, env=environment, stdout=self._log, stderr=subprocess.STDOUT)

    def wait(self) -> None:
        """Return once the server answers; raises RuntimeError with the end of its log if it does not."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                return self.request("GET", "/api/status") and None
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        raise RuntimeError(f"JupyterLab did not start:\n{self._log_path.read_text()[-4000:]}")

    def request(self, method: str, path: str) -> Any:
        """The JSON answer to a REST request, or None where the answer is empty."""
        request = urllib.request.Request(self.url + path, method=method, headers={"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or "null")

    def set(self, plugin: str, **values: object) -> None:
        """Write one plugin's user settings, e.g. set("@jupyterlab/apputils-extension/themes", theme="JupyterLab Dark")."""
        path = self._settings / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


class Notebook:
    """A notebook open in JupyterLab: `page` is Playwright's page, `kernel` and `execute` reach its kernel."""

    def __init__(self, page, path: Path) -> None:
        self.page, self.path = page, path
        self.console: list[str] = []
        page.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda fault: self.console.append(f"error: {fault}"))

    def run_all(self) -> None:
        """Run all cells and wait until the kernel is idle; an error in a cell fails the test."""
        self.page.evaluate("async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells') }")
        faults = self.page.locator('[data-mime-type="application/vnd.jupyter.error"]')
        if faults.count():
            pytest.fail("a cell raised:\n" + "\n".join(faults.all_inner_texts())[-4000:])

    def kernel(self, expression: str) -> str:
        """The repr of an expression, evaluated in the notebook's kernel behind its cells. Raises RuntimeError with the error."""
        reply = self._request("", {"it": expression})["user_expressions"]["it"]
        if reply["status"] != "ok":
            raise RuntimeError(f"{expression}: {reply['ename']}: {reply['evalue']}")
        return reply["data"]["text/plain"]

    def execute(self, code: str) -> None:
        """Run statements in the notebook's kernel, such as "w.step = 40". Raises RuntimeError with the error."""
        reply = self._request(code, {})
        if reply["status"] != "ok":
            raise RuntimeError(f"{code}: {reply['ename']}: {reply['evalue']}")

    def _request(self, code: str, expressions: dict[str, str]) -> dict:
        return self.page.evaluate(
            """async ([code, user_expressions]) => {
                const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel
                const content = {code, user_expressions, store_history: false, stop_on_error: false}
                return (await kernel.requestExecute(content).done).content
            }""",
            [code, expressions],
        )

    def wait_kernel(self, expression: str, expected: str, timeout_s: float = 10) -> None:
        """Wait until `kernel(expression)` is `expected`: what the page sends reaches the kernel a moment later.

        JupyterLab hands widgets' messages to another thread of the kernel than the one that answers here, so what a message
        brings may not be there yet, not even enough of it for the expression: an error is waited out like any other answer.
        """
        deadline = time.monotonic() + timeout_s
        while (given := self._answer(expression)) != expected:
            if time.monotonic() > deadline:
                pytest.fail(f"{expression} stayed {given}, not {expected}")
            self.page.wait_for_timeout(100)

    def wait_text(self, locator, text: str | re.Pattern) -> None:
        """Wait until an element's text is `text`, or has a match of it: a frame is drawn a moment after the kernel knows."""
        from playwright.sync_api import expect

        expect(locator).to_have_text(text)

    def _answer(self, expression: str) -> str:
        try:
            return self.kernel(expression)
        except RuntimeError as fault:
            return str(fault)

    def screenshot(self, name: str, locator=None) -> Path:
        """Save test-artefacts/<name>.png: the whole page, or one locator."""
        ARTEFACTS.mkdir(exist_ok=True)
        (locator or self.page).screenshot(path=ARTEFACTS / f"{name}.png")
        return ARTEFACTS / f"{name}.png"


def find_node() -> str | None:
    """The path of a Node: the first on PATH, else the one that Playwright brings; None without either."""
    if found := shutil.which("node"):
        return found
    playwright = importlib.util.find_spec("playwright")
    return shutil.which("node", path=Path(playwright.origin).with_name("driver")) if playwright and playwright.origin else None


@pytest.fixture(scope="session")
def node() -> str:
    """The command that runs a widget's JavaScript without a browser; without one the test is skipped."""
    return find_node() or pytest.skip("no node on PATH and no Playwright, so JavaScript is tested in the browser only")


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory):
    """One JupyterLab for the session (one for each xdist worker)."""
    if chromium() is None:
        _no_browser("no Chromium on PATH; install Debian's chromium or set FLASHLAB_CHROMIUM")
    server = Server(tmp_path_factory.mktemp("jupyterlab"))
    try:
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def browser(lab_server):
    """One headless Chromium for the session."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _no_browser("Playwright is not installed; pip install -e '.[test]'")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS, timeout=START_S * 1000)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def _context(browser):
    with browser.new_context(viewport={"width": 1120, "height": 1000}) as context:  # shared, so that assets stay cached
        yield context


@pytest.fixture
def open_notebook(lab_server, _context, request):
    """open_notebook(cells, *, run=True, kernel=True, theme="light") -> Notebook: written, opened, run until idle.

    A cell is code as a string, or a whole nbformat cell. With run=False nothing runs; with kernel=False no kernel even
    starts, so stored outputs show as in a fresh, untrusted clone. Notebooks and their kernels end with the test.
    """
    import nbformat

    opened: list[Notebook] = []

    def open_(cells: list, *, run: bool = True, kernel: bool = True, theme: str = "light") -> Notebook:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) if isinstance(c, str) else c for c in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path = lab_server.root / f"{request.node.name.split('[')[0]}-{secrets.token_hex(3)}.ipynb"
        nbformat.write(notebook, path)
        lab_server.set("@jupyterlab/apputils-extension/themes", theme=f"JupyterLab {theme.title()}")
        lab = Notebook(_context.new_page(), path)
        opened.append(lab)
        lab.page.set_default_timeout(START_S * 1000)
        lab.page.goto(f"{lab_server.url}/lab/{'tree/' + path.name if kernel else ''}?reset&token={lab_server.token}")
        lab.page.wait_for_function("window.jupyterapp?.restored")
        if not kernel:
            lab.page.evaluate(
                """async (path) => {
                    await window.jupyterapp.restored
                    const kernelPreference = {shouldStart: false, canStart: false, autoStartDefault: false}
                    await window.jupyterapp.commands.execute("docmanager:open", {path, factory: "Notebook", kernelPreference})
                }""",
                path.name,
            )
        lab.page.wait_for_function("[...window.jupyterapp.shell.widgets('main')].some(({sessionContext}) => sessionContext)")
        lab.page.evaluate(
            """async (kernel) => {
                const {shell} = window.jupyterapp
                const notebook = [...shell.widgets("main")].find(({sessionContext}) => sessionContext)
                shell.activateById(notebook.id)  // it may have been opened behind another tab
                shell.collapseLeft()
                await notebook.context.ready
                if (kernel) await notebook.sessionContext.ready
            }""",
            kernel,
        )
        lab.page.wait_for_function("window.jupyterapp.shell.currentWidget?.sessionContext")
        lab.page.set_default_timeout(CELLS_S * 1000)
        if run and kernel:
            lab.run_all()
        lab.page.set_default_timeout(15_000)
        return lab

    yield open_
    for lab in opened:
        for session in lab_server.request("GET", "/api/sessions"):
            if session["path"] == lab.path.name:
                lab_server.request("DELETE", f"/api/sessions/{session['id']}")
        lab.page.close()
