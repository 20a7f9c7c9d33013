"""What runs a model is imported by the first page that needs it, while another thread prepares the first trace."""

import subprocess
import sys

import pytest

CODE = """
import threading
from types import SimpleNamespace
from ffkv.apps.explorer.page_memory import colours_of
from ffkv.apps.explorer.page_trace import _once
from ffkv.apps.explorer.shelf import LruCache, Shelf, prepare_in_background

shelf, memory = Shelf({}), SimpleNamespace(name="L0.3")
held = SimpleNamespace(run=None, colours=LruCache(1), texts=LruCache(1))

def generate():
    from ffkv.run.trace.generate import generate

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
    lambda: _once(shelf, held.texts, "the", {}, generate),
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
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
