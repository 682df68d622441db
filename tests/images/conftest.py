import os

import pytest
from outlive_testing.server import Server

from boxes import Box
from making import BUSYBOX, Image, base, upper


@pytest.fixture(scope="session", autouse=True)
def tools():
    assert os.geteuid() == 0, "images are shown in namespaces, which this suite makes as root"
    assert BUSYBOX.exists(), "this needs busybox-static"


@pytest.fixture
def box():
    with Server() as server:
        yield Box(server)


@pytest.fixture(scope="session")
def image():
    settings = {"Env": ["PATH=/bin", "FROM_IMAGE=yes", "BOTH=image"], "User": "app",
                "WorkingDir": "/app"}
    return Image([base(), upper()], settings)
