"""Many readers at once for a long time: no error, and no memory that is not given back."""

import http.client
import os
import random
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from .conftest import running

pytestmark = [pytest.mark.workflow, pytest.mark.slow, pytest.mark.large]
READERS = 8
REQUESTS = int(os.environ.get("FFKV_SOAK_REQUESTS", 96))  # of all readers together, after as many to warm up
WORDS = ["the", "return", "name", ".", "#5", "no such word", "/[a-z]+ing/", "<script>"]


def address(generator: random.Random) -> tuple[str, set[int]]:
    """An address, and the answers that are right."""
    layer, memory, word = generator.randrange(2), generator.randrange(128), generator.choice(WORDS)
    quoted = "".join(f"%{byte:02x}" for byte in word.encode())
    return generator.choice(
        [
            (f"/r/tiny/m/{layer}/{memory}", {200}),
            (f"/r/tiny/m/{layer}/{memory}?colours=1", {200}),
            (f"/r/tiny/m/{layer}/{memory}/similar", {200}),
            (f"/r/tiny/m/{layer}/{memory}?format=json", {200}),
            (f"/r/tiny/memories?promotes={quoted}", {200, 400}),
            (f"/r/tiny/memories?text={quoted}&sort=norm", {200}),
            (f"/r/tiny/memories?format=csv&layer={layer}", {200}),
            (f"/r/tiny/trace?prompt={quoted}&off=L{layer}.{memory}", {200, 429}),
            (f"/compare?memory=L{layer}.{memory}", {200}),
            (f"/r/tiny/m/{layer + 2}/{memory}", {404}),
            ("/r/tiny/", {200}),
        ]
    )


def test_eight_readers_for_a_long_time(tiny):
    with running(tiny) as server:
        host = server.base.removeprefix("http://")
        opening = http.client.HTTPConnection(host)
        opening.request("GET", server.address.removeprefix(server.base))
        headers = opening.getresponse().headers
        cookie, base = headers["set-cookie"].split(";")[0], headers["location"].rstrip("/")

        def read(reader: int, requests: int) -> list[tuple[str, int]]:
            generator, connection, wrong = random.Random(reader), http.client.HTTPConnection(host, timeout=300), []
            for _ in range(requests):
                asked, right = address(generator)
                connection.request("GET", base + asked, headers={"Cookie": cookie})
                answer = connection.getresponse()
                answer.read()
                if answer.status not in right:
                    wrong.append((asked, answer.status))
            return wrong

        def all_read(requests: int, first: int) -> list[tuple[str, int]]:
            with ThreadPoolExecutor(READERS) as pool:
                found = pool.map(read, range(first, first + READERS), [requests] * READERS)
                return [each for wrong in found for each in wrong]

        # Loads the model, which traces of busy readers may not get to.
        loading = http.client.HTTPConnection(host, timeout=300)
        loading.request("GET", f"{base}/r/tiny/trace?prompt=a&off=L0.0", headers={"Cookie": cookie})
        assert loading.getresponse().status == 200
        process, each = psutil.Process(server.process.pid), REQUESTS // READERS
        assert all_read(each, 0) == []
        before = process.memory_info().rss
        assert all_read(each, READERS) == []
        after = process.memory_info().rss
        print(f"{REQUESTS} requests: {before / 2**20:.0f} MiB, then {after / 2**20:.0f} MiB")
        assert after < 1.05 * before
        server.process.terminate()
        server.process.wait(30)
        assert server.process.stderr.read() == ""
