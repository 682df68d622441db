"""A server for this suite and the vendor's client pointed at it."""

import pytest
from outlive_testing.server import Server
from sandbox0 import Client


@pytest.fixture(scope="session")
def server():
    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    with Client(base_url=server.url, token=server.token, timeout=60) as made:
        yield made


@pytest.fixture(scope="session")
def sandbox(client):
    """The sandbox that all session stories share."""
    return client.claim_sandbox("default")
