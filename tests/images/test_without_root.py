"""Images of a server that is an ordinary user's."""

import pytest
from boxes import Box
from making import base
from outlive_testing.api import output
from outlive_testing.ordinary import OrdinaryServer


@pytest.fixture(params=[True, False], ids=["granted-ids", "one-id"])
def box(request):
    with OrdinaryServer(granted=request.param) as server:
        box = Box(server)
        box.granted = request.param
        yield box


def run(sandbox, line: str) -> bytes:
    session = sandbox.sh(line)
    session.wait_exit()
    return output(session.events())


def test_an_image_is_taken_in_and_belongs_to_those_inside(box, tmp_path):
    archive = tmp_path / "base.tar"
    archive.write_bytes(base())
    box.outlive("image", "import", archive, "--name", "base:1")
    sandbox = box.sandbox(image="base:1")
    told = run(sandbox, "cat /marker; stat -c '%u %n' /bin/busybox /app /etc; "
                        "echo new > /data/old && rm /data/kept && echo changed")
    app = 1001 if box.granted else 0
    assert told.decode() == f"base\n0 /bin/busybox\n{app} /app\n0 /etc\nchanged\n"
    # The layer is as it was.
    other = box.sandbox(image="base:1")
    assert run(other, "cat /data/old /data/kept") == b"old\nkept\n"
    for each in (sandbox, other):
        each.delete()
    box.outlive("image", "rm", "base:1")
    assert box.layers() == set() and box.drafts() == []
