import pytest
from outlive_testing.api import Api
from outlive_testing.server import Server


@pytest.fixture(scope="session")
def server():
    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def api(server):
    return Api(server)


@pytest.fixture(scope="session")
def sandbox(api):
    return api.sandbox()
