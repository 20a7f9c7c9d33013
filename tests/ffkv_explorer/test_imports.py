"""What runs a model is imported by the first page that needs it, while another thread prepares the first trace."""

import subprocess
import sys

import pytest
from support import OFFLINE

from ffkv_explorer.shelf import _in_background

CODE = """
import threading
from types import SimpleNamespace
from ffkv_explorer.page_memory import colours_of
from ffkv_explorer.page_trace import _once
from ffkv_explorer.shelf import LruCache, Shelf, prepare_in_background

shelf, memory = Shelf({}), SimpleNamespace(name="L0.3")
held = SimpleNamespace(run=None, colours=LruCache(1), answers={"generate": LruCache(1)})

def ask(page):
    try:
        page()
    except ImportError as error:
        print(error)
    except Exception:  # there is no run
        pass

pages = [
    lambda: prepare_in_background(shelf),
    lambda: colours_of(held, shelf, memory, "positive", [0]),
    lambda: _once(shelf, held, "generate", "the", {}),
]
threads = [threading.Thread(target=ask, args=[page]) for page in pages]
for thread in threads:
    thread.start()
for thread in [*threads, *set(threading.enumerate()) - {threading.main_thread()}]:
    thread.join()
"""


@pytest.mark.slow
def test_pages_that_are_asked_for_at_once_do_not_import_at_once():
    """transformers lacks names for a second thread while the first imports it."""
    done = run(CODE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


WATCHED = """
import sys
from pathlib import Path
from starlette.testclient import TestClient
from ffkv_explorer import shelf as shelves
from ffkv_explorer.application import create_application
from ffkv_explorer.security import Guard

loose = set()

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "scipy", "sklearn", "matplotlib", "transformers") and not shelves._importing.locked():
            loose.add(name)

sys.meta_path.insert(0, Watch())
shelf, guard = shelves.open_shelf([Path(sys.argv[1])]), Guard()
before = set(sys.modules)
client = TestClient(create_application(shelf, guard), base_url="http://127.0.0.1")
client.get("/?token=" + guard.token)
for address in sys.argv[2:]:
    assert "a defect of ffkv" not in client.get(guard.base + address).text, address  # this run has no model
for held in shelf.runs.values():
    for thread in (held.loading, held.measuring):
        thread and thread.join()
print(*sorted(loose), "scipy" in before)
"""
OF_RUN = ("", "memories", "m/0/0", "m/0/1?patterns=1", "claims.svg", "m/1/0/similar", "collections", "m/0/0?colours=1")


def run(code: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code, *arguments], env=OFFLINE, capture_output=True, text=True)


@pytest.mark.slow
def test_pages_import_large_packages_under_the_lock_alone(small):
    """Two threads that import at once find modules of scipy, torch or transformers that are not whole."""
    addresses = ("/", "/annotate", "/compare?a=small&b=small", *(f"/r/small/{place}" for place in OF_RUN))
    done = run(WATCHED, str(small), *addresses, "/r/small/trace?prompt=hidden")
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


def test_what_fails_in_the_background_is_left_to_the_page(capfd):
    def fail():
        raise AttributeError("partially initialized module 'torch' has no attribute 'Tensor'")

    _in_background(fail).join()
    assert capfd.readouterr().err == ""


WITHOUT = """
import sys
sys.modules["ffkv_annotation"] = None
from ffkv_explorer.application import KEEPING, PAGES
from ffkv_explorer.page_run import values
from ffkv_explorer.shelf import open_shelf
from pathlib import Path
print(values(open_shelf([Path(sys.argv[1])]).run("small"))["sheets"], *(path for path in (*PAGES, *KEEPING) if "annotate" in path))
"""


def test_without_annotation_only_its_pages_are_missing(small):
    done = run(WITHOUT, str(small))
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert done.stderr.startswith("ffkv: there are no pages of sheets, because ffkv_annotation cannot be imported")
    assert len(done.stderr.splitlines()) == 1
